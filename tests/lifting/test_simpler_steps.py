"""Loops and Scans whose bodies are lifted once they are simpler: joined states, slices, branches."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import all_nodes, recurrent_left, run

import rnnlower
from rnnlower.passes import LiftRecurrentPass

READS = {
    "Gather": "a = Gather <axis = 0> (h, zero) b = Gather <axis = 0> (h, one)",
    "Gather from the end": """a = Gather <axis = 0> (h, low) b1 = Gather <axis = 0> (h, at_one)
        b = Squeeze (b1, at_zero)""",
    "Slice": """all = Slice (h, at_zero, far, at_one) a1 = Slice (all, at_zero, at_one, at_zero)
        b1 = Slice (h, at_one, far, at_zero) a = Squeeze (a1, at_zero) b = Squeeze (b1, at_zero)""",
    "Split": "a1, b1 = Split (h, ones) a = Squeeze (a1, at_zero) b = Squeeze (b1, at_zero)",
    "Split and branch": """a1, b1 = Split (h, ones) shape = Shape (a1) rows = Gather (shape, zero)
        is_one = Equal (rows, one) b = Squeeze (b1, at_zero) a = If (is_one) <
            then_branch = yes () => (float[N, 4] y1) { y1 = Squeeze (a1, at_zero) },
            else_branch = no () => (float[1, N, 4] y2) { y2 = Identity (a1) }>""",
}
UNSQUEEZED = "c1 = Unsqueeze (c, at_zero) d1 = Unsqueeze (d, at_zero) new = Concat <axis = 0> (c1, d1)"
RESHAPED = UNSQUEEZED.replace("Unsqueeze (d, at_zero)", "Reshape (d, as_part)")
STEP = """ca = MatMul (a, R) cs = Add (x, ca) c = Tanh (cs)
    db = MatMul (b, R) ds = Add (c, db) d = Tanh (ds)"""
HEADER = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[N, T, 4] X, HSHAPE h0) => (float[N, M, 4] Y, float[P, Q, S] last)
    <float[4, 4] R = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0, -0.1, -0.2, -0.3, -0.4, -0.5, 0},
     int64 zero = {0}, int64 one = {1}, int64 low = {-2}, int64[1] at_zero = {0}, int64[1] at_one = {1},
     int64[1] at_two = {2}, int64[1] at_three = {3}, int64[1] at_four = {4}, int64[1] at_five = {5},
     int64[1] far = {9223372036854775807}, int64[2] ones = {1, 1}, int64[3] as_part = {1, -1, 4},
     bool go = {1}> {
        size = Shape (X) steps = Gather (size, one)
"""


def make_loop(
    step: str, shape: str = "float[2, N, 4]", read: str = "x = Gather <axis = 1> (X, n)"
) -> onnx.ModelProto:
    """Return a Loop whose step makes d and the state `new` of x and h."""
    return onnx.parser.parse_model(
        HEADER.replace("HSHAPE", shape)
        + f"""end, rows = Loop (steps, go, h0) <body = each (int64 n, bool goes, {shape} h) => (
            bool on, {shape} new, float[N, 4] y) {{ on = Identity (goes) {read} {step} y = Identity (d) }}>
        Y = Transpose <perm = [1, 0, 2]> (rows) last = Reshape (end, as_part) }}"""
    )


def make_scan(step: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        HEADER.replace("HSHAPE", "float[2, N, 4]")
        + f"""last, Y = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1], body = each
            (            float[2, N, 4] h, float[N, 4] x) => (float[2, N, 4] new, float[N, 4] y) {{
            {step} y = Identity (d) }}> (h0, X) }}"""
    )


def make_growing(join: str, start: str, read: str = "") -> onnx.ModelProto:
    """Return a Loop that joins each new state to those before it, from the initial one on."""
    return onnx.parser.parse_model(
        HEADER.replace("HSHAPE", "float[N, 4]")
        + f"""begin = {start} (h0, at_one) end, Y = Loop (steps, go, h0, begin) <body = each (
            int64 n, bool goes, float[N, 4] h, float[N, K, 4] made) => (
            bool on, float[N, 4] new, float[N, L, 4] more) {{
            on = Identity (goes) x = Gather <axis = 1> (X, n)
            hr = MatMul (h, R) sum = Add (x, hr) new = Tanh (sum) row = Unsqueeze (new, at_one) {read}
            more = Concat <axis = 1> ({join}) }}>
        last = Unsqueeze (end, at_zero) }}"""
    )


def op_types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in all_nodes(model)]


