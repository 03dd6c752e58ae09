"""com.microsoft.DynamicQuantizeLSTM on a runtime: which directions are right."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from rnnlower.probing.asking import Asker, Question, question
from rnnlower.recurrent.operators import DIRECTIONS, OUTPUT_NAMES, QUANTIZED_LSTM

# Steps, batch, input_size, hidden_size. With several threads, onnxruntime rounds a batch in parts; over many
# steps, two right sums may be rounded to different steps of 8 bits.
_SIZES = ((1, 1, 8, 16), (3, 1, 8, 16), (3, 1, 16, 64))


def probe_quantized_rules(asker: Asker) -> list[dict[str, Any]]:
    """Return the rule of DynamicQuantizeLSTM, without its source; nothing if no direction is right."""
    right = [
        direction
        for direction in DIRECTIONS
        if all(
            asker.is_right(f"{QUANTIZED_LSTM} {direction} of {sizes}", _quantized, direction, sizes)
            for sizes in _SIZES
        )
    ]
    rule = {"ops": [QUANTIZED_LSTM], "dtypes": ["float32"], "directions": right, "semantics": ["ort"]}
    return [rule] if right else []


def _quantized(direction: str, sizes: tuple[int, int, int, int]) -> Question:
    """Make a question about weights of 7 bits, whose products overflow on no processor."""
    steps, batch, features, units = sizes
    count = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (steps, batch, features)).astype(np.float32)
    scale, zero = np.full(count, 0.5 / 64 / np.sqrt(units), np.float32), np.zeros(count, np.int8)
    weights = {
        "W": rng.integers(-64, 64, (count, features, 4 * units), np.int8),
        "R": rng.integers(-64, 64, (count, units, 4 * units), np.int8),
        "B": rng.uniform(-1, 1, (count, 8 * units)).astype(np.float32),
        "scale": scale,
        "zero": zero,
    }
    inputs = ["X", "W", "R", "B", "", "", "", "", "scale", "zero", "scale", "zero"]
    node = helper.make_node(
        QUANTIZED_LSTM, inputs, OUTPUT_NAMES, domain="com.microsoft", direction=direction, hidden_size=units
    )
    return question([node], {"X": x, **weights}, 14, weights)
