"""A state that a model has already, of a node whose input is late: the first calls have no real step."""

from __future__ import annotations

import pytest
from support.streamed import model, streamed_and_metadata


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_state_that_an_output_holds_waits_for_the_first_step(chunk: int) -> None:
    source = model(
        """(float[n, 1, 4] X, float[1, 1, 2] h0) => (float[k, 1, 1, 2] Y, float[1, 1, 2] final) {
            start = Constant <value_ints = [2]> ()
            end = Constant <value_ints = [9223372036854775807]> ()
            later = Slice (X, start, end)
            Y, final = GRU <hidden_size = 2> (later, W, R, , , h0)
        }""",
        W=(1, 6, 4),
        R=(1, 6, 2),
    )
    streamed, metadata = streamed_and_metadata(source, {"X": 0}, chunk=chunk, allow_delay=True)
    assert metadata["delay"] == 2
    assert [output.name for output in streamed.graph.output][:2] == ["Y", "final"]