def lift_and_compare(model: onnx.ModelProto) -> list[str]:
    """Return the recurrent operators of the lifted model, which computes the same at all sizes."""
    onnx.checker.check_model(model)
    lifted = rnnlower.lift(model)
    onnx.checker.check_model(lifted, full_check=True)
    for steps in (1, 5, 50):
        for batch in (1, 3, 16):
            sizes, rng = {"N": batch, "T": steps}, np.random.default_rng(steps + batch)
            inputs = {
                given.name: rng.normal(
                    size=[dim.dim_value or sizes[dim.dim_param] for dim in given.type.tensor_type.shape.dim]
                ).astype(np.float32)
                for given in model.graph.input
            }
            expected, actual = run(model, inputs), run(lifted, inputs)
            for name, array in expected.items():
                np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    if not recurrent_left(lifted):
        assert op_types(lifted) == op_types(model)
    return recurrent_left(lifted)


@pytest.mark.parametrize("make", [make_loop, make_scan])
@pytest.mark.parametrize("join", [UNSQUEEZED, RESHAPED], ids=["Unsqueeze", "Reshape"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_layers_in_one_state(make, join: str, read: str) -> None:
    assert lift_and_compare(make(f"{read} {STEP} {join}")) == ["RNN", "RNN"]


def test_states_of_an_lstm_in_two_layers_joined_twice() -> None:
    step = "".join(
        f"""r{g} = MatMul ({h}, R) s{g} = Add ({x}, r{g}) i{g} = Sigmoid (s{g}) t{g} = Tanh (s{g})
        p{g} = Mul (i{g}, {c}) q{g} = Mul (i{g}, t{g}) n{g} = Add (p{g}, q{g}) u{g} = Tanh (n{g})
        o{g} = Mul (i{g}, u{g}) """
        for g, x, h, c in (("1", "x", "a", "ca"), ("2", "o1", "b", "cb"))
    )
    body = f"""a1, b1 = Split (h, ones) a2, ca1 = Split <axis = -1> (a1) b2, cb1 = Split <axis = -1> (b1)
        a = Squeeze (a2, at_zero) b = Squeeze (b2, at_zero) ca = Squeeze (ca1, at_zero)
        cb = Squeeze (cb1, at_zero) {step}
        j1 = Concat <axis = -1> (o1, n1) j2 = Concat <axis = -1> (o2, n2) d = Identity (o2)
        c1 = Unsqueeze (j1, at_zero) d1 = Unsqueeze (j2, at_zero) new = Concat <axis = 0> (c1, d1)"""
    assert lift_and_compare(make_loop(body, "float[2, N, 8]")) == ["LSTM", "LSTM"]


def test_a_whole_state_is_read_once_more() -> None:
    step = f"{READS['Gather']} {STEP} {UNSQUEEZED}".replace("Tanh (ds)", "Add (ds, hs)")
    assert (
        lift_and_compare(make_loop(f"hs = ReduceSum <keepdims = 0> (h, at_zero) zeros = Sub (hs, hs) {step}"))
        == []
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(c1, d1)", "(d1, c1)"),
        ("(c1, d1)", "(c1, c1)"),
        ("(h, one)", "(h, zero)"),
        ("Add (c, db)", "Add (x, db)"),
        ("MatMul (b, R)", "MatMul (a, R)"),
    ],
    ids=["swapped", "twice", "read twice", "side by side", "of the other"],
)
def test_parts_that_cross(old: str, new: str) -> None:
    step = f"{READS['Gather']} {STEP} {UNSQUEEZED}"
    assert old in step
    left = lift_and_compare(make_loop(step.replace(old, new)))
    assert left == (["RNN", "RNN"] if "x, db" in new else [])


HALVES = "new = Concat <axis = -1> (c, d)"


@pytest.mark.parametrize(
    ("read", "left"),
    [
        ("a, b = Split <axis = -1> (h)", ["RNN", "RNN"]),
        ("a = Slice (h, at_zero, at_four, at_one) b = Slice (h, at_four, far, at_one)", ["RNN", "RNN"]),
        ("a = Slice (h, at_one, at_five, at_one) b = Slice (h, at_four, far, at_one)", []),
        ("b, a = Split <axis = -1> (h)", []),
    ],
    ids=["Split", "Slice", "across", "swapped"],
)
def test_states_joined_by_features(read: str, left: list[str]) -> None:
    assert lift_and_compare(make_loop(f"{read} {STEP} {HALVES}", "float[N, 8]")) == left


WINDOW = """p = Unsqueeze (n, at_zero) next = Add (n, one) q = Unsqueeze (next, at_zero)
    window = Slice (X, p, q, at_one)
    sizes = Shape (window) many = Gather (sizes, one) is_one = Equal (many, one)
    x = If (is_one) < then_branch = yes () => (float[N, 4] y1) { y1 = Squeeze (window, at_one) },
        else_branch = no () => (float[N, U, 4] y2) { y2 = Identity (window) }>"""


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ("many", "many", ["RNN", "RNN"]),
        ("then_branch", "then_branch", ["RNN", "RNN"]),
        ("y1 = Squeeze (window, at_one)", "s = Squeeze (window, at_one) y1 = Exp (s)", ["RNN", "RNN"]),
    ],
)
def test_windows_of_one_step(old: str, new: str, left: list[str]) -> None:
    assert old in WINDOW
    step = f"{READS['Gather']} {STEP} {UNSQUEEZED}"
    assert lift_and_compare(make_loop(step, read=WINDOW.replace(old, new))) == left


