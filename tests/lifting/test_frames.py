"""Recurrences as exporters write them, and what must stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.judge import recurrent_left, run

import rnnlower
from rnnlower.recurrent.node import Semantics

SIZES = {"W4": (3, 16), "R4": (4, 16), "B4": (16,), "W3": (3, 12), "R3": (4, 12), "B3": (12,)}
SIZES |= {"W_": (1, 16, 3), "R_": (1, 16, 4), "B_": (1, 32)}
SIZES |= {"W1": (3, 4), "R1": (4, 4), "B1": (4,), "zeros": (2, 4), "V": (4, 3)}

LSTM = """
    xw = MatMul (x, W4)
    hr = MatMul (h, R4)
    sum = Add (xw, hr)
    gates = Add (sum, B4)
    i0, f0, g0, o0 = Split <axis = 1> (gates, parts)
    i = Sigmoid (i0)
    f = Sigmoid (f0)
    g = Tanh (g0)
    o = Sigmoid (o0)
    fc = Mul (f, c)
    ig = Mul (i, g)
    c_new = Add (fc, ig)
    t = Tanh (c_new)
    h_new = Mul (o, t)
"""
KERAS = """
    main (float[6, 2, 3] X) => (float[6, 2, 4] Y, float[2, 4] last)
    <int64 most = {9223372036854775807}, bool on = {1}, int32 start = {0}, int32 one = {1}, int32 end = {6},
     int64[4] parts = {4, 4, 4, 4}> {
        time_end, last, cell, w, Y = Loop (most, on, start, zeros, zeros, W4) <body = step (
            int64 n, bool go, int32 time, float[2, 4] h, float[2, 4] c, float[3, 16] W
        ) => (bool goes, int32 next, float[2, 4] h_new, float[2, 4] c_new, float[3, 16] W, float[2, 4] y) {
            x = Gather (X, time)
            next = Add (time, one)
            goes = Less (next, end)
            STEP
            y = Identity (h_new)
        }>
    }
"""
SCAN = """
    main (float[6, 2, 3] X) => (float[6, 2, 4] Y, float[2, 4] last) <int64[4] parts = {4, 4, 4, 4}> {
        last, cell, Y = Scan <num_scan_inputs = 1, body = step (float[2, 4] h, float[2, 4] c, float[2, 3] x)
        => (float[2, 4] h_new, float[2, 4] c_new, float[2, 4] y) {
            STEP
            y = Identity (h_new)
        }> (zeros, zeros, X)
    }
"""
GRU = """
    main (float[6, 2, 3] X, float[2, 4] start) => (float[6, 2, 4] Y) {
        last, Y = Scan <num_scan_inputs = 1, body = step (float[2, 4] h, float[2, 3] x)
        => (float[2, 4] h_new, float[2, 4] y) {
            STEP
            y = Identity (h_new)
        }> (start, X)
    }
"""
LINE = """
    main (float[2, 4, 3] X, float[2, 4] h0, float[2, 4] c0) => (float[2, 4] h4, float[2, 4] h2)
    <int64[4] parts = {4, 4, 4, 4}, int64 p0 = {0}, int64 p1 = {1}, int64 p2 = {2}, int64 p3 = {3}> {
        STEPS
    }
