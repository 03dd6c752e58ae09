"""The lowering of one recurrent node: layout, directions, sequence lengths and outputs around the step.

The stages: bring X to time-major and to the compute type; choose the form of the step; for each
lane (a direction, or both) multiply X by W for all time steps at once, unless the step is to do that; join
the lanes' steps into one, run it by a strategy, and put the outputs together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.graph.initializers import constant_of
from rnnlower.graph.names import NameSource
from rnnlower.graph.rewiring import detach
from rnnlower.graph.walk import is_read, required_input
from rnnlower.lowering.cells import LAST_OPS, Inputs, NewState
from rnnlower.lowering.emitter import FAN_OUT, Emitter, RuntimeDim
from rnnlower.lowering.forms import PLAIN, Form
from rnnlower.lowering.lanes import Lane, cast_to_compute_type, make_lanes
from rnnlower.lowering.masks import Mask, emit_length_mask, emit_where, is_always_false
from rnnlower.lowering.outputs import emit_outputs, emit_outputs_without_steps, output_dims
from rnnlower.lowering.quantized_lstm import quantized_lanes, restore_order
from rnnlower.lowering.step_names import StepScope, measure_step
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.lowering.strategies.chunked_steps import run_in_chunks
from rnnlower.lowering.strategies.repeating import Recurrence, Results, Stepped, Strategy, declared_shape
from rnnlower.lowering.timeseries import Axes, States, TimeSeries
from rnnlower.lowering.weights import Weights
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import OUTPUT_NAMES


def lower_node(
    e: Emitter, node: ResolvedNode, weights: Weights, strategy: str, form: Form, unroll_factor: int
) -> dict[str, ir.Value]:
    """Emit the node, and return a new value for each of its outputs that is used.

    Args:
        e: The emitter, whose dtype is the compute type.
        strategy: A key of `STRATEGIES`.
        form: The form of the step, which must be allowed for the node.
        unroll_factor: Time steps in an iteration of the loop.
    """
    axes = axes_of_node(e, node)
    lens = node.inputs.get("sequence_lens")
    lengths = None if lens is None else constant_of(lens)
    if 0 in (axes.time, axes.batch) or (lengths is not None and not lengths.numpy().any()):
        outputs = emit_outputs_without_steps(e, node, axes)
    else:
        X = node.inputs["X"]
        input_size: RuntimeDim = e.dim(X, 2) if node.input_size is None else node.input_size
        stacked = cast_to_compute_type(e, node, e.transpose(X, [1, 0, 2]) if node.layout else X)
        series = TimeSeries(e, axes, input_size, stacked=stacked)
        lanes: Sequence[Lane]
        if node.is_quantized:
            lanes = quantized_lanes(e, node, weights, series)
        else:
            lanes = make_lanes(e, node, weights, form, series)
        mask = emit_length_mask(e, node, lanes[0].axes)
        results = _run_strategy(e, node, lanes, mask, STRATEGIES[strategy], unroll_factor)
        if node.is_quantized:
            results = dataclasses.replace(results, outputs=restore_order(e, node, results.outputs))
        outputs = emit_outputs(e, node, lanes, mask, results)
    # Shape inference, which knew the ranks after the node, may not see them through a Loop or run-time
    # sizes. If the node is in a body, onnxruntime requires a rank for the body's outputs.
    assert node.dtype is not None
    for name, value in outputs.items():
        value.type, value.shape = ir.TensorType(node.dtype), declared_shape(output_dims(node, axes, name))
    return outputs


def _run_strategy(
    e: Emitter,
    node: ResolvedNode,
    lanes: Sequence[Lane],
    mask: Mask | None,
    strategy: Strategy,
    unroll_factor: int,
) -> Results:
    """Run the lanes' steps; return H over time and the final states, lane by lane."""
    axes, form = lanes[0].axes, lanes[0].parameters.form
    one_by_one = node.hidden_size > form.max_joint_hidden_size
    # Around a dynamic length each would need an If of its own, unless the dialect needs none.
    no_if = isinstance(axes.time, int) or e.dialect.control_flow.empty_scan
    one_by_one |= e.dialect.control_flow.apart and no_if
    rows = None
    if not isinstance(axes.batch, int):
        rows = _row_symbol(node.inputs["X"], 1 - node.layout) or e.names.fresh("batch")
    # H has a role as the result of its step.
    apart = strategy.output_apart and form is not PLAIN and e.listener is None
    outputs: list[TimeSeries] = []
    states: list[ir.Value] = []
    for together in [[lane] for lane in lanes] if one_by_one else [lanes]:
        joined = _JoinedLanes(node, together, mask, apart=apart)
        recurrence = joined.recurrence(rows)
        if unroll_factor > 1:
            results = run_in_chunks(e, recurrence, strategy.run, unroll_factor)
        else:
            results = strategy.run(e, recurrence)
        outputs += joined.outputs(e, results.outputs)
        states += results.states
    return Results(outputs, states)


def _row_symbol(X: ir.Value, axis: int) -> str | None:
    """Return the model's name for the number of rows, if it has one."""
    dim = None if X.shape is None or axis >= len(X.shape) else X.shape[axis]
    return dim.value if isinstance(dim, ir.SymbolicDim) else None


def emit_failing_outputs(e: Emitter, node: ir.Node) -> dict[str, ir.Value]:
    """Emit ops that fail at run time and have no shape before, for a node whose X has the wrong rank.

    Such a node is in a branch that inputs of the given shapes must not take. A runtime that infers shapes
    would refuse the whole model if the node were lowered literally.
    """
    X = required_input(node)
    nonsense = e.op("Reshape", e.op("NonZero", X, since=9), e.integers(-1))
    return {
        name: e.op("Reshape", X, nonsense)
        for name, out in zip(OUTPUT_NAMES, node.outputs, strict=False)
        if is_read(out)
    }


