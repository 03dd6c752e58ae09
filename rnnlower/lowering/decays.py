"""The decays of LinearAttention within chunks of time, as sums over segments in log space."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter


def emit_constant_mask(e: Emitter, array: np.ndarray) -> ir.Value:
    """Emit a matrix of 0 and 1 in the compute type."""
    return e.constant(array.astype(e.dtype.numpy()))


class Decays:
    """The decays of the steps of chunks, in log space, ``[chunks, rows, steps, 1 or d_k]``."""

    def __init__(self, e: Emitter, values: ir.Value, size: int) -> None:
        self.e, self.values, self.size = e, values, size
        self._exponentials: dict[bytes, ir.Value] = {}
        self._between: dict[int, ir.Value] = {}

    def since_start(self, group: int = 1) -> ir.Value:
        """Emit the decay of the state before the chunk at each step, `group` times each."""
        return self._exponential(np.repeat(np.tri(self.size), group, axis=0))

    def until_end(self) -> ir.Value | None:
        """Emit the decay of what a step adds until the end of the chunk."""
        return None if self.size == 1 else self._exponential(np.tri(self.size, k=-1).T)

    def total(self) -> ir.Value:
        """Emit the decay over the whole chunk, in log space: ``[chunks, rows, 1, 1 or d_k]``."""
        return self._sums(np.ones((1, self.size)))

    def between(self, group: int = 1) -> ir.Value:
        """Emit the decay from the step of each column to that of each row, `group` times each.

        It is 1 for columns after the row.
        """
        if group not in self._between:
            e = self.e
            later = e.op("Mul", self.values, emit_constant_mask(e, np.tri(self.size, k=-1)))
            rows = emit_constant_mask(e, np.repeat(np.tri(self.size), group, axis=0))
            self._between[group] = e.op("Exp", e.op("MatMul", rows, later))
        return self._between[group]

    def halves(self) -> tuple[ir.Value, np.ndarray]:
        """Emit factors ``[chunks, rows, levels * steps, d_k]``; return the pairs ``[levels, steps, steps]``.

        A pair of steps lies in different halves of one block of some size. On its level, the product of the
        two factors is the decay between: to the middle of the block, and from the middle, both at most 1 if
        no decay grows.
        """
        numbers, width = np.arange(self.size), 1
        steps, pairs = [], []
        while width < self.size:
            half = numbers // width
            is_second = half[:, None] % 2 == 1
            since, until = np.tri(self.size), np.tri(self.size, k=-1).T
            steps.append(np.where(is_second, since, until) * (half[:, None] == half[None]))
            pairs.append((half[:, None] == half[None] + 1) & is_second)
            width *= 2
        return self.e.op("Exp", self._sums(np.concatenate(steps))), np.stack(pairs)

    def _exponential(self, steps: np.ndarray) -> ir.Value:
        """Emit the decay over the steps that each row of a matrix of 0 and 1 names, once for each matrix."""
        key = steps.astype(bool).tobytes()
        if key not in self._exponentials:
            self._exponentials[key] = self.e.op("Exp", self._sums(steps))
        return self._exponentials[key]

    def _sums(self, steps: np.ndarray) -> ir.Value:
        """Emit the sums over the steps that each row of a matrix of 0 and 1 names."""
        if np.array_equal(steps, [[1]]):
            return self.values
        return self.e.op("MatMul", emit_constant_mask(self.e, steps), self.values)
