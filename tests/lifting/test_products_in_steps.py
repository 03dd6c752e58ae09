"""Products with weights that are no matrix of all units, and other spellings of a cell, are lifted."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.judge import run

import rnnlower

DRAW = np.random.default_rng(0)
WEIGHTS = {
    name: DRAW.normal(size=shape).astype(np.float32)
    for name, shape in {
        "R": (4, 4),
        "row": (4,),
        "wide": (8,),
        "blocks": (2, 2, 2),
        "kernel": (4, 2, 1),
        "bias": (4,),
        "scale": (4,),
        "mean": (4,),
        "tall": (8, 4),
    }.items()
} | {
    "variance": np.array([0.5, 1, 2, 3], np.float32),
    "one": np.float32(1),
    "half": np.float32(0.5),
    "axis": np.array([2]),
    "groups": np.array([-1, 2, 2]),
    "flat": np.array([-1, 4]),
    "twice": np.array([1, 2]),
    "begin": np.array([2]),
    "end": np.array([6]),
    "final": np.array([1]),
    "front": np.array([0, 4, 0, 0]),
    "behind": np.array([0, 0, 0, 4]),
}
RNN = "sum = Add (x, hr)  new = Tanh (sum)"
STEPS = {
    "one weight for each unit": f"hr = Mul (row, h)  {RNN}",
    "the weights come first": f"hr = Mul (h, row)  {RNN}",
    "a repeated state": f"""
        hh = Tile (h, twice)  all = Mul (hh, wide) hr = Slice (all, begin, end, final)
        {RNN}""",
    "groups by Einsum": f"""
        parts = Reshape (h, groups)  made = Einsum <equation = "bgi,gij->bgj"> (parts, blocks)
        hr = Reshape (made, flat)  {RNN}""",
    "groups by MatMul": f"""
        parts = Reshape (h, groups)  first = Transpose <perm = [1, 0, 2]> (parts)
        made = MatMul (first, blocks)  back = Transpose <perm = [1, 0, 2]> (made)
        hr = Reshape (back, flat)  {RNN}""",
    "groups by Conv": f"""
        column = Unsqueeze (h, axis)  made = Conv <group = 2> (column, kernel, bias)
        hr = Squeeze (made, axis)  {RNN}""",
    "BatchNormalization": f"""
        product = MatMul (h, R)  hr = BatchNormalization (product, scale, bias, mean, variance)  {RNN}""",
    "Softsign of PyTorch's exporters": """
        product = MatMul (h, R)  sum = Add (x, product)
        size = Abs (sum)  more = Add (one, size)  new = Div (sum, more)""",
    "zeros beside the input": """
        left = Pad (x, behind)  xw = MatMul (left, tall)  hr = MatMul (h, R)
        sum = Add (xw, hr)  new = Tanh (sum)""",
    "Sigmoid by Tanh": """
        product = MatMul (h, R)  sum = Add (x, product)  smaller = Mul (sum, half)
        bent = Tanh (smaller)  less = Mul (bent, half)  new = Add (less, half)""",
    "Sigmoid by Tanh, another order": """
        product = MatMul (h, R)  sum = Add (x, product)
        bent = Tanh (sum)  positive = Add (bent, one)  new = Mul (positive, half)""",
}
OTHER_STEPS = {
    "the statistics of the batch": f"""
        product = MatMul (h, R)
        hr, m, v = BatchNormalization <training_mode = 1> (product, scale, bias, mean, variance)  {RNN}""",
    "repeated elements beside the state": """
        right = Pad <mode = "edge"> (h, front)  sum = MatMul (right, tall)  new = Tanh (sum)""",
    "ones beside the state": """
        right = Pad (h, front, one)  both = Mul (right, wide)  sum = MatMul (both, tall)  new = Tanh (sum)""",
    "another size": """
        product = MatMul (h, R)  sum = Add (x, product)
        size = Abs (x)  more = Add (one, size)  new = Div (sum, more)""",
    "a padded Conv": f"""
        column = Unsqueeze (h, axis)  made = Conv <group = 2, pads = [0, 1]> (column, kernel)
        hr = ReduceSum <keepdims = 0> (made, axis)  {RNN}""",
}


def make_scan(step: str, rows: str = "B") -> onnx.ModelProto:
    """Return a Scan over 3 steps, each of which computes ``new`` from ``x`` and ``h``."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[3, B, 4] X, float[B, 4] start) => (float[3, B, 4] Y, float[B, 4] last) {{
            last, Y = Scan <num_scan_inputs = 1, body = step (float[B, 4] h, float[B, 4] x)
            => (float[B, 4] new, float[B, 4] y) {{ {step}  y = Identity (new) }}> (start, X)
        }}"""
    model = onnx.parser.parse_model(text.replace("[B", f"[{rows}").replace(", B", f", {rows}"))
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if name in step
    )
    return model


def lift_and_compare(model: onnx.ModelProto) -> list[str]:
    """Return the recurrent operators of the lifted model, which computes the same."""
    result = rnnlower.lift(model)
    rows = model.graph.input[1].type.tensor_type.shape.dim[0].dim_value or 5
    shapes = {"X": (3, rows, 4), "start": (rows, 4)}
    inputs = {name: DRAW.normal(size=size).astype(np.float32) for name, size in shapes.items()}
    got = run(result, inputs)
    for name, want in run(model, inputs).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    return [node.op_type for node in result.graph.node if node.op_type in ("Scan", "RNN")]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_a_scan_is_that_of_a_cell(step: str) -> None:
    assert lift_and_compare(make_scan(STEPS[step])) == ["RNN"]


def test_zeros_may_stand_beside_the_state() -> None:
    step = """right = Pad (h, front)  left = Pad (x, behind)  both = Add (left, right)
        sum = MatMul (both, tall)  new = Tanh (sum)"""
    assert lift_and_compare(make_scan(step)) == ["RNN"]


@pytest.mark.parametrize("step", STEPS)
def test_a_straight_line_of_such_steps_is_lifted(step: str) -> None:
    line = rnnlower.unroll(make_scan(STEPS[step]), control_flow="unroll", lift=False)
    assert lift_and_compare(line) == ["RNN"]


@pytest.mark.parametrize("step", OTHER_STEPS)
def test_a_step_that_only_looks_like_one_stays(step: str) -> None:
    assert lift_and_compare(make_scan(OTHER_STEPS[step])) == ["Scan"]


def test_rows_that_are_normalized_as_channels_stay() -> None:
    step = f"""
        product = MatMul (h, R)  columns = Transpose (product)
        scaled = BatchNormalization (columns, scale, bias, mean, variance)  hr = Transpose (scaled)  {RNN}"""
    assert lift_and_compare(make_scan(step, rows="4")) == ["Scan"]


@pytest.mark.parametrize(("steps", "features"), [(2, 5), (3, 5), (4, 5), (3, 4), (4, 4)])
def test_a_line_may_read_its_input_by_itself_and_in_a_sum(steps: int, features: int) -> None:
    """A cell state with peepholes is read in both ways, too, but is no input."""
    step = """xK = Gather <axis = 0> (X, pK)  sK = Add (xK, c)  aK = MatMul (sK, W)  bK = MatMul (xK, V)
        rK = MatMul (hK, R)  zK = Sum (aK, bK, rK)  hNEXT = Tanh (zK)"""
    text = " ".join(step.replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(steps))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[{steps}, B, {features}] X, float[B, 4] h0, float[B, {features}] c) => (float[B, 4] last)
        {{ {text} last = Identity (h{steps}) }}""")
    sizes = {"W": (features, 4), "V": (features, 4), "R": (4, 4)}
    arrays = {name: DRAW.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    arrays |= {f"p{k}": np.array(k) for k in range(steps)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    shapes = {"X": (steps, 3, features), "h0": (3, 4), "c": (3, features)}
    inputs = {name: DRAW.normal(size=size).astype(np.float32) for name, size in shapes.items()}
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["RNN"]
    assert "Tanh" not in {node.op_type for node in lifted.graph.node}
    np.testing.assert_allclose(run(lifted, inputs)["last"], run(model, inputs)["last"], rtol=1e-4, atol=1e-5)
