"""The directions of a recurrent node: one lane each, or one for both (`single_row.py`).

A `Lane` holds what the steps of a direction share: weights, input products for all time steps or X itself,
initial states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.names import Scope
from rnnlower.lowering.cells import CELLS, CellParameters, GateGroup
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.single_row import turned
from rnnlower.lowering.strategies import State
from rnnlower.lowering.timeseries import Axes, TimeSeries
from rnnlower.lowering.weights import Weights
from rnnlower.recurrent.node import ResolvedNode

__all__ = ["Lane", "LaneMaker", "from_arithmetic", "initial_state", "pays_to_join", "side", "to_arithmetic"]

MOST_JOINED = 2 * 2**20
"""Bytes of W and R beyond which a step that reads both waits for memory."""

LEAST_JOINED: Mapping[str, int] = {"LSTM": 0, "GRU": 4096, "RNN": 2048}
"""Elements of H in a step from which a copy of X beside it costs less than a copy of the input products."""


@dataclasses.dataclass(frozen=True)
class Lane:
    """One direction, or both.

    Attributes:
        parameters: What its steps share.
        inputs: The input products by group, or ``X``.
        states: The initial states.
        reverse: Whether it runs from the end.
        alias: What the names of the steps of a straight line begin with.
    """

    parameters: CellParameters
    inputs: Mapping[str, TimeSeries]
    states: Sequence[State]
    reverse: bool
    alias: str

    def position(self, number: int) -> int:
        """Where in time the step of this number is."""
        time = self.parameters.axes.time
        assert isinstance(time, int)
        return time - 1 - number if self.reverse else number

    def names(self, e: Emitter, number: int | None) -> Scope:
        """The names of a step: in a straight line, which has thousands of them, a few letters each."""
        if number is None:
            return side(e.names, self.reverse)
        return Scope(e.names.source, f"{self.alias}{number}", short=True)

    def step(self, e: Emitter, x: Mapping[str, ir.Value], state: Sequence[ir.Value | None]) -> list[ir.Value]:
        """The state after a step, of the step's inputs by name and the state before it."""
        return CELLS[self.parameters.node.op_type](e, self.parameters, x, state)


def pays_to_join(e: Emitter, node: ResolvedNode, weights: Weights, batch: int) -> bool:
    """Whether `batch` rows of X and H are best multiplied at once, by constants that are small enough."""
    if node.input_size is None or not weights.in_memory(node.inputs["W"], node.inputs["R"]):
        return False
    if batch * node.hidden_size < LEAST_JOINED[node.op_type]:
        return False
    rows = len(node.cell.gates) * node.hidden_size
    return rows * (node.input_size + node.hidden_size) * e.dtype.itemsize <= MOST_JOINED