@pytest.mark.parametrize("axis", ["at_zero", "at_one"])
def test_a_row_of_positions_is_not_the_position(axis: str) -> None:
    before, _ = WINDOW.split("sizes =")
    grid = "grid = Constant <value = int64[2, 2] {0, 0, 1, 1}> ()"
    read = f"""{grid} {before.replace("X, p, q, at_one", f"grid, p, q, {axis}")} many = Size (window)
        raw = Gather <axis = 1> (X, n) is_two = Equal (many, two) x = If (is_two) <
            then_branch = yes () => (float[N, 4] y1) {{ y1 = Neg (raw) }},
            else_branch = no () => (float[N, 4] y2) {{ y2 = Identity (raw) }}>"""
    model = make_loop(f"{READS['Gather']} {STEP} {UNSQUEEZED}", read=f"two = Add (one, one) {read}")
    model.graph.node[1].CopyFrom(onnx.helper.make_node("Constant", [], ["steps"], value_int=2))
    lifted = rnnlower.lift(model)
    rng = np.random.default_rng(0)
    inputs = {
        "X": rng.normal(size=(3, 2, 4)).astype(np.float32),
        "h0": rng.normal(size=(2, 3, 4)).astype(np.float32),
    }
    for name, expected in run(model, inputs).items():
        np.testing.assert_allclose(run(lifted, inputs)[name], expected, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("old", "new"),
    [("Add (n, one)", "Add (n, two)"), ("Slice (X, p, q, at_one)", "Slice (X, p, far, at_one)")],
)
def test_windows_of_more_steps(old: str, new: str) -> None:
    assert old in WINDOW
    read = "two = Add (one, one) " + WINDOW.replace(old, new)
    read = read.replace("y2 = Identity (window)", "y2 = ReduceSum <keepdims = 0> (window, at_one)")
    step = f"{READS['Gather']} {STEP} {UNSQUEEZED}"
    assert lift_and_compare(make_loop(step, read=read.replace("[N, U, 4] y2", "[N, 4] y2"))) == []


@pytest.mark.parametrize("reduced", ["y2", "x"])
def test_a_slice_may_be_past_the_end_of_an_open_length(reduced: str) -> None:
    read = WINDOW.replace("y2 = Identity (window)", "y2 = ReduceSum <keepdims = 0> (window, at_one)")
    if reduced == "x":
        read = read[: read.index("x = If")] + "x = ReduceSum <keepdims = 0> (window, at_one)"
    step = f"{READS['Gather']} {STEP} {UNSQUEEZED}"
    model = make_loop(step, read=read.replace("[N, U, 4] y2", "[N, 4] y2"))
    steps = onnx.helper.make_node("Constant", [], ["steps"], value_int=5)
    model.graph.node[1].CopyFrom(steps)
    assert lift_and_compare(model) == []


def test_a_slice_from_the_last_element_to_the_first_is_empty() -> None:
    read = """five = Constant <value_int = 5> () m = Sub (n, five) next = Add (m, one)
        p = Unsqueeze (m, at_zero)
        q = Unsqueeze (next, at_zero) window = Slice (X, p, q, at_one)
        x = ReduceSum <keepdims = 0> (window, at_one)"""
    model = make_loop(
        "ha = MatMul (h, R) s = Add (x, ha) d = Tanh (s) new = Identity (d)", "float[N, 4]", read
    )
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    assert lift_and_compare(model) == []


