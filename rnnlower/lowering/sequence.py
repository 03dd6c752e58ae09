"""A recurrent node as primitive ops: layout, directions, sequence lengths and outputs around the step.

The stages: bring X to time-major and to the type of the arithmetic; for each direction (a `Lane`) multiply X
by W for all time steps at once, unless the step is to do that; join the lanes' steps into one, run it by a
strategy, and put the outputs together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError
from rnnlower.lowering.cells import LAST_OPS, gate_groups, state_groups
from rnnlower.lowering.declaring import symbol_of_rows
from rnnlower.lowering.emitter import Dim, Emitter
from rnnlower.lowering.lanes import Lane, LaneMaker, from_arithmetic, pays_to_join, to_arithmetic
from rnnlower.lowering.quantized import quantized_lanes, turned_back
from rnnlower.lowering.single_row import for_single_row, turned
from rnnlower.lowering.strategies import STRATEGIES, Recurrence, Results, State, Strategy, run_in_chunks
from rnnlower.lowering.timeseries import Axes, TimeSeries
from rnnlower.lowering.weights import Weights
from rnnlower.recurrent.node import ResolvedNode

__all__ = ["fail_like_node", "lower_node"]


@dataclasses.dataclass(frozen=True)
class Mask:
    """Which steps lie within a row's sequence.

    Attributes:
        within: ``t < sequence_lens``, bool, one column; for a pair as its steps are taken.
        nonempty: ``sequence_lens > 0``, bool ``[batch, 1]``.
    """

    within: TimeSeries
    nonempty: ir.Value


def lower_node(
    e: Emitter, node: ResolvedNode, weights: Weights, strategy: str, unroll_factor: int = 1
) -> dict[str, ir.Value]:
    """Emits the node; gives a new value for each of its outputs that is used.

    Args:
        e: The emitter, whose dtype is that of the arithmetic.
        node: The node.
        weights: Cuts the node's weights.
        strategy: A key of `STRATEGIES`.
        unroll_factor: Time steps in an iteration of the loop.
    """
    X = node.inputs["X"]
    axes = _axes(e, node, X)
    if axes.time == 0 or axes.batch == 0:
        return _without_steps(e, node, axes)
    input_size: Dim = e.dim(X, 2) if node.input_size is None else node.input_size
    stacked = to_arithmetic(e, node, e.transpose(X, [1, 0, 2]) if node.layout else X)
    series = TimeSeries(e, axes, input_size, stacked=stacked)
    form = Strategy(STRATEGIES[strategy].run)
    if e.for_onnxruntime and not node.is_quantized:
        form = STRATEGIES[strategy].for_batch(axes.batch)
    if form.single_row and axes.batch == 1:
        axes = for_single_row(e, node, weights, axes)
    mask = _mask(e, node, axes) if "sequence_lens" in node.inputs else None
    is_long = isinstance(axes.time, int) and axes.time * node.num_directions > form.most_fused
    joint = axes.directions > 0
    most_apart = form.most_apart if node.clip is None and not joint else 1
    groups = gate_groups(node, most_apart=most_apart, joint=is_long or joint)
    multiplies_input = (
        form.multiplies_input and isinstance(axes.batch, int) and pays_to_join(e, node, weights, axes.batch)
    )
    of_state = state_groups(node, groups, joint=joint)
    if node.is_quantized:
        lanes = quantized_lanes(e, node, weights, axes, series)
    else:
        lanes = LaneMaker(e, node, weights, axes, groups, of_state, multiplies_input).lanes(series)
    results = _run(e, node, axes, lanes, mask, form, unroll_factor)
    if node.is_quantized:
        results = dataclasses.replace(results, outputs=turned_back(e, node, results.outputs))
    outputs = _outputs(e, node, axes, lanes, mask, results)
    if strategy == "loop":
        # Shape inference, which knew the shapes behind the node, does not see through a Loop. Where the
        # node stands in a body, onnxruntime wants a rank of the body's outputs.
        assert node.dtype is not None
        for name, value in outputs.items():
            value.type, value.shape = ir.TensorType(node.dtype), _output_shape(node, axes, name)
    return outputs


def _run(
    e: Emitter,
    node: ResolvedNode,
    axes: Axes,
    lanes: Sequence[Lane],
    mask: Mask | None,
    form: Strategy,
    unroll_factor: int,
) -> Results:
    """H over time and the final states, lane by lane."""
    last_op = LAST_OPS.get(node.op_type) if form.output_apart else None
    one_by_one = node.hidden_size > form.largest_together
    one_by_one |= e.dialect is not None and e.dialect.apart and isinstance(axes.time, int)
    rows = None
    if not isinstance(axes.batch, int):
        rows = symbol_of_rows(node.inputs["X"], 1 - node.layout) or e.names.fresh("batch")
    outputs: list[TimeSeries] = []
    states: list[ir.Value] = []
    for together in [[lane] for lane in lanes] if one_by_one else [lanes]:
        recurrence = _join(
            node, axes, together, mask, wants_sequence=node.used("Y"), last_op=last_op, rows=rows
        )
        if unroll_factor > 1:
            results = run_in_chunks(e, recurrence, form.run, unroll_factor)
        else:
            results = form.run(e, recurrence)
        outputs += results.outputs
        states += results.states
    return Results(outputs if last_op is None else _joined(e, axes, outputs, last_op), states)


def _outputs(
    e: Emitter, node: ResolvedNode, axes: Axes, lanes: Sequence[Lane], mask: Mask | None, results: Results
) -> dict[str, ir.Value]:
    """The node's outputs, as far as they are used."""
    outputs: dict[str, ir.Value] = {}
    if node.used("Y"):
        outputs["Y"] = _sequence_output(e, node, axes, results.outputs, mask)
    per_lane = len(lanes[0].states)
    for index, name in enumerate(("Y_h", "Y_c")[:per_lane]):
        if node.used(name):
            finals = results.states[index::per_lane]
            outputs[name] = _state_output(e, node, axes, finals, [lane.states[index] for lane in lanes], mask)
    return outputs


