"""Both directions of a bidirectional node as one lane, in which the second runs backwards through time.

There are half as many ops then, which counts while a step is small: for a batch of one.
"""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.emitter import Emitter
from rnnlower.recurrent import ResolvedNode
from rnnlower.timeseries import Axes, TimeSeries

__all__ = ["LARGEST_PAIR", "pays_as_pair", "turned"]

LARGEST_PAIR = 256
"""Units up to which both directions in one step cost less than one behind the other."""

_REVERSE_SEQUENCE = 10


def pays_as_pair(e: Emitter, node: ResolvedNode, axes: Axes) -> bool:
    """Whether both directions in one step, as one batched product, cost less than one behind the other.

    Not as a block-diagonal product, though for few units that is faster still: NaN and infinity times zero
    would reach from one direction into the other.
    """
    return (
        axes.upright
        and node.reversed_directions == (False, True)
        and node.hidden_size <= LARGEST_PAIR
        and e.opset >= _REVERSE_SEQUENCE
        and node.activations[0] == node.activations[1]
        and not any(isinstance(node.inputs[name].const_value, ir.ExternalTensor) for name in "WR")
    )


def turned(e: Emitter, series: TimeSeries) -> TimeSeries:
    """The series of a pair, the second direction's values the other way round in time."""
    axes = series.axes
    # The forward direction's first 0 steps change places.
    lengths = e.size_vector([0, axes.time])
    value = e.op("ReverseSequence", series.stacked(), lengths, time_axis=0, batch_axis=1, since=10)
    return TimeSeries(e, axes, series.width, stacked=value, dtype=series.dtype)
