"""Quantized weights, cut as integers before their DequantizeLinear.

Quantizers and NPUs then find a DequantizeLinear in front of each product, and the file does not grow.

Before::

    W = DequantizeLinear<axis=1>(int8[1, 32, 4], scale[32])
    Y = LSTM(X, W, R)

After, for one group of gates::

    w = DequantizeLinear<axis=0>(int8[24, 4], scale[24])
    product = Gemm<transB=1>(x, w)
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.graph.constants import constant_of
from rnnlower.lowering.emitter import Emitter

_RANK = 3


@dataclasses.dataclass(frozen=True)
class _Scales:
    """The scale and zero point of some rows, their axis, and the number of elements that share one."""

    arrays: tuple[np.ndarray, ...]
    axis: int | None
    block_size: int = 0


def dequantized_rows(e: Emitter, value: ir.Value, direction: int, first: int, last: int) -> ir.Value | None:
    """Emit rows of a W or R ``[num_directions, rows, columns]`` that nothing else reads as a matrix.

    Returns ``None`` if the weight does not come from constant integers, or its scales cannot be cut by rows.
    """
    if not e.has("DequantizeLinear"):
        return None
    node = _read_once(value)
    if node is not None and node.op_type == "Concat" and node.attributes.get_int("axis", -1) == 0:
        # A Concat of the directions, one after the other.
        value, direction = node.inputs[direction] or value, 0
        node = _read_once(value)
    if node is None or node.op_type != "DequantizeLinear" or "output_dtype" in node.attributes:
        return None
    tensors = [constant_of(operand) for operand in node.inputs if operand is not None]
    integers = tensors[0]
    if integers is None or None in tensors or len(integers.shape) != _RANK or _reads(node.inputs[0]) > 1:
        return None
    if direction >= integers.shape.numpy()[0]:
        return None
    arrays = tuple(tensor.numpy() for tensor in tensors[1:] if tensor is not None)
    axis = node.attributes.get_int("axis", 1) % _RANK
    scales = _scales(arrays, axis, node.attributes.get_int("block_size", 0), direction, first, last)
    if scales is None:
        return None
    rows = ir.Tensor(integers.numpy()[direction, first:last], dtype=integers.dtype)
    name = (node.inputs[0].name if node.inputs[0] is not None else None) or ""
    operands = [e.tensor_constant(rows, name=name)]
    operands += [
        e.tensor_constant(ir.Tensor(array, dtype=tensor.dtype))
        for array, tensor in zip(scales.arrays, tensors[1:], strict=True)
        if tensor is not None
    ]
    attributes = {} if scales.axis is None else {"axis": scales.axis}
    if scales.block_size:
        attributes["block_size"] = scales.block_size
    return e.op("DequantizeLinear", *operands, since=10, **attributes)


def _scales(
    arrays: tuple[np.ndarray, ...], axis: int, block_size: int, direction: int, first: int, last: int
) -> _Scales | None:
    """Return the scales of the rows `first` to `last` of a direction."""
    if arrays[0].ndim == 0:
        return _Scales(arrays, None)
    if arrays[0].ndim == 1 and axis == 0:
        return _Scales(tuple(array[direction] for array in arrays), None)
    if arrays[0].ndim == 1:
        rows = slice(first, last) if axis == 1 else slice(None)
        return _Scales(tuple(array[rows] for array in arrays), axis - 1)
    if axis == 0 or not block_size or (axis == 1 and (first % block_size or last % block_size)):
        return None
    step = block_size if axis == 1 else 1
    rows = slice(first // step, last // step)
    return _Scales(tuple(array[direction, rows] for array in arrays), axis - 1, block_size)


def _read_once(value: ir.Value) -> ir.Node | None:
    """Return the producer of a value that has only one reader."""
    return value.producer() if _reads(value) == 1 and not value.is_graph_output() else None


def _reads(value: ir.Value | None) -> int:
    return 0 if value is None else len(tuple(value.uses()))
