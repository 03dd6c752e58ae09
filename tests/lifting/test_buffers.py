"""Loops of open sizes that write the results of their steps into a buffer, at several indices."""

import numpy as np
import onnx
import pytest
from support.judge import recurrent_left, run

import rnnlower

# rows[b] = b, as [N, 1]; here[0] = t, as [1]; row is the new state, as [N, 4].
PYTORCH = """place = Reshape (here, one_one) sums = Add (rows, place) many = Shape (sums) rank = Shape (many)
    ones = ConstantOfShape <value = int64[1] {1}> (rank) none = Mul (ones, minus) given = Equal (many, none)
    wanted = Where (given, ones, many) b = Expand (rows, wanted) bu = Unsqueeze (b, last)
    t = Expand (place, wanted) tu = Unsqueeze (t, last)
    spot = Concat <axis = -1> (bu, tu) row = Unsqueeze (new, one)"""
WINDOW = """next = Add (n, step) end = Unsqueeze (next, front)
    size1 = Shape (made) length = Gather (size1, time)
    positions = Range (zero, length, step) place = Slice (positions, here, end, front)
    sums = Add (rows, place)
    many = Shape (sums) b = Expand (rows, many) bu = Unsqueeze (b, last) t = Expand (place, many)
    tu = Unsqueeze (t, last) spot = Concat <axis = -1> (bu, tu) row = Unsqueeze (new, one)"""
BACK = "final = Sub (length, step) falling = Sub (final, positions)"
LATER = """part = Slice (made, here, end, one) long = Shape (part) power = Exp (new)
    line = Unsqueeze (power, one) row = Expand (line, long)"""
PAIRS = "many = Shape (rows) t = Expand (here, many) spot = Concat <axis = 1> (ROWS, t) row = Identity (new)"
EVERY = """all = Shape <start = 0, end = 1> (X) whole = Concat <axis = 0> (all, one, four, one)
    t = Expand (here, whole) r = Unsqueeze (rows, ends) b = Expand (r, whole) u = Expand (UNITS, whole)
    spot = Concat <axis = 3> (b, t, u) row = Unsqueeze (new, one)"""


def make_model(writes: str, write: str = "more = ScatterND (made, spot, row)") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[N, T, 4] X) => (float[N, T, 4] Y, float[N, 4] last_h)
        <float[4, 4] R = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0, -0.1, -0.2, -0.3, -0.4, -0.5, 0}},
         int64 zero = {{0}}, int64 step = {{1}}, int64 time = {{1}}, int64[1] one = {{1}},
         int64[1] last = {{-1}}, int64[1] minus = {{-1}}, int64[2] one_one = {{1, 1}}, int64[1] four = {{4}},
         int64[2] ends = {{-1, -2}}, int64[1] front = {{0}}, bool go = {{1}},
         int64[4, 1] units = {{0, 1, 2, 3}}, int64[4, 1] turned = {{0, 1, 3, 2}}> {{
            size = Shape (X) steps = Gather (size, time) batch = Gather (size, zero)
            counted = Range (zero, batch, step) rows = Unsqueeze (counted, one)
            others = Sub (batch, counted) less = Sub (others, one) back = Unsqueeze (less, one)
            shape = Shape <start = 0, end = 1> (X) state = Concat <axis = 0> (shape, four)
            h0 = ConstantOfShape (state) space = ConstantOfShape (size)
            last_h, Y = Loop (steps, go, h0, space) <body = each (
                int64 n, bool goes, float[N, 4] h, float[N, T, 4] made) => (
                bool on, float[N, 4] new, float[N, T, 4] more) {{
                on = Identity (goes) x = Gather <axis = 1> (X, n) hr = MatMul (h, R)
                sum = Add (x, hr) new = Tanh (sum) here = Unsqueeze (n, front) {writes}
                {write} }}> }}""")


@pytest.mark.parametrize(
    ("writes", "left"),
    [
        (PYTORCH, ["RNN"]),
        (WINDOW, ["RNN"]),
        (WINDOW.replace("row = Unsqueeze (new, one)", LATER), ["RNN"]),
        (WINDOW.replace("place = Slice (positions", f"{BACK} place = Slice (falling"), []),
        (PAIRS.replace("ROWS", "rows"), ["RNN"]),
        (EVERY.replace("UNITS", "units"), ["RNN"]),
        (PAIRS.replace("ROWS", "back"), []),
        (EVERY.replace("UNITS", "turned"), []),
    ],
    ids=[
        "as PyTorch indexes",
        "as PyTorch slices",
        "of more than H",
        "slices backward",
        "pairs",
        "every element",
        "rows turned",
        "units turned",
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_a_buffer_behind_rows_of_open_number(writes: str, left: list[str], batch: int) -> None:
    model = make_model(writes)
    onnx.checker.check_model(model)
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == left
    inputs = {"X": np.random.default_rng(batch).normal(size=(batch, 5, 4)).astype(np.float32)}
    for name, expected in run(model, inputs).items():
        np.testing.assert_allclose(run(lifted, inputs)[name], expected, atol=1e-5)


def test_a_buffer_is_written_on_its_diagonal() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        main (float[3, 3, 2] X) => (float[3, 3, 2] Y)
        <float[2, 2] R = {0.1, 0.2, 0.3, 0.4}, float[3, 2] h0 = {0, 0, 0, 0, 0, 0}, int64 steps = {3},
         int64[2] pairs = {3, 2}, int64[3] size = {3, 3, 2}, bool go = {1}> {
            space = ConstantOfShape (size)
            last, Y = Loop (steps, go, h0, space) <body = each (
                int64 n, bool goes, float[3, 2] h, float[3, 3, 2] made) => (
                bool on, float[3, 2] new, float[3, 3, 2] more) {
                on = Identity (goes) x = Gather <axis = 1> (X, n) hr = MatMul (h, R)
                sum = Add (x, hr) new = Tanh (sum) place = Expand (n, pairs)
                more = ScatterND (made, place, new) }> }""")
    onnx.checker.check_model(model)
    lifted = rnnlower.lift(model)
    inputs = {"X": np.random.default_rng(0).normal(size=(3, 3, 2)).astype(np.float32)}
    np.testing.assert_allclose(run(lifted, inputs)["Y"], run(model, inputs)["Y"], atol=1e-5)


@pytest.mark.parametrize(("put", "left"), [("put", ["RNN"]), ("more_than_put", [])])
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_a_buffer_that_each_step_transposes(put: str, left: list[str], batch: int) -> None:
    write = f"""there = Transpose <perm = [1, 0, 2]> (made) put = ScatterND (there, spot, row)
        more_than_put = Add (put, put) more = Transpose <perm = [1, 0, 2]> ({put})"""
    model = make_model("row = Unsqueeze (new, front) spot = Unsqueeze (here, front)", write)
    onnx.checker.check_model(model)
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == left
    for steps in (1, 5, 50):
        inputs = {"X": np.random.default_rng(batch).normal(size=(batch, steps, 4)).astype(np.float32)}
        for name, expected in run(model, inputs).items():
            np.testing.assert_allclose(run(lifted, inputs)[name], expected, atol=1e-5)


def test_a_state_that_gains_an_axis_stays() -> None:
    model = make_model(PYTORCH)
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    (body,) = (each.g for each in loop.attribute if each.name == "body")
    body.output[1].name = "row"
    assert recurrent_left(rnnlower.lift(model)) == []
