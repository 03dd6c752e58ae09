"""Straight lines of Keras on PyTorch.

Gates are cut from one product, steps always go on, there are needless casts, and sequences share a layer.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.judge import recurrent_left, run

import rnnlower

STEPS = 4
GRU = """
    xK = CUT
    hrK = MatMul (hK, R) rK = Add (hrK, b)
    xzK = Slice (xK, from0, from4, last) rzK = Slice (rK, from0, from4, last)
    xrK = Slice (xK, from4, from8, last) rrK = Slice (rK, from4, from8, last)
    xnK = Slice (xK, from8, end, last) rnK = Slice (rK, from8, end, last)
    azK = Add (xzK, rzK) zK = Sigmoid (azK) arK = Add (xrK, rrK) gK = Sigmoid (arK)
    mK = Mul (gK, rnK) anK = Add (xnK, mK) nK = Tanh (anK)
    keptK = Mul (zK, hK) restK = Sub (one, zK) newK = Mul (restK, nK) hNEXT = Add (keptK, newK)
"""
RNN = """
    x1K = Gather (X, pK) xK = Cast <to = 1> (x1K) wK = MatMul (xK, W) w1K = Cast <to = 1> (wK)
    oldK = Cast <to = 1> (hK) rK = MatMul (oldK, R) sK = Add (w1K, rK) nK = Tanh (sK)
    isK = Greater (steps, pK) hNEXT = Where (isK, nK, oldK)
"""
CASES = {
    "gates of a gathered step": (GRU.replace("CUT", "Gather (all, pK)"), 12, "GRU"),
    "gates of a split step": (GRU.replace("CUT", "Squeeze (splitK, from0)"), 12, "GRU"),
    "steps that always go on": (RNN, 4, "RNN"),
}


def make_line(step: str, units: int) -> onnx.ModelProto:
    """Return a line of four steps from zeros, as many as there are rows; the result is the last state."""
    steps = "".join(step.replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(STEPS))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[{STEPS}, N, 3] X) => (float[N, 4] h{STEPS})
        <float one = {{1}}, int64[1] from0 = {{0}}, int64[1] from1 = {{1}}, int64[1] from2 = {{2}},
         int64[1] from4 = {{4}}, int64[1] from8 = {{8}}, int64[1] end = {{12}}, int64[1] last = {{-1}},
         int64 p0 = {{0}}, int64 p1 = {{1}}, int64 p2 = {{2}}, int64 p3 = {{3}}> {{
            sizes = Shape (X) steps = Gather (sizes, p0) rows = Slice (sizes, from1, from2)
            shape = Concat <axis = 0> (rows, from4) h0 = ConstantOfShape (shape)
            all = MatMul (X, W) split0, split1, split2, split3 = Split <axis = 0> (all) {steps} }}""")
    rng = np.random.default_rng(0)
    for name, shape in {"W": (3, units), "R": (4, units), "b": (units,)}.items():
        array = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize(("step", "units", "op_type"), CASES.values(), ids=CASES)
def test_all_steps_are_lifted_and_read_their_input_at_once(step: str, units: int, op_type: str) -> None:
    model = make_line(step, units)
    onnx.checker.check_model(model, full_check=True)
    lifted = rnnlower.lift(model)
    onnx.checker.check_model(lifted, full_check=True)
    assert recurrent_left(lifted) == [op_type]
    assert not {node.op_type for node in lifted.graph.node} & {"Concat", "Sigmoid", "Slice", "Tanh", "Where"}
    for rows in (1, 2, 5):
        X = np.random.default_rng(rows).normal(size=(STEPS, rows, 3)).astype(np.float32)
        (result,), (expected,) = run(lifted, {"X": X}).values(), run(model, {"X": X}).values()
        np.testing.assert_allclose(result, expected, atol=1e-5)


def test_lines_that_share_their_weights_are_lifted_each() -> None:
    steps = "".join(
        f"""x{side}{k} = Gather (X{side}, p{k}) r{side}{k} = MatMul (h{side}{k}, R)
        s{side}{k} = Add (x{side}{k}, r{side}{k}) h{side}{k + 1} = Tanh (s{side}{k})\n"""
        for k in range(STEPS)
        for side in "ab"
    )
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[4, N, 2] Xa, float[4, N, 2] Xb, float[N, 2] ha0, float[N, 2] hb0) => (float[N, 2] Y)
        <float[2, 2] R = {{0.5, -0.25, 1, 2}}, int64 p0 = {{0}}, int64 p1 = {{1}}, int64 p2 = {{2}},
         int64 p3 = {{3}}> {{ {steps} Y = Sub (ha4, hb4) }}""")
    lifted = rnnlower.lift(model)
    assert [node.op_type for node in lifted.graph.node if node.op_type in ("RNN", "Tanh")] == ["RNN", "RNN"]
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(4, 3, 2)).astype(np.float32) for name in ("Xa", "Xb")}
    feeds |= {name: rng.normal(size=(3, 2)).astype(np.float32) for name in ("ha0", "hb0")}
    np.testing.assert_allclose(run(lifted, feeds)["Y"], run(model, feeds)["Y"], atol=1e-6)


def test_a_line_that_starts_from_the_end_of_another_is_lifted_too() -> None:
    steps = "".join(
        f"""x{k} = Gather (X, p{k % STEPS}) r{k} = MatMul (h{k}, {"R" if k < STEPS else "S"})
        s{k} = Add (x{k}, r{k}) h{k + 1} = Tanh (s{k})\n"""
        for k in range(2 * STEPS)
    )
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[4, N, 2] X, float[N, 2] h0) => (float[N, 2] h8)
        <float[2, 2] R = {{0.5, -0.25, 1, 2}}, float[2, 2] S = {{-0.5, 1, 0.3, 0.2}}, int64 p0 = {{0}},
         int64 p1 = {{1}}, int64 p2 = {{2}}, int64 p3 = {{3}}> {{ {steps} }}""")
    lifted = rnnlower.lift(model)
    assert [node.op_type for node in lifted.graph.node if node.op_type in ("RNN", "Tanh")] == ["RNN", "RNN"]
    rng = np.random.default_rng(0)
    sizes = {"X": (4, 3, 2), "h0": (3, 2)}
    feeds = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    np.testing.assert_allclose(run(lifted, feeds)["h8"], run(model, feeds)["h8"], atol=1e-6)
