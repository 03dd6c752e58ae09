"""The judge of com.microsoft.DynamicQuantizeLSTM: sums in Python's integers, step by step and row by row.

Written from what onnxruntime 1.31.1 computes with one thread, without a line in common with the lowering:

* W ``[D, I, 4H]`` and R ``[D, H, 4H]`` are int8 or uint8, gates ``i o f c``; a scale stands for a direction
  or for a column, of the zero points of a direction the first counts.
* X is rounded to uint8 once for all steps up to the longest row's last, H before each product: range widened
  to hold 0, scale ``(max - min) / 255``, or 1 where all is 0, zero point ``round(clip(-min / scale))``.
* The rows of a batch are rounded together, each as far from its own start as the others; the product sees 0
  in rows that have ended if there is an output Y, else their last H.
* The integer sums times both scales are float32; then biases, clip, peepholes and activations as in LSTM,
  whose C(t) is not clipped. Rows of length 0 end with zeros.

``dequantized``: the same without rounding of X and H.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from support.oracle import evaluate

Array = np.ndarray
_ACTIVATIONS = {
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "Softsign": lambda x: x / (1 + np.abs(x)),
}


def dequantized(attributes: Mapping[str, Any], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the outputs of LSTM with the dequantized weights."""
    kept = {name: inputs[name] for name in inputs if name[0] not in "WR" or name == "X"}
    for name in "WR":
        values = inputs[name].astype(np.float64)
        for d in range(len(values)):
            values[d] = (values[d] - float(_zero_point(inputs, name, d))) * _scale(inputs, name, d)
        kept[name] = values.transpose(0, 2, 1).astype(np.float32)
    return evaluate("LSTM", 14, attributes, kept)


def exact(
    attributes: Mapping[str, Any], inputs: Mapping[str, Array], outputs: Sequence[str] = ("Y", "Y_h", "Y_c")
) -> dict[str, Array]:
    """Return Y, Y_h and Y_c; ``outputs`` are those that the node has."""
    X = inputs["X"]
    T, B, _ = X.shape
    reversals = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    directions = reversals[attributes.get("direction", "forward")]
    H = inputs["R"].shape[1]
    lens = inputs.get("sequence_lens", np.full(B, T))
    results = {name: np.zeros((len(directions), B, H), np.float32) for name in ("Y_h", "Y_c")}
    results["Y"] = np.zeros((T, len(directions), B, H), np.float32)
    longest = int(max(lens))
    rounded, scale, zero = _round(X[:longest])
    for d, reverse in enumerate(directions):
        node = _Direction(attributes, inputs, d)
        h = np.zeros((B, H), np.float32)
        c = np.zeros((B, H))
        if "initial_h" in inputs:
            h = inputs["initial_h"][d].copy()
        if "initial_c" in inputs:
            c = inputs["initial_c"][d].astype(np.float64)
        for step in range(longest):
            h_rounded, h_scale, h_zero = _round(h)
            for b in range(B):
                if step >= lens[b]:
                    if "Y" in outputs:
                        h[b] = 0
                    continue
                t = lens[b] - 1 - step if reverse else step
                total = node.product("W", rounded[t, b], scale, zero)
                total = total + node.product("R", h_rounded[b], h_scale, h_zero)
                h[b], c[b] = node.cell(total.astype(np.float64), c[b])
                results["Y"][t, d, b] = h[b]
                if step == lens[b] - 1:
                    results["Y_h"][d, b], results["Y_c"][d, b] = h[b], c[b]
    return results


class _Direction:
    """One direction's weights and activations."""

    def __init__(self, attributes: Mapping[str, Any], inputs: Mapping[str, Array], d: int) -> None:
        self.inputs, self.d = inputs, d
        self.clip = attributes.get("clip")
        self.coupled = bool(attributes.get("input_forget"))
        names = attributes.get("activations") or ["Sigmoid", "Tanh", "Tanh"] * (d + 1)
        self.functions = [_ACTIVATIONS[name] for name in names[3 * d : 3 * d + 3]]
        rows = inputs["R"].shape[2]
        biases = inputs.get("B", np.zeros((d + 1, 2 * rows)))[d].astype(np.float64)
        self.bias = biases[:rows] + biases[rows:]
        self.peepholes = inputs.get("P", np.zeros((d + 1, 3 * rows // 4)))[d].astype(np.float64)

    def product(self, name: str, values: Array, scale: np.float32, zero: int) -> Array:
        weights = self.inputs[name][self.d].astype(np.int64) - int(_zero_point(self.inputs, name, self.d))
        sums = (values.astype(np.int64) - zero) @ weights
        return sums.astype(np.float32) * (scale * _scale(self.inputs, name, self.d))

    def cell(self, total: Array, c: Array) -> tuple[Array, Array]:
        f, g, h = self.functions
        i, o, forget, candidate = np.split(total + self.bias, 4)
        P_i, P_o, P_f = np.split(self.peepholes, 3)
        i = f(self._clipped(i + P_i * c))
        forget = 1 - i if self.coupled else f(self._clipped(forget + P_f * c))
        new = forget * c + i * g(self._clipped(candidate))
        return (f(self._clipped(o + P_o * new)) * h(new)).astype(np.float32), new

    def _clipped(self, values: Array) -> Array:
        return values if self.clip is None else np.clip(values, -self.clip, self.clip)


def _scale(inputs: Mapping[str, Array], name: str, d: int) -> Array:
    return inputs[f"{name}_scale"][d]


def _zero_point(inputs: Mapping[str, Array], name: str, d: int) -> Any:
    return inputs[f"{name}_zero_point"][d].reshape(-1)[0]


def _round(values: Array) -> tuple[Array, np.float32, int]:
    low, high = min(values.min(initial=0), np.float32(0)), max(values.max(initial=0), np.float32(0))
    scale = np.float32(1) if high == low else np.float32((high - low) / np.float32(255))
    zero = int(np.rint(np.clip(-low / scale, 0, 255)))
    return np.clip(np.rint(values / scale) + zero, 0, 255).astype(np.uint8), scale, zero
