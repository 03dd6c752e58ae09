"""com.microsoft.DynamicQuantizeLSTM as an operator for ``onnx.reference.ReferenceEvaluator``.

A product of integers times both scales is the product of the values that they represent: X, H, W and R are
rounded to 8 bits, and LSTM computes with the rounded values. X is rounded once for all steps, H in each step,
all rows of a batch together, as onnxruntime's kernel does with one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnlower.engines.reference.activation_functions import Array
from rnnlower.engines.reference.recurrent_ops import LSTM, Step

OMITTED = "<omitted output"
"""The prefix of the evaluator's names for omitted outputs."""

_OF_LSTM = 5
"""The inputs of LSTM after R."""


class DynamicQuantizeLSTM(LSTM):
    """DynamicQuantizeLSTM-1; W and R are ``[num_directions, input_size or hidden_size, 4 * hidden_size]``."""

    def _run(
        self, X: Array, W: Array, R: Array, *optional: Array | None, **attributes: Any
    ) -> tuple[Any, ...]:
        weights = [
            _dequantized(values, *optional[first : first + 2])
            for values, first in ((W, _OF_LSTM), (R, _OF_LSTM + 2))
        ]
        lengths = self._lengths(optional[1], X.shape[0], X.shape[1])
        longest = lengths.max(initial=0)
        rounded = X.astype(np.float64)
        rounded[:longest] = _rounded(X[:longest])
        outputs = super()._run(rounded, *weights, *optional[:_OF_LSTM], **attributes)
        return tuple(None if value is None else value.astype(np.float32) for value in outputs)

    def _unroll(
        self, step: Step, X: Array, lengths: Array, states: list[Array], reverse: bool
    ) -> tuple[Array, list[Array]]:
        Y = np.zeros((*X.shape[:2], states[0].shape[1]), X.dtype)
        rows = np.arange(X.shape[1])
        has_sequence = not self.onnx_node.output[0].startswith(OMITTED)
        seen = states[0]
        for t in range(lengths.max(initial=0)):
            active = t < lengths
            # Each row starts at the end of its own sequence.
            position = np.where(active, lengths - 1 - t, t) if reverse else np.full_like(rows, t)
            new = step(X[position, rows], [_rounded(seen), *states[1:]])
            states = [np.where(active[:, np.newaxis], n, s) for n, s in zip(new, states, strict=True)]
            Y[position[active], rows[active]] = states[0][active]
            # The kernel reads H from Y, which is 0 in rows that have ended, or else from Y_h.
            seen = np.where(active[:, np.newaxis], states[0], 0) if has_sequence else states[0]
        return Y, [np.where((lengths == 0)[:, np.newaxis], 0, s) for s in states]


def _dequantized(values: Array, scale: Array | None, zero_point: Array | None) -> Array:
    """Return the dequantized weights in the layout of LSTM: ``[num_directions, rows, columns]``."""
    assert scale is not None
    assert zero_point is not None
    per_column = (-1, 1, scale.shape[1] if scale.ndim > 1 else 1)
    center = zero_point.reshape(len(values), -1)[:, :1, np.newaxis].astype(np.float64)
    return np.swapaxes((values - center) * scale.reshape(per_column), 1, 2)


def _rounded(values: Array) -> Array:
    """Return the values after rounding to 8 bits in a range that contains 0."""
    narrow = values.astype(np.float32)
    low, high = np.float32(narrow.min(initial=0)), np.float32(narrow.max(initial=0))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    zero_point = np.rint(np.clip(-low / scale, 0, 255))
    steps = np.clip(np.rint(narrow / scale) + zero_point, 0, 255) - zero_point
    return np.asarray(steps.astype(np.float64) * np.float64(scale))
