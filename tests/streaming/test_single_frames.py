"""Values with one frame for the whole sequence, chunks of one step, and frames before the stream."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from support.streamed import model, stream

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


def test_features_beside_frames_before_the_stream_are_what_a_second_pad_puts_there() -> None:
    source = model(
        """(float[n, 1, 2] X) => (float[k, 1, 1, 2] Y) {
            pads = Constant <value_ints = [2, 0, 0, -2, 0, 0]> ()
            one = Constant <value_float = 1.0> ()
            wide = Constant <value_ints = [0, 0, 0, 0, 0, 2]> ()
            late = Pad (X, pads, one)
            x4 = Pad (late, wide)
            Y = GRU <hidden_size = 2> (x4, W, R)
        }""",
        W=(1, 6, 4),
        R=(1, 6, 2),
    )
    stream(source, {"X": 0})


CONTRIBUTED = {
    "QuickGelu": "x = com.microsoft.QuickGelu (X)",
    "Gelu": "x = com.microsoft.Gelu (X)",
    "quantizers": """q = com.microsoft.QuantizeLinear <axis = 2> (X, scale, zero)
        x = com.microsoft.DequantizeLinear <axis = 2> (q, scale, zero)""",
}


@pytest.mark.parametrize("case", CONTRIBUTED)
def test_operators_of_onnxruntime_that_treat_frames_separately(case: str) -> None:
    source = model(
        f"""(float[n, 1, 2] X) => (float[n, 1, 1, 2] Y)
        <float[2] scale = {{0.01, 0.02}}, uint16[2] zero = {{300, 200}}> {{
            {CONTRIBUTED[case]}
            Y = GRU <hidden_size = 2> (x, W, R)
        }}""",
        W=(1, 6, 2),
        R=(1, 6, 2),
    )
    stream(source, {}, chunk=3)
