"""Loops whose rows end by a comparison of the step's number with the rows' lengths."""

import numpy as np
import onnx
import pytest
from support.judge import recurrent_left, run

import rnnlower


def make_model(going: str, place: str = "n", dtype: str = "int64") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[T, N, 3] X, {dtype}[N] lengths) => (float[N, 3] last_h)
        <float[3, 3] R = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}}, int64 zero = {{0}},
         int64 one = {{1}}, int64[1] after = {{1}}, int64[1] three = {{3}}, bool go = {{1}}> {{
            size = Shape (X) steps = Gather (size, zero) rows = Shape <start = 1, end = 2> (X)
            state = Concat <axis = 0> (rows, three) h0 = ConstantOfShape (state) last = Sub (steps, one)
            last_h = Loop (steps, go, h0) <body = each (int64 n, bool goes, float[N, 3] h)
                => (bool on, float[N, 3] kept) {{
                on = Identity (goes) back = Sub (last, n) next = Add (n, one) x = Gather (X, {place})
                hr = MatMul (h, R) sum = Add (x, hr) new = Tanh (sum) {going}
                kept = Where (is_going, new, h) }}> }}""")


AFTER = "goes_on = Less (n, lengths) is_going = Unsqueeze (goes_on, after)"


@pytest.mark.parametrize(
    ("model", "left"),
    [
        (make_model(AFTER), ["RNN"]),
        (make_model("column = Unsqueeze (lengths, after) is_going = Greater (column, n)"), ["RNN"]),
        (make_model(f"m = Cast <to = 6> (n) {AFTER.replace('(n,', '(m,')}", dtype="int32"), ["RNN"]),
        (make_model(AFTER.replace("(n,", "(next,")), []),
        (make_model(AFTER.replace("is_going", "still") + " is_going = Not (still)"), []),
        (make_model(AFTER, place="back"), []),
    ],
    ids=["a number of rows", "a column", "int32", "one step early", "rows that have ended", "from the end"],
)
def test_rows_end_by_the_number_of_the_step(model: onnx.ModelProto, left: list[str]) -> None:
    onnx.checker.check_model(model)
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == left
    dtype = (
        np.int32 if model.graph.input[1].type.tensor_type.elem_type == onnx.TensorProto.INT32 else np.int64
    )
    X = np.random.default_rng(0).normal(size=(5, 3, 3)).astype(np.float32)
    inputs = {"X": X, "lengths": np.array([5, 1, 3], dtype)}
    np.testing.assert_allclose(run(lifted, inputs)["last_h"], run(model, inputs)["last_h"], atol=1e-5)


def test_a_padded_loop_is_verified_with_lengths_of_its_sequences() -> None:
    model = make_model(AFTER)
    padded = rnnlower.pad(model, max={"T": 8})
    assert recurrent_left(padded) == ["RNN"]
    assert rnnlower.verify(model, padded)


def test_a_length_above_the_steps_of_a_padded_loop_means_all_of_them() -> None:
    model = make_model(AFTER)
    padded = rnnlower.pad(model, max={"T": 8})
    X = np.random.default_rng(0).normal(size=(5, 3, 3)).astype(np.float32)
    lengths = np.array([7, 6, 3])
    filled = np.concatenate([X, np.full((3, 3, 3), 9, np.float32)])
    found = run(padded, {"X": filled, "lengths": lengths, "length": np.array([5])})
    np.testing.assert_allclose(found["last_h"], run(model, {"X": X, "lengths": lengths})["last_h"], atol=1e-5)


@pytest.mark.parametrize(
    ("second", "left"),
    [
        ("kept2 = Where (is_going, new2, h2)", ["RNN", "RNN"]),
        ("kept2 = Identity (new2)", []),
        ("longer = Less (n, others) more = Unsqueeze (longer, after) kept2 = Where (more, new2, h2)", []),
    ],
    ids=["the same lengths", "all steps", "other lengths"],
)
@pytest.mark.parametrize("below", ["new", "kept"])
def test_a_layer_above_ends_with_the_one_below(second: str, left: list[str], below: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[5, 3, 2] X, int64[3] lengths, int64[3] others) => (float[3, 2] last, float[3, 2] last2)
        <float[2, 2] R = {{0.1, 0.2, 0.3, 0.4}}, float[3, 2] h0 = {{0, 0, 0, 0, 0, 0}},
         int64 steps = {{5}}, int64[1] after = {{1}}, bool go = {{1}}> {{
            last, last2 = Loop (steps, go, h0, h0) <body = each (
                int64 n, bool goes, float[3, 2] h, float[3, 2] h2) => (
                bool on, float[3, 2] kept, float[3, 2] kept2) {{
                on = Identity (goes) x = Gather (X, n) hr = MatMul (h, R) sum = Add (x, hr) new = Tanh (sum)
                {AFTER} kept = Where (is_going, new, h)
                h2r = MatMul (h2, R) sum2 = Add ({below}, h2r) new2 = Tanh (sum2) {second} }}> }}""")
    onnx.checker.check_model(model)
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == left
    X = np.random.default_rng(0).normal(size=(5, 3, 2)).astype(np.float32)
    inputs = {"X": X, "lengths": np.array([5, 1, 3]), "others": np.array([4, 4, 5])}
    for name, expected in run(model, inputs).items():
        np.testing.assert_allclose(run(lifted, inputs)[name], expected, atol=1e-5)
