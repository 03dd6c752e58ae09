"""Padded models that read steps at positions, and numbers of steps, by less usual operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.padded_models import MAXIMUM, difference
from support.sessions import session

import rnnlower

_RANGE = "s = Shape <end = 1> (x) n = Squeeze (s) r = Range (zero, n, one)"
_AFTER_THE_END = (
    "s = Shape <end = 1> (x) v = Reshape (w, back) h = Concat <axis = 0> (x, v) t = Shape <end = 1> (h) "
    "n = Squeeze (t) i = Range (zero, n, one) j = Slice (i, s, t)"
)
_CONSTANTS = (
    "int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}, "
    "int64[4] wrap = {2, 0, 0, 0}, int64[3] group = {1, 4, -1}, int64[2] back = {6, 4}, "
    "float[4] ones = {1, 1, 1, 1}, float[3] half = {1, 1, 0.5}, float[1, 6, 4] w = {"
    + ", ".join(str(each / 8) for each in range(24))
    + "}, float[20, 2] c = {"
    + ", ".join(str(each / 40) for each in range(40))
    + "}, float[1, 8, 4] W = {"
    + ", ".join(str(each / 32) for each in range(32))
    + "}, float[1, 8, 2] R = {"
    + ", ".join(str(each / 16) for each in range(16))
    + "}"
)


def model(text: str) -> onnx.ModelProto:
    head, body = text.split("{", 1)
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> main {head} <{_CONSTANTS}> {{ {body}'
    )


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        f"(float[T, 4] x) => (float[T, 4] z) {{ {_RANGE} z = Gather (x, r) }}",
        f"(float[T] x) => (float[T] z) {{ {_RANGE} l = Sub (n, one) i = Sub (l, r) z = Gather (x, i) }}",
        f"(float[T] x) => (float[T] z) {{ {_RANGE} q = Mul (r, r) i = Mod (q, n) "
        "z = GatherElements (x, i) }",
        "(float[4, T] x) => (float[4, T] z) "
        "{ s = Shape (x) a, b = Split <num_outputs = 2> (s) d = Cast <to = 1> (b) z = Div (x, d) }",
        '(float[T, 4] x) => (float[U, 4] z) { z = Pad <mode = "wrap"> (x, wrap) }',
        '(float[1, 1, T] x) => (float[1, 1, U] z) { z = Resize <mode = "linear", '
        'coordinate_transformation_mode = "pytorch_half_pixel"> (x, "", half) }',
        "(float[T, 4] x) => (float[T, 4] z) "
        "{ g = Reshape (w, group) n = InstanceNormalization (g, ones, ones) "
        "b = Reshape (n, back) m = ReduceMean <keepdims = 0> (b) z = Add (x, m) }",
        f"(float[T, 4] x) => (float[6] z) {{ {_AFTER_THE_END} z = Cast <to = 1> (j) }}",
        f"(float[T, 4] x) => (float[6, U] z) {{ {_AFTER_THE_END} a = Unsqueeze (i, first) "
        "b = Unsqueeze (j, second) m = Greater (a, b) z = Cast <to = 1> (m) }",
    ],
)
def test_the_valid_steps_are_read_at_every_length(text: str, mask: bool) -> None:
    source = model(text)
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask)
    assert difference(source, padded, 0.0, 300.0, float("nan")) < 1e-6


@pytest.mark.parametrize(
    "text",
    [
        "(float[1, 2, T, 4] x, int64[1, T] i) => (float[1, 2, T, 4] z) { z = RotaryEmbedding (x, c, c, i) }",
        "(float[3, T, 4] x, int32[T] i) => (float[3, 1, T, 2] z) "
        '{ z = LSTM <hidden_size = 2> (x, W, R, "", i) }',
    ],
)
def test_padded_positions_and_lengths_may_be_any_number(text: str) -> None:
    source = model(text)
    padded, whole = session(rnnlower.pad(source, max={"T": MAXIMUM})), session(source)
    kinds = {each.name: each for each in whole.get_inputs()}
    time = {name: each.shape.index("T") for name, each in kinds.items()}
    for length in (1, 5, MAXIMUM):
        shapes = {name: [length if d == "T" else d for d in each.shape] for name, each in kinds.items()}
        dtype = np.int32 if "int32" in kinds["i"].type else np.int64
        feeds = {"x": np.ones(shapes["x"], np.float32), "i": np.ones(shapes["i"], dtype)}
        more = {
            name: np.pad(
                each,
                [(0, MAXIMUM - length if axis == time[name] else 0) for axis in range(each.ndim)],
                constant_values=99,
            )
            for name, each in feeds.items()
        }
        (expected,) = whole.run(None, feeds)
        (actual,) = padded.run(None, {**more, "length": np.array([length])})
        np.testing.assert_allclose(actual[:, :, :length], expected, atol=1e-6)


@pytest.mark.parametrize("mask", [False, True])
def test_positions_of_a_row_count_from_its_own_end(mask: bool) -> None:
    source = model(
        "(float[B, T, 4] x, int64[B, U, 4] i) => (float[B, U, 4] z) { z = GatherElements <axis = 1> (x, i) }"
    )
    padded, whole = (
        session(each) for each in (rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask, per_row=True), source)
    )
    x = np.random.default_rng(0).normal(size=(3, MAXIMUM, 4)).astype(np.float32)
    lengths = np.array([MAXIMUM, 1, 5])
    positions = np.array([[-1, 0], [-1, 0], [-5, 3]])[:, :, None].repeat(4, axis=2)
    given = (
        {"mask": (np.arange(MAXIMUM) < lengths[:, None]).astype(np.float32)} if mask else {"length": lengths}
    )
    (actual,) = padded.run(None, {"x": x, "i": positions, **given})
    for row, length in enumerate(lengths):
        one = {"x": x[row : row + 1, :length], "i": positions[row : row + 1]}
        assert (actual[row] == whole.run(None, one)[0][0]).all()
