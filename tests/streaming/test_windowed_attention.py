"""Attention over a window of the past: a mask that looks back a few steps makes keys and values a state."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.streamed import model, stream

import rnnlower

WINDOW = 4
LENGTH = """
    steps = Shape <start = 1, end = 2> (X)
    one = Constant <value_int = 1> ()
    zero = Constant <value_int = 0> ()
    width = Constant <value_int = 4> ()
    none = Constant <value_float = -inf> ()
    last = Constant <value_ints = [-1]> ()
    first = Constant <value_ints = [0]> ()
"""
QUERIES = """
    q = MatMul (X, Wq)
    k = MatMul (X, Wk)
    v = MatMul (X, Wv)
    kt = Transpose <perm = [0, 2, 1]> (k)
    products = MatMul (q, kt)
    half = Constant <value_float = 0.5> ()
    s = Mul (products, half)
"""
DISTANCES = """
    count = Squeeze (steps)
    numbers = Range (zero, count, one)
    rows = Unsqueeze (numbers, last)
    columns = Unsqueeze (numbers, first)
    distance = Sub (rows, columns)
    later = Less (distance, zero)
    older = GreaterOrEqual (distance, width)
    hidden = Or (later, older)
"""
TRIANGLES = """
    square = Concat <axis = 0> (steps, steps)
    ones = ConstantOfShape <value = bool[1] {1}> (square)
    back = Constant <value_int = -4> ()
    later = Trilu <upper = 1> (ones, one)
    older = Trilu <upper = 0> (ones, back)
    hidden = Or (later, older)
"""
TABLE = """
    part = Slice (band, first, steps, first)
    second = Constant <value_ints = [1]> ()
    hidden = Slice (part, first, steps, second)
