"""Loops that slice the element of a step out of several axes, as TensorFlow and JAX write it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import recurrent_left, run

import rnnlower

MODEL = """<ir_version: 9, opset_import: ["" : 17]>
main (float[SIZES] X) => (float[2, 3] last, float[2, T, 3] Y)
<float[2, 3] h0 = {1, 2, 3, 4, 5, 6}, float[3, 3] R = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9},
 int64 i0 = {0}, int64 i1 = {1}, int64[1] s1 = {1}, int64[1] s2 = {2}, bool go = {1}> {
    sizes = Shape (X) T = Gather (sizes, i1)
    last, stacked = Loop (T, go, h0) <body = each (int64 t, bool goes, float[2, 3] h) => (
        bool on, float[2, 3] new, float[2, 3] y)
        <int64[1] zero = {0}, int64[1] axis = {1}, int64[1] two = {2}, int64[1] minus = {-1},
         int64[3] zeros = {0, 0, 0}, int64[3] one_element = {2, 1, 3}, int64[3] axes = {0, 1, 2},
         int64[2] pair = {0, 1}, int64[2] other = {1, 1}, int64[2] many = {1000000000, 1000000000},
         int64[2] first = {1, 1000000000}, int64[2] second = {1, 2}, bool[2] masked = {1, 0},
         bool[2] never = {0, 0}> {
        on = Identity (goes) end = Sub (T, i1) back = Sub (end, t)
        PLACE place = Reshape (at, axis)
        READ
        x = Squeeze (element, axis)
        hr = MatMul (h, R) sum = Add (x, hr) new = Tanh (sum) y = Identity (new) }>
    Y = Transpose <perm = [1, 0, 2]> (stacked) }"""
AFTER_ONE = "next = Add (place, axis)"
TENSORFLOW = f"""{AFTER_ONE} starts = Concat <axis = 0> (zero, place) ends = Concat <axis = 0> (zero, next)
    is_new = And (never, masked) begin = Where (is_new, many, starts) floats = Cast <to = 1> (ends)
    limits = Cast <to = 1> (many) most = Max (floats, limits) until = Cast <to = 7> (most)
    is_end = Equal (until, many) is_both = And (is_end, never) stop = Where (is_both, zero, until)
    element = Slice (X, begin, stop, pair, first)"""
JAX = """starts = Concat <axis = 0> (zero, place, zero) ends = Add (starts, one_element)
    element = Slice (X, starts, ends, axes)"""
WRAPPED = "is_before = Less (t, i0) wrapped = Add (t, T) at = Where (is_before, wrapped, t)"


def compare(place: str, read: str, op_types: list[str], sizes: str = "2, T, 3") -> None:
    """Lift a Loop that reads elements, and check what is left and that it computes the same."""
    text = MODEL.replace("SIZES", sizes).replace("PLACE", place).replace("READ", read)
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model, full_check=True)
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == op_types
    for steps in (1, 2, 50) if "T" in sizes else (4,):
        X = np.random.default_rng(0).normal(size=(2, steps, 3)).astype(np.float32)
        expected, actual = run(model, {"X": X}), run(lifted, {"X": X})
        for name, array in expected.items():
            np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("sizes", ["2, T, 3", "2, 4, 3"], ids=["open", "fixed"])
@pytest.mark.parametrize("read", [TENSORFLOW, JAX], ids=["TensorFlow", "JAX"])
@pytest.mark.parametrize(
    "place", ["at = Identity (t)", "at = Identity (back)", WRAPPED], ids=["forward", "backward", "wrapped"]
)
def test_an_element_is_sliced_out_of_several_axes(place: str, read: str, sizes: str) -> None:
    compare(place, read, ["RNN"], sizes)


@pytest.mark.parametrize(
    ("place", "read", "before", "after"),
    [
        ("at = Identity (t)", TENSORFLOW, "pair, first)", "pair, second)"),
        ("at = Identity (t)", TENSORFLOW, "(zero, place)", "(minus, place)"),
        ("at = Identity (t)", TENSORFLOW, "(never, masked)", "(masked, masked)"),
        ("at = Add (t, i1)", TENSORFLOW, "", ""),
        ("at = Identity (t)", JAX, "(zero, place, zero)", "(zero, place, place)"),
        ("at = Identity (t)", JAX, "(starts, one_element)", "(starts, starts)"),
        ("is_before = Less (t, i1) w = Add (t, T) at = Where (is_before, w, t)", JAX, "", ""),
        ("is_before = Less (t, i0) w = Add (t, T) at = Where (is_before, t, w)", JAX, "", ""),
    ],
    ids=[
        "every other",
        "another axis",
        "from 10^9",
        "one later",
        "two axes",
        "until",
        "after 1",
        "exchanged",
    ],
)
def test_other_slices_are_not_lifted(place: str, read: str, before: str, after: str) -> None:
    """Most of them would be errors, too."""
    assert before in read
    read = read.replace(before, after)
    text = MODEL.replace("SIZES", "2, T, 3").replace("PLACE", place).replace("READ", read)
    assert recurrent_left(rnnlower.lift(onnx.parser.parse_model(text))) == []
