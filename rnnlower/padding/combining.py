"""Operators that compute with single elements, and those that combine the steps: sums, means, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.padding.flow import Axes, PadFlow, Rule
from rnnlower.padding.sizes import NoRuleError
from rnnlower.timeflow.pointwise import POINTWISE

_ELEMENTWISE = (*POINTWISE, "BiasGelu", "FastGelu")
_FILLS = {
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceLogSum": 0.0,
    "ReduceLogSumExp": -math.inf,
    "ReduceMax": -math.inf,
    "ReduceMean": 0.0,
    "ReduceMin": math.inf,
    "ReduceProd": 1.0,
    "ReduceSum": 0.0,
    "ReduceSumSquare": 0.0,
}
"""What an operator reads as nothing."""


def broadcast(flow: PadFlow, node: ir.Node, indices: Sequence[int], rank: int) -> Axes:
    """Return the axes of operands that are aligned at their ends."""
    axes: Axes = {}
    for index in indices:
        value = node.inputs[index]
        for axis, size in flow.axes_of(value).items():
            place = rank - len(flow.shape(value)) + axis
            if axes.setdefault(place, size) != size:
                raise NoRuleError("combines values of different lengths")
    return axes


def _elementwise(flow: PadFlow, node: ir.Node) -> Axes:
    inputs = [index for index, value in enumerate(node.inputs) if value is not None]
    return broadcast(flow, node, inputs, len(flow.shape(node.outputs[0])))


def _along(flow: PadFlow, node: ir.Node, axes: Sequence[int], fill: float, keeps: bool = True) -> Axes:
    """Fill the padding on these axes; they are no longer over time, or removed unless kept."""
    rank = len(flow.shape(node.inputs[0]))
    along = {axis % rank for axis in axes}
    for axis in along & {*flow.axes_of(node.inputs[0])}:
        flow.fill(node, 0, axis, fill)
    return {
        axis - (0 if keeps else sum(other < axis for other in along)): size
        for axis, size in flow.axes_of(node.inputs[0]).items()
        if axis not in along
    }


def _reduced(flow: PadFlow, node: ir.Node) -> list[int]:
    rank, given = len(flow.shape(node.inputs[0])), flow.ints(node, "axes", 1)
    if given is None or not given[0]:
        return [] if node.attributes.get_int("noop_with_empty_axes", 0) else [*range(rank)]
    return [axis % rank for axis in given[0]]


def _reduce(flow: PadFlow, node: ir.Node) -> Axes:
    over, keeps = _reduced(flow, node), bool(node.attributes.get_int("keepdims", 1))
    before = flow.axes_of(node.inputs[0])
    axes = _along(flow, node, over, _FILLS[node.op_type], keeps)
    if node.op_type == "ReduceMean" and (counted := [before[axis] for axis in over if axis in before]):
        emitter = flow.emitter_for(node)
        if flow.dtype(node.inputs[0]).kind != "f":
            raise NoRuleError("averages integers over time")
        flow.replace(node, flow.of_all(emitter, node.outputs[0], counted), emitter)
    return axes


def _softmax(flow: PadFlow, node: ir.Node) -> Axes:
    rank, since = len(flow.shape(node.inputs[0])), flow.opset >= 13
    axis = node.attributes.get_int("axis", -1 if since else 1) % rank
    before = flow.axes_of(node.inputs[0])
    _along(flow, node, [axis] if since else range(axis, rank), -math.inf)
    return before


def _arg(flow: PadFlow, node: ir.Node) -> Axes:
    axis, rank = node.attributes.get_int("axis", 0), len(flow.shape(node.inputs[0]))
    if node.attributes.get_int("select_last_index", 0) and axis % rank in flow.axes_of(node.inputs[0]):
        raise NoRuleError("takes the last of equal positions")
    fill = -math.inf if node.op_type == "ArgMax" else math.inf
    return _along(flow, node, [axis], fill, bool(node.attributes.get_int("keepdims", 1)))


def _top(flow: PadFlow, node: ir.Node) -> list[Axes]:
    fill = -math.inf if node.attributes.get_int("largest", 1) else math.inf
    axes = _along(flow, node, [node.attributes.get_int("axis", -1)], fill)
    return [axes, axes]


def _cumulative(flow: PadFlow, node: ir.Node) -> Axes:
    given, axes = flow.ints(node, "axis", 1), flow.axes_of(node.inputs[0])
    assert given is not None
    if node.attributes.get_int("reverse", 0):
        _along(flow, node, given[0], 0.0)
    return axes


def _features(flow: PadFlow, node: ir.Node, over: Sequence[int], what: str) -> Axes:
    rank, axes = len(flow.shape(node.inputs[0])), flow.axes_of(node.inputs[0])
    if {axis % rank for axis in over} & {*axes} or any(map(flow.axes_of, node.inputs[1:])):
        raise NoRuleError(what)
    return axes


def _batch_norm(flow: PadFlow, node: ir.Node) -> Axes:
    if node.attributes.get_int("training_mode", 0):
        raise NoRuleError("normalizes by the statistics of its input")
    return _features(flow, node, [1], "has parameters that differ from step to step")


def _layer_norm(flow: PadFlow, node: ir.Node) -> list[Axes]:
    rank = len(flow.shape(node.inputs[0]))
    over = range(node.attributes.get_int("axis", -1) % rank, rank)
    return [_features(flow, node, over, "normalizes over time together with features")] * len(node.outputs)


def _instance_norm(flow: PadFlow, node: ir.Node) -> Axes:
    """Normalize by the mean and the variance of the valid elements."""
    value = node.inputs[0]
    axes, shape, dtype = flow.axes_of(value), flow.shape(value), flow.dtype(value)
    over = [axis for axis in axes if axis >= 2]
    if 1 in axes:
        raise NoRuleError("has parameters that differ from step to step")
    if not over:
        return axes
    for axis in over:
        flow.fill(node, 0, axis, 0.0)
    emitter, filled = flow.emitter_for(node), node.inputs[0]
    assert filled is not None
    where = [*range(2, len(shape))]

    def mean(each: ir.Value) -> ir.Value:
        result = emitter.with_axes("ReduceMean", each, where, since=18, keepdims=1)
        result.dtype = ir.DataType.from_numpy(dtype)
        return flow.of_all(emitter, result, [axes[axis] for axis in over])

    distance = emitter.op("Sub", filled, mean(filled))
    for axis in over:
        zero = emitter.constant(np.array(0, dtype))
        distance = emitter.op("Where", flow.mask(axes[axis], axis, len(shape)), distance, zero)
    epsilon = emitter.constant(np.array(node.attributes.get_float("epsilon", 1e-5), dtype))
    variance = mean(emitter.op("Mul", distance, distance))
    normal = emitter.op("Div", distance, emitter.op("Sqrt", emitter.op("Add", variance, epsilon)))
    scale, bias = (
        emitter.reshape(each, [-1, *[1] * len(where)]) for each in node.inputs[1:3] if each is not None
    )
    flow.replace(node, emitter.op("Add", emitter.op("Mul", normal, scale), bias), emitter)
    return axes


def _quantize(flow: PadFlow, node: ir.Node) -> Axes:
    return _features(flow, node, [], "has parameters that differ from step to step")


def _dynamic_quantize(flow: PadFlow, node: ir.Node) -> list[Axes]:
    # Its range holds zero in any case.
    axes = flow.axes_of(node.inputs[0])
    _along(flow, node, [*axes], 0.0)
    return [axes, {}, {}]


def _matmul(flow: PadFlow, node: ir.Node) -> Axes:
    ranks = [len(flow.shape(value)) for value in node.inputs[:2]]
    if 1 in ranks:
        raise NoRuleError("takes products of vectors")
    inner = (ranks[0] - 1, ranks[1] - 2)
    for index in (0, 1):
        if inner[index] in flow.axes_of(node.inputs[index]):
            flow.fill(node, index, inner[index], 0.0)
    rank = max(ranks)
    axes: Axes = {}
    for index in (0, 1):
        for axis, size in flow.axes_of(node.inputs[index]).items():
            place = rank - ranks[index] + axis
            if axis != inner[index] and axes.setdefault(place, size) != size:
                raise NoRuleError("combines values of different lengths")
    return axes


def _gemm(flow: PadFlow, node: ir.Node) -> Axes:
    axes: Axes = {}
    for index, name in enumerate(("transA", "transB")):
        summed = (1 - index) ^ node.attributes.get_int(name, 0)
        for axis, size in flow.axes_of(node.inputs[index]).items():
            if axis == summed:
                flow.fill(node, index, axis, 0.0)
            else:
                axes[index] = size
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        for axis, size in broadcast(flow, node, [2], 2).items():
            if axes.setdefault(axis, size) != size:
                raise NoRuleError("combines values of different lengths")
    return axes


def _einsum(flow: PadFlow, node: ir.Node) -> Axes:
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    if not arrow or "." in equation:
        raise NoRuleError(f"has the equation {equation!r}, which is not followed")
    axes: Axes = {}
    for index, term in enumerate(left.split(",")):
        for axis, size in flow.axes_of(node.inputs[index]).items():
            if term[axis] not in right:
                flow.fill(node, index, axis, 0.0)
            elif axes.setdefault(right.index(term[axis]), size) != size:
                raise NoRuleError("combines values of different lengths")
    return axes


def _lp_norm(flow: PadFlow, node: ir.Node) -> Axes:
    axes = flow.axes_of(node.inputs[0])
    _along(flow, node, [node.attributes.get_int("axis", -1)], 0.0)
    return axes


COMBINING: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_FILLS, _reduce),
    "ArgMax": _arg,
    "ArgMin": _arg,
    "BatchNormalization": _batch_norm,
    "CumSum": _cumulative,
    "DequantizeLinear": _quantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax,
    "LpNormalization": _lp_norm,
    "MatMul": _matmul,
    "QuantizeLinear": _quantize,
    "Softmax": _softmax,
    "TopK": _top,
}