def _output_shape(node: ResolvedNode, axes: Axes, name: str) -> ir.Shape:
    """The shape of an output as far as it is known, its rank at least."""
    time, batch = (size if isinstance(size, int) else None for size in (axes.time, axes.batch))
    directions = node.num_directions
    rows = [batch, directions] if node.layout else [directions, batch]
    if name == "Y":
        rows = [batch, time, directions] if node.layout else [time, directions, batch]
    return ir.Shape([*rows, node.hidden_size])


def fail_like_node(e: Emitter, node: ir.Node) -> dict[str, ir.Value]:
    """Emits what fails at run time and has no shape before: for a node whose X has not the rank it must have.

    Such a node sits in a branch that inputs of the given shapes must not take; a runtime that infers shapes
    would refuse the whole model for an honest lowering of it.
    """
    X = node.inputs[0]
    assert X is not None
    nonsense = e.op("Reshape", e.op("NonZero", X, since=9), e.integers(-1))
    names = ("Y", "Y_h", "Y_c")
    return {
        name: e.op("Reshape", X, nonsense)
        for name, out in zip(names, node.outputs, strict=False)
        if out.uses() or out.is_graph_output()
    }


def _without_steps(e: Emitter, node: ResolvedNode, axes: Axes) -> dict[str, ir.Value]:
    """The outputs where there is nothing to compute, for no time steps or a batch of no rows."""
    time, batch, directions = axes.time, axes.batch, node.num_directions
    states: list[Dim] = [batch, directions] if node.layout else [directions, batch]
    sequence: list[Dim] = [batch, time, directions] if node.layout else [time, directions, batch]
    outputs = {}
    for name, dims, state in (
        ("Y", sequence, ""),
        ("Y_h", states, "initial_h"),
        ("Y_c", states, "initial_c"),
    ):
        if not node.used(name):
            continue
        if node.semantics == "spec" and state in node.inputs:
            outputs[name] = e.op("Identity", node.inputs[state])
        else:
            zeros = e.op("Identity", e.zeros([*dims, node.hidden_size]))
            outputs[name] = from_arithmetic(e, node, zeros)
    return outputs