"""
APPLY = {
    "chosen": "masked = Where (hidden, none, s) w = Softmax <axis = -1> (masked)",
    "added": "nil = Constant <value_float = 0.0> () m = Where (hidden, none, nil) masked = Add (s, m) "
    "w = Softmax <axis = -1> (masked)",
    "safe": "shown = Not (hidden) nil = Constant <value_float = 0.0> () m = Where (shown, nil, none) "
    "masked = Add (s, m) p = Softmax <axis = -1> (masked) fails = IsNaN (p) w = Where (fails, nil, p)",
}
OPEN = "(float[b, n, 6] X) => (float[b, n, 6] Y)"
WEIGHTS = {"Wq": (6, 6), "Wk": (6, 6), "Wv": (6, 6)}
RESULT = "a = MatMul (w, v) Y = Add (X, a)"


def _band(steps: int) -> np.ndarray:
    distance = np.arange(steps)[:, None] - np.arange(steps)
    return (distance < 0) | (distance >= WINDOW)


def _with_initializers(source: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    source.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return source


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
@pytest.mark.parametrize("mask", [DISTANCES, TRIANGLES])
@pytest.mark.parametrize("form", APPLY)
def test_computed_masks_make_keys_and_values_a_state(mask: str, form: str, chunk: int) -> None:
    source = model(f"{OPEN} {{ {LENGTH} {QUERIES} {mask} {APPLY[form]} {RESULT} }}", 17, **WEIGHTS)
    metadata = stream(source, {"X": 1}, chunk=chunk)
    assert {name for name in metadata["start"] if name != "position_in"} == {"kt_cache_in", "v_cache_in"}
    assert "limit" not in metadata


@pytest.mark.parametrize("chunk", [1, 5])
def test_a_mask_from_a_table_limits_the_stream(chunk: int) -> None:
    text = f"{OPEN} {{ {LENGTH} {QUERIES} {TABLE} {APPLY['chosen']} {RESULT} }}"
    metadata = stream(_with_initializers(model(text, 17, **WEIGHTS), band=_band(300)), {"X": 1}, chunk=chunk)
    assert metadata["limit"] == 300


@pytest.mark.parametrize("chunk", [1, 5, 20])
def test_mask_of_a_static_length(chunk: int) -> None:
    text = f"{OPEN.replace('b, n', '2, 40')} {{ {LENGTH} {QUERIES} {APPLY['chosen']} {RESULT} }}"
    metadata = stream(_with_initializers(model(text, 17, **WEIGHTS), hidden=_band(40)), {"X": 1}, chunk=chunk)
    assert "limit" not in metadata


def test_two_layers_after_a_look_ahead() -> None:
    """States wait until the first frame."""
    body = f"{LENGTH} {DISTANCES} {QUERIES} {APPLY['chosen']} a = MatMul (w, v)"
    ahead = """
        two = Constant <value_ints = [1]> ()
        end = Constant <value_ints = [9223372036854775807]> ()
        next = Slice (Z, two, end, two)
        one_more = Constant <value_ints = [0, 0, 0, 0, 1, 0]> ()
        X = Pad (next, one_more)
    """
    again = "at = Transpose <perm = [0, 2, 1]> (a) s2 = MatMul (q, at) m2 = Where (hidden, none, s2)"
    text = f"{OPEN.replace('X)', 'Z)')} {{ {ahead} {body} {again} w2 = Softmax (m2) Y = MatMul (w2, a) }}"
    metadata = stream(model(text, 17, **WEIGHTS), {"Z": 1}, chunk=3, allow_delay=True)
    assert metadata["delay"] == 3


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("w = Softmax <axis = -1> (s)", "no mask limits how far"),
        (f"{DISTANCES} masked = Where (later, none, s) w = Softmax (masked)", "attend to the first step"),
        (f"{DISTANCES} masked = Where (older, none, s) w = Softmax (masked)", "attend to later steps"),
        (f"{DISTANCES} masked = Where (hidden, none, s) w = Softmax <axis = 1> (masked)", "normalizes over"),
        (
            f"{DISTANCES} p = Where (hidden, none, s) number = Cast <to = 1> (count) "
            "masked = Div (p, number) w = Softmax (masked)",
            "number of time steps",
        ),
        (
            f"{DISTANCES} masked = Where (hidden, none, s) p = Softmax (masked) w = Softmax (p)",
            "weights of an attention",
        ),
        (f"{DISTANCES} small = Constant <value_float = -9.0> () w = Where (hidden, small, s)", "not masked"),
    ],
)
def test_attention_without_a_window_is_refused(mask: str, words: str) -> None:
    source = model(f"{OPEN} {{ {LENGTH} {QUERIES} {mask} {RESULT} }}", 17, **WEIGHTS)
    with pytest.raises(rnnlower.UnsupportedModelError, match=words):
        rnnlower.stream(source, time_axes={"X": 1})


def test_a_mask_for_long_chunks_is_not_computed() -> None:
    text = f"{OPEN} {{ {LENGTH} {QUERIES} {DISTANCES} {APPLY['chosen']} {RESULT} }}"
    source = model(text, 17, **WEIGHTS)
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"too large .* chunks of 5000 .* shorter chunk"):
        rnnlower.stream(source, chunk=5000, time_axes={"X": 1})


@pytest.mark.parametrize(
    "use", ["Tanh (m)", "Neg (m)", "Max (m, half)", "Mul (m, tiny)", "Where (later, half, m)"]
)
def test_an_operator_that_shows_what_a_mask_hides_is_refused(use: str) -> None:
    text = f"""{LENGTH} {QUERIES} {DISTANCES} tiny = Constant <value_float = 1e-9> ()
        m = Where (hidden, none, s) masked = {use} w = Softmax <axis = -1> (masked)"""
    with pytest.raises(rnnlower.UnsupportedModelError, match="computes with scores that a mask hides"):
        rnnlower.stream(model(f"{OPEN} {{ {text} {RESULT} }}", 17, **WEIGHTS), time_axes={"X": 1})


def test_scores_as_an_output_are_refused() -> None:
    signature = "(float[b, n, 6] X) => (float[b, n, 6] Y, float[b, n, n] w)"
    text = f"{signature} {{ {LENGTH} {QUERIES} {DISTANCES} {APPLY['chosen']} {RESULT} }}"
    with pytest.raises(rnnlower.UnsupportedModelError, match="'w'"):
        rnnlower.stream(model(text, 17, **WEIGHTS), time_axes={"X": 1})
