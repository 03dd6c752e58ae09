"""Steps that are legal but odd: they are lifted with the same results, or stay."""

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
    for name, shape in {"R": (4, 4), "W": (2, 4), "kernel": (3, 1, 4), "row": (1, 4), "rows": (4, 4)}.items()
}
POSITIONS = {"zero": [0], "first": 0, "second": 1, "end": [-3], "time": [2], "flat": [-1, 4], "ending": [-1]}
WEIGHTS |= {name: np.array(value) for name, value in POSITIONS.items()}


def parse(text: str, opset: int = 17, **weights: np.ndarray) -> onnx.ModelProto:
    """Return the model of a text, with weights for the names that it reads."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for name, value in {**WEIGHTS, **weights}.items():
        if name in text.replace("(", " ").replace(")", " ").replace(",", " ").split():
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


def lift_and_compare(model: onnx.ModelProto, steps: int = 5, rows: int = 3) -> list[str | None]:
    """Return the operators that were lifted, ``None`` for what stays, in a model that computes the same."""
    result, report = rnnlower.lift.with_report(model)
    for is_first in (False, True):
        inputs = {}
        for value in model.graph.input:
            kind = value.type.tensor_type
            known = {"T": steps, "B": rows}
            shape = [dim.dim_value or known[dim.dim_param] for dim in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            array = DRAW.normal(size=shape) if dtype != np.bool_ else np.array(is_first)
            inputs[value.name] = array.astype(dtype)
        got = run(result, inputs)
        for name, want in run(model, inputs).items():
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    return [node.op_type for node in report.nodes]


def scan(
    step: str, after: str, x: str = "float[B, 4]", h: str = "float[B, 4]", **weights: np.ndarray
) -> onnx.ModelProto:
    """Return a Scan over ``X`` whose step computes ``new``."""
    outer = x.replace("[", "[T, ")
    text = f"""
        main ({outer} X, {h} start, bool on) => (float[K, L, M] Y) {{
            end_h, H = Scan <num_scan_inputs = 1, body = step ({h} h, {x} x) => ({h} new, {h} y) {{
                hr = MatMul (h, R)  {step}  y = Identity (new)
            }}> (start, X)
            {after}
        }}
    """
    return parse(text, **weights)


RNN = "sum = Add (x, hr)  new = Tanh (sum)"


@pytest.mark.parametrize("forget", ["x", "h", "c"])
def test_a_cell_state_times_a_variable_stays(forget: str) -> None:
    model = parse(f"""
        main (float[T, B, 4] X, float[B, 4] start) => (float[B, 4] last, float[B, 4] cell) {{
            last, cell = Scan <num_scan_inputs = 1, body = step (float[B, 4] h, float[B, 4] c, float[B, 4] x)
            => (float[B, 4] h_new, float[B, 4] c_new) {{
                hr = MatMul (h, R)  i = Sigmoid (hr)  g = Tanh (x)  o = Sigmoid (x)
                kept = Mul ({forget}, c)  ig = Mul (i, g)  c_new = Add (kept, ig)
                t = Tanh (c_new)  h_new = Mul (o, t)
            }}> (start, start, X)
        }}""")
    assert lift_and_compare(model) == [None]


def test_a_clip_whose_bounds_cross_is_the_upper_one() -> None:
    step = "sum = Add (x, hr)  cut = Clip (sum, low, high)  new = Tanh (cut)"
    bounds = {"low": np.float32(1), "high": np.float32(-1)}
    assert lift_and_compare(scan(step, "Y = Identity (H)", **bounds)) == [None]


IN_A_BRANCH = {
    "results": "y = Identity (H)",
    "view": "y = Reshape (H, flat)",
    "reversed": "y = Slice (H, ending, least, zero, ending)",
}


@pytest.mark.parametrize("reader", IN_A_BRANCH)
def test_results_may_be_read_in_a_branch_alone(reader: str) -> None:
    text = IN_A_BRANCH[reader]
    branches = f"""
        Y = If (on) <then_branch = a () => (float[K, L, M] y) {{ {text} }},
                     else_branch = b () => (float[K, L, M] y) {{ {text.replace("H", "X")} }}>
    """
    assert lift_and_compare(scan(RNN, branches, least=np.array([-(2**62)]))) == ["RNN"]


STEPS = """
    x0 = Gather (X, first)   x1 = Gather (X, second)  a0 = MatMul (x0, W)      a1 = MatMul (x1, W)
    r0 = MatMul (start, R)   s0 = Add (a0, r0)        n0 = Tanh (s0)           h0 = KEEP0
    r1 = MatMul (h0, R)      s1 = Add (a1, r1)        n1 = Tanh (s1)           h1 = KEEP1
