"""Normalization: over time, only valid elements count."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.operator_kinds import axes_along
from rnnlower.graph.walk import producer_of
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.sizes import Axes, NoRuleError
from rnnlower.padding.validity_walk import PadFlow, Rule

_NOT_CENTERED = ("RMSNormalization", "SimplifiedLayerNormalization")
_PARAMETERS = "has parameters that differ from step to step"


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
    value, axes = flow.operand(node), flow.axes_of(node.inputs[0])
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
    value, axes, shape = flow.operand(node), flow.axes_of(node.inputs[0]), flow.shape(node.inputs[0])
    if 1 in axes or any(map(flow.axes_of, node.inputs[1:])):
        raise NoRuleError(_PARAMETERS)
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


NORMALIZING: dict[str, Rule] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _channel_norm,
    "InstanceNormalization": _channel_norm,
    "LRN": lambda flow, node: flow.feature_axes(node, [1], "normalizes over neighboring steps"),
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _layer_norm,
    "SimplifiedLayerNormalization": _layer_norm,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
}
