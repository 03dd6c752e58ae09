"""A recurrent node as primitive ops: layout, directions, sequence lengths and outputs around the step.

The stages: bring X to time-major and to the type of the arithmetic; for each direction (a `Lane`) multiply X by W for all
time steps at once; join the lanes' steps into one, run it by a strategy, and put the outputs together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.cells import CELLS, CellParameters, GateGroup, gate_groups
from rnnlower.emitter import Dim, Emitter
from rnnlower.recurrent import ResolvedNode
from rnnlower.strategies import STRATEGIES, Recurrence, Results, State, run_in_chunks, run_unrolled
from rnnlower.timeseries import Axes, TimeSeries
from rnnlower.weights import Weights

__all__ = ["lower_node"]


@dataclasses.dataclass(frozen=True)
class Lane:
    """One direction: its parameters, its input products by group, its initial states."""

    parameters: CellParameters
    groups: Sequence[GateGroup]
    products: Sequence[TimeSeries]
    states: Sequence[State]
    reverse: bool


@dataclasses.dataclass(frozen=True)
class Mask:
    """Which steps lie within a row's sequence.

    Attributes:
        within: ``t < sequence_lens``, bool, one column.
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
    if axes.batch == 0:
        return _empty_outputs(e, node, axes)
    input_size: Dim = e.dim(X, 2) if node.input_size is None else node.input_size
    stacked = _to_arithmetic(e, node, e.transpose(X, [1, 0, 2]) if node.layout else X)
    series = TimeSeries(e, axes, input_size, stacked=stacked)
    mask = _mask(e, node, axes) if "sequence_lens" in node.inputs else None
    lanes = [_lane(e, node, weights, axes, series, direction) for direction in range(node.num_directions)]
    recurrence = _join(node, axes, lanes, mask, wants_sequence=node.used("Y"))
    results = _run(e, recurrence, strategy, unroll_factor)
    outputs: dict[str, ir.Value] = {}
    if node.used("Y"):
        outputs["Y"] = _sequence_output(e, node, axes, results.outputs, mask)
    per_lane = len(lanes[0].states)
    for index, name in enumerate(("Y_h", "Y_c")[:per_lane]):
        if node.used(name):
            finals = results.states[index::per_lane]
            outputs[name] = _state_output(e, node, axes, finals, [lane.states[index] for lane in lanes], mask)
    return outputs


def _run(e: Emitter, recurrence: Recurrence, strategy: str, unroll_factor: int) -> Results:
    if recurrence.axes.time == 0:
        return run_unrolled(e, recurrence)
    if unroll_factor > 1:
        return run_in_chunks(e, recurrence, STRATEGIES[strategy], unroll_factor)
    return STRATEGIES[strategy](e, recurrence)


def _empty_outputs(e: Emitter, node: ResolvedNode, axes: Axes) -> dict[str, ir.Value]:
    """The outputs for a batch of no rows."""
    states: list[Dim] = [0, node.num_directions] if node.layout else [node.num_directions, 0]
    sequence: list[Dim] = (
        [0, axes.time, node.num_directions] if node.layout else [axes.time, node.num_directions, 0]
    )
    dims = {"Y": sequence, "Y_h": states, "Y_c": states}
    return {
        name: _from_arithmetic(e, node, e.op("Identity", e.zeros([*dims[name], node.hidden_size])))
        for name in node.outputs
        if node.used(name)
    }


def _axes(e: Emitter, node: ResolvedNode, X: ir.Value) -> Axes:
    time: Dim | None = node.seq_length
    batch: Dim | None = node.batch_size
    return Axes(
        e.dim(X, node.layout) if time is None else time,
        e.dim(X, 1 - node.layout) if batch is None else batch,
    )