"""


def make_model(text: str, step: str = "", seed: int = 0) -> onnx.ModelProto:
    """Return the model of a text, with random weights for the names that it reads."""
    text = text.replace("STEP", step)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    rng = np.random.default_rng(seed)
    for name, shape in SIZES.items():
        value = np.zeros(shape) if name == "zeros" else rng.normal(size=shape) * 0.5
        if name in text:
            model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    return model


def random_inputs(model: onnx.ModelProto) -> Mapping[str, np.ndarray]:
    rng = np.random.default_rng(1)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def lift_and_compare(model: onnx.ModelProto, **options: int) -> list[str]:
    """Return the recurrent operators of the lifted model, which computes the same."""
    result = rnnlower.lift(model, **options)
    onnx.checker.check_model(result, full_check=True)
    inputs = random_inputs(model)
    expected, actual = run(model, inputs), run(result, inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    return recurrent_left(result)


def reasons(model: onnx.ModelProto) -> str:
    """Return why a model stays as it is."""
    result, report = rnnlower.lift.with_report(model)
    assert result.SerializeToString() == rnnlower.lift(result).SerializeToString()
    assert recurrent_left(result) == []
    return "; ".join(str(node.reason) for node in report.nodes)


def repeat_step(step: str, count: int) -> str:
    """Return the steps of a straight line over ``X[:, k]``."""
    names = ("xw", "hr", "sum", "gates", "i0", "f0", "g0", "o0", "i", "f", "g", "o", "fc", "ig", "t", "x")
    lines = []
    for k in range(count):
        text = f"x = Gather <axis = 1> (X, p{k})" + step
        words = {name: f"{name}_{k}" for name in names}
        words |= {"h": f"h{k}", "c": f"c{k}", "h_new": f"h{k + 1}", "c_new": f"c{k + 1}"}
        for line in filter(None, map(str.strip, text.splitlines())):
            tokens = line.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()
            lines.append(" ".join(words.get(token, token) for token in tokens))
    return LINE.replace("STEPS", "\n".join(lines))


def test_a_loop_of_keras_becomes_an_lstm() -> None:
    assert lift_and_compare(make_model(KERAS, LSTM)) == ["LSTM"]


@pytest.mark.parametrize(
    ("attributes", "becomes"),
    [
        ("", ["LSTM"]),
        (', direction = "forward", input_forget = 0, layout = 0', ["LSTM"]),
        (", input_forget = 1", []),
        (', direction = "reverse"', []),
    ],
)
def test_a_scan_around_an_lstm_of_one_step_becomes_an_lstm(attributes: str, becomes: list[str]) -> None:
    step = f"""
        axes = Constant <value = int64[1] {{0}}> ()
        xs = Unsqueeze (x, axes)  hs = Unsqueeze (h, axes)  cs = Unsqueeze (c, axes)
        all, hn, cn = LSTM <hidden_size = 4{attributes}> (xs, W_, R_, B_, , hs, cs)
        h_new = Squeeze (hn, axes)  c_new = Squeeze (cn, axes)
    """
    model = make_model(SCAN, step)
    result = rnnlower.lift(model)
    assert [node.op_type for node in result.graph.node if node.op_type in ("LSTM", "Scan")] == (
        becomes or ["Scan"]
    )
    for name, array in run(model, random_inputs(model)).items():
        np.testing.assert_allclose(run(result, random_inputs(model))[name], array, rtol=1e-4, atol=1e-5)


def test_a_scan_becomes_an_lstm() -> None:
    assert lift_and_compare(make_model(SCAN, LSTM)) == ["LSTM"]


def test_a_line_of_lstm_cells_becomes_an_lstm() -> None:
    model = make_model(repeat_step(LSTM, 4))
    assert lift_and_compare(model) == ["LSTM"]
    assert lift_and_compare(model, steps=5) == []


def test_an_lstm_without_forget_gate_becomes_an_lstm() -> None:
    assert lift_and_compare(make_model(SCAN, LSTM.replace("Mul (f, c)", "Identity (c)"))) == ["LSTM"]


@pytest.mark.parametrize(
    "new",
    [
        "d = Sub (n, h)  p = Mul (z, d)  h_new = Add (h, p)",
        "d = Sub (h, n)  p = Mul (z, d)  h_new = Add (n, p)",
    ],
)
def test_a_minimal_gated_unit_becomes_a_gru(new: str) -> None:
    step = f"""
        xw = MatMul (x, W1)  hr = MatMul (h, R1)  s = Add (xw, hr)  a = Add (s, B1)  z = Sigmoid (a)
        k = Mul (z, h)  kr = MatMul (k, R1)  q = Add (xw, kr)  n = Tanh (q)  {new}
    """
    assert lift_and_compare(make_model(GRU, step)) == ["GRU"]


@pytest.mark.parametrize("function", ["Identity (n1)", "Clip (n1, zero)", "Clip (n1, zero, one)"])
def test_a_candidate_may_be_linear_or_clipped(function: str) -> None:
    step = f"""
        zero = Constant <value_float = 0.0> ()  one = Constant <value_float = 1.0> ()
        xw = MatMul (x, W1)  hr = MatMul (h, R1)  s = Add (xw, hr)  a = Add (s, B1)  z = HardSigmoid (a)
        r = HardSigmoid (s)  k = Mul (r, h)  n0 = MatMul (k, R1)  n1 = Add (n0, xw)
        n = {function}  d = Sub (h, n)  p = Mul (z, d)  h_new = Add (n, p)
    """
    assert lift_and_compare(make_model(GRU, step)) == ["GRU"]


STAYING = {
    "another_activation": (LSTM.replace("Tanh (c_new)", "Sin (c_new)"), "Sin"),
    "residual": (LSTM.replace("h_new = Mul (o, t)", "m = Mul (o, t)  h_new = Add (m, h)"), "LSTM"),
    "different_gates": (LSTM.replace("o = Sigmoid", "o = Tanh"), "activations"),
    "layer_norm": (
        LSTM.replace("Split <axis = 1> (gates", "Split <axis = 1> (norm").replace(
            "i0, f0", "m = ReduceMean <axes = [1]> (gates)  norm = Sub (gates, m)  i0, f0"
        ),
        "ReduceMean",
    ),
}


@pytest.mark.parametrize("name", STAYING)
def test_a_step_that_is_not_a_cell_stays(name: str) -> None:
    step, reason = STAYING[name]
    assert reason in reasons(make_model(SCAN, step))


def test_a_gate_read_outside_keeps_the_scan() -> None:
    text = SCAN.replace("y = Identity (h_new)", "y = Identity (o)")
    assert "is an output, but no cell returns it" in reasons(make_model(text, LSTM))


def test_runtime_weights_keep_the_scan() -> None:
    model = make_model(SCAN.replace("X) =>", "X, float[4, 16] R4) =>"), LSTM)
    names = [tensor.name for tensor in model.graph.initializer]
    del model.graph.initializer[names.index("R4")]
    assert "not constant" in reasons(model)


AT_RUN_TIME = {
    "sizes": ("(gates, parts)", "(gates, P)", "the sizes of a Split are not constant"),
    "axes": ("(sum, B4)", "(sum, B)  B = Squeeze (B4, P)", "the axes of a Squeeze are not constant"),
}


@pytest.mark.parametrize("what", AT_RUN_TIME)
def test_runtime_axes_and_sizes_keep_the_scan(what: str) -> None:
    old, new, reason = AT_RUN_TIME[what]
    text = SCAN.replace("X) =>", "X, int64[n] P) =>")
    after, _, before = new.partition("  ")
    step = LSTM.replace(f"gates = Add {old}", f"{before}  gates = Add {after}").replace(old, after)
    assert reason in reasons(make_model(text, step))


def test_a_state_added_to_the_input_is_absorbed_by_r() -> None:
    step = LSTM.replace("(x, W4)", "(fed, W4)").replace("xw", "e = MatMul (h, V)  fed = Add (x, e)  xw", 1)
    assert lift_and_compare(make_model(SCAN, step)) == ["LSTM"]


def test_a_small_part_of_the_cell_state_is_not_all_of_it() -> None:
    step = LSTM.replace("t = Tanh (c_new)", "tiny = Constant <value = float {1e-10}> ()  t = Mul (fc, tiny)")
    assert lift_and_compare(make_model(SCAN, step)) == []


def test_a_line_whose_input_depends_on_its_state_stays() -> None:
    text = repeat_step(LSTM, 4)
    for k in range(1, 4):
        text = text.replace(f"x_{k} = Gather", f"e_{k} = MatMul (h{k}, V) q_{k} = Sin (e_{k}) u_{k} = Gather")
        text = text.replace(f"MatMul ( x_{k} ,", f"MatMul ( x_{k} ,").replace(
            f"xw_{k} = ", f"x_{k} = Add (u_{k}, q_{k}) xw_{k} = "
        )
    assert "LSTM" not in lift_and_compare(make_model(text))


def test_nothing_to_lift_changes_nothing() -> None:
    model = make_model("main (float[2] x) => (float[2] y) { y = Neg (x) }")
    result, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in result.graph.node] == ["Neg"]
    assert "nothing to lift" in report.notes[0]


@pytest.mark.parametrize(("semantics", "nodes"), [("ort", []), ("spec", ["RNN"])])
def test_without_steps_the_final_state_is_the_initial_one(semantics: Semantics, nodes: list[str]) -> None:
    """For rows without steps, onnxruntime's operators return zeros."""
    text = GRU.replace("[6, 2", "[0, 2").replace("(float[0, 2, 4] Y)", "(float[0, 2, 4] Y, float[2, 4] last)")
    model = make_model(text, "hr = MatMul (h, R1) xw = MatMul (x, W1) sum = Add (xw, hr) h_new = Tanh (sum)")
    result, report = rnnlower.lift.with_report(model, semantics=semantics)
    assert recurrent_left(result) == nodes
    assert nodes or "is read for rows that may have no steps" in str(report.nodes[0].reason)