def axes_of_node(e: Emitter, node: ResolvedNode) -> Axes:
    """Return the sizes of the axes of X."""
    X, time, batch = node.inputs["X"], node.seq_length, node.batch_size
    return Axes(
        e.dim(X, node.layout) if time is None else time,
        e.dim(X, 1 - node.layout) if batch is None else batch,
    )


class _JoinedLanes:
    """One recurrence whose step consists of the steps of all lanes.

    The inputs of a lane are its products or X, and the mask if there is one. Its outputs are H of each
    lane, or the operands of the operator that computes H, which then runs once for all steps.
    """

    def __init__(self, node: ResolvedNode, lanes: Sequence[Lane], mask: Mask | None, *, apart: bool) -> None:
        self.node, self.lanes, self.mask = node, lanes, mask
        self.last_op = LAST_OPS.get(node.op_type) if apart else None

    def recurrence(self, rows: str | None) -> Recurrence:
        """Return the recurrence; `rows` is its attribute of that name."""
        inputs: list[TimeSeries] = []
        for lane in self.lanes:
            inputs += lane.inputs.values()
            if self.mask is not None:
                inputs.append(self.mask.within.reversed(lane.reverse).named(lane.names, "k"))
        per_lane = 0 if not self.node.used("Y") else 1 if self.last_op is None else 2
        reverse = [lane.reverse for lane in self.lanes for _ in range(per_lane)]
        return Recurrence(
            axes=self.lanes[0].axes,
            inputs=inputs,
            states=[state for lane in self.lanes for state in lane.states],
            step=self._step,
            output_widths=[self.node.hidden_size] * len(reverse),
            output_reverse=reverse,
            rows=rows,
            fit_names=lambda e: self._fit_names(e, rows),
        )

    def _fit_names(self, e: Emitter, rows: str | None) -> None:
        """Fit the names of each lane to the size of its step."""
        for lane in self.lanes:
            scratch = dataclasses.replace(e, namespace="")
            x = {name: ir.Value(name="x") for name in lane.inputs}
            old = [
                None if lane.axes.time == 1 and state.initial is None else ir.Value(name="h")
                for state in lane.states
            ]
            # A known mask takes next to no bytes.
            is_read = self.mask is not None and self.mask.within.known is None
            within = ir.Value(name="k") if is_read else None
            with scratch.naming(StepScope(NameSource(), lane.names, 0)):
                _emit_masked_step(scratch, lane, x, within, old)
            is_part = isinstance(lane.axes.time, int) and lane.axes.time > FAN_OUT
            inputs = [*x.values()] if within is None else [*x.values(), within]
            size = measure_step(scratch.nodes, inputs, old, rows, is_part=is_part)
            lane.names.fit(size, e.names.source)
            detach(scratch.nodes)

    def outputs(self, e: Emitter, outputs: Sequence[TimeSeries]) -> Sequence[TimeSeries]:
        """Return H of each lane over time."""
        if self.last_op is None:
            return outputs
        return [
            TimeSeries(e, left.axes, left.width, stacked=e.op(self.last_op, left.stacked(), right.stacked()))
            for left, right in zip(outputs[::2], outputs[1::2], strict=True)
        ]

    def _step(self, e: Emitter, values: Sequence[ir.Value], states: States, number: int | None) -> Stepped:
        new_states: list[ir.Value] = []
        outputs: list[ir.Value] = []
        per_lane, states_per_lane = len(values) // len(self.lanes), len(states) // len(self.lanes)
        for index, lane in enumerate(self.lanes):
            own = values[index * per_lane : (index + 1) * per_lane]
            old = states[index * states_per_lane : (index + 1) * states_per_lane]
            x = dict(zip(lane.inputs, own[: len(lane.inputs)], strict=True))
            with e.naming(lane.scope(e, number)):
                kept, new = _emit_masked_step(e, lane, x, None if self.mask is None else own[-1], old)
            new_states += kept
            if self.node.used("Y"):
                # Y is 0 past the end in any case. Of one step, IREE mixes up the choices of H and of C.
                hidden = new.values if lane.axes.time == 1 else kept
                outputs += hidden[:1] if self.last_op is None else new.operands
        return new_states, outputs


def _emit_masked_step(
    e: Emitter, lane: Lane, x: Inputs, within: ir.Value | None, old: States
) -> tuple[Sequence[ir.Value], NewState]:
    """Emit the state after a step, the old one in rows that have ended, and what the step computes."""
    if within is not None and is_always_false(within):
        kept = [_state_or_zeros(e, lane, value) for value in old]
        return kept, NewState(kept)
    new = lane.step(e, x, old)
    for value, what in zip(new.values, ("y", "m"), strict=False):  # C(t) is the memory
        e.label(value, what)
    if within is None:
        return new.values, new
    kept = [
        emit_where(e, within, value, _state_or_zeros(e, lane, before))
        for value, before in zip(new.values, old, strict=True)
    ]
    return kept, new


def _state_or_zeros(e: Emitter, lane: Lane, state: ir.Value | None) -> ir.Value:
    """Return the state, with a zero state written out."""
    if state is None and isinstance(lane.axes.batch, int):
        return e.zeros(lane.axes.value(lane.parameters.node.hidden_size))
    return e.scalar(0.0) if state is None else state