def _axes(e: Emitter, node: ResolvedNode, X: ir.Value) -> Axes:
    time: Dim | None = node.seq_length
    batch: Dim | None = node.batch_size
    return Axes(
        e.dim(X, node.layout) if time is None else time,
        e.dim(X, 1 - node.layout) if batch is None else batch,
    )


def _mask(e: Emitter, node: ResolvedNode, axes: Axes) -> Mask:
    lens = node.inputs["sequence_lens"]
    tensor = None if lens.is_graph_input() else ir.convenience.get_const_tensor(lens)
    if tensor is not None and isinstance(axes.time, int):
        known = np.arange(axes.time)[:, np.newaxis, np.newaxis] < tensor.numpy()[:, np.newaxis]
        if axes.paired:
            known = np.stack([known, known[::-1]], axis=1)
        elif axes.directions:
            known = known[:, np.newaxis]
        series = TimeSeries(
            e,
            axes,
            1,
            flat=e.condition(known.reshape(-1, 1)),
            stacked=e.condition(known),
            dtype=e.condition_type,
        )
        return Mask(series, e.condition(tensor.numpy()[:, np.newaxis] > 0))
    zero = e.constant(np.array(0, np.int32))
    try:
        steps = e.unsqueeze(e.arange(axes.time), 1, [axes.time, 1])
        within = e.unsqueeze(e.less(steps, lens), 2, [axes.time, axes.batch, 1])
        nonempty = e.unsqueeze(e.less(zero, lens), 1, [axes.batch, 1])
    except MissingOperatorError as error:
        raise error.behind("input sequence_lens", "make sequence_lens a constant") from None
    if axes.directions:
        within = e.reshape(e.concat([within] * axes.directions, axis=1), [axes.time, *axes.value(1)])
    series = TimeSeries(e, axes, 1, stacked=within, dtype=e.condition_type)
    return Mask(turned(e, series) if axes.paired else series, nonempty)