def _to_arithmetic(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    return value if node.dtype == e.dtype else e.cast(value, e.dtype)


def _from_arithmetic(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    assert node.dtype is not None
    return value if node.dtype == e.dtype else e.cast(value, node.dtype)


def _lane(
    e: Emitter, node: ResolvedNode, weights: Weights, axes: Axes, X: TimeSeries, direction: int
) -> Lane:
    groups = gate_groups(node)
    hidden_size = node.hidden_size
    rows = len(node.cell.gates) * hidden_size
    R, B, P = (node.inputs.get(name) for name in ("R", "B", "P"))
    assert R is not None
    # Behind the reset gate Rbh does not add up with Wbh.
    reset_bias_apart = node.linear_before_reset and B is not None
    recurrent_bias = None
    if reset_bias_apart and B is not None:
        recurrent_bias = weights.vector(e, B, direction, rows + 2 * hidden_size, rows + 3 * hidden_size)
    peepholes = {}
    if P is not None:
        letters = [letter for letter in "iof" if letter in groups[0].gates]
        peepholes = {
            letter: weights.vector(
                e, P, direction, "iof".index(letter) * hidden_size, ("iof".index(letter) + 1) * hidden_size
            )
            for letter in letters
        }
    parameters = CellParameters(
        node=node,
        activations=node.activations[direction],
        R={
            group.gates: weights.matrix(e, R, direction, group.first * hidden_size, group.last * hidden_size)
            for group in groups
        },
        recurrent_bias=recurrent_bias,
        peepholes=peepholes,
    )
    products = []
    for group in groups:
        first, last = group.first * hidden_size, group.last * hidden_size
        bias = None
        if B is not None and reset_bias_apart and group.gates == "h":
            bias = weights.vector(e, B, direction, first, last)
        elif B is not None:
            bias = weights.bias_sum(e, B, direction, first, last, offset=rows)
        W = weights.matrix(e, node.inputs["W"], direction, first, last)
        products.append(
            _input_product(e, node, axes, X, W, bias, last - first, node.reversed_directions[direction])
        )
    states = [
        _initial_state(e, node, name, direction)
        for name in ("initial_h", "initial_c")[: 1 + (node.op_type == "LSTM")]
    ]
    return Lane(parameters, groups, products, states, node.reversed_directions[direction])


def _input_product(
    e: Emitter,
    node: ResolvedNode,
    axes: Axes,
    X: TimeSeries,
    W: ir.Value,
    bias: ir.Value | None,
    width: int,
    reverse: bool,
) -> TimeSeries:
    """``X W^T + bias`` of all steps at once."""
    if e.opset < 14 and not isinstance(axes.time, int) and not isinstance(axes.batch, int):
        # Before Reshape-14 a Gemm's flat result could not be given its shape back where a size is 0.
        product = e.op("MatMul", X.stacked(), e.transpose(W, [1, 0]))
        stacked = product if bias is None else e.op("Add", product, bias)
        return TimeSeries(e, axes, width, stacked=stacked, reverse=reverse)
    flat = e.gemm(X.flat(), W, bias)
    return TimeSeries(e, axes, width, flat=flat, reverse=reverse)


def _initial_state(e: Emitter, node: ResolvedNode, name: str, direction: int) -> State:
    value = node.inputs.get(name)
    if value is None or _is_zero(value):
        return State(None, node.hidden_size)
    axis = node.layout
    if node.num_directions > 1:
        value = e.slice(value, [direction], [direction + 1], [axis])
    return State(_to_arithmetic(e, node, e.squeeze(value, axis)), node.hidden_size)


def _is_zero(value: ir.Value) -> bool:
    """Whether the value is a constant of zeros that no caller can override."""
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and not value.is_graph_input() and not np.any(tensor.numpy())


def _mask(e: Emitter, node: ResolvedNode, axes: Axes) -> Mask:
    lens = node.inputs["sequence_lens"]
    steps = e.unsqueeze(e.arange(axes.time), 1)
    within = e.unsqueeze(e.op("Less", steps, lens, since=9), 2)
    zero = e.constant(np.array(0, np.int32))
    nonempty = e.unsqueeze(e.op("Greater", lens, zero, since=9), 1)
    return Mask(TimeSeries(e, axes, 1, stacked=within, dtype=ir.DataType.BOOL), nonempty)


def _join(
    node: ResolvedNode, axes: Axes, lanes: Sequence[Lane], mask: Mask | None, *, wants_sequence: bool
) -> Recurrence:
    """One recurrence whose step is the step of every lane."""
    inputs = []
    for lane in lanes:
        inputs += lane.products
        if mask is not None:
            inputs.append(mask.within.reversed(lane.reverse))
    per_lane = len(inputs) // len(lanes)
    states_per_lane = len(lanes[0].states)

    def step(
        e: Emitter, values: Sequence[ir.Value], states: Sequence[ir.Value | None]
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        new_states: list[ir.Value] = []
        outputs: list[ir.Value] = []
        for index, lane in enumerate(lanes):
            own = values[index * per_lane : (index + 1) * per_lane]
            old = states[index * states_per_lane : (index + 1) * states_per_lane]
            x = {group.gates: value for group, value in zip(lane.groups, own, strict=False)}
            new = CELLS[node.op_type](e, lane.parameters, x, old)
            if mask is not None:
                new = [_held(e, own[-1], value, before) for value, before in zip(new, old, strict=True)]
            new_states += new
            outputs += new[:1] if wants_sequence else []
        return new_states, outputs

    return Recurrence(
        axes=axes,
        state_rows=axes.batch,
        inputs=inputs,
        states=[state for lane in lanes for state in lane.states],
        step=step,
        output_widths=[node.hidden_size] * len(lanes) if wants_sequence else [],
        output_reverse=[lane.reverse for lane in lanes] if wants_sequence else [],
    )


def _held(e: Emitter, within: ir.Value, new: ir.Value, old: ir.Value | None) -> ir.Value:
    """The new state within a row's sequence, the old one outside of it."""
    return e.where(within, new, e.scalar(0.0) if old is None else old)


def _sequence_output(
    e: Emitter, node: ResolvedNode, axes: Axes, series: Sequence[TimeSeries], mask: Mask | None
) -> ir.Value:
    """Y, with zeros past the end of each row's sequence."""
    lanes = []
    for lane in series:
        value = lane.flat() if lane.is_flat else lane.stacked()
        if mask is not None:
            within = mask.within.flat() if lane.is_flat else mask.within.stacked()
            value = e.where(within, value, e.scalar(0.0))
        if lane.is_flat:
            lanes.append(e.reshape(value, [axes.time, 1, axes.batch, node.hidden_size]))
        else:
            lanes.append(e.unsqueeze(value, 1))
    Y = _from_arithmetic(e, node, e.concat(lanes, axis=1))
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
            value = e.where(nonempty, value, e.scalar(0.0))
        lanes.append(e.unsqueeze(value, node.layout))
    return _from_arithmetic(e, node, e.concat(lanes, axis=node.layout))


def _nonempty(e: Emitter, axes: Axes) -> ir.Value | None:
    """Whether there are time steps at all; ``None`` where that is certain."""
    if isinstance(axes.time, int):
        return None if axes.time else e.constant(np.array(False))
    return e.op("Greater", axes.time, e.integers(0), since=9)
