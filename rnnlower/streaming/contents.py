"""Small values that follow from constants and sizes, computed with NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.streaming.facts import Array, number, numbers

LARGEST = 2**20
"""Largest number of elements that is computed."""

Operands = Sequence[Array | None]
Compute = Callable[[ir.Node, Operands], Array]


def held(node: ir.Node) -> Array | None:
    """Return the content of a Constant."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref() or name not in _CONSTANTS:
            continue
        array = attribute.value.numpy() if name == "value" else np.array(attribute.value, _CONSTANTS[name])
        return array if array.size <= LARGEST else None
    return None


_CONSTANTS = {
    "value": None,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def compute(node: ir.Node, operands: Operands) -> Array | None:
    """Compute a node on its operands; ``None`` if that is not known or too large."""
    if node.domain or node.op_type not in _TABLE or len(node.outputs) != 1:
        return None
    with np.errstate(all="ignore"):
        try:
            result = np.asarray(_TABLE[node.op_type](node, operands))
        except (ValueError, IndexError, TypeError, KeyError, MemoryError):
            # Shape inference, or the run, will report what is wrong with the node.
            return None
    return result if result.size <= LARGEST else None


def _ints(node: ir.Node, operands: Operands, name: str, index: int) -> list[int] | None:
    """Return numbers that are an attribute in older versions of an operator, and an input in newer ones."""
    given = numbers(node, name)
    if given is not None:
        return list(given)
    operand = operands[index] if index < len(operands) else None
    return None if operand is None else [int(each) for each in operand.reshape(-1)]


def _divide(a: Array, b: Array) -> Array:
    # Division of integers truncates.
    quotient = np.divide(a, b)
    return quotient if a.dtype.kind == "f" else np.trunc(quotient).astype(a.dtype)


def _cast(node: ir.Node, operands: Operands) -> Array:
    assert operands[0] is not None
    return operands[0].astype(ir.DataType(number(node, "to", 1)).numpy())


def _squeeze(node: ir.Node, operands: Operands) -> Array:
    axes = _ints(node, operands, "axes", 1)
    return np.squeeze(_first(operands), None if axes is None else tuple(axes))


def _unsqueeze(node: ir.Node, operands: Operands) -> Array:
    return np.expand_dims(_first(operands), tuple(_ints(node, operands, "axes", 1) or ()))


def _reshape(node: ir.Node, operands: Operands) -> Array:
    data, target = _first(operands), _ints(node, operands, "shape", 1) or []
    if not number(node, "allowzero", 0):
        target = [data.shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    return data.reshape(target)


def _slice(node: ir.Node, operands: Operands) -> Array:
    data = _first(operands)
    starts, ends = (_ints(node, operands, name, index) or [] for name, index in (("starts", 1), ("ends", 2)))
    axes = _ints(node, operands, "axes", 3) or list(range(len(starts)))
    steps = _ints(node, operands, "steps", 4) or [1] * len(starts)
    where = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # The value that NumPy would read as counted from the end.
        stop = None if step < 0 and end < -data.shape[axis] else end
        where[axis] = slice(start, stop, step)
    return data[tuple(where)]


def _constant_of_shape(node: ir.Node, operands: Operands) -> Array:
    shape = [int(size) for size in _first(operands)]
    if math.prod(shape) > LARGEST:
        raise ValueError("too large")
    attribute = node.attributes.get("value")
    value = np.zeros(1, np.float32) if attribute is None else attribute.as_tensor().numpy()
    return np.full(shape, value.reshape(-1)[0], value.dtype)


def _expand(node: ir.Node, operands: Operands) -> Array:
    data, shape = _first(operands), _ints(node, operands, "", 1) or []
    full = np.broadcast_shapes(data.shape, tuple(shape))
    if math.prod(full) > LARGEST:
        raise ValueError("too large")
    return np.broadcast_to(data, full)


def _first(operands: Operands) -> Array:
    assert operands[0] is not None
    return operands[0]


def _elementwise(function: Callable[..., Array]) -> Compute:
    return lambda node, operands: function(*operands)


def _gather(node: ir.Node, operands: Operands) -> Array:
    assert operands[1] is not None
    return np.take(_first(operands), operands[1].astype(np.int64), axis=number(node, "axis", 0))


def _reduce(function: Callable[..., Array]) -> Compute:
    def reduce(node: ir.Node, operands: Operands) -> Array:
        axes = _ints(node, operands, "axes", 1)
        kept = bool(number(node, "keepdims", 1))
        return function(_first(operands), axis=None if axes is None else tuple(axes), keepdims=kept)

    return reduce


_TABLE: dict[str, Compute] = {
    "Abs": _elementwise(np.abs),
    "Add": _elementwise(np.add),
    "And": _elementwise(np.logical_and),
    "Cast": _cast,
    "Ceil": _elementwise(np.ceil),
    "Concat": lambda node, operands: np.concatenate(
        [each for each in operands if each is not None], number(node, "axis", 1)
    ),
    "ConstantOfShape": _constant_of_shape,
    "Div": _elementwise(_divide),
    "Equal": _elementwise(np.equal),
    "Expand": _expand,
    "Floor": _elementwise(np.floor),
    "Gather": _gather,
    "Greater": _elementwise(np.greater),
    "GreaterOrEqual": _elementwise(np.greater_equal),
    "Identity": _elementwise(lambda a: a),
    "Less": _elementwise(np.less),
    "LessOrEqual": _elementwise(np.less_equal),
    "Max": lambda node, operands: np.max(np.stack([a for a in operands if a is not None]), axis=0),
    "Min": lambda node, operands: np.min(np.stack([a for a in operands if a is not None]), axis=0),
    "Mod": _elementwise(np.mod),
    "Mul": _elementwise(np.multiply),
    "Neg": _elementwise(np.negative),
    "Not": _elementwise(np.logical_not),
    "Or": _elementwise(np.logical_or),
    "Range": _elementwise(np.arange),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "ReduceProd": _reduce(np.prod),
    "ReduceSum": _reduce(np.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Sqrt": _elementwise(np.sqrt),
    "Squeeze": _squeeze,
    "Sub": _elementwise(np.subtract),
    "Tile": lambda node, operands: np.tile(_first(operands), _ints(node, operands, "", 1) or []),
    "Transpose": lambda node, operands: np.transpose(_first(operands), numbers(node, "perm")),
    "Unsqueeze": _unsqueeze,
    "Where": _elementwise(np.where),
}
