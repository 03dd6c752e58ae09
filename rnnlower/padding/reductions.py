"""Operators that compute with single elements, and those that combine the steps: sums, means, norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.graph.einsum import product_terms
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.operator_kinds import POINTWISE, axes_along, reduced_axes
from rnnlower.graph.walk import operand, producer_of, required_input
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.sizes import MIXED_ROWS, Axes, NoRuleError
from rnnlower.padding.validity_walk import PadFlow, Rule

_ELEMENTWISE = (*POINTWISE, "BiasGelu", "FastGelu")
_FILLS = {
    **dict.fromkeys(
        ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMean", "ReduceSum", "ReduceSumSquare"), 0.0
    ),
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMax"), -math.inf),
    "ReduceMin": math.inf,
    "ReduceProd": 1.0,
}
"""The neutral element of each operator."""
_NOT_CENTERED = ("RMSNormalization", "SimplifiedLayerNormalization")
_PARAMETERS = "has parameters that differ from step to step"


def elementwise(flow: PadFlow, node: ir.Node) -> Axes:
    if node.op_type in ("Div", "Mod") and flow.dtype(required_input(node, 1)).is_integer():
        # Runtimes stop at an integer zero.
        flow.fill_elements(node, 1, 1)
    return flow.broadcast(node, [index for index, value in enumerate(node.inputs) if value is not None])


def _reduce(flow: PadFlow, node: ir.Node) -> Axes:
    given, keeps = flow.ints(node, "axes", 1), bool(node.attributes.get_int("keepdims", 1))
    over = reduced_axes(node, len(flow.shape(node.inputs[0])), given[0] if given else None)
    before = flow.axes_of(node.inputs[0])
    axes = flow.fill_along(node, over, _FILLS[node.op_type], keeps)
    if node.op_type == "ReduceMean" and {*over} & {*before}:
        emitter, filled, rank = flow.emitter_for(node), required_input(node), len(flow.shape(node.inputs[0]))
        if emitter.dtype.numpy().kind != "f":
            raise NoRuleError("averages integers over time")
        result = flow.masks.mean(emitter, filled, over, before, rank)
        flow.replace(node, result if keeps else emitter.with_axes("Squeeze", result, over), emitter)
    return axes


def _normalize(fill: float, flow: PadFlow, node: ir.Node) -> Axes:
    axes = flow.axes_of(node.inputs[0])
    flow.fill_along(node, axes_along(node, len(flow.shape(node.inputs[0])), flow.opset), fill)
    return axes


def _arg_min_max(flow: PadFlow, node: ir.Node) -> Axes:
    along = axes_along(node, len(flow.shape(node.inputs[0])), flow.opset)
    if node.attributes.get_int("select_last_index", 0) and along[0] in flow.axes_of(node.inputs[0]):
        raise NoRuleError("takes the last of equal positions")
    fill = -math.inf if node.op_type == "ArgMax" else math.inf
    return flow.fill_along(node, along, fill, bool(node.attributes.get_int("keepdims", 1)))


def _top_k(flow: PadFlow, node: ir.Node) -> list[Axes]:
    fill = -math.inf if node.attributes.get_int("largest", 1) else math.inf
    along = axes_along(node, len(flow.shape(node.inputs[0])), flow.opset)
    size, count = flow.axes_of(node.inputs[0]).get(along[0]), flow.numbers(node.inputs[1])
    if size is not None and count is not None and len({each.item() for each in count}) == 1:
        flow.require(size, count[0].item())
    axes = flow.fill_along(node, along, fill)
    return [axes, axes]


def _cumsum(flow: PadFlow, node: ir.Node) -> Axes:
    given, axes = flow.ints(node, "axis", 1) or [], flow.axes_of(node.inputs[0])
    flow.refuse_rows(node.inputs[0], given[0][0] % len(flow.shape(node.inputs[0])))
    if node.attributes.get_int("reverse", 0):
        flow.fill_along(node, given[0], 0.0)
    return axes


def _quantize(flow: PadFlow, node: ir.Node) -> Axes:
    return flow.feature_axes(node, [], _PARAMETERS)


def _dynamic_quantize(flow: PadFlow, node: ir.Node) -> list[Axes]:
    return [_fill_range(flow, node), {}, {}]


def _fill_range(flow: PadFlow, node: ir.Node) -> Axes:
    """Fill the padding of an input that is quantized by its range, which holds zero in any case."""
    axes = flow.axes_of(node.inputs[0])
    if any(size.has_rows for size in axes.values()):
        raise NoRuleError(MIXED_ROWS)
    for size in flow.lengths_of(node.inputs[0]).values():
        flow.require(size, 1)
    flow.fill_elements(node, 0, 0.0)
    return axes


def _product(
    flow: PadFlow, node: ir.Node, indices: Sequence[int] = (0, 1), zeros: Sequence[int] = ()
) -> Axes:
    """Return the axes of a product of matrices or an Einsum, whose summed axes are filled with zeros.

    Args:
        indices: The inputs that are the factors.
        zeros: The inputs that hold what stands for zero in each factor, if it is not 0.
    """
    terms, result = product_terms(node, [len(flow.shape(node.inputs[index])) for index in indices])
    if not terms:
        equation = node.attributes.get_string("equation", "").replace(" ", "")
        raise NoRuleError(f"has the equation {equation!r}, which is not supported")
    axes: Axes = {}
    for side, (index, term) in enumerate(zip(indices, terms, strict=False)):
        for axis, size in flow.axes_of(node.inputs[index]).items():
            if term[axis] in result:
                flow.add_axis(axes, result.index(term[axis]), size)
            else:
                flow.fill(node, index, axis, _zero_point(flow, node, zeros, side))
    return axes


def _zero_point(flow: PadFlow, node: ir.Node, zeros: Sequence[int], side: int) -> float | ir.Value:
    value = operand(node, zeros[side]) if zeros else None
    if value is not None and math.prod(flow.shape(value)) != 1:
        raise NoRuleError("sums integers with several zero points over time")
    return 0.0 if value is None else value


def _matmul(flow: PadFlow, node: ir.Node) -> Axes:
    if any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB")):
        raise NoRuleError("moves the batch of a product")
    return _product(flow, node)


def _matmul_to_float(flow: PadFlow, node: ir.Node) -> Axes:
    # Scales, zero points and the bias belong to features.
    axes = _product(flow, node, zeros=(4, 5))
    if any(map(flow.axes_of, node.inputs[2:])):
        raise NoRuleError("has scales that differ from step to step")
    return axes


def _dynamic_matmul(flow: PadFlow, node: ir.Node) -> Axes:
    _fill_range(flow, node)
    return _product(flow, node)


def _gemm(flow: PadFlow, node: ir.Node) -> Axes:
    axes = _product(flow, node)
    if operand(node, 2) is not None:
        for axis, size in flow.broadcast(node, [2]).items():
            flow.add_axis(axes, axis, size)
    return axes


def _rotary(flow: PadFlow, node: ir.Node) -> Axes:
    axes = flow.axes_of(node.inputs[0])
    if len(flow.shape(node.inputs[0])) - 1 in axes:
        raise NoRuleError("has features over time")
    positions = 1 if node.domain else 3
    if operand(node, positions) is not None:
        if flow.shape(node.inputs[positions]) == (1,):
            # The position of the first step; the others follow it.
            flow.refuse_rows(node.inputs[0], len(flow.shape(node.inputs[0])) - 2)
        flow.fill_positions(node, positions)
    return axes


def _emit_normalized(
    flow: PadFlow, node: ir.Node, emitter: Emitter, value: ir.Value, axes: Axes, where: range
) -> ir.Value:
    """Normalize a value over its last axes, by the mean and the variance of the valid elements."""
    over = {axis: axes[axis] for axis in where if axis in axes}
    zero, rank = emitter.scalar(0), where.stop

    def valid(each: ir.Value) -> ir.Value:
        for axis, size in over.items():
            each = emitter.op("Where", flow.masks.mask(size, axis, axes, rank), each, zero)
        return each

    def mean(each: ir.Value) -> ir.Value:
        return flow.masks.mean(emitter, each, where, axes, rank)

    value = valid(value)
    if node.op_type not in _NOT_CENTERED:
        value = valid(emitter.op("Sub", value, mean(value)))
    square = mean(emitter.op("Mul", value, value))
    more = emitter.scalar(node.attributes.get_float("epsilon", 1e-5))
    return emitter.op("Div", value, emitter.op("Sqrt", emitter.op("Add", square, more)))


def _batch_norm(flow: PadFlow, node: ir.Node) -> Axes:
    if node.attributes.get_int("training_mode", 0) or len(node.outputs) > 1:
        raise NoRuleError("normalizes by the statistics of its input")
    return flow.feature_axes(node, [1], _PARAMETERS)


def _layer_norm(flow: PadFlow, node: ir.Node) -> list[Axes]:
    """Normalize; scale and bias are aligned with the last axes."""
    value, axes = required_input(node), flow.axes_of(node.inputs[0])
    rank = len(flow.shape(value))
    where = axes_along(node, rank, flow.opset)
    if not {*where} & {*axes}:
        flow.feature_axes(node, where, _PARAMETERS)
        return [axes] * len(node.outputs)
    emitter = flow.emitter_for(node)
    result = _emit_normalized(flow, node, emitter, value, axes, where)
    for op_type, each in zip(("Mul", "Add"), node.inputs[1:], strict=False):
        result = result if each is None else emitter.op(op_type, result, each)
    flow.replace(node, result, emitter)
    return [axes]


def _skip_norm(flow: PadFlow, node: ir.Node) -> list[Axes]:
    rank = len(flow.shape(node.inputs[0]))
    axes = flow.broadcast(node, [0, 1])
    if rank - 1 in axes or any(map(flow.axes_of, node.inputs[2:])):
        raise NoRuleError(_PARAMETERS)
    return [axes] * len(node.outputs)


def _channel_norm(flow: PadFlow, node: ir.Node) -> Axes:
    """Normalize each channel (InstanceNormalization), or each group of them."""
    value, shape = required_input(node), flow.shape(node.inputs[0])
    axes = flow.feature_axes(node, [1], _PARAMETERS)
    if not any(axis >= 2 for axis in axes):
        return axes
    emitter, spatial = flow.emitter_for(node), [1] * (len(shape) - 2)
    sizes = flow.sizes(emitter, value, range(len(shape)))
    groups = node.attributes.get_int("num_groups", 0)
    each_has = not groups or flow.shape(node.inputs[1]) == (shape[1],)
    if groups:
        value = emitter.reshape(value, [sizes[0], groups, shape[1] // groups, *sizes[2:]])
        axes_of_groups = {axis + (axis >= 2): size for axis, size in axes.items()}
        result = _emit_normalized(flow, node, emitter, value, axes_of_groups, range(2, len(shape) + 1))
    else:
        result = _emit_normalized(flow, node, emitter, value, axes, range(2, len(shape)))
    if groups and each_has:
        result = emitter.reshape(result, sizes)
    for op_type, each in zip(("Mul", "Add"), node.inputs[1:], strict=True):
        assert each is not None
        # Up to opset 20 the parameters belong to groups.
        each = emitter.reshape(each, [-1, *spatial] if each_has else [-1, 1, *spatial])
        result = emitter.op(op_type, result, each)
    flow.replace(node, result if each_has else emitter.reshape(result, sizes), emitter)
    return axes


def unfold_groups(model: ir.Model) -> None:
    """Give groups of channels their spatial axes, before InstanceNormalization, in place of one long axis.

    PyTorch writes GroupNorm so below opset 21; time would be folded after the channels of a group.
    """
    facts, pool = Facts(model), InitializerPool(model, NameSource(all_names(model)))
    for node in model.graph:
        value = node.inputs[0] if node.op_type == "InstanceNormalization" else None
        before = producer_of(value, "Reshape")
        if before is None or len(before.outputs[0].uses()) > 1 or not _is_unfolded(node.outputs[0], facts):
            continue
        shape, folded = facts.shape(before.inputs[0]), facts.constant(before.inputs[1])
        if shape is None or folded is None or len(folded) != 3 or folded[1] <= 0 or folded[2] != -1:
            continue
        sizes = [-1 if each is None else each for each in shape]
        is_grouped = folded[0] in (0, sizes[0]) and sizes[1] > 0 and sizes[1] % folded[1] == 0
        if is_grouped and sizes[2:].count(-1) <= 1:
            new = (int(folded[0]), int(folded[1]), sizes[1] // int(folded[1]), *sizes[2:])
            before.replace_input_with(1, pool.integers(new))
            before.outputs[0].shape = node.outputs[0].shape = None


def _is_unfolded(value: ir.Value, facts: Facts) -> bool:
    """Return whether only Reshapes read a value, none of which copies its last sizes."""
    shapes = [use.node.inputs[1] for use in value.uses() if use.node.op_type == "Reshape"]
    if value.is_graph_output() or len(shapes) < len(value.uses()):
        return False
    return all(
        (sizes[2:] != 0).all()
        if (sizes := facts.constant(shape)) is not None
        else producer_of(shape, "Shape") is not None
        for shape in shapes
    )


REDUCTIONS: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(_FILLS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg_min_max),
    "BatchNormalization": _batch_norm,
    "CumSum": _cumsum,
    **dict.fromkeys(("DequantizeLinear", "QLinearSigmoid", "QLinearLeakyRelu", "QuantizeLinear"), _quantize),
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Einsum": lambda flow, node: _product(flow, node, range(len(node.inputs))),
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _channel_norm),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), functools.partial(_normalize, -math.inf)),
    "LRN": lambda flow, node: flow.feature_axes(node, [1], "normalizes over neighboring steps"),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"), _layer_norm),
    "LpNormalization": functools.partial(_normalize, 0.0),
    **dict.fromkeys(("MatMul", "FusedMatMul"), _matmul),
    "MatMulInteger": functools.partial(_product, zeros=(2, 3)),
    "MatMulIntegerToFloat": _matmul_to_float,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "QLinearMatMul": functools.partial(_product, indices=(0, 3), zeros=(2, 5)),
    **dict.fromkeys(("QLinearAdd", "QLinearMul"), lambda flow, node: flow.broadcast(node, [0, 3])),
    "RotaryEmbedding": _rotary,
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_norm),
    "TopK": _top_k,
}