@pytest.mark.parametrize(
    ("join", "read", "left"),
    [
        ("made, row", "", ["RNN"]),
        ("row, made", "", ["RNN"]),
        ("made, row, row", "", []),
        ("made, made", "", []),
        ("made, last", "last = ReduceSum (made, at_one)", []),
        ("made, twice", "twice = Concat <axis = 1> (row, row)", []),
    ],
)
def test_a_tensor_that_grows_from_the_initial_state(join: str, read: str, left: list[str]) -> None:
    model = make_growing(join, "Unsqueeze", read)
    if join == "made, made":
        # 2 ** 50 rows.
        assert op_types(rnnlower.lift(model)) == op_types(model)
        return
    assert lift_and_compare(model) == left


def make_reading_end(read: str, join: str = "made, row", start: str = "begin") -> onnx.ModelProto:
    """Return a Loop whose only state is the last element of what each step appends a new one to."""
    return onnx.parser.parse_model(
        HEADER.replace("HSHAPE", "float[N, 4]").replace("float[P, Q, S] last", "int64[1] last")
        + f"""begin = Unsqueeze (h0, at_one) two = Concat <axis = 1> (begin, begin)
        minus = Sub (zero, one)
        at_minus = Unsqueeze (minus, at_zero) at_low = Unsqueeze (low, at_zero)
        Y = Loop (steps, go, {start}) <body = each (int64 n, bool goes, float[N, K, 4] made) => (
            bool on, float[N, L, 4] more) {{
            on = Identity (goes) x = Gather <axis = 1> (X, n) {read} hr = MatMul (h, R)
            sum = Add (x, hr) new = Tanh (sum) row = Unsqueeze (new, at_one)
            more = Concat <axis = 1> ({join}) }}>
        last = Shape <start = 1, end = 2> (Y) }}"""
    )


SLICED = "end = Slice (made, PLACES) h = Squeeze (end, at_one)"


@pytest.mark.parametrize(
    ("read", "start", "left"),
    [
        ("h = Gather <axis = 1> (made, minus)", "begin", ["RNN"]),
        ("h = Gather <axis = 1> (made, minus)", "two", ["RNN"]),
        (SLICED.replace("PLACES", "at_minus, far, at_one"), "begin", ["RNN"]),
        ("all = Slice (made, at_zero, far, at_zero) h = Gather <axis = -2> (all, minus)", "begin", ["RNN"]),
        ("h = Gather <axis = 1> (made, zero)", "two", []),
        ("h = Gather <axis = 1> (made, low)", "two", []),
        (SLICED.replace("PLACES", "at_low, at_minus, at_one"), "two", []),
        (
            "l = Gather <axis = 1> (made, minus) f = Gather <axis = 1> (made, zero) h = Add (l, f)",
            "begin",
            [],
        ),
        (
            "l = Gather <axis = 1> (made, minus) s = ReduceSum <keepdims = 0> (made, at_one) h = Add (l, s)",
            "begin",
            [],
        ),
    ],
    ids=[
        *("Gather", "after two", "Slice", "after a Slice of all", "the first one", "the last but one"),
        *("Slice of the last but one", "the first one, too", "the sum, too"),
    ],
)
def test_the_last_element_of_a_tensor_that_grows(read: str, start: str, left: list[str]) -> None:
    assert lift_and_compare(make_reading_end(read, start=start)) == left


def test_the_last_element_of_a_tensor_that_grows_at_its_start_stays() -> None:
    read = "h = Gather <axis = 1> (made, minus)"
    assert lift_and_compare(make_reading_end(read, "row, made", "two")) == []


def test_loops_that_stay_are_tried_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    step = f"{READS['Gather']} {STEP} {UNSQUEEZED}".replace("(c1, d1)", "(d1, c1)")
    model = make_loop(step)
    loop = next(node for node in model.graph.node if node.op_type == "Loop")
    for number in range(5):
        more = model.graph.node.add()
        more.CopyFrom(loop)
        more.name, more.output[:] = f"more{number}", [f"end{number}", f"rows{number}"]
        model.graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info(f"rows{number}", 1, [None] * 3))
    before = ir.to_proto(ir.from_proto(model)).SerializeToString()
    copies, clone = [], ir.Model.clone

    def count(copied: ir.Model, *args: bool) -> ir.Model:
        copies.append(copied)
        return clone(copied, *args)

    monkeypatch.setattr(ir.Model, "clone", count)
    lifting = LiftRecurrentPass()
    for number in (1, 2):
        again = ir.from_proto(model)
        assert not lifting(again).modified
        assert ir.to_proto(again).SerializeToString() == before
        assert len(copies) == number
