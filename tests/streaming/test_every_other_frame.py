"""Slices that take every second frame, or every third: low frame rates, and the layers of pyramids."""

from __future__ import annotations

import pytest
from support.streamed import model, stream

import rnnlower

NUMBERS = ", ".join(f"int64[1] k{n} = {{{n}}}" for n in range(6))
CONSTANTS = f"<{NUMBERS}, int64[1] end = {{9223372036854775807}}, int64[6] front = {{0, 2, 0, 0, 0, 0}}>"
GRU = "frames = Transpose <perm = [1, 0, 2]> (y) Y = GRU <hidden_size = 4> (frames, W, R)"
SMALL = {"W": (1, 12, 4), "R": (1, 12, 4)}


def _every(step: int, start: int, source: str = "X", result: str = "y") -> str:
    return f"{result} = Slice ({source}, k{start}, end, k1, k{step})"


EDGE = '<mode = "edge">'
BODIES = {
    "second": _every(2, 0),
    "second from 1": _every(2, 1),
    "sum of both": f"{_every(2, 0, 'X', 'a')} {_every(2, 1, 'X', 'b')} y = Add (a, b)",
    "fourth in two steps": f"{_every(2, 1, 'X', 'a')} {_every(2, 0, 'a')}",
    "after edges": f"wide = Pad {EDGE} (X, front) {_every(2, 1, 'wide')}",
    "after zeros": f"wide = Pad (X, front) {_every(2, 1, 'wide')}",
    "after a later start": f"late = Slice (X, k1, end, k1) {_every(2, 1, 'late')}",
}


@pytest.mark.parametrize("length", ["n", 24])
@pytest.mark.parametrize("body", BODIES)
def test_every_second_frame(body: str, length: str | int) -> None:
    text = f"(float[2, {length}, 4] X) => (float[s, 1, 2, 4] Y) {CONSTANTS} {{ {BODIES[body]} {GRU} }}"
    stream(model(text, **SMALL), {"X": 1}, chunk=4, allow_delay=body.startswith("after"))


def test_stacked_frames_of_a_low_rate() -> None:
    parts = " ".join(_every(3, start, "X", f"p{start}") for start in range(3))
    body = f"{parts} y = Concat <axis = 2> (p0, p1, p2) {GRU}"
    text = f"(float[b, n, 4] X) => (float[s, 1, b, 4] Y) {CONSTANTS} {{ {body} }}"
    stream(model(text, W=(1, 12, 12), R=(1, 12, 4)), {"X": 1}, chunk=6)


def test_a_part_that_ends_at_a_fixed_step_limits_the_stream() -> None:
    constants = CONSTANTS.replace("end = {9223372036854775807}", "end = {400}")
    text = f"(float[2, n, 4] X) => (float[s, 1, 2, 4] Y) {constants} {{ {_every(2, 0)} {GRU} }}"
    assert stream(model(text, **SMALL), {"X": 1}, chunk=2)["limit"] == 400


@pytest.mark.parametrize("chunk", [6, 8])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("mode", ["reflect", "edge", "constant"])
def test_pairs_of_frames_after_pads_at_the_start(mode: str, count: int, chunk: int) -> None:
    pads = f"int64[6] pads = {{0, {count}, 0, 0, {-count}, 0}}"
    constants = f"<{pads}, float one = {{1}}, int64[3] pair = {{1, 12, 8}}>"
    body = f'wide = Pad <mode = "{mode}"> (X, pads, one) Y = Reshape (wide, pair)'
    source = model(f"(float[1, 24, 4] X) => (float[1, 12, 8] Y) {constants} {{ {body} }}")
    stream(source, {"X": 1}, chunk=chunk, allow_delay=True)


@pytest.mark.parametrize("bounds", ["k3, end, k1, k2", "k0, k5, k1, k2"])
def test_other_steps_are_refused(bounds: str) -> None:
    text = f"(float[2, n, 4] X) => (float[s, 1, 2, 4] Y) {CONSTANTS} {{ y = Slice (X, {bounds}) {GRU} }}"
    with pytest.raises(rnnlower.UnsupportedModelError, match="leaves out steps"):
        rnnlower.stream(model(text, **SMALL), time_axes={"X": 1}, chunk=4)
