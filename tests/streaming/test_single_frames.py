"""Values with one frame for the whole sequence, and chunks of one step."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support.streamed import model

import rnnlower

FIRST = """
    start = Constant <value_ints = [0]> ()
    end = Constant <value_ints = [1]> ()
    first = Slice (X, start, end)
"""


@pytest.mark.parametrize(
    "body", ["Y = Add (X, first)", "step = Squeeze (first, start) Y = Add (step, end_float)"]
)
def test_the_first_of_a_fixed_number_of_steps_is_not_that_of_each_chunk(body: str) -> None:
    source = model(f"(float[4, 1, 4] X) => (float[s, t, 4] Y) {{ {FIRST} {body} }}", end_float=(1, 1, 4))
    with pytest.raises(rnnlower.UnsupportedModelError):
        rnnlower.stream(source, time_axes={"X": 0})


def test_a_squeeze_without_axes_keeps_the_only_step_of_a_chunk_of_any_length() -> None:
    source = model("(float[1, n, 4] X) => (float[n, 4] Y) { z = Relu (X) Y = Squeeze (z) }")
    streamed = rnnlower.stream(source, chunk=None, time_axes={"X": 1})
    session = onnxruntime.InferenceSession(streamed.SerializeToString())
    for steps in (1, 2):
        assert session.run(None, {"X": np.ones((1, steps, 4), np.float32)})[0].shape == (steps, 4)
