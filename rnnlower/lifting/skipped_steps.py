"""Steps that some rows skip: the others come first, and each step that is skipped repeats the last result.

ONNX has lengths, but no operator skips a step in the middle.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter

OPERATORS = ("CumSum", "GatherElements", "ScatterElements")
FIRST_OPSET = 11
"""The first version of ONNX that has these."""


@dataclasses.dataclass(frozen=True)
class TakenSteps:
    """The steps that rows take.

    Attributes:
        taken: Whether a row takes a step, ``[T, B, 1]``.
        counts: How many it has taken then, int32 ``[T, B, 1]``.
        lengths: How many it takes, int32 ``[B]``.
        places: The places of the steps once those that a row takes stand first, ``[T, B, 1]``.
    """

    taken: ir.Value
    counts: ir.Value
    lengths: ir.Value
    places: ir.Value

    @classmethod
    def emit(cls, e: Emitter, taken: ir.Value) -> TakenSteps:
        """Emit the steps that rows take, from whether they do."""
        time = e.constant(np.array(0, np.int32))
        ones, rest = (e.cast(each, ir.DataType.INT32) for each in (taken, e.op("Not", taken)))
        before, skipped = (e.op("CumSum", each, time, exclusive=1) for each in (ones, rest))
        total = e.with_axes("ReduceSum", ones, [0])
        places = e.op("Where", taken, before, e.op("Add", total, skipped))
        return cls(taken, e.op("Add", before, ones), e.reshape(total, [-1]), places)

    def compact(self, e: Emitter, X: ir.Value) -> ir.Value:
        """Emit the steps of ``[T, B, I]`` that rows take, then those that they skip."""
        return e.op("ScatterElements", X, e.op("Expand", self.places, e.op("Shape", X)), X, axis=0)

    def repeat(self, e: Emitter, Y: ir.Value, start: ir.Value) -> ir.Value:
        """Emit for all steps what the last one that a row has taken returns; at first, ``[1, B, H]``."""
        counts = e.op("Expand", self.counts, e.op("Shape", Y))
        return e.op("GatherElements", e.concat([start, Y], 0), counts, axis=0)

    def keep(self, e: Emitter, last: ir.Value, start: ir.Value | None) -> ir.Value:
        """Emit the final state ``[B, H]`` of rows that take a step, and of others a start ``[1, B, H]``."""
        if start is None:
            return last
        has_steps = e.op("Greater", e.reshape(self.lengths, [-1, 1]), e.constant(np.array(0, np.int32)))
        return e.op("Where", has_steps, last, e.squeeze(start, 0, []))
