"""Both directions of a bidirectional node as one lane, whose second half is turned round in time.

There are half as many ops then, which counts while a step is small: for a batch of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnnlower.cells import GateGroup
from rnnlower.emitter import Emitter
from rnnlower.lanes import Lane, cell_parameters, input_product, rows_of, to_arithmetic
from rnnlower.recurrent import ResolvedNode
from rnnlower.strategies import Results, State
from rnnlower.timeseries import Axes, Pair, TimeSeries
from rnnlower.weights import Weights

__all__ = ["LARGEST_DIAGONAL", "LARGEST_PAIR", "pair_form", "paired_lane", "paired_series", "part_directions"]

LARGEST_PAIR = 256
"""Units up to which both directions in one step cost less than one behind the other."""

LARGEST_DIAGONAL: Mapping[str, int] = {"LSTM": 48, "GRU": 72, "RNN": 112}
"""Units up to which multiplying zeros costs less than the ops of a product with a batch axis."""

_FLIP = 10


def pair_form(e: Emitter, node: ResolvedNode, axes: Axes, weights: Weights) -> Pair | None:
    """How both directions share a step, where that pays."""
    R = node.inputs["R"]
    pays = (
        axes.upright
        and node.reversed_directions == (False, True)
        and node.hidden_size <= LARGEST_PAIR
        and e.opset >= _FLIP
        and node.activations[0] == node.activations[1]
        and not isinstance(R.const_value, ir.ExternalTensor)
    )
    if not pays:
        return None
    is_small = node.hidden_size <= LARGEST_DIAGONAL[node.op_type] and weights.in_memory(R)
    return "diagonal" if is_small and "sequence_lens" not in node.inputs else "batched"


def paired_lane(
    e: Emitter,
    node: ResolvedNode,
    weights: Weights,
    axes: Axes,
    X: TimeSeries,
    groups: Sequence[GateGroup],
) -> Lane:
    """Both directions as one."""
    single = dataclasses.replace(axes, pair=None, upright=False)
    turned = TimeSeries(e, X.axes, X.width, stacked=e.flip(X.stacked(), 0))
    products = {}
    for group in groups:
        halves = [
            input_product(e, node, weights, single, source, group, direction).flat()
            for direction, source in enumerate((X, turned))
        ]
        first, last = rows_of(node, group)
        products[group.gates] = paired_series(e, axes, last - first, halves, gates=len(group.gates))
    states = []
    for name in node.state_names:
        initial = node.initial_state(name)
        if initial is not None:
            sizes = e.size_vector(axes.value(node.hidden_size))
            initial = to_arithmetic(e, node, e.op("Reshape", initial, sizes, since=5))
        states.append(State(initial, node.hidden_size))
    return Lane(cell_parameters(e, node, weights, groups, None, axes), products, states, reverse=False)


def paired_series(
    e: Emitter,
    axes: Axes,
    width: int,
    halves: Sequence[ir.Value],
    *,
    gates: int = 1,
    dtype: ir.DataType | None = None,
) -> TimeSeries:
    """What each direction has, ``[time, width, ...]``, as one: the gates' values lie one behind the other."""
    axis = 1
    if axes.pair == "diagonal" and gates > 1:
        halves, axis = [e.reshape(half, [axes.time, gates, width // gates]) for half in halves], 2
    stacked = e.reshape(e.concat(halves, axis), [axes.time, *axes.value(width)])
    return TimeSeries(e, axes, width, stacked=stacked, dtype=dtype)


def part_directions(e: Emitter, node: ResolvedNode, axes: Axes, results: Results) -> Results:
    """The outputs and final states of a pair, direction by direction."""
    single = dataclasses.replace(axes, pair=None)
    half_size = 1 if axes.pair == "batched" else node.hidden_size
    outputs = []
    for series in results.outputs:
        forward, turned = e.split_evenly(series.stacked(), 2, 1, half_size)
        for half in (forward, e.flip(turned, 0)):
            stacked = e.reshape(half, [axes.time, *single.value(series.width)])
            outputs.append(TimeSeries(e, single, series.width, stacked=stacked))
    halves = [e.split_evenly(state, 2, 0, half_size) for state in results.states]
    return Results(outputs, [half[direction] for direction in range(2) for half in halves])
