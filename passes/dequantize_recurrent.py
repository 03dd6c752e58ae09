"""Quantized recurrent operators as float ones with dequantized weights.

X and H are no longer rounded to 8 bits, so the results are more precise.

Before::

    (float[3, 1, 1] X) => (float[3, 1, 1, 1] Y)
    <int8[1, 1, 4] W = {1, 2, 3, 4}, int8[1, 1, 4] R = {4, 3, 2, 1}, float[1] s = {0.5}, int8[1] z = {0}> {
        Y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1> (X, W, R, , , , , , s, z, s, z)
    }

After ``DequantizeRecurrentPass()``::

    (float[3, 1, 1] X) => (float[3, 1, 1, 1] Y)
    <int8[1, 4, 1] Wq = {1, 2, 3, 4}, float scale = {0.5}, int8[1, 4, 1] Rq = {4, 3, 2, 1}> {
        W = DequantizeLinear (Wq, scale)
        R = DequantizeLinear (Rq, scale)
        Y = LSTM <hidden_size = 1> (X, W, R)
    }
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.cleanup import remove_orphans
from rnnlower.graph.constants import constant_of
from rnnlower.graph.walk import Located, default_opset
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.replacing import Emitters
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import no_function_is_recurrent
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import MOST_INPUTS
from rnnlower.recurrent.parsing import parse_recurrent

_PER_AXIS = 13
"""The first opset whose DequantizeLinear has a scale for each row."""


def _nodes_are_floats(model: ir.Model, dequantizing: DequantizeRecurrentPass) -> bool:
    nodes = find_recurrent(model) if dequantizing._nodes is None else dequantizing._nodes
    return all(not located.node.domain for located in nodes)


class DequantizeRecurrentPass(Pass):
    """Makes DynamicQuantizeLSTM nodes of the main graph and its subgraphs LSTM nodes.

    Args:
        nodes: The nodes; those that are not quantized are left alone. ``None``: every recurrent node.
        keep_integers: Whether constant weights stay integers before a DequantizeLinear.
    """

    REQUIRES = (no_function_is_recurrent,)
    ENSURES = (_nodes_are_floats,)

    def __init__(self, nodes: Sequence[Located] | None = None, *, keep_integers: bool = True) -> None:
        super().__init__()
        self._nodes = nodes
        self._keep_integers = keep_integers

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Dequantize the nodes.

        Raises:
            InvalidModelError: A node breaks the ONNX spec.
        """
        found = find_recurrent(model) if self._nodes is None else self._nodes
        resolved = [(located, parse_recurrent(located)) for located in found]
        quantized = [(located, node) for located, node in resolved if node.is_quantized]
        emitters = Emitters(model)
        keep_integers = self._keep_integers and default_opset(model) >= _PER_AXIS
        for located, node in quantized:
            e = emitters.at(located.name, ir.DataType.FLOAT)
            weights = [_weight(e, node, name, keep_integers) for name in "WR"]
            _replace(located.node, weights, e.nodes)
        return ir.passes.PassResult(model, modified=bool(quantized))


def _replace(node: ir.Node, weights: Sequence[ir.Value], emitted: Sequence[ir.Node]) -> None:
    """Turn the node into an LSTM with these weights; it keeps its name, its outputs and its other inputs."""
    assert node.graph is not None
    node.graph.insert_before(node, emitted)
    old = [value for value in (*node.inputs[1:3], *node.inputs[MOST_INPUTS:]) if value is not None]
    node.resize_inputs(MOST_INPUTS)
    for index, weight in enumerate(weights, 1):
        node.replace_input_with(index, weight)
    node.domain, node.op_type = "", "LSTM"
    remove_orphans(old)


def _weight(e: Emitter, node: ResolvedNode, name: str, keep_integers: bool) -> ir.Value:
    """Emit W or R in the layout of LSTM, ``[num_directions, 4 * hidden_size, columns]``."""
    parts = [node.inputs[part] for part in (name, f"{name}_scale", f"{name}_zero_point")]
    tensors = [constant_of(value) for value in parts]
    known = [tensor.numpy() for tensor in tensors if tensor is not None]
    if len(known) < len(parts):
        return _at_run_time(e, *parts)
    values, scale, zero_point = known
    values = np.ascontiguousarray(values.transpose(0, 2, 1))
    if not keep_integers:
        centered = values.astype(np.float32) - _columns(zero_point.astype(np.float32))
        return e.constant(centered * _columns(scale), name=parts[0].name or "")
    lanes = [
        _dequantized(e, values[[d]], scale[d], zero_point[d], parts[0].name or "") for d in range(len(values))
    ]
    return e.concat(lanes, axis=0)


def _columns(array: np.ndarray) -> np.ndarray:
    """Return scales or zero points in a shape that broadcasts to the weights of LSTM."""
    return array.reshape(len(array), -1, 1)


def _dequantized(
    e: Emitter, values: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, name: str
) -> ir.Value:
    """Emit one direction's weights; a scale and a zero point for all of it, or for each row."""
    operands = [e.constant(values, name=name), e.constant(np.asarray(scale))]
    if np.any(zero_point):
        operands.append(e.constant(np.asarray(zero_point)))
    return e.op("DequantizeLinear", *operands, axis=1) if scale.ndim else e.op("DequantizeLinear", *operands)


def _at_run_time(e: Emitter, values: ir.Value, scale: ir.Value, zero_point: ir.Value) -> ir.Value:
    shape = e.integers(0, 1, -1)
    center = e.op("Reshape", e.cast(zero_point, e.dtype), shape, since=5)
    centered = e.op("Sub", e.cast(values, e.dtype), center)
    product = e.op("Mul", centered, e.op("Reshape", scale, shape, since=5))
    return e.transpose(product, [0, 2, 1])
