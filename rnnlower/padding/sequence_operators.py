"""Operators that take the end of a sequence as an input: recurrent ones as lengths, attention as a mask."""

from __future__ import annotations

import functools
import math

import onnx_ir as ir

from rnnlower.graph.rewiring import set_input
from rnnlower.graph.walk import is_read, operand, required_input
from rnnlower.padding.sizes import Axes, NoRuleError
from rnnlower.padding.validity import emit_min
from rnnlower.padding.validity_walk import PadFlow, Rule
from rnnlower.recurrent.node import KEEPS_INITIAL
from rnnlower.recurrent.state_operators import ATTRIBUTE_DEFAULTS

_MASK, _PADDING_MASK, _MASK_INDEX = 3, 4, 3
_LENGTHS = 4
_FOLLOWED = ("activation", "channels_last", "dilation")


def _refuse_others(node: ir.Node, first: int) -> None:
    if any(each is not None for each in node.inputs[first:]):
        raise NoRuleError("has masks, lengths or earlier keys of its own")


def _attention(flow: PadFlow, node: ir.Node) -> list[Axes]:
    """Mask the keys of the operator of the ONNX spec, which takes three or four axes."""
    query, key = node.inputs[:2]
    rank, axes, of_keys = len(flow.shape(query)), flow.axes_of(query), flow.axes_of(key)
    time = rank - 2
    flow.refuse_rows(query, time)
    _refuse_others(node, _MASK + 1)
    if {rank - 1} & {*axes, *of_keys}:
        raise NoRuleError("has features over time")
    if time != 1 and axes.get(1) != of_keys.get(1):
        # Which heads of keys belong to one of queries follows from both numbers.
        raise NoRuleError("combines values of different lengths")
    if time in of_keys:
        _fill_keys(flow, node, (1, 2), time)
        emitter, size = flow.emitter_for(node), of_keys[time]
        around = {0: of_keys[0], 3: size} if 0 in of_keys else {3: size}
        valid = flow.masks.mask(size, 3, around, 4)
        own = operand(node, _MASK)
        if own is not None and flow.dtype(own) == ir.DataType.BOOL:
            mask = emitter.op("And", own, valid)
        else:
            none = emitter.zeros([*flow.sizes(emitter, required_input(node), [time]), size.full])
            lowest = emitter.scalar(-math.inf)
            mask = emitter.op("Where", valid, none if own is None else own, lowest)
        emitter.insert_before(node)
        set_input(node, _MASK, mask)
    return [axes]


def _fill_keys(flow: PadFlow, node: ir.Node, indices: tuple[int, ...], time: int) -> None:
    """Fill keys and values: they may be NaN, and NaN times a weight of zero is NaN."""
    for index in indices:
        flow.fill(node, index, time, 0.0)


def _attention_with_lengths(keys: tuple[int, ...], lengths: int, flow: PadFlow, node: ir.Node) -> Axes:
    """Give an operator of onnxruntime the number of keys in each row."""
    _refuse_others(node, lengths)
    values = [node.inputs[index] for index in (0, *keys)]
    if any(each is None or len(flow.shape(each)) != 3 for each in values):
        raise NoRuleError("has packed queries, keys and values")
    axes, of_keys = flow.axes_of(node.inputs[0]), flow.axes_of(node.inputs[keys[0]])
    flow.refuse_rows(node.inputs[0], 1)
    if 2 in {*axes, *of_keys}:
        raise NoRuleError("has features over time")
    if 1 in of_keys:
        _fill_keys(flow, node, keys, 1)
        emitter, value = flow.emitter_for(node), required_input(node)
        count = emitter.cast(flow.masks.count(of_keys[1]), ir.DataType.INT32)
        if flow.rows is None:
            count = emitter.op("Expand", count, emitter.size_vector(flow.sizes(emitter, value, [0])))
        else:
            count = flow.masks.per_row(emitter, count, of_keys, 1)
        emitter.insert_before(node)
        set_input(node, lengths, count)
    return axes


def _attention_of_domain(flow: PadFlow, node: ir.Node) -> Axes | list[Axes]:
    """Apply the rule of the domain's Attention."""
    return _attention_with_lengths((0,), _MASK_INDEX, flow, node) if node.domain else _attention(flow, node)