@dataclasses.dataclass(frozen=True)
class LaneMaker:
    """Makes the lanes of a node.

    Attributes:
        e: Emits what the lanes share.
        node: The node.
        weights: Cuts its weights.
        axes: How values lie.
        groups: The gates that share a product with X.
        state_groups: The gates that share a product with H.
        multiplies_input: Whether a step multiplies X itself.
    """

    e: Emitter
    node: ResolvedNode
    weights: Weights
    axes: Axes
    groups: Sequence[GateGroup]
    state_groups: Sequence[GateGroup]
    multiplies_input: bool

    def lanes(self, X: TimeSeries) -> list[Lane]:
        """The lane of each direction, or of both where the axes are paired."""
        if self.axes.paired:
            return [self._lane(X, None)]
        return [self._lane(X, direction) for direction in range(self.node.num_directions)]

    def _lane(self, X: TimeSeries, direction: int | None) -> Lane:
        """A direction's lane; ``None``: that of both."""
        reverse = direction is not None and self.node.reversed_directions[direction]
        alias = self.e.names.source.alias(self.node.op_type[0].lower())
        with self.e.naming(side(self.e.names, reverse)):
            return self._named_lane(X, direction, reverse, alias)

    def _named_lane(self, X: TimeSeries, direction: int | None, reverse: bool, alias: str) -> Lane:
        parameters = self._parameters(direction)
        if self.multiplies_input:
            inputs = {"X": X.reversed(reverse).named(alias, "x")}
        else:
            inputs = {
                group.gates: self._input_product(X, group, direction).reversed(reverse)
                for group in self.groups
            }
        if direction is None:
            inputs = {gates: turned(self.e, product) for gates, product in inputs.items()}
        inputs = {
            gates: product.named(alias, "x" if index == 0 else "w")
            for index, (gates, product) in enumerate(inputs.items())
        }
        states = [
            initial_state(self.e, self.node, self.axes, name, direction) for name in self.node.state_names
        ]
        return Lane(parameters, inputs, states, reverse, alias)

    def _parameters(self, direction: int | None) -> CellParameters:
        B, P = self.node.inputs.get("B"), self.node.inputs.get("P")
        recurrent_bias = None
        if B is not None and self.node.linear_before_reset:
            # Behind the reset gate Rbh does not add up with Wbh.
            recurrent_bias = self._vector(B, 5, direction)
        peepholes = {}
        if P is not None:
            gates = "".join(group.gates for group in self.groups)
            peepholes = {
                letter: self._vector(P, "iof".index(letter), direction) for letter in "iof" if letter in gates
            }
        return CellParameters(
            node=self.node,
            activations=self.node.activations[direction or 0],
            **self._step_weights(direction),
            recurrent_bias=recurrent_bias,
            axes=self.axes,
            peepholes=peepholes,
        )

    def _vector(self, value: ir.Value, position: int, direction: int | None) -> ir.Value:
        """One of the vectors of `hidden_size` elements that B or P consist of."""
        hidden_size = self.node.hidden_size
        first = position * hidden_size
        plain = not self.axes.upright and not self.axes.directions
        dims = [hidden_size] if plain else self.axes.value(hidden_size)
        return self.weights.vector(self.e, value, direction, first, first + hidden_size, dims)

    def _step_weights(self, direction: int | None) -> dict[str, dict[str, ir.Value]]:
        """The parameters of the products in a step: R, and where it multiplies X itself, W and the biases."""
        W, R = self.node.inputs["W"], self.node.inputs["R"]
        of_input: dict[str, ir.Value] = {}
        of_state: dict[str, ir.Value] = {}
        bias: dict[str, ir.Value] = {}
        for group in self.state_groups:
            gates, rows = group.gates, self._rows(group)
            if self.axes.directions and not self.axes.upright:
                of_state[gates] = self.weights.transposed(self.e, R, direction, *rows)
                continue
            if direction is None:
                dims = [self.node.num_directions, rows[1] - rows[0], self.node.hidden_size]
                of_state[gates] = self.weights.matrices(self.e, R, *rows, dims)
                continue
            if not self.multiplies_input:
                of_state[gates] = self.weights.matrix(self.e, R, direction, *rows)
                continue
            bias[gates] = self._bias(group, direction) or self.e.scalar(0.0)
            if self._behind_reset(group):
                of_input[gates] = self.weights.matrix(self.e, W, direction, *rows)
                of_state[gates] = self.weights.matrix(self.e, R, direction, *rows)
            else:
                of_state[gates] = self.weights.joined(self.e, W, R, direction, *rows)
        return {"R": of_state, "W": of_input, "bias": bias}

    def _input_product(self, X: TimeSeries, group: GateGroup, direction: int | None) -> TimeSeries:
        """``X W^T + bias`` of a group of gates, for all steps at once."""
        e, axes, (first, last) = self.e, self.axes, self._rows(group)
        width = last - first
        if direction is None:
            dims = [self.node.num_directions * width, -1]
            W = self.weights.matrices(e, self.node.inputs["W"], first, last, dims)
        else:
            W = self.weights.matrix(e, self.node.inputs["W"], direction, first, last)
        bias = self._bias(group, direction)
        if e.opset < 14 and not isinstance(axes.time, int) and not isinstance(axes.batch, int):
            # Before Reshape-14 a Gemm's flat result could not be given its shape back where a size is 0.
            product = e.op("MatMul", X.stacked(), e.transpose(W, [1, 0]))
            stacked = product if bias is None else e.op("Add", product, bias)
            return TimeSeries(e, axes, width, stacked=stacked)
        product = e.gemm(X.flat(), W, bias)
        if axes.upright or axes.directions:
            stacked = e.reshape(product, [axes.time, *axes.value(width)])
            return TimeSeries(e, axes, width, stacked=stacked)
        return TimeSeries(e, axes, width, flat=product)

    def _bias(self, group: GateGroup, direction: int | None) -> ir.Value | None:
        """What is added to ``X W^T``, as a vector."""
        B, (first, last) = self.node.inputs.get("B"), self._rows(group)
        if B is None:
            return None
        if self._behind_reset(group):
            return self.weights.vector(self.e, B, direction, first, last, [-1])
        offset = len(self.node.cell.gates) * self.node.hidden_size
        return self.weights.bias_sum(self.e, B, direction, first, last, offset)

    def _rows(self, group: GateGroup) -> tuple[int, int]:
        """The rows of a group in W, R and each half of B."""
        return group.first * self.node.hidden_size, group.last * self.node.hidden_size

    def _behind_reset(self, group: GateGroup) -> bool:
        """Whether the group's product with R does not add up with that of W."""
        return self.node.linear_before_reset and group.gates == "h"


def initial_state(e: Emitter, node: ResolvedNode, axes: Axes, name: str, direction: int | None) -> State:
    """A direction's initial state; that of both for ``None``."""
    value = node.initial_state(name)
    if value is None:
        return State(None, node.hidden_size)
    if direction is not None and node.num_directions > 1:
        value = e.slice(value, [direction], [direction + 1], [node.layout])
    # Not Squeeze: in a branch that never runs, the rank need not be what the operator's text says.
    dims = axes.value(node.hidden_size)
    # A batched product would spread the directions of a state that does not fit.
    sizes = e.size_vector(dims if axes.directions else [-1, *dims[1:]])
    return State(to_arithmetic(e, node, e.op("Reshape", value, sizes, since=5)), node.hidden_size)


def side(names: Scope, reverse: bool) -> Scope:
    """The names of what one of two directions has of its own."""
    return Scope(names.source, f"{names.prefix}reverse/") if reverse else names


def to_arithmetic(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    return value if node.dtype == e.dtype else e.cast(value, e.dtype)


def from_arithmetic(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    assert node.dtype is not None
    return value if node.dtype == e.dtype else e.cast(value, node.dtype)
