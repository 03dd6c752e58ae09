"""Straight lines that join their states in one tensor and cut them out again, or reshape them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import all_nodes, recurrent_left, run

import rnnlower

STEPS = 4
HEADER = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[N, 4, 4] X, STATE) => (RESULTS)
    <float[4, 4] R = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0, -0.1, -0.2, -0.3, -0.4, -0.5, 0},
     float[4, 4] Q = {-0.2, 0, 0.3, 0.7, 0.5, -0.6, 0.1, 0.8, 0.9, 0, -0.1, 0.2, 0.4, -0.4, -0.3, 0.1},
     int64 p0 = {0}, int64 p1 = {1}, int64 p2 = {2}, int64 p3 = {3}, int64 low = {-1}, int64[1] at0 = {0},
     int64[1] at1 = {1}, int64[1] at2 = {2}, int64[1] at_low = {-1}, int64[1] at4 = {4},
     int64[1] far = {9223372036854775807}, int64[2] ones = {1, 1}, int64[2] flat = {4, -1}> {
"""
TWO_LAYERS = """xK = Gather <axis = 1> (X, pK) READ
    raK = MatMul (aK, R) saK = Add (xK, raK) cK = Tanh (saK)
    rbK = MatMul (bK, Q) sbK = Add (cK, rbK) dK = Tanh (sbK)
    c1K = Unsqueeze (cK, at0) d1K = Unsqueeze (dK, at0) hNEXT = Concat <axis = 0> (c1K, d1K)"""
LSTM = """xK = Gather <axis = 1> (X, pK) READ
    rK = MatMul (aK, R) sK = Add (xK, rK) iK = Sigmoid (sK) tK = Tanh (sK) uK = Mul (iK, bK)
    vK = Mul (iK, tK) dK = Add (uK, vK) wK = Tanh (dK) cK = Mul (iK, wK)
    hNEXT = Concat <axis = 1> (cK, dK)"""
GROWING = """xK = Gather <axis = 1> (X, pK) READ
    rK = MatMul (aK, R) sK = Add (xK, rK) cK = Tanh (sK) c1K = Unsqueeze (cK, at1)
    hNEXT = Concat <axis = 1> (hK, c1K)"""
CASES = {
    "layers by Gather": (TWO_LAYERS, "aK = Gather (hK, p0) bK = Gather (hK, low)", "float[2, N, 4]", 2),
    "layers by Split": (
        TWO_LAYERS,
        "a1K, b1K = Split (hK, ones) aK = Squeeze (a1K, at0) bK = Squeeze (b1K, at0)",
        "float[2, N, 4]",
        2,
    ),
    "layers by Slice": (
        TWO_LAYERS,
        """a1K = Slice (hK, at0, at1, at0) b1K = Slice (hK, at1, far, at0)
        aK = Squeeze (a1K, at0) bK = Squeeze (b1K, at0)""",
        "float[2, N, 4]",
        2,
    ),
    "h and c": (LSTM, "aK, bK = Split <axis = 1> (hK)", "float[N, 8]", 1),
    "a tensor that grows": (GROWING, "aK = Gather <axis = 1> (hK, low)", "float[N, 1, 4]", 1),
    "a tensor that grows, by Slice": (
        GROWING,
        "a1K = Slice (hK, at_low, far, at1) aK = Squeeze (a1K, at1)",
        "float[N, 1, 4]",
        1,
    ),
}


def make_line(step: str, state: str, results: str = "", end: str = "") -> onnx.ModelProto:
    """Return a line of four steps from the state `h0`."""
    text = HEADER.replace("STATE", f"{state} h0").replace("RESULTS", results)
    lines = [step.replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(STEPS)]
    return onnx.parser.parse_model(text + "\n".join(lines) + end + "}")


def compare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Lift a model; check that it computes the same for each number of rows."""
    onnx.checker.check_model(model, full_check=True)
    lifted = rnnlower.lift(model)
    onnx.checker.check_model(lifted, full_check=True)
    for rows in (1, 2, 5):
        rng = np.random.default_rng(rows)
        inputs = {
            given.name: rng.normal(
                size=[dim.dim_value or rows for dim in given.type.tensor_type.shape.dim]
            ).astype(np.float32)
            for given in model.graph.input
        }
        expected, actual = run(model, inputs), run(lifted, inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    return lifted


@pytest.mark.parametrize(("step", "read", "state", "count"), CASES.values(), ids=CASES)
def test_states_that_are_joined_are_read_before(step: str, read: str, state: str, count: int) -> None:
    rank = state.count(",") + 1
    results = f"float[{', '.join('ABC'[:rank])}] h4"
    lifted = compare(make_line(step.replace("READ", read), state, results))
    assert len(recurrent_left(lifted)) == count
    assert not {"Tanh", "MatMul"} & {node.op_type for node in all_nodes(lifted)}


def test_they_are_read_before_in_an_opset_without_where() -> None:
    """A sum of products with a mask next to the line stays."""
    step, read, state, count = CASES["layers by Gather"]
    for name in ("cK", "dK"):
        step = step.replace(f"Unsqueeze ({name}, at0)", f"Unsqueeze <axes = [0]> ({name})")
    end = """ is_more = Greater (x0, x1) m = Cast <to = 1> (is_more) one = Constant <value = float {1}> ()
        rest = Sub (one, m) left = Mul (m, x2) right = Mul (rest, x3) Z = Add (left, right)"""
    model = make_line(step.replace("READ", read), state, "float[A, B, 4] h4, float[C, 4] Z", end)
    model.opset_import[0].version = 8
    assert len(recurrent_left(compare(model))) == count


def test_nothing_changes_where_joined_states_are_of_no_cell() -> None:
    read = "aK = Gather (hK, p0) bK = Gather (hK, p1)"
    step = TWO_LAYERS.replace("Tanh", "Sin").replace("READ", read)
    model = make_line(step, "float[2, N, 4]", "float[A, B, C] h4")
    lifted = compare(model)
    assert [node.output for node in lifted.graph.node] == [node.output for node in model.graph.node]


def test_a_state_is_read_before_its_views() -> None:
    """PyTorch's cells without a batch add it in each step, and take it away again."""
    step = """xK = Gather <axis = 1> (X, pK) hhK = Unsqueeze (hK, at0) rK = MatMul (hhK, R)
        sK = Add (xK, rK) tK = Tanh (sK) hNEXT = Squeeze (tK, at0)"""
    stacked = " ".join(f"y{k} = Unsqueeze (h{k}, at0)" for k in range(1, STEPS + 1))
    end = f"{stacked} Y = Concat <axis = 0> (y1, y2, y3, y4)"
    model = make_line(step, "float[4]", "float[4, 4] Y", end)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    lifted = compare(model)
    assert recurrent_left(lifted) == ["RNN"]
    assert "Tanh" not in {node.op_type for node in all_nodes(lifted)}


def test_a_reason_names_the_value_that_is_read() -> None:
    read = "aK, bK = Split <axis = 1> (hK)"
    model = make_line(LSTM.replace("READ", read), "float[N, 8]", "float[A, B] h4, float[A, 4] d1")
    _, report = rnnlower.lift.with_report(model)
    assert {node.reason for node in report.nodes} == {"'d1' is read, but no cell returns it"}