def _join(
    node: ResolvedNode,
    axes: Axes,
    lanes: Sequence[Lane],
    mask: Mask | None,
    *,
    wants_sequence: bool,
    last_op: str | None,
    rows: str | None,
) -> Recurrence:
    """One recurrence whose step is the step of every lane.

    The inputs of a lane are its products or X and, where there is a mask, that. Its outputs are H of each
    lane, or the two operands of `last_op` that make H.
    """
    inputs: list[TimeSeries] = []
    for lane in lanes:
        inputs += lane.inputs.values()
        if mask is not None:
            inputs.append(mask.within.reversed(lane.reverse).named(lane.alias, "m"))
    per_lane = len(inputs) // len(lanes)
    states_per_lane = len(lanes[0].states)

    def step(
        e: Emitter, values: Sequence[ir.Value], states: Sequence[ir.Value | None], number: int | None
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        new_states: list[ir.Value] = []
        outputs: list[ir.Value] = []
        for index, lane in enumerate(lanes):
            own = values[index * per_lane : (index + 1) * per_lane]
            old = states[index * states_per_lane : (index + 1) * states_per_lane]
            x = dict(zip(lane.inputs, own[: len(lane.inputs)], strict=True))
            at = None if number is None else lane.position(number)
            with e.naming(lane.names(e, at)):
                new, H = _masked_step(e, node, lane, x, None if mask is None else own[-1], old)
                for value, what in zip(new, ("y", "yc"), strict=False):
                    e.label(value, what)
            new_states += new
            if wants_sequence:
                outputs += [new[0]] if last_op is None else _operands(H, last_op)
        return new_states, outputs

    sequences = [lane.reverse for lane in lanes for _ in range(1 if last_op is None else 2)]
    if not wants_sequence:
        sequences = []
    return Recurrence(
        axes=axes,
        inputs=inputs,
        states=[state for lane in lanes for state in lane.states],
        step=step,
        output_widths=[node.hidden_size] * len(sequences),
        output_reverse=sequences,
        rows=rows,
    )


def _masked_step(
    e: Emitter,
    node: ResolvedNode,
    lane: Lane,
    x: Mapping[str, ir.Value],
    within: ir.Value | None,
    old: Sequence[ir.Value | None],
) -> tuple[list[ir.Value], ir.Value]:
    """The new state, which is the old one in rows whose sequence has ended, and H as the cell made it."""
    axes = lane.parameters.axes
    if within is not None and e.is_never(within):
        kept = [_or_zeros(e, axes, node, value) for value in old]
        return kept, kept[0]
    new = lane.step(e, x, old)
    if within is None:
        return new, new[0]
    masked = [
        e.where(within, value, _or_zeros(e, axes, node, before))
        for value, before in zip(new, old, strict=True)
    ]
    return masked, new[0]


def _operands(value: ir.Value, op_type: str) -> list[ir.Value]:
    """What the op of this type, which must be what made the value, made it of."""
    made_by = value.producer()
    assert made_by is not None
    assert made_by.op_type == op_type
    return [operand for operand in made_by.inputs if operand is not None]


def _or_zeros(e: Emitter, axes: Axes, node: ResolvedNode, state: ir.Value | None) -> ir.Value:
    """The state written out."""
    if state is None and isinstance(axes.batch, int):
        return e.zeros(axes.value(node.hidden_size))
    return e.scalar(0.0) if state is None else state


def _joined(e: Emitter, axes: Axes, outputs: Sequence[TimeSeries], last_op: str) -> list[TimeSeries]:
    """H of each lane, of the operands of the op that ends a step."""
    return [
        TimeSeries(e, axes, left.width, stacked=e.op(last_op, left.stacked(), right.stacked()))
        for left, right in zip(outputs[::2], outputs[1::2], strict=True)
    ]


def _sequence_output(
    e: Emitter, node: ResolvedNode, axes: Axes, series: Sequence[TimeSeries], mask: Mask | None
) -> ir.Value:
    """Y, with zeros past the end of each row's sequence."""
    lanes = []
    for lane in series:
        flat = lane.is_flat and not (axes.upright and mask is not None)
        value = lane.flat() if flat else lane.stacked()
        if mask is not None:
            within = mask.within.flat() if flat else mask.within.stacked()
            value = e.where_else_zero(within, value)
        if axes.paired:
            value = turned(e, TimeSeries(e, axes, node.hidden_size, stacked=value)).stacked()
        dims = [axes.time, 2 if axes.paired else 1, axes.batch, node.hidden_size]
        sizes = [axes.time, *axes.value(node.hidden_size)]
        lanes.append(e.reshape(value, dims) if flat else _with_directions(e, value, sizes, dims, 1))
    Y = from_arithmetic(e, node, e.concat(lanes, axis=1))
    return e.transpose(Y, [2, 0, 1, 3]) if node.layout else Y


def _state_output(
    e: Emitter,
    node: ResolvedNode,
    axes: Axes,
    finals: Sequence[ir.Value],
    initial: Sequence[State],
    mask: Mask | None,
) -> ir.Value:
    """Y_h or Y_c."""
    # onnxruntime gives 0 for an empty sequence, the text leaves the initial state.
    zeroed = node.semantics == "ort" and any(state.initial is not None for state in initial)
    nonempty = None
    if zeroed:
        nonempty = _nonempty(e, axes) if mask is None else mask.nonempty
    lanes = []
    for value, state in zip(finals, initial, strict=True):
        if nonempty is not None and state.initial is not None:
            value = e.where_else_zero(nonempty, value)
        dims: list[Dim] = [axes.batch, node.hidden_size]
        dims.insert(node.layout, 2 if axes.paired else 1)
        lanes.append(_with_directions(e, value, axes.value(node.hidden_size), dims, node.layout))
    return from_arithmetic(e, node, e.concat(lanes, axis=node.layout))


def _with_directions(
    e: Emitter, value: ir.Value, sizes: Sequence[Dim], dims: Sequence[Dim], axis: int
) -> ir.Value:
    """A part of an output in the sizes of the output, which counts directions on `axis`."""
    if sizes == dims:
        return value
    if sizes == [*dims[:axis], *dims[axis + 1 :]]:
        return e.unsqueeze(value, axis, dims)
    return e.reshape(value, dims)


def _nonempty(e: Emitter, axes: Axes) -> ir.Value | None:
    """Whether there are time steps at all; ``None`` where that is certain."""
    if isinstance(axes.time, int):
        return None
    return e.less(e.integers(0), axes.time)
