"""Both directions of a bidirectional node as one lane, whose second half is turned round in time.

There are half as many ops then, which counts while a step is small: for a batch of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.cells import GateGroup
from rnnlower.emitter import Emitter
from rnnlower.lanes import Lane, cell_parameters, input_product, rows_of, to_arithmetic
from rnnlower.recurrent import ResolvedNode
from rnnlower.strategies import Results, State
from rnnlower.timeseries import Axes, TimeSeries
from rnnlower.weights import Weights

__all__ = ["LARGEST_PAIR", "paired_lane", "paired_series", "part_directions", "pays_as_pair"]

LARGEST_PAIR = 256
"""Units up to which both directions in one step cost less than one behind the other."""

_FLIP = 10


def pays_as_pair(e: Emitter, node: ResolvedNode, axes: Axes) -> bool:
    """Whether both directions in one step, as one batched product, cost less than one behind the other.

    Not as a block-diagonal product, though for few units that is faster still: NaN and infinity times zero
    would reach from one direction into the other.
    """
    R = node.inputs["R"]
    return (
        axes.upright
        and node.reversed_directions == (False, True)
        and node.hidden_size <= LARGEST_PAIR
        and e.opset >= _FLIP
        and node.activations[0] == node.activations[1]
        and not isinstance(R.const_value, ir.ExternalTensor)
    )


def paired_lane(
    e: Emitter,
    node: ResolvedNode,
    weights: Weights,
    axes: Axes,
    X: TimeSeries,
    groups: Sequence[GateGroup],
) -> Lane:
    """Both directions as one."""
    single = dataclasses.replace(axes, paired=False, upright=False)
    turned = TimeSeries(e, X.axes, X.width, stacked=e.flip(X.stacked(), 0))
    products = {}
    for group in groups:
        halves = [
            input_product(e, node, weights, single, source, group, direction).flat()
            for direction, source in enumerate((X, turned))
        ]
        first, last = rows_of(node, group)
        products[group.gates] = paired_series(e, axes, last - first, halves)
    states = []
    for name in node.state_names:
        initial = node.initial_state(name)
        if initial is not None:
            sizes = e.size_vector(axes.value(node.hidden_size))
            initial = to_arithmetic(e, node, e.op("Reshape", initial, sizes, since=5))
        states.append(State(initial, node.hidden_size))
    return Lane(cell_parameters(e, node, weights, groups, None, axes), products, states, reverse=False)


def paired_series(
    e: Emitter, axes: Axes, width: int, halves: Sequence[ir.Value], dtype: ir.DataType | None = None
) -> TimeSeries:
    """What each direction has, ``[time, width, ...]``, as one."""
    stacked = e.reshape(e.concat(halves, axis=1), [axes.time, *axes.value(width)])
    return TimeSeries(e, axes, width, stacked=stacked, dtype=dtype)


def part_directions(e: Emitter, axes: Axes, results: Results) -> Results:
    """The outputs and final states of a pair, direction by direction."""
    single = dataclasses.replace(axes, paired=False)
    outputs = []
    for series in results.outputs:
        forward, turned = e.split_evenly(series.stacked(), 2, 1, 1)
        for half in (forward, e.flip(turned, 0)):
            stacked = e.reshape(half, [axes.time, *single.value(series.width)])
            outputs.append(TimeSeries(e, single, series.width, stacked=stacked))
    halves = [e.split_evenly(state, 2, 0, 1) for state in results.states]
    return Results(outputs, [half[direction] for direction in range(2) for half in halves])
