"""A batch of one: how the values of a step lie, on which it depends how fast onnxruntime multiplies them.

A product of one row reads the weights and does little else. onnxruntime repacks a constant second operand of
two axes for products of many rows, which is slow for one. Weights that come first, before a column, are read
as they are, row by row; so is a transposed second operand of three axes, in runs that are as long as all
gates together. The first form leaves the activations to be fused with the products, the second is best for
weights that the caches do not hold, and either takes both directions of a bidirectional node in one product:
half as many ops, which counts while a step is small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.timeseries import Axes, TimeSeries
from rnnlower.lowering.weights import Weights
from rnnlower.recurrent.node import ResolvedNode

__all__ = ["LARGEST_PAIR", "LEAST_WIDE", "LEAST_WIDE_PAIR", "for_single_row", "is_wide", "turned"]

LARGEST_PAIR = 384
"""Units up to which both directions in one step cost less than one behind the other."""

LEAST_WIDE: Mapping[str, int] = {"LSTM": 256, "GRU": 384}
"""Units from which on products of several gates, read in long runs, save more than their unfused ops cost.

An RNN has but one gate.
"""

LEAST_WIDE_PAIR = 128
"""The same for a pair, whose products are never fused."""

_REVERSE_SEQUENCE = 10


def for_single_row(e: Emitter, node: ResolvedNode, weights: Weights, axes: Axes) -> Axes:
    """The axes with the form of a step's values that is fastest for a batch of one."""
    in_long_runs = e.dtype == ir.DataType.FLOAT and weights.in_memory(node.inputs["R"])
    if _pays_as_pair(e, node):
        is_upright = not in_long_runs or node.hidden_size < LEAST_WIDE_PAIR
        return dataclasses.replace(axes, directions=2, upright=is_upright)
    gates_together = "P" not in node.inputs and not node.input_forget
    if in_long_runs and gates_together and is_wide(node.op_type, node.hidden_size):
        return dataclasses.replace(axes, directions=1)
    return dataclasses.replace(axes, upright=True)


def is_wide(op_type: str, hidden_size: int) -> bool:
    """Whether a direction's gates are best multiplied together."""
    return op_type in LEAST_WIDE and hidden_size >= LEAST_WIDE[op_type]


def turned(e: Emitter, series: TimeSeries) -> TimeSeries:
    """The series of a pair, the second direction's values the other way round in time."""
    axes = series.axes
    # The forward direction's first 0 steps change places.
    lengths = e.size_vector([0, axes.time])
    value = e.op("ReverseSequence", series.stacked(), lengths, time_axis=0, batch_axis=1, since=10)
    return TimeSeries(e, axes, series.width, stacked=value, dtype=series.dtype)


def _pays_as_pair(e: Emitter, node: ResolvedNode) -> bool:
    """Whether both directions in one step, as one batched product, cost less than one behind the other.

    Not as a block-diagonal product, though for few units that is faster still: NaN and infinity times zero
    would reach from one direction into the other.
    """
    return (
        node.reversed_directions == (False, True)
        and node.hidden_size <= LARGEST_PAIR
        and e.opset >= _REVERSE_SEQUENCE
        and node.activations[0] == node.activations[1]
        and not any(isinstance(node.inputs[name].const_value, ir.ExternalTensor) for name in "WR")
    )
