"""Loops whose counter falls from a size, as those of TensorFlow's while_loop and foldr do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import recurrent_left, run

import rnnlower

LOOP = """<ir_version: 8, opset_import: ["" : 17]>
main (float[T, 2, 3] X, float[2, 3] h0) => (float[2, 3] h)
<float[3, 3] W = {0.1, 0.2, 0.3, -0.4, 0.5, 0.6, 0.7, -0.8, 0.9},
 float[3, 3] R = {0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}> {
    shape = Shape (X)
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    less = Constant <value = int64 {-1}> ()
    many = Constant <value = int64 {9223372036854775807}> ()
    axis = Constant <value_ints = [0]> ()
    T = Gather (shape, zero)
    START
    going = BEGIN
    last, h = Loop (many, going, start, h0) <body = b (int64 i, bool c, int64 t, float[2, 3] s)
    => (bool d, int64 u, float[2, 3] n) {
        u = Sub (t, STEP)
        x = Gather (X, AT)
        a = MatMul (x, W)
        r = MatMul (s, R)
        z = Add (a, r)
        n = Tanh (z)
        d = GOES
    }>
}"""
LAST = "start = Sub (T, one)"


def _lift(start: str, begin: str, goes: str, at: str = "t", step: str = "one") -> bool:
    """Lift a Loop, and check that it computes what it did; return whether it was lifted."""
    text = LOOP
    for name, words in zip(
        ("START", "BEGIN", "GOES", "AT", "STEP"), (start, begin, goes, at, step), strict=True
    ):
        text = text.replace(name, words)
    source = onnx.parser.parse_model(text)
    onnx.checker.check_model(source, full_check=True)
    lifted = rnnlower.lift(source)
    random = np.random.default_rng(0)
    for steps in (1, 2, 3, 6):
        feeds = {
            "X": random.normal(size=(steps, 2, 3)).astype(np.float32),
            "h0": random.normal(size=(2, 3)).astype(np.float32),
        }
        np.testing.assert_allclose(run(lifted, feeds)["h"], run(source, feeds)["h"], rtol=1e-5, atol=1e-6)
    return bool(recurrent_left(lifted))


@pytest.mark.parametrize(
    ("start", "begin", "goes", "at"),
    [
        (LAST, "GreaterOrEqual (start, zero)", "GreaterOrEqual (u, zero)", "t"),
        (LAST, "LessOrEqual (zero, start)", "LessOrEqual (zero, u)", "t"),
        (LAST, "Greater (start, less)", "Greater (u, less)", "t"),
        (LAST, "Less (less, start)", "GreaterOrEqual (u, zero)", "t"),
        (LAST, "Greater (T, zero)", "Greater (t, zero)", "t"),
        ("start = Identity (T)", "Greater (start, zero)", "Greater (u, zero)", "u"),
        ("start = Identity (T)", "GreaterOrEqual (start, one)", "GreaterOrEqual (u, one)", "u"),
    ],
)
def test_a_counter_that_falls_through_all_steps_is_lifted(start: str, begin: str, goes: str, at: str) -> None:
    assert _lift(start, begin, goes, at)


@pytest.mark.parametrize(
    ("start", "begin", "goes", "at", "step"),
    [
        (LAST, "GreaterOrEqual (start, zero)", "GreaterOrEqual (u, one)", "t", "one"),
        (LAST, "GreaterOrEqual (start, zero)", "Greater (u, zero)", "t", "one"),
        (LAST, "GreaterOrEqual (start, zero)", "GreaterOrEqual (t, zero)", "t", "one"),
        (LAST, "GreaterOrEqual (start, one)", "GreaterOrEqual (u, zero)", "t", "one"),
        (LAST, "GreaterOrEqual (start, zero)", "GreaterOrEqual (u, zero)", "t", "two"),
        ("start = Sub (T, two)", "GreaterOrEqual (start, zero)", "GreaterOrEqual (u, zero)", "t", "one"),
        ("start = Identity (T)", "Greater (start, zero)", "Greater (u, zero)", "u", "two"),
    ],
)
def test_other_steps_stay_a_loop(start: str, begin: str, goes: str, at: str, step: str) -> None:
    assert not _lift(start, begin, goes, at, step)
