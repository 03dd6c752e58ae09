"""Activations with bounds, such as Relu6 and Hardtanh, and the reasons for steps that have none of a cell."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import recurrent_left, run

import rnnlower


def make_scan(step: str) -> onnx.ModelProto:
    """Return a Scan whose weights are so large that most sums are beyond the bounds."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[T, N, 3] X) => (float[N, 3] last, float[T, N, 3] Y)
        <float[3, 3] R = {{1, 2, 3, -4, 5, 6, 7, -8, 9}}, float[3, 3] S = {{2, -1, 1, 1, 3, -2, 1, 1, -3}},
         float none = {{0}}, float one = {{1}}, float two = {{2}}, float six = {{6}}, float part = {{0.3}},
         float low = {{-1}}, float lower = {{-2}}, int64[1] rows = {{1}}, int64[1] three = {{3}},
         float most = {{3.4e38}}> {{
            size = Shape (X) count = Gather (size, rows) shape = Concat <axis = 0> (count, three)
            h0 = ConstantOfShape (shape) last, Y = Scan <num_scan_inputs = 1, body = each (
                float[N, 3] h, float[N, 3] x) => (float[N, 3] new, float[N, 3] y) {{
                hr = MatMul (h, R) sum = Add (x, hr) {step} y = Identity (new) }}> (h0, X) }}""")


def lift_and_compare(model: onnx.ModelProto) -> tuple[list[str], str | None]:
    """Return the operators that lifting writes, and why it writes none."""
    onnx.checker.check_model(model)
    lifted, report = rnnlower.lift.with_report(model)
    onnx.checker.check_model(lifted, full_check=True)
    for steps in (1, 3, 50):
        for rows in (1, 2, 5):
            X = np.random.default_rng(steps + rows).normal(size=(steps, rows, 3), scale=4).astype(np.float32)
            for name, array in run(model, {"X": X}).items():
                np.testing.assert_allclose(run(lifted, {"X": X})[name], array, atol=1e-4, err_msg=name)
    return recurrent_left(lifted), report.nodes[0].reason


@pytest.mark.parametrize(
    ("step", "activation", "clip"),
    [
        ("new = Clip (sum, none, six)", "Relu", 6),
        ("r = Relu (sum) new = Min (r, six)", "Relu", 6),
        ("m = Max (sum, none) new = Min (m, two)", "Relu", 2),
        ("m = Min (sum, part) new = Relu (m)", None, None),
        ("c = Clip (sum, none, one) new = Mul (c, two)", "Relu", 2),
        ("new = Clip (sum, none, part)", "Relu", np.float32(0.3)),
        ("new = Clip (sum, none, one)", "HardSigmoid", None),
        ("new = Clip (sum, low, one)", "Affine", 1),
        ("c = Clip (sum, low, one) new = Mul (c, two)", "Affine", 2),
        ("m = Max (sum, lower) new = Min (m, two)", "Affine", 2),
        ("new = Clip (sum, lower, one)", None, None),
        ("new = Clip (sum, low, two)", None, None),
        ("c = Clip (sum, low, one) new = Mul (c, lower)", None, None),
        ("c = Clip (sum, none, one) new = Mul (c, lower)", None, None),
        ("new = Min (sum, six)", None, None),
        ("new = Clip (sum, one, two)", None, None),
    ],
)
def test_an_operator_clips_the_argument(step: str, activation: str | None, clip: float | None) -> None:
    model = make_scan(step)
    operators, reason = lift_and_compare(model)
    assert (operators == []) == (reason is not None) == (activation is None)
    if activation is not None:
        (node,) = (node for node in rnnlower.lift(model).graph.node if node.op_type == "RNN")
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        assert given["activations"] == [activation.encode()]
        assert given.get("clip") == clip


GRU = """s = MatMul (h, S) a = Add (x, s) z = GATE n = NEW k = Sub (one, z) zh = Mul (z, h) kn = Mul (k, n)
    new = Add (zh, kn)"""


@pytest.mark.parametrize(
    ("gate", "new"),
    [
        ("Sigmoid (a)", "Clip (sum, none, six)"),
        ("Sigmoid (a)", "Clip (sum, low, one)"),
        ("Clip (a, none, six)", "Tanh (sum)"),
        ("Clip (a, none, two)", "Clip (sum, none, two)"),
    ],
)
def test_cells_whose_gates_have_other_bounds_stay(gate: str, new: str) -> None:
    """All gates of a cell share one bound, and without a reset gate there is none."""
    operators, reason = lift_and_compare(make_scan(GRU.replace("GATE", gate).replace("NEW", new)))
    assert (operators, reason is None) == ([], False)


def test_a_candidate_that_another_gate_multiplies_stays() -> None:
    step = """hs = MatMul (h, S) z = Sigmoid (hs) r = Sigmoid (x) t = Tanh (sum) n = Mul (r, t)
        d = Sub (h, n) a = Mul (z, d) new = Add (n, a)"""
    assert lift_and_compare(make_scan(step))[0] == []


def test_leaky_units_with_bounds_stay() -> None:
    step = "n = Clip (sum, none, six) a = Mul (h, part) k = Sub (one, part) b = Mul (n, k) new = Add (a, b)"
    assert lift_and_compare(make_scan(step))[0] == []


BEFORE_STEPS = (
    "it multiplies a state by values that are computed before the steps, as minGRU, QRNN and SRU do, "
    "or by flags that restart rows, or by a mask that is not cast from a condition"
)
SILU = "x * sigmoid(x), SiLU or Swish, is not an activation of a cell"
NEITHER = "a new state is neither gated nor an activation"


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (
            "p = Clip (sum, low, two) new = Identity (p)",
            "returns its argument from -1 to 2 alone",
        ),
        ("m = Tanh (sum) new = Add (h, m)", NEITHER),
        ("q = Mul (sum, part) c = Clip (q, low, one) new = Sub (c, part)", NEITHER),
        ("k = Sub (one, x) a = Mul (k, h) b = Mul (x, x) new = Add (a, b)", BEFORE_STEPS),
        ("k = Sub (one, x) a = Mul (k, h) b = MatMul (a, S) s = Add (x, b) new = Tanh (s)", BEFORE_STEPS),
        (
            "on = Greater (x, one) a = Where (on, none, h) b = MatMul (a, S) s = Add (x, b) new = Tanh (s)",
            "no operator sets a state to zero between its steps, as flags that restart rows do",
        ),
        ("g = Sigmoid (sum) new = Mul (g, sum)", SILU),
        (
            "hs = MatMul (h, S) z = Sigmoid (hs) g = Sigmoid (sum) n = Mul (g, sum) d = Sub (h, n) "
            "a = Mul (z, d) new = Add (n, a)",
            SILU,
        ),
        (
            "hs = MatMul (h, S) g = Sigmoid (hs) new = Mul (g, sum)",
            "the equations of the step are not those of GRU: the new state is not (1 - z) n + z h",
        ),
        (
            "a = Mul (h, part) new = Add (a, x)",
            "each unit adds to a multiple of its own state alone, where an RNN has a matrix",
        ),
    ],
)
def test_reasons_name_what_the_step_computes(step: str, reason: str) -> None:
    (node,) = rnnlower.lift.with_report(make_scan(step))[1].nodes
    assert node.reason is not None
    assert node.reason.endswith(reason)


@pytest.mark.filterwarnings("error")
def test_twice_the_largest_number_as_a_bound_is_no_warning() -> None:
    model = make_scan("new = Clip (sum, none, most)")
    (scan,) = (node for node in model.graph.node if node.op_type == "Scan")
    body = next(each.g for each in scan.attribute if each.name == "body")
    body.node[-1].CopyFrom(onnx.parser.parse_node("y = Mul (new, two)"))
    assert recurrent_left(rnnlower.lift(model)) == ["RNN"]


@pytest.mark.parametrize(
    ("output", "parameters"),
    [
        ("p = Add (d, three) q = Clip (p, none, six) a = Mul (q, sixth)", (1 / 6, 0.5)),
        ("p = Mul (d, part) q = Add (p, sixth) a = Clip (q, none, one)", (0.3, 1 / 6)),
        ("p = Mul (d, part) a = HardSigmoid <alpha = 0.5> (p)", (0.15, 0.5)),
        ("a = HardSigmoid (d)", (0.2, 0.5)),
        ("p = Add (d, x) a = HardSigmoid (p)", None),
    ],
)
def test_the_output_of_an_lstm_has_a_hard_sigmoid(
    output: str, parameters: tuple[float, float] | None
) -> None:
    """Its parameters say what scales and shifts the cell state, as in Keras 3."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[T, N, 3] X) => (float[N, 3] last, float[T, N, 3] Y)
        <float[3, 3] R = {{1, 2, 3, -4, 5, 6, 7, -8, 9}}, float[3, 3] S = {{2, -1, 1, 1, 3, -2, 1, 1, -3}},
         float none = {{0}}, float one = {{1}}, float three = {{3}}, float six = {{6}}, float part = {{0.3}},
         float sixth = {{0.16666667}}, int64[1] rows = {{1}}, int64[1] size = {{3}}> {{
            shape = Shape (X) count = Gather (shape, rows) wanted = Concat <axis = 0> (count, size)
            h0 = ConstantOfShape (wanted) last, end, Y = Scan <num_scan_inputs = 1, body = each (
                float[N, 3] h, float[N, 3] c, float[N, 3] x) =>
                (float[N, 3] new, float[N, 3] d, float[N, 3] y) {{
                hr = MatMul (h, R) i = Sigmoid (hr) hs = MatMul (h, S) s = Add (hs, x) o = Sigmoid (s)
                g = Tanh (x) f = Sigmoid (x) ig = Mul (i, g) fc = Mul (f, c) d = Add (fc, ig)
                {output} new = Mul (o, a) y = Identity (new) }}> (h0, h0, X) }}""")
    assert lift_and_compare(model)[0] == ([] if parameters is None else ["LSTM"])
    for node in rnnlower.lift(model).graph.node:
        if node.op_type == "LSTM":
            given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            assert given["activations"][2] == b"HardSigmoid"
            alphas, betas = given.get("activation_alpha", [0.2]), given.get("activation_beta", [0.5])
            np.testing.assert_allclose((alphas[-1], betas[-1]), parameters, rtol=1e-6)
