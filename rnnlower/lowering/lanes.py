"""Lanes: the directions of a recurrent node, each as a lane, or both in one if the form requires it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.names import Scope
from rnnlower.lowering.cells import CELLS, CellParameters, Inputs, NewState
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.forms import Form, GateGroup, StepWeights, emit_bias, gate_rows
from rnnlower.lowering.masks import reverse_second_direction
from rnnlower.lowering.step_names import StepNames, StepScope
from rnnlower.lowering.strategies.repeating import InitialState
from rnnlower.lowering.timeseries import Axes, States, TimeSeries
from rnnlower.lowering.weights import DirectionWeights, Weights
from rnnlower.recurrent.node import ResolvedNode


@dataclasses.dataclass(frozen=True)
class Lane:
    """The data that the steps of one direction, or of both, share.

    Attributes:
        parameters: Weights and activations.
        inputs: The input products by group, or ``X``.
        states: The initial states.
        reverse: Whether it runs from the end.
        names: The names of the steps of a straight line.
    """

    parameters: CellParameters
    inputs: Mapping[str, TimeSeries]
    states: Sequence[InitialState]
    axes: Axes
    reverse: bool
    names: StepNames

    def step(self, e: Emitter, x: Inputs, state: States) -> NewState:
        """Emit one step, given its inputs by name and the previous state."""
        return CELLS[self.parameters.node.op_type](e, self.parameters, x, state)

    def position(self, number: int) -> int:
        """Return the time index of a step."""
        assert isinstance(self.axes.time, int)
        return self.axes.time - 1 - number if self.reverse else number

    def scope(self, e: Emitter, number: int | None) -> Scope:
        """Return the scope for the names of a step, which has a number in a straight line."""
        if number is None:
            return direction_scope(e.names, self.reverse)
        return StepScope(e.names.source, self.names, self.position(number))


def make_lanes(e: Emitter, node: ResolvedNode, weights: Weights, form: Form, X: TimeSeries) -> list[Lane]:
    """Return a node's lanes in a form; X is ``[time, batch, input_size]``, in the compute type."""
    axes = dataclasses.replace(X.axes, lead=form.lead)
    lanes = []
    for direction in form.directions(node):
        reverse = direction is not None and node.reversed_directions[direction]
        names = step_names(e, axes, reverse=reverse)
        with e.naming(direction_scope(e.names, reverse)):
            own, inputs = weights.of(e, direction), {"X": X}
            if not form.takes_input:
                inputs = {
                    group.gates: _emit_input_product(node, own, X, axes, group) for group in form.groups(node)
                }
            if direction is None:
                inputs = {name: reverse_second_direction(e, product) for name, product in inputs.items()}
            inputs = {name: series.reversed(reverse) for name, series in inputs.items()}
            lanes.append(
                Lane(
                    cell_parameters(node, own, form, form.step_weights(node, own)),
                    {name: series.named(names, "xwuv"[i]) for i, (name, series) in enumerate(inputs.items())},
                    [emit_initial_state(e, node, axes, name, direction) for name in node.state_names],
                    axes,
                    reverse,
                    names,
                )
            )
    return lanes


def cell_parameters(
    node: ResolvedNode, weights: DirectionWeights, form: Form, step_weights: StepWeights
) -> CellParameters:
    """Return the parameters of a direction's cell, or of that of both for ``None``."""
    B, P, H = node.inputs.get("B"), node.inputs.get("P"), node.hidden_size
    dims = [*form.lead, *([1] if form.lead else []), H]

    def vector(value: ir.Value, position: int) -> ir.Value:
        return weights.vector(value, position * H, (position + 1) * H, dims)

    recurrent_bias = None
    if B is not None and node.linear_before_reset:
        # The reset gate multiplies Rbh but not Wbh, so they cannot be added beforehand.
        recurrent_bias = vector(B, 5)
    peepholes = {}
    if P is not None:
        letters = "".join(group.gates for group in form.groups(node))
        peepholes = {letter: vector(P, "iof".index(letter)) for letter in "iof" if letter in letters}
    return CellParameters(
        node=node,
        activations=node.activations[weights.direction or 0],
        weights=step_weights,
        recurrent_bias=recurrent_bias,
        peepholes=peepholes,
        form=form,
        direction=_lane_name(node, weights.direction),
    )


def _emit_input_product(
    node: ResolvedNode, weights: DirectionWeights, X: TimeSeries, axes: Axes, group: GateGroup
) -> TimeSeries:
    """Emit ``X W^T + bias`` of a group of gates, for all steps at once."""
    e, name, (first, last) = weights.e, _lane_name(node, weights.direction), gate_rows(node, group)
    width = last - first
    if weights.direction is None:
        W = weights.matrices(node.inputs["W"], first, last, [node.num_directions * width, -1])
    else:
        W = weights.matrix(node.inputs["W"], first, last)
    bias = emit_bias(node, weights, group)
    if e.opset < 14 and not isinstance(axes.time, int) and not isinstance(axes.batch, int):
        # Before Reshape-14 the flat result of a Gemm could not be reshaped back if a size is 0.
        product = e.op("MatMul", X.stacked(), e.transpose(W, [1, 0]))
        stacked = product if bias is None else e.op("Add", product, bias)
        return TimeSeries(e, axes, width, stacked=stacked)
    factor = e.announce(X.flat(), "x")
    product = e.gemm(factor, W, bias, role="x", direction=name)
    product = e.announce(product, f"x sum {group.gates}", name)
    if axes.lead:
        return TimeSeries(e, axes, width, stacked=e.reshape(product, [axes.time, *axes.value(width)]))
    return TimeSeries(e, axes, width, flat=product)


def emit_initial_state(
    e: Emitter, node: ResolvedNode, axes: Axes, name: str, direction: int | None
) -> InitialState:
    """Return a direction's initial state, or that of both for ``None``."""
    value = node.initial_state(name)
    if value is None:
        return InitialState(None, node.hidden_size)
    if direction is not None and node.num_directions > 1:
        value = e.slice(value, [direction], [direction + 1], [node.layout])
    # Not Squeeze: in a branch that never runs, the rank may break the spec.
    dims = axes.value(node.hidden_size)
    # A batched product would broadcast the directions of a state that does not fit.
    sizes = e.size_vector(dims if axes.lead else [-1, *dims[1:]])
    state = cast_to_compute_type(e, node, e.op("Reshape", value, sizes, since=5))
    role = name.removeprefix("initial_")
    return InitialState(e.announce(state, role, _lane_name(node, direction)), node.hidden_size)


def _lane_name(node: ResolvedNode, direction: int | None) -> str:
    """Return the name of a direction, ``""`` for both."""
    return "" if direction is None else ("forward", "reverse")[node.reversed_directions[direction]]


def step_names(e: Emitter, axes: Axes, *, reverse: bool) -> StepNames:
    """Return the names of the steps of a direction."""
    steps = axes.time if isinstance(axes.time, int) else 0
    return StepNames(e.names.source.step_prefix(), e.names.prefix.rstrip("/"), steps, reverse=reverse)


def direction_scope(names: Scope, reverse: bool) -> Scope:
    """Return the scope for the names of one direction."""
    return Scope(names.source, f"{names.prefix}reverse/") if reverse else names


def cast_to_compute_type(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    return value if node.dtype == e.dtype else e.cast(value, e.dtype)


def cast_from_compute_type(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    assert node.dtype is not None
    return value if node.dtype == e.dtype else e.cast(value, node.dtype)
