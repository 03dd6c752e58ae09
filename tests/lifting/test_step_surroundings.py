"""Operators before and after the cell of a step: they are computed for all steps at once."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.judge import run

import rnnlower

DRAW = np.random.default_rng(0)
SIZES = {"W": (3, 4), "R": (4, 4), "U": (3, 4), "V": (4, 5), "v": (5,), "E": (7, 3), "scale": (3,)}
WEIGHTS = {name: DRAW.normal(size=shape, scale=0.4).astype(np.float32) for name, shape in SIZES.items()}
WEIGHTS |= {"cut": np.array([1]), "units": np.array([1]), "to": np.array([3]), "seven": np.array(7)}
WEIGHTS |= {"pads": np.array([0, 1, 0, 2]), "turned": np.array([1, 0, 2, 0]), "turned_axes": np.array([1, 0])}
WEIGHTS |= {"flat": np.array([-1, 2, 2]), "none": np.array(0, np.float32), "six": np.array(6, np.float32)}


def model_of(
    before: str = "x = Identity (raw)",
    after: str = "y = Identity (new)",
    how: str = "",
    y: str = "a, b, c",
    opset: int = 17,
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        main (float[T, B, 3] X, float[B, 4] h0) => (float[{y}] Y, float[B, 4] last) {{
            last, Y = Scan <num_scan_inputs = 1 {how}, body = step (float[B, 4] h, float[B, 3] raw)
                => (float[B, 4] new, float[{y[3:]}] y) {{
                {before}
                xw = MatMul (x, W)
                hr = MatMul (h, R)
                sum = Add (xw, hr)
                new = Tanh (sum)
                {after}
            }}> (h0, X)
        }}
    """)
    for name, value in WEIGHTS.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def lift_and_compare(model: onnx.ModelProto) -> list[str | None]:
    onnx.checker.check_model(model, full_check=True)
    lifted, report = rnnlower.lift.with_report(model)
    onnx.checker.check_model(lifted, full_check=True)
    for steps, rows in ((5, 3), (1, 1), (50, 16)):
        inputs = {name: DRAW.normal(size=size).astype(np.float32) for name, size in _shapes(steps, rows)}
        got = run(lifted, inputs)
        for name, want in run(model, inputs).items():
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    return [node.op_type for node in report.nodes]


def _shapes(steps: int, rows: int) -> list[tuple[str, tuple[int, ...]]]:
    return [("X", (steps, rows, 3)), ("h0", (rows, 4))]


AFTER = {
    "a head": "p = MatMul (new, V)  y = Softmax <axis = -1> (p)",
    "a Gemm": "p = Gemm (new, V, v)  y = Relu (p)",
    "a Gemm with factors": "p = Gemm <transB = 1, alpha = 0.5, beta = 2.0> (new, W, scale)  y = Relu (p)",
    "a connection around the cell": "skip = MatMul (raw, U)  y = Add (new, skip)",
    "the input beside the state": "y = Concat <axis = 1> (new, raw)",
    "a part that is the same in all steps": "y = Concat <axis = 0> (new, R)",
    "a constant in front": "p = Sub (six, new)  y = Clip (p, none, six)",
    "some units": "y = Slice (new, units, to, cut)",
    "all units twice": "p, q = Split <axis = -1> (new)  y = Concat <axis = -1> (q, p, q)",
    "zeros around it": "y = Pad (new, pads)",
    "columns": "y = Transpose (new)",
    "the state after a head": "p = Exp (new)  y = Identity (new)",
}


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("after", AFTER)
def test_what_follows_the_cell_is_computed_for_all_steps(after: str, opset: int) -> None:
    assert lift_and_compare(model_of(after=AFTER[after], opset=opset)) == ["RNN"]


def test_zeros_around_axes_in_another_order() -> None:
    """The pads of axes 1 and 0 are not those of time and all axes."""
    assert lift_and_compare(model_of(after="y = Pad (new, turned, , turned_axes)", opset=19)) == [None]


def test_a_head_is_padded_with_an_open_number_of_rows() -> None:
    model = model_of(after=AFTER["a Gemm"])
    assert rnnlower.verify(model, rnnlower.pad(model, max={"T": 8}))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("backward", [0, 1])
def test_results_are_stacked_along_any_axis_in_both_directions(axis: int, backward: int) -> None:
    how = f", scan_output_axes = [{axis}], scan_output_directions = [{backward}]"
    for turned in ("", ", scan_input_directions = [1]"):
        assert lift_and_compare(model_of(after=AFTER["a head"], how=how + turned)) == ["RNN"]


def test_a_result_may_have_fewer_or_more_axes() -> None:
    fewer = "y = ReduceSum <keepdims = 0> (new, cut)"
    assert lift_and_compare(model_of(after=fewer, y="a, b")) == ["RNN"]
    assert lift_and_compare(model_of(after="y = Reshape (new, flat)", y="a, b, c, d")) == ["RNN"]


BEFORE = {
    "an activation": "x = Relu (raw)",
    "a layer": "p = MatMul (raw, U)  q = Tanh (p)  s = MatMul (q, V)  x = Slice (s, units, to4, cut)",
    "zeros in front": "p = Pad (raw, pads, none)  q = Relu (p)  x = Slice (q, cut, to4, cut)",
    "a normalization": "x = LayerNormalization (raw, scale)",
    "rows of a table": """
        high = ReduceMax <axes = [1], keepdims = 0> (raw)  big = Clip (high, none, six)
        at = Cast <to = 7> (big)  x = Gather (E, at)
    """,
    "a softmax of the input twice": "p = Softmax <axis = -1> (raw)  x = Mul (p, raw)",
}
WEIGHTS["to4"] = np.array([4])