def _recurrent(flow: PadFlow, node: ir.Node) -> list[Axes]:
    value, layout = required_input(node), node.attributes.get_int("layout", 0)
    axes = flow.axes_of(value)
    time, batch = (1, 0) if layout else (0, 1)
    if node.domain and axes:
        if flow.rows is not None:
            raise NoRuleError("quantizes rows by one range, while each has a length of its own")
        # Its range holds zero in any case.
        for axis in axes:
            flow.fill(node, 0, axis, 0.0)
    flow.refuse_rows(value, time)
    if 2 in axes or any(map(flow.axes_of, node.inputs[1:4])):
        raise NoRuleError("has features or weights over time")
    if len(node.inputs) > _LENGTHS:
        flow.fill_positions(node, _LENGTHS)
    if time in axes and KEEPS_INITIAL not in node.meta:
        # onnxruntime runs no such operator without steps.
        flow.require(axes[time], 1)
    forward = node.attributes.get_string("direction", "forward") == "forward"
    finals = any(map(is_read, node.outputs[1:]))
    lengths = operand(node, _LENGTHS)
    # In a lifted Loop, a length above the number of steps means all of them.
    needs_count = not forward or finals if lengths is None else KEEPS_INITIAL in node.meta
    if time in axes and needs_count:
        emitter = flow.emitter_for(node)
        count = emitter.cast(flow.masks.count(axes[time]), ir.DataType.INT32)
        size = flow.shape(value)[batch]
        rows = emitter.dim(value, batch) if flow.is_dynamic(value, batch) or batch in axes else size
        if flow.rows is not None:
            count = flow.masks.per_row(emitter, count, axes, batch + 1)
        elif rows != 1 and lengths is None:
            count = emitter.op("Expand", count, emitter.size_vector([rows]), since=8)
        if lengths is not None:
            count = emit_min(emitter, lengths, count)
        emitter.insert_before(node)
        set_input(node, _LENGTHS, count)
    steps = {} if time not in axes else {(1 if layout else 0): axes[time]}
    rows_of_y = {} if batch not in axes else {(0 if layout else 2): axes[batch]}
    rows_of_state = {} if batch not in axes else {(0 if layout else 1): axes[batch]}
    return [steps | rows_of_y, rows_of_state, rows_of_state]


def _linear_attention(flow: PadFlow, node: ir.Node) -> list[Axes]:
    """Keep the state after the end: nothing is added there, and nothing decays."""
    axes = flow.axes_of(node.inputs[0])
    flow.refuse_rows(node.inputs[0], 1)
    if any(2 in flow.axes_of(each) for each in node.inputs):
        raise NoRuleError("has features over time")
    if 1 in axes and any(map(is_read, node.outputs[1:])):
        for index in (1, 2, 4, 5):
            if 1 in flow.axes_of(operand(node, index)):
                flow.fill(node, index, 1, 0.0)
    return [axes, {axis: size for axis, size in axes.items() if axis == 0}]


def _causal_conv(flow: PadFlow, node: ir.Node) -> list[Axes]:
    """The state holds the last steps: of those before the sequence, and of its own."""
    value, axes = required_input(node), flow.axes_of(node.inputs[0])
    defaults = ATTRIBUTE_DEFAULTS[node.op_type]
    given = {name: each.value for name, each in node.attributes.items() if name not in _FOLLOWED}
    if unknown := sorted(name for name, each in given.items() if each != defaults[name]):
        raise NoRuleError(f"has unsupported attributes: {', '.join(unknown)}")
    time = 1 if node.attributes.get_int("channels_last", 0) else 2
    flow.refuse_rows(value, time)
    if time in axes and any(map(is_read, node.outputs[1:])):
        steps = flow.shape(node.outputs[1])[time]
        emitter, past = flow.emitter_for(node), operand(node, 3)
        if past is None:
            sizes = flow.sizes(emitter, value, range(3))
            sizes[time] = steps
            past = emitter.zeros(sizes)
        whole = emitter.op("Concat", past, value, axis=time)
        size = axes[time].affine(offset=steps)
        state = flow.masks.last_steps(emitter, whole, time, {**axes, time: size}, range(-steps, 0), 3)
        flow.replace(node, state, emitter, 1)
    return [axes, {axis: size for axis, size in axes.items() if axis == 0}]


SEQUENCE_OPERATORS: dict[str, Rule] = {
    **dict.fromkeys(("DynamicQuantizeLSTM", "GRU", "LSTM", "RNN"), _recurrent),
    "CausalConvWithState": _causal_conv,
    "LinearAttention": _linear_attention,
    "Attention": _attention_of_domain,
    "MultiHeadAttention": functools.partial(_attention_with_lengths, (1, 2), _PADDING_MASK),
}
