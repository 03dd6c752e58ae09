"""Values with one frame for the whole sequence, and chunks of one step."""

from __future__ import annotations

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
