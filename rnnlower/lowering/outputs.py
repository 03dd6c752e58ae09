"""The outputs of a recurrent node, made of the results of the lanes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.lowering.lanes import Lane, cast_from_compute_type
from rnnlower.lowering.masks import Mask, emit_less, emit_where_else_zero, reverse_second_direction
from rnnlower.lowering.strategies.repeating import InitialState, Results
from rnnlower.lowering.timeseries import Axes, TimeSeries
from rnnlower.recurrent.node import ResolvedNode


def emit_outputs(
    e: Emitter, node: ResolvedNode, lanes: Sequence[Lane], mask: Mask | None, results: Results
) -> dict[str, ir.Value]:
    """Emit the node's outputs, as far as they are used."""
    outputs: dict[str, ir.Value] = {}
    axes = lanes[0].axes
    if node.used("Y"):
        outputs["Y"] = _sequence_output(e, node, axes, results.outputs, mask)
    per_lane = len(lanes[0].states)
    for index, name in enumerate(node.cell.outputs[1:]):
        if node.used(name):
            finals = results.states[index::per_lane]
            outputs[name] = _state_output(e, node, axes, finals, [lane.states[index] for lane in lanes], mask)
    return outputs


def output_dims(node: ResolvedNode, axes: Axes, name: str) -> list[RuntimeDim]:
    """Return the sizes of an output."""
    dims: list[RuntimeDim] = [node.num_directions, axes.batch]
    if node.layout:
        dims.reverse()
    if name == "Y":
        dims.insert(node.layout, axes.time)
    return [*dims, node.hidden_size]


def emit_outputs_without_steps(e: Emitter, node: ResolvedNode, axes: Axes) -> dict[str, ir.Value]:
    """Emit the outputs of no time steps, lengths of 0 or a batch of no rows, where nothing is computed."""
    outputs = {}
    for name, state in (("Y", ""), ("Y_h", "initial_h"), ("Y_c", "initial_c")):
        if not node.used(name):
            continue
        if node.keeps_initial and state in node.inputs:
            outputs[name] = e.op("Identity", node.inputs[state])
        else:
            zeros = e.op("Identity", e.zeros(output_dims(node, axes, name)))
            outputs[name] = cast_from_compute_type(e, node, zeros)
    return outputs


def _sequence_output(
    e: Emitter, node: ResolvedNode, axes: Axes, series: Sequence[TimeSeries], mask: Mask | None
) -> ir.Value:
    """Emit Y, with zeros past the end of each row's sequence."""
    lanes = []
    for lane in series:
        flat = lane.is_flat
        value = lane.flat() if flat else lane.stacked()
        if mask is not None:
            within = mask.within.flat() if flat else mask.within.stacked()
            value = emit_where_else_zero(e, within, value)
        if axes.lead:
            value = reverse_second_direction(
                e, TimeSeries(e, axes, node.hidden_size, stacked=value)
            ).stacked()
        dims = [axes.time, *(axes.lead or (1,)), axes.batch, node.hidden_size]
        sizes = [axes.time, *axes.value(node.hidden_size)]
        lanes.append(e.reshape(value, dims) if flat else _with_directions(e, value, sizes, dims, 1))
    Y = cast_from_compute_type(e, node, e.concat(lanes, axis=1))
    return e.transpose(Y, [2, 0, 1, 3]) if node.layout else Y


def _state_output(
    e: Emitter,
    node: ResolvedNode,
    axes: Axes,
    finals: Sequence[ir.Value],
    initial: Sequence[InitialState],
    mask: Mask | None,
) -> ir.Value:
    """Emit Y_h or Y_c."""
    # For an empty sequence onnxruntime returns 0; the spec keeps the initial state, as a Loop does.
    zeroed = not node.keeps_initial and any(state.initial is not None for state in initial)
    nonempty = None
    if zeroed:
        if mask is not None:
            nonempty = mask.nonempty
        elif not isinstance(axes.time, int):
            nonempty = emit_less(e, e.integers(0), axes.time)
    lanes = []
    for value, state in zip(finals, initial, strict=True):
        if nonempty is not None and state.initial is not None:
            value = emit_where_else_zero(e, nonempty, value)
        dims: list[RuntimeDim] = [axes.batch, node.hidden_size]
        dims[node.layout : node.layout] = axes.lead or (1,)
        lanes.append(_with_directions(e, value, axes.value(node.hidden_size), dims, node.layout))
    return cast_from_compute_type(e, node, e.concat(lanes, axis=node.layout))


def _with_directions(
    e: Emitter, value: ir.Value, sizes: Sequence[RuntimeDim], dims: Sequence[RuntimeDim], axis: int
) -> ir.Value:
    """Emit a part of an output with the output's rank, where `axis` is the direction."""
    if sizes == dims:
        return value
    if sizes == [*dims[:axis], *dims[axis + 1 :]]:
        return e.unsqueeze(value, axis, dims)
    return e.reshape(value, dims)
