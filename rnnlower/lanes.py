"""The directions of a recurrent node: one lane each, or one for both (`pairs.py`).

A `Lane` holds what the steps of a direction share: weights, input products for all time steps or X itself,
initial states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnnlower.cells import CellParameters, GateGroup
from rnnlower.emitter import Emitter
from rnnlower.pairs import turned
from rnnlower.recurrent import ResolvedNode
from rnnlower.strategies import State
from rnnlower.timeseries import Axes, TimeSeries
from rnnlower.weights import Weights

__all__ = [
    "Lane",
    "from_arithmetic",
    "make_lane",
    "pays_to_join",
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


def make_lane(
    e: Emitter,
    node: ResolvedNode,
    weights: Weights,
    axes: Axes,
    X: TimeSeries,
    groups: Sequence[GateGroup],
    direction: int | None,
    *,
    multiplies_input: bool = False,
) -> Lane:
    """A direction's lane; of both directions where the axes are paired and the direction is ``None``."""
    reverse = direction is not None and node.reversed_directions[direction]
    parameters = _cell_parameters(
        e, node, weights, groups, direction, axes, multiplies_input=multiplies_input
    )
    if multiplies_input:
        inputs = {"X": X.reversed(reverse)}
    else:
        inputs = {
            group.gates: _input_product(e, node, weights, axes, X, group, direction).reversed(reverse)
            for group in groups
        }
    if direction is None:
        inputs = {gates: turned(e, product) for gates, product in inputs.items()}
    states = [_initial_state(e, node, axes, name, direction) for name in node.state_names]
    return Lane(parameters, inputs, states, reverse)


def _cell_parameters(
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
        rows = _rows_of(node, group)
        if direction is None:
            height = rows[1] - rows[0]
            dims = [node.num_directions, height, node.hidden_size]
            R[group.gates] = weights.matrices(e, node.inputs["R"], *rows, dims)
        elif not multiplies_input or _behind_reset(node, group):
            R[group.gates] = weights.matrix(e, node.inputs["R"], direction, *rows)
        if multiplies_input:
            assert direction is not None
            bias[group.gates] = _bias(e, node, weights, group, direction) or e.scalar(0.0)
            if _behind_reset(node, group):
                W[group.gates] = weights.matrix(e, node.inputs["W"], direction, *rows)
            else:
                R[group.gates] = weights.joined(e, node.inputs["W"], node.inputs["R"], direction, *rows)
    return {"R": R, "W": W, "bias": bias}


def _rows_of(node: ResolvedNode, group: GateGroup) -> tuple[int, int]:
    """The rows of a group in W, R and each half of B."""
    return group.first * node.hidden_size, group.last * node.hidden_size


def _input_product(
    e: Emitter,
    node: ResolvedNode,
    weights: Weights,
    axes: Axes,
    X: TimeSeries,
    group: GateGroup,
    direction: int | None,
) -> TimeSeries:
    """``X W^T + bias`` of a group of gates, for all steps at once."""
    first, last = _rows_of(node, group)
    width = last - first
    if direction is None:
        W = weights.matrices(e, node.inputs["W"], first, last, [node.num_directions * width, -1])
    else:
        W = weights.matrix(e, node.inputs["W"], direction, first, last)
    bias = _bias(e, node, weights, group, direction)
    if e.opset < 14 and not isinstance(axes.time, int) and not isinstance(axes.batch, int):
        # Before Reshape-14 a Gemm's flat result could not be given its shape back where a size is 0.
        product = e.op("MatMul", X.stacked(), e.transpose(W, [1, 0]))
        stacked = product if bias is None else e.op("Add", product, bias)
        return TimeSeries(e, axes, width, stacked=stacked)
    product = e.gemm(X.flat(), W, bias)
    if axes.upright:
        stacked = e.reshape(product, [axes.time, *axes.value(width)])
        return TimeSeries(e, axes, width, stacked=stacked)
    return TimeSeries(e, axes, width, flat=product)


def _bias(
    e: Emitter, node: ResolvedNode, weights: Weights, group: GateGroup, direction: int | None
) -> ir.Value | None:
    """What is added to ``X W^T``, as a vector."""
    first, last = _rows_of(node, group)
    B = node.inputs.get("B")
    if B is None:
        return None
    if _behind_reset(node, group):
        return weights.vector(e, B, direction, first, last, [-1])
    offset = len(node.cell.gates) * node.hidden_size
    return weights.bias_sum(e, B, direction, first, last, offset)


def _behind_reset(node: ResolvedNode, group: GateGroup) -> bool:
    """Whether the group's product with R does not add up with that of W."""
    return node.linear_before_reset and group.gates == "h"


def _initial_state(e: Emitter, node: ResolvedNode, axes: Axes, name: str, direction: int | None) -> State:
    value = node.initial_state(name)
    if value is None:
        return State(None, node.hidden_size)
    if direction is not None and node.num_directions > 1:
        value = e.slice(value, [direction], [direction + 1], [node.layout])
    # Not Squeeze: in a branch that never runs, the rank need not be what the operator's text says.
    sizes = [-1, *axes.value(node.hidden_size)[1:]]
    rows = e.op("Reshape", value, e.size_vector(sizes), since=5)
    return State(to_arithmetic(e, node, rows), node.hidden_size)


def to_arithmetic(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    return value if node.dtype == e.dtype else e.cast(value, e.dtype)


def from_arithmetic(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    assert node.dtype is not None
    return value if node.dtype == e.dtype else e.cast(value, node.dtype)
