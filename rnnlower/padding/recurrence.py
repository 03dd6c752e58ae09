"""Recurrent operators: their lengths tell both directions where a sequence ends."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.padding.flow import Axes, PadFlow, Rule
from rnnlower.padding.sizes import NoRuleError

_LENGTHS = 4


def _recurrent(flow: PadFlow, node: ir.Node) -> list[Axes]:
    value, layout = node.inputs[0], node.attributes.get_int("layout", 0)
    assert value is not None
    axes = flow.axes_of(value)
    time, batch = (1, 0) if layout else (0, 1)
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
        lens = count if rows == 1 else emitter.op("Expand", count, emitter.size_vector([rows]), since=8)
        flow.place(emitter, node)
        if len(node.inputs) <= _LENGTHS:
            node.resize_inputs(_LENGTHS + 1)
        node.replace_input_with(_LENGTHS, lens)
    steps = {} if time not in axes else {(1 if layout else 0): axes[time]}
    rows_of_y = {} if batch not in axes else {(0 if layout else 2): axes[batch]}
    rows_of_state = {} if batch not in axes else {(0 if layout else 1): axes[batch]}
    return [steps | rows_of_y, rows_of_state, rows_of_state]


RECURRENCE: dict[str, Rule] = dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent)
