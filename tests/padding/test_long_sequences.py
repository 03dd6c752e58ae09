"""Padded waveforms: their lengths are computed, since tables of them would be larger than the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.sessions import session

import rnnlower
from rnnlower.padding.sizes import Size

MAXIMUM = 16000


def _recognizer() -> onnx.ModelProto:
    """Return a model of a waveform: a filter, frames of it, and a recurrence from the end."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[N, 1, T] x) => (float[S, 1, N, 4] y) '
        "{ a = Conv <pads = [1, 1]> (x, A) i = InstanceNormalization (a, g, g) r = Relu (i) "
        "b = Conv <strides = [10], pads = [5, 5]> (r, B) c = Conv <strides = [2]> (b, C) d = Tanh (c) "
        't = Transpose <perm = [2, 0, 1]> (d) y = GRU <hidden_size = 4, direction = "reverse"> (t, W, R) }'
    )
    shapes = {"A": (2, 1, 3), "B": (3, 2, 20), "C": (3, 3, 3), "W": (1, 12, 3), "R": (1, 12, 4), "g": (2,)}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        array = rng.normal(0, 0.4, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("form", ["length", "mask", "rows"])
def test_lengths_of_waveforms_are_computed(form: str) -> None:
    source = _recognizer()
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, mask=form == "mask", per_row=form == "rows")
    assert len(padded.SerializeToString()) < len(source.SerializeToString()) + 9_000
    whole, fixed, rng = session(source), session(padded), np.random.default_rng(1)
    for length in (50, 1234, 9999, MAXIMUM - 1, MAXIMUM):
        x = np.full((2, 1, MAXIMUM), np.nan, np.float32)
        x[..., :length] = rng.normal(size=(2, 1, length))
        lengths = np.array([length, length])
        if form == "rows":
            lengths[1] = 777
            x[1, :, :777] = rng.normal(size=(1, 777))
            x[1, :, 777:] = np.nan
        given = {"length": lengths if form == "rows" else lengths[:1]}
        if form == "mask":
            given = {"mask": (np.arange(MAXIMUM)[None] < length).astype(np.float32)}
        (found,) = fixed.run(None, {"x": x, **given})
        for row, own in enumerate(lengths):
            (expected,) = whole.run(None, {"x": x[row : row + 1, :, :own]})
            steps = len(expected)
            assert steps == (own // 10 - 1) // 2
            np.testing.assert_allclose(found[:steps, :, row], expected[:, :, 0], atol=2e-6)


def test_elements_are_valid_from_the_first_length_that_has_them() -> None:
    size = Size("T", (0, 0, 2, 1, 1, 4, 3, 5))
    assert size.first_valid_lengths() == [2, 2, 5, 5, 7]
    assert Size.of("T", 3).affine(0, 2).first_valid_lengths() == [1, 1]