"""


def line(after: str = "Y = Identity (h1)", inputs: str = "", **weights: np.ndarray) -> onnx.ModelProto:
    """Return two steps, of which a condition may keep the state."""
    kept = [f"Where (keep{k}, n{k}, {old})" for k, old in enumerate(("start", "h0"))]
    steps = STEPS
    for k in range(2):
        steps = steps.replace(f"KEEP{k}", kept[k] if "keep0" in weights else f"Identity (n{k})")
    inputs = inputs or "float[2, B, 2] X, float[B, 4] start, bool on"
    return parse(f"main ({inputs}) => (float[K, L] Y) {{ {steps} {after} }}", **weights)


def test_steps_may_be_joined_in_a_branch() -> None:
    branches = """
        z = Unsqueeze (start, zero)
        V = If (on) <then_branch = a () => (float[2, B, 4] y)
            { u0 = Unsqueeze (h0, zero)  u1 = Unsqueeze (h1, zero)  y = Concat <axis = 0> (u0, u1) },
            else_branch = b () => (float[2, B, 4] y) { y = Concat <axis = 0> (z, z) }>
        Y = Reshape (V, flat)
    """
    assert lift_and_compare(line(branches)) == ["RNN"]


@pytest.mark.parametrize("text", ["s = Sigmoid (c)  y = Mul (c, s)", "y = Slice (c, zero, end, time)"])
def test_a_silu_or_slice_may_be_in_a_branch(text: str) -> None:
    pads = "3, 3" if "Slice" in text else "3, 0"
    model = parse(f"""
        main (float[B, 3, T] X, bool on) => (float[B, 3, T] Y) {{
            c = Conv <group = 3, pads = [{pads}]> (X, kernel)
            Y = If (on) <then_branch = a () => (float[B, 3, T] y) {{ {text} }},
                         else_branch = b () => (float[B, 3, T] y) {{ y = Identity (X) }}>
        }}""")
    assert lift_and_compare(model) == ["CausalConvWithState"]


@pytest.mark.parametrize("dtype", ["double", "int32"])
def test_steps_may_be_cast_one_by_one(dtype: str) -> None:
    model = line(inputs=f"{dtype}[2, B, 2] X, float[B, 4] start")
    text = onnx.printer.to_text(model)
    for k in range(2):
        text = text.replace(f"MatMul (x{k}", f"MatMul (f{k}")
        text = text.replace(f"a{k} =", f"f{k} = Cast <to = 1> (x{k}) a{k} =")
    cast = onnx.parser.parse_model(text)
    cast.graph.initializer.extend(model.graph.initializer)
    assert lift_and_compare(cast) == ["RNN"]


PREFIXES = np.arange(5)[:, np.newaxis] < [1, 2, 3, 4]
MASKS = {
    "each unit": (PREFIXES[:, np.newaxis], None),
    "each unit, without an axis of rows": (PREFIXES, None),
    "all rows": (PREFIXES[:, np.newaxis, :1], None),
    "each row": (PREFIXES[:, :, np.newaxis], "RNN"),
}


@pytest.mark.parametrize("name", MASKS)
def test_only_a_mask_of_rows_gives_lengths(name: str) -> None:
    mask, op_type = MASKS[name]
    kind = f"bool{[*mask.shape[1:]]}"
    model = parse(
        f"""main (float[5, 4, 4] X) => (float[4, 4] Y) {{
            Y = Scan <num_scan_inputs = 2, body = step (float[4, 4] h, float[4, 4] x, {kind} on)
            => (float[4, 4] new) {{
                hr = MatMul (h, R)  sum = Add (x, hr)  n = Tanh (sum)  new = Where (on, n, h)
            }}> (none, X, mask)
        }}""",
        mask=mask,
        none=np.zeros((4, 4), np.float32),
    )
    assert lift_and_compare(model) == [op_type]


@pytest.mark.parametrize(("shape", "op_type"), [((1, 4), None), ((4,), None), ((4, 1), "RNN")])
def test_only_conditions_of_rows_give_lengths(shape: tuple[int, ...], op_type: str | None) -> None:
    keeps = {f"keep{k}": np.reshape([k < 1, True, True, True], shape) for k in range(2)}
    assert lift_and_compare(line(inputs="float[2, 4, 2] X, float[4, 4] start", **keeps)) == [op_type]


ROWS = {
    "an element without rows": ("float[1, 4]", "float[3, 4]", RNN),
    "an element that is a vector": ("float[4]", "float[3, 4]", RNN),
}


@pytest.mark.parametrize("name", ROWS)
def test_values_without_rows_keep_a_scan(name: str) -> None:
    x, h, step = ROWS[name]
    assert lift_and_compare(scan(step, "Y = Identity (H)", x, h)) == [None]


def test_rows_may_become_features_before_the_cell() -> None:
    step = "turned = Transpose (x)  sum = Add (turned, hr)  new = Tanh (sum)"
    assert lift_and_compare(scan(step, "Y = Identity (H)", "float[4, 1]", "float[1, 4]")) == ["RNN"]


@pytest.mark.parametrize("x", ["float[2, 1, 2] X", "float[2, 2] X"])
def test_elements_without_rows_keep_a_line(x: str) -> None:
    assert set(lift_and_compare(line(inputs=f"{x}, float[B, 4] start"))) == {None}


@pytest.mark.parametrize("start", ["float[1, 4] start", "float[4] start"])
def test_an_initial_state_without_rows_keeps_a_line(start: str) -> None:
    assert set(lift_and_compare(line(inputs=f"float[2, B, 2] X, {start}"))) == {None}


@pytest.mark.parametrize(("factor", "op_type"), [(0, "RNN"), (1, None)])
def test_a_state_of_a_loop_may_grow_from_zeros(factor: float, op_type: str | None) -> None:
    model = parse(
        """main (float[5, B, 4] X) => (float[B, 4] Y) <int64 count = {5}, bool on = {1}> {
            Y = Loop <body = step (int64 i, bool go, float[N, M] h) => (bool goes, float[B, 4] new) {
                goes = Identity (go)  x = Gather (X, i)  hr = MatMul (h, R)  sum = Add (x, hr)
                new = Tanh (sum)
            }> (count, on, first_state)
        }""",
        first_state=WEIGHTS["row"] * np.float32(factor),
    )
    assert lift_and_compare(model) == [op_type]


@pytest.mark.parametrize("view", ["F = Identity (H)", "F = Reshape (H, flat)"])
def test_a_reshape_to_swapped_sizes_is_no_transpose(view: str) -> None:
    after = f"sizes = Shape (X)  swapped = Gather (sizes, order)  {view}  Y = Reshape (F, swapped)"
    assert lift_and_compare(scan(RNN, after, order=np.array([1, 0, 2]))) == ["RNN"]


INDICES = {
    "bool": ("place = Cast <to = 9> (i)  number = Cast <to = 7> (place)", "length", None),
    "int8": ("place = Cast <to = 3> (i)  number = Cast <to = 7> (place)", "length", None),
    "int32": ("number = Cast <to = 6> (i)", "length", "RNN"),
    "count": ("number = Identity (i)", "count", None),
}


@pytest.mark.parametrize("name", INDICES)
def test_a_cast_that_changes_a_count_keeps_the_loop(name: str) -> None:
    index, count, op_type = INDICES[name]
    model = parse(
        f"""main (float[T, B, 4] X, float[B, 4] start) => (float[B, 4] Y) <bool yes = {{1}}> {{
            sizes = Shape (X)  length = Gather (sizes, first)  any = Cast <to = 9> (length)
            count = Cast <to = 7> (any)
            Y = Loop <body = step (int64 i, bool go, float[B, 4] h) => (bool goes, float[B, 4] new) {{
                goes = Identity (go)  {index}  x = Gather (X, number)  hr = MatMul (h, R)  {RNN}
            }}> ({count}, yes, start)
        }}"""
    )
    assert lift_and_compare(model, steps=130) == [op_type]


def test_an_infinite_limit_keeps_the_loop() -> None:
    model = parse(
        f"""main (float[T, B, 4] X, float[B, 4] start) => (float[B, 4] Y) <bool yes = {{1}}> {{
            sizes = Shape (X)  length = Gather (sizes, first)
            Y = Loop <body = step (int64 i, bool go, float[B, 4] h) => (bool goes, float[B, 4] new) {{
                number = Cast <to = 1> (i)  goes = Less (number, endless)  x = Gather (X, i)
                hr = MatMul (h, R)  {RNN}
            }}> (length, yes, start)
        }}""",
        endless=np.float32(np.inf),
    )
    assert lift_and_compare(model) == [None]


def test_a_step_of_hundreds_of_operators_stays() -> None:
    """As many as Python cannot nest, which two layers without a clear border have."""

    def step(number: int) -> str:
        tanhs = " ".join(f"a{number}_{k + 1} = Tanh (a{number}_{k})" for k in range(500))
        return f"p{number} = MatMul (h{number}, R) a{number}_0 = Add (p{number}, x) {tanhs}"

    steps = " ".join(f"{step(k)} h{k + 1} = Tanh (a{k}_500)" for k in range(3))
    model = parse(f"main (float[3, 4] x, float[3, 4] h0) => (float[3, 4] h3) {{ {steps} }}")
    assert lift_and_compare(model) == [None]
