"""Leaky units, which are a GRU with a constant update gate, and activations that overflow."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import recurrent_left, run

import rnnlower

SCAN = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[T, N, 3] X, float[N, 2] start) => (float[T, N, 2] Y, float[N, 2] last)
    <float[3, 2] W = {0.3, -0.5, 0.2, 0.6, 0.1, 0.4}, float[2, 2] R = {0.5, 0.6, -0.7, 0.8},
     float[2] b = {0.1, -0.2}, float one = {1}, float[2] kept = {KEPT}, float[2] added = {ADDED}> {
        last, Y = Scan <num_scan_inputs = 1, body = step (float[N, 2] h, float[N, 3] x)
        => (float[N, 2] new, float[N, 2] y) {
            xw = MatMul (x, W) hr = MatMul (h, R) total = Add (xw, hr) sum = Add (total, b)
            STEP
            y = Identity (new)
        }> (start, X)
    }
"""
LEAKY = "act = FUNCTION (sum) old = Mul (h, kept) more = Mul (act, added) new = Add (old, more)"


def make_model(step: str, kept: str = "0.7, 0.9", added: str = "0.3, 0.1") -> onnx.ModelProto:
    text = SCAN.replace("STEP", step).replace("KEPT", kept).replace("ADDED", added)
    return onnx.parser.parse_model(text)


def compare(model: onnx.ModelProto, scale: float = 1.0, semantics: str = "ort") -> list[str]:
    """Return the recurrent operators of the lifted model, which computes the same."""
    lifted = rnnlower.lift(model, semantics=semantics)
    onnx.checker.check_model(lifted, full_check=True)
    for steps, rows in ((1, 1), (3, 2), (50, 5)):
        rng = np.random.default_rng(steps)
        X, start = rng.normal(size=(steps, rows, 3)) * scale, rng.normal(size=(rows, 2))
        inputs = {"X": X.astype(np.float32), "start": start.astype(np.float32)}
        expected, actual = run(model, inputs), run(lifted, inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    return recurrent_left(lifted)


@pytest.mark.parametrize("function", ["Tanh", "Relu", "Sigmoid", "LeakyRelu"])
def test_leaky_units_are_a_gru(function: str) -> None:
    assert compare(make_model(LEAKY.replace("FUNCTION", function))) == ["GRU"]


def test_a_candidate_may_have_another_factor() -> None:
    assert compare(make_model(LEAKY.replace("FUNCTION", "Tanh"), "0.5, 0.5", "0.4, 0.4")) == ["GRU"]


@pytest.mark.parametrize(
    ("function", "kept", "added"),
    [
        ("Relu", "0.5, 0.5", "0.4, 0.4"),
        ("Tanh", "0.5, 0.5", "0.5, 0.4"),
        ("Tanh", "1.5, 0.5", "-0.5, 0.5"),
        ("Tanh", "0.999, 0.5", "0.001, 0.5"),
        ("Tanh", "0, 0.5", "1, 0.5"),
    ],
    ids=["a scaled Relu", "other factors", "above 1", "too slow", "no old state"],
)
def test_other_sums_with_the_old_state_stay(function: str, kept: str, added: str) -> None:
    assert compare(make_model(LEAKY.replace("FUNCTION", function), kept, added)) == []


@pytest.mark.parametrize("step", ["new = Identity (sum)", LEAKY.replace("FUNCTION", "Identity")])
def test_a_linear_step_is_an_rnn_without_an_activation(step: str) -> None:
    model = make_model(step)
    assert compare(model) == ["RNN"]
    (node,) = (node for node in rnnlower.lift(model).graph.node if node.op_type == "RNN")
    assert [each.strings for each in node.attribute if each.name == "activations"] == [[b"Affine"]]


@pytest.mark.parametrize(
    "step", ["new = Add (h, xw)", "old = Mul (h, kept) new = Add (old, xw)", "new = Identity (hr)"]
)
def test_sums_and_averages_over_time_are_no_rnn(step: str) -> None:
    """Each unit reads itself alone, or nothing is read of the sequence."""
    assert compare(make_model(step)) == []


def test_softplus_is_lifted_where_it_overflows_as_in_onnxruntime() -> None:
    softplus = make_model("new = Softplus (sum)")
    assert compare(softplus, scale=500.0) == []
    assert compare(softplus, semantics="spec") == ["RNN"]
    assert compare(make_model("e = Exp (sum) more = Add (e, one) new = Log (more)")) == ["RNN"]
    _, report = rnnlower.lift.with_report(softplus)
    assert report.nodes[0].reason == "onnxruntime's operators overflow in Softplus, where the step does not"


def test_the_reason_of_a_step_without_gates_is_that_of_an_rnn() -> None:
    _, report = rnnlower.lift.with_report(make_model("e = Exp (sum) new = Neg (e)"))
    assert report.nodes[0].reason == "Exp is not an activation of a cell"
