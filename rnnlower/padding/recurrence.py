"""Recurrent operators: their lengths tell both directions where a sequence ends."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.padding.flow import PadFlow, Rule
from rnnlower.padding.sizes import Axes, NoRuleError, Size
from rnnlower.recurrent.state_operators import ATTRIBUTE_DEFAULTS

_LENGTHS = 4
_FOLLOWED = ("activation", "channels_last", "dilation")


def _recurrent(flow: PadFlow, node: ir.Node) -> list[Axes]:
    value, layout = node.inputs[0], node.attributes.get_int("layout", 0)
    assert value is not None
    axes = flow.axes_of(value)
    time, batch = (1, 0) if layout else (0, 1)
    if node.domain and time in axes:
        if flow.rows is not None:
            raise NoRuleError("quantizes rows by one range, while each has a length of its own")
        # Its range holds zero in any case.
        flow.fill(node, 0, time, 0.0)
    if 2 in axes or any(map(flow.axes_of, node.inputs[1:4])):
        raise NoRuleError("has features or weights over time")
    forward = node.attributes.get_string("direction", "forward") == "forward"
    finals = any(out.uses() or out.is_graph_output() for out in node.outputs[1:])
    lengths = node.inputs[_LENGTHS] if len(node.inputs) > _LENGTHS else None
    if time in axes and lengths is None and not (forward and not finals):
        emitter = flow.emitter_for(node)
        count = emitter.cast(flow.count(axes[time]), ir.DataType.INT32)
        size = flow.shape(value)[batch]
        rows = emitter.dim(value, batch) if flow.is_open(value, batch) or batch in axes else size
        single = rows == 1 or flow.rows is not None
        lens = count if single else emitter.op("Expand", count, emitter.size_vector([rows]), since=8)
        flow.place(emitter, node)
        if len(node.inputs) <= _LENGTHS:
            node.resize_inputs(_LENGTHS + 1)
        node.replace_input_with(_LENGTHS, lens)
    steps = {} if time not in axes else {(1 if layout else 0): axes[time]}
    rows_of_y = {} if batch not in axes else {(0 if layout else 2): axes[batch]}
    rows_of_state = {} if batch not in axes else {(0 if layout else 1): axes[batch]}
    return [steps | rows_of_y, rows_of_state, rows_of_state]


def _linear_attention(flow: PadFlow, node: ir.Node) -> list[Axes]:
    """Leave the state as it is after the end: nothing is added there, and nothing decays."""
    axes = flow.axes_of(node.inputs[0])
    if 1 in axes and _is_read(node, 1):
        for index in (1, 2, 4, 5):
            if index < len(node.inputs) and 1 in flow.axes_of(node.inputs[index]):
                flow.fill(node, index, 1, 0.0)
    return [axes, {axis: size for axis, size in axes.items() if axis == 0}]


def _causal_conv(flow: PadFlow, node: ir.Node) -> list[Axes]:
    """The state holds the last steps: of those before the sequence, and of its own."""
    value, axes = node.inputs[0], flow.axes_of(node.inputs[0])
    defaults = ATTRIBUTE_DEFAULTS[node.op_type]
    given = {name: each.value for name, each in node.attributes.items() if name not in _FOLLOWED}
    if unknown := sorted(name for name, each in given.items() if each != defaults[name]):
        raise NoRuleError(f"has attributes that are not followed: {', '.join(unknown)}")
    time = 1 if node.attributes.get_int("channels_last", 0) else 2
    if time in axes and _is_read(node, 1):
        assert value is not None
        shape, steps = flow.shape(value), flow.shape(node.outputs[1])[time]
        emitter, past = flow.emitter_for(node), node.inputs[3] if len(node.inputs) > 3 else None
        if past is None:
            sizes = [emitter.dim(value, 0) if flow.is_open(value, 0) else shape[0], *shape[1:]]
            sizes[time] = steps
            past = emitter.with_dtype(ir.DataType.from_numpy(flow.dtype(value))).zeros(sizes)
        whole = emitter.op("Concat", past, value, axis=time)
        size = Size(axes[time].symbol, tuple(each + steps for each in axes[time].table))
        behind, dtype = range(-steps, 0), flow.dtype(value)
        state = flow.last_steps(emitter, whole, time, {**axes, time: size}, behind, 3, dtype)
        flow.replace(node, state, emitter, 1)
    return [axes, {axis: size for axis, size in axes.items() if axis == 0}]


def _is_read(node: ir.Node, index: int) -> bool:
    out = node.outputs[index] if index < len(node.outputs) else None
    return out is not None and bool(out.uses() or out.is_graph_output())


RECURRENCE: dict[str, Rule] = {
    **dict.fromkeys(("DynamicQuantizeLSTM", "GRU", "LSTM", "RNN"), _recurrent),
    "CausalConvWithState": _causal_conv,
    "LinearAttention": _linear_attention,
}
