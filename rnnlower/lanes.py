"""The directions of a recurrent node: one lane each. Both as one are in `pairs.py`.

A `Lane` holds what the steps of a direction share: weights, input products for all time steps or X itself,
initial states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnnlower.cells import CellParameters, GateGroup
from rnnlower.emitter import Emitter
from rnnlower.recurrent import ResolvedNode
from rnnlower.strategies import State
from rnnlower.timeseries import Axes, TimeSeries
from rnnlower.weights import Weights

__all__ = [
    "Lane",
    "cell_parameters",
    "from_arithmetic",
    "input_product",
    "pays_to_join",
    "rows_of",
    "single_lane",
    "to_arithmetic",
]

MOST_JOINED = 2 * 2**20
"""Bytes of W and R beyond which a step that reads both waits for memory."""

LEAST_JOINED: Mapping[str, int] = {"LSTM": 0, "GRU": 4096, "RNN": 2048}
"""Elements of H in a step from which a copy of X beside it costs less than a copy of the input products."""


@dataclasses.dataclass(frozen=True)
class Lane:
    """One direction, or both: the parameters, the input products by group or ``X``, the initial states."""

    parameters: CellParameters
    inputs: Mapping[str, TimeSeries]
    states: Sequence[State]
    reverse: bool


def pays_to_join(e: Emitter, node: ResolvedNode, weights: Weights, batch: int) -> bool:
    """Whether `batch` rows of X and H are best multiplied at once, by constants that are small enough."""
    if node.input_size is None or not weights.in_memory(node.inputs["W"], node.inputs["R"]):
        return False
    if batch * node.hidden_size < LEAST_JOINED[node.op_type]:
        return False
    rows = len(node.cell.gates) * node.hidden_size
    return rows * (node.input_size + node.hidden_size) * e.dtype.itemsize <= MOST_JOINED


def single_lane(
    e: Emitter,
    node: ResolvedNode,
    weights: Weights,
    axes: Axes,
    X: TimeSeries,
    groups: Sequence[GateGroup],
    direction: int,
    *,
    multiplies_input: bool = False,
) -> Lane:
    parameters = cell_parameters(e, node, weights, groups, direction, axes, multiplies_input=multiplies_input)
    if multiplies_input:
        inputs = {"X": X.reversed(node.reversed_directions[direction])}
    else:
        inputs = {group.gates: input_product(e, node, weights, axes, X, group, direction) for group in groups}
    return Lane(
        parameters,
        inputs,
        [_initial_state(e, node, axes, name, direction) for name in node.state_names],
        node.reversed_directions[direction],
    )


def cell_parameters(
    e: Emitter,
    node: ResolvedNode,
    weights: Weights,
    groups: Sequence[GateGroup],
    direction: int | None,
    axes: Axes,
    *,
    multiplies_input: bool = False,
) -> CellParameters:
    hidden_size = node.hidden_size
    B, P = node.inputs.get("B"), node.inputs.get("P")

    def vector(value: ir.Value, position: int) -> ir.Value:
        first = position * hidden_size
        dims = axes.value(hidden_size) if axes.upright else [hidden_size]
        return weights.vector(e, value, direction, first, first + hidden_size, dims)

    recurrent_bias = None
    if B is not None and node.linear_before_reset:
        # Behind the reset gate Rbh does not add up with Wbh.
        recurrent_bias = vector(B, 5)
    return CellParameters(
        node=node,
        activations=node.activations[direction or 0],
        **_step_weights(e, node, weights, groups, direction, multiplies_input=multiplies_input),
        recurrent_bias=recurrent_bias,
        axes=axes,
        peepholes={}
        if P is None
        else {
            letter: vector(P, "iof".index(letter))
            for letter in "iof"
            if any(letter in group.gates for group in groups)
        },
    )


def _step_weights(
    e: Emitter,
    node: ResolvedNode,
    weights: Weights,
    groups: Sequence[GateGroup],
    direction: int | None,
    *,
    multiplies_input: bool,
) -> dict[str, dict[str, ir.Value]]:
    """The parameters of the products in a step: R, and where it multiplies X itself, W and the biases."""
    R: dict[str, ir.Value] = {}
    W: dict[str, ir.Value] = {}
    bias: dict[str, ir.Value] = {}
    for group in groups:
        rows = rows_of(node, group)
        if not multiplies_input or _behind_reset(node, group):
            R[group.gates] = weights.matrix(e, node.inputs["R"], direction, *rows)
        if multiplies_input:
            assert direction is not None
            bias[group.gates] = _bias(e, node, weights, group, direction) or e.scalar(0.0)
            if _behind_reset(node, group):
                W[group.gates] = weights.matrix(e, node.inputs["W"], direction, *rows)
            else:
                R[group.gates] = weights.joined(e, node.inputs["W"], node.inputs["R"], direction, *rows)
    return {"R": R, "W": W, "bias": bias}


def rows_of(node: ResolvedNode, group: GateGroup) -> tuple[int, int]:
    """The rows of a group in W, R and each half of B."""
    return group.first * node.hidden_size, group.last * node.hidden_size


def input_product(
    e: Emitter,
    node: ResolvedNode,
    weights: Weights,
    axes: Axes,
    X: TimeSeries,
    group: GateGroup,
    direction: int,
) -> TimeSeries:
    """``X W^T + bias`` of a group of gates, for all steps at once."""
    first, last = rows_of(node, group)
    W = weights.matrix(e, node.inputs["W"], direction, first, last)
    bias = _bias(e, node, weights, group, direction)
    width, reverse = last - first, node.reversed_directions[direction]
    if e.opset < 14 and not isinstance(axes.time, int) and not isinstance(axes.batch, int):
        # Before Reshape-14 a Gemm's flat result could not be given its shape back where a size is 0.
        product = e.op("MatMul", X.stacked(), e.transpose(W, [1, 0]))
        stacked = product if bias is None else e.op("Add", product, bias)
        return TimeSeries(e, axes, width, stacked=stacked, reverse=reverse)
    product = e.gemm(X.flat(), W, bias)
    if axes.upright:
        stacked = e.reshape(product, [axes.time, *axes.value(width)])
        return TimeSeries(e, axes, width, stacked=stacked, reverse=reverse)
    return TimeSeries(e, axes, width, flat=product, reverse=reverse)


def _bias(
    e: Emitter, node: ResolvedNode, weights: Weights, group: GateGroup, direction: int
) -> ir.Value | None:
    """What is added to ``X W^T``."""
    first, last = rows_of(node, group)
    B = node.inputs.get("B")
    if B is None:
        return None
    if _behind_reset(node, group):
        return weights.vector(e, B, direction, first, last, [last - first])
    offset = len(node.cell.gates) * node.hidden_size
    return weights.bias_sum(e, B, direction, first, last, offset)


def _behind_reset(node: ResolvedNode, group: GateGroup) -> bool:
    """Whether the group's product with R does not add up with that of W."""
    return node.linear_before_reset and group.gates == "h"


def _initial_state(e: Emitter, node: ResolvedNode, axes: Axes, name: str, direction: int) -> State:
    value = node.initial_state(name)
    if value is None:
        return State(None, node.hidden_size)
    if node.num_directions > 1:
        value = e.slice(value, [direction], [direction + 1], [node.layout])
    # Not Squeeze: in a branch that never runs, the rank need not be what the operator's text says.
    sizes = (-1, 1) if axes.upright else (-1, node.hidden_size)
    rows = e.op("Reshape", value, e.integers(*sizes), since=5)
    return State(to_arithmetic(e, node, rows), node.hidden_size)


def to_arithmetic(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    return value if node.dtype == e.dtype else e.cast(value, e.dtype)


def from_arithmetic(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    assert node.dtype is not None
    return value if node.dtype == e.dtype else e.cast(value, node.dtype)