@pytest.mark.parametrize("before", BEFORE)
def test_what_precedes_the_cell_is_computed_for_all_steps(before: str) -> None:
    assert lift_and_compare(model_of(BEFORE[before])) == ["RNN"]
    assert lift_and_compare(model_of(BEFORE[before], AFTER["the input beside the state"])) == ["RNN"]


STAYS = {
    "the state before": ("x = Identity (raw)", "y = Exp (h)"),
    "a bound of each step": (
        "low = ReduceMin <keepdims = 0> (raw)  x = Clip (raw, low)",
        "y = Identity (new)",
    ),
    "the same in all steps": ("x = Identity (raw)", "y = Exp (R)"),
    "an If": (
        "all = ReduceSum <keepdims = 0> (raw)  on = Less (none, all)  x = If (on) "
        "<then_branch = a () => (float[B, 3] p) { p = Relu (raw) }, "
        "else_branch = b () => (float[B, 3] q) { q = Tanh (raw) }>",
        "y = Identity (new)",
    ),
    "an operator without a rule": ("x = CumSum (raw, cut)", "y = Identity (new)"),
    "another function of the state": ("x = Identity (raw)", "g = Mul (new, h)  y = Exp (g)"),
}


@pytest.mark.parametrize("name", STAYS)
def test_the_rest_stays(name: str) -> None:
    before, after = STAYS[name]
    assert lift_and_compare(model_of(before, after)) == [None]


def test_the_reason_names_what_follows_the_cell_where_its_input_was_no_obstacle() -> None:
    model = model_of("x = Relu (raw)", "y, places = TopK (new, units)")
    (node,) = rnnlower.lift.with_report(model)[1].nodes
    assert node.reason == "'Y' is read, but no cell returns it: TopK is not part of a cell"


def test_random_numbers_stay() -> None:
    before = "noise = RandomNormal <shape = [1, 3]> ()  x = Add (raw, noise)"
    lifted, report = rnnlower.lift.with_report(model_of(before))
    assert [node.op_type for node in report.nodes] == [None]
    assert "Scan" in {node.op_type for node in lifted.graph.node}


@pytest.mark.parametrize("op_type", ["Max", "Mean", "Min", "Sum"])
def test_before_opset_8_operands_without_time_are_not_broadcast(op_type: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 4, opset_import: ["" : 7]>
        main (float[6, 3, 3] X, float[3, 4] h0) => (float[6, 3, 4] Y) {{
            last, Y = Loop <body = step (int64 i, bool go, float[3, 4] h)
                => (bool goes, float[3, 4] new, float[3, 4] y) {{
                x = Gather <axis = 0> (X, i)
                xw = MatMul (x, W)
                hr = MatMul (h, R)
                sum = Add (xw, hr)
                new = Tanh (sum)
                y = {op_type} (new, K)
                goes = Identity (go)
            }}> (steps, yes, h0)
        }}
    """)
    values = {"W": WEIGHTS["W"], "R": WEIGHTS["R"], "K": np.ones((3, 4), np.float32)}
    for name, value in (values | {"steps": np.array(6), "yes": np.array(True)}).items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == [None]
    inputs = {"X": np.ones((6, 3, 3), np.float32), "h0": np.zeros((3, 4), np.float32)}
    np.testing.assert_array_equal(run(lifted, inputs)["Y"], run(model, inputs)["Y"])


@pytest.mark.parametrize(
    "step",
    [
        "both = Concat <axis = 1> (x, context)  xw = MatMul (both, WU)  hr = MatMul (h, R)  a = Add (xw, hr)",
        "all = Concat <axis = 1> (x, context, h)  a = MatMul (all, WUR)",
        "cu = MatMul (context, U)  hr = MatMul (h, R)  xw = MatMul (x, W)  b = Add (xw, hr)  a = Add (b, cu)",
    ],
    ids=["joined to the input", "joined to input and state", "added"],
)
def test_a_step_reads_what_is_the_same_in_all_steps(step: str) -> None:
    """As decoders read a context, or a speaker, of the whole sequence."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[T, B, 3] X, float[B, 4] h0, float[B, 3] context)
        => (float[T, B, 7] Y, float[B, 4] last) {{
            last, Y = Scan <num_scan_inputs = 1, body = step (float[B, 4] h, float[B, 3] x)
                => (float[B, 4] new, float[B, 7] y) {{
                {step}  new = Tanh (a)  y = Concat <axis = 1> (new, context)
            }}> (h0, X)
        }}""")
    W, U, R = (WEIGHTS[name] for name in "WUR")
    joined = {"WU": np.concatenate([W, U]), "WUR": np.concatenate([W, U, R])}
    for name, value in (WEIGHTS | joined).items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["RNN"]
    for steps, rows in ((5, 3), (1, 1)):
        shapes = [*_shapes(steps, rows), ("context", (rows, 3))]
        inputs = {name: DRAW.normal(size=size).astype(np.float32) for name, size in shapes}
        got = run(lifted, inputs)
        for name, want in run(model, inputs).items():
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
