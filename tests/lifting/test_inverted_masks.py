"""Masks that are true for rows that have ended, in Loops, Scans and straight lines."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.grids import pairs_of
from support.judge import all_nodes, recurrent_left, run

import rnnlower

HEADER = """<ir_version: 9, opset_import: ["" : 18]> main (float[T, N, 3] X, int64[N] n MORE) => (RESULTS)
    <float[3, 3] R = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}, int64 i0 = {0}, int64 i1 = {1},
     int64[1] s0 = {0}, int64[1] s1 = {1}, int64[1] s2 = {2}, int64[1] three = {3}, float one = {1},
     float zero = {0}, bool go = {1}> {
        sizes = Shape (X) T = Gather (sizes, i0) rows = Gather (sizes, s1)
        state = Concat <axis = 0> (rows, three) h0 = ConstantOfShape (state)
        numbers = Range (i0, T, i1) line = Unsqueeze (numbers, s0) column = Unsqueeze (numbers, s1)
        nline = Unsqueeze (n, s0) ncolumn = Unsqueeze (n, s1)
"""
LOOP = """last, Y = Loop (T, go, h0) <body = each (int64 t, bool goes, float[N, 3] h) => (
    bool on, float[N, 3] next, float[N, 3] y) { on = Identity (goes) x = Gather (X, t) STEP }> AFTER }"""
SCAN = """last, Y = Scan <num_scan_inputs = 2, scan_input_axes = [0, AXIS], body = each (
    float[N, 3] h, float[N, 3] x, bool[N] ended) => (float[N, 3] next, float[N, 3] y) { STEP }>
    (h0, X, mask) AFTER }"""
CELL = "hr = MatMul (h, R) sum = Add (x, hr) new = Tanh (sum)"
CHOICE = "next = Where (m, h, new) y = Where (m, zero, next)"
ARITHMETIC = """f = Cast <to = 1> (m) rest = Sub (one, f) kept = Mul (f, h) added = Mul (rest, new)
    next = Add (kept, added) y = Mul (next, rest)"""
CAST = "next = Where (m, h, new) k = Cast <to = 9> (m) y = Where (k, zero, next)"
FILLED = (
    "next = Where (m, h, new) size = Shape (next) none = ConstantOfShape (size) y = Where (m, none, next)"
)
BESIDE = """next = Where (m, h, new) f = Cast <to = 1> (m) rest = Sub (one, f)
    y = Mul (rest, next)"""
NOT = "takes = Not (m) next = Where (takes, new, h) y = Where (m, zero, next)"
CHOICES = {
    "Where": CHOICE,
    "1 - m": ARITHMETIC,
    "Where and 1 - m": BESIDE,
    "Cast": CAST,
    "zeros": FILLED,
    "Not": NOT,
}
MASKS = {
    "by time": ("mask = GreaterOrEqual (column, n)", 0),
    "by time, a row of lengths": ("mask = GreaterOrEqual (column, nline)", 0),
    "by row": ("mask = LessOrEqual (ncolumn, line)", 1),
    "by row, Not": ("going = Less (line, ncolumn) mask = Not (going)", 1),
    "transposed": ("going = Less (line, ncolumn) other = Not (going) mask = Transpose (other)", 0),
    "cast to its type": (
        "going = Less (line, ncolumn) not = Not (going) o = Cast <to = 9> (not) mask = Transpose (o)",
        0,
    ),
}
COLUMN = "m = Unsqueeze (ended, s1)"


def make_model(
    frame: str, mask: str, choice: str = CHOICE, *, before: str = "", axis: int = 0, results: str = ""
) -> onnx.ModelProto:
    """Return a Loop or Scan whose steps read a mask."""
    results = results or "float[N, 3] last, float[T, N, 3] Y"
    text = HEADER.replace("RESULTS", results).replace("MORE", "") + before
    text += frame.replace("STEP", f"{CELL} {mask} {choice}").replace("AXIS", str(axis)).replace("AFTER", "")
    return onnx.parser.parse_model(text)


def texts(model: onnx.ModelProto) -> list[str]:
    """Return the nodes as text."""
    return [onnx.printer.to_text(node) for node in model.graph.node]


def compare(model: onnx.ModelProto, left: list[str], longest: int = 0, *, has_gaps: bool = False) -> None:
    """Lift a model; check what is left, and that it computes the same for rows of all lengths.

    With `has_gaps`, states are read past the ends of rows, too.
    """
    onnx.checker.check_model(model, full_check=True)
    lifted = rnnlower.lift(model)
    onnx.checker.check_model(lifted, full_check=True)
    assert recurrent_left(lifted) == left
    if not left:
        assert texts(lifted) == texts(ir.to_proto(ir.from_proto(model)))
        return
    ops = {node.op_type for node in all_nodes(lifted)}
    assert ("ScatterElements" in ops) == has_gaps
    assert has_gaps or {"GreaterOrEqual", "LessOrEqual", "Not"}.isdisjoint(ops)
    rng = np.random.default_rng(0)
    for steps in (1, 3, 50):
        for rows in (1, 2, 5):
            X = rng.normal(size=(steps, rows, 3)).astype(np.float32)
            for lengths in (rng.integers(1, steps + 1 + longest, rows), np.full(rows, steps)):
                inputs = {"X": X, "n": lengths}
                expected, actual = run(model, inputs), run(lifted, inputs)
                for name, array in expected.items():
                    np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
@pytest.mark.parametrize(
    "ended",
    [
        "ended = GreaterOrEqual (t, n)",
        "ended = LessOrEqual (n, t)",
        "going = Less (t, n) ended = Not (going)",
        "going = Greater (n, t) ended = Not (going)",
    ],
    ids=["t >= n", "n <= t", "not t < n", "not n > t"],
)
def test_steps_of_a_loop_ask_which_rows_have_ended(ended: str, choice: str) -> None:
    compare(make_model(LOOP, f"{ended} {COLUMN}", choice), ["RNN"])


@pytest.mark.parametrize(("frame", "mask", "choice"), pairs_of(["Loop", "Scan"], MASKS, CHOICES))
def test_steps_read_a_mask_of_all_steps(frame: str, mask: str, choice: str) -> None:
    before, axis = MASKS[mask]
    read = "" if frame == "Scan" else f"ended = Gather <axis = {axis}> (mask, t)"
    text = SCAN if frame == "Scan" else LOOP
    compare(make_model(text, f"{read} {COLUMN}", CHOICES[choice], before=before, axis=axis), ["RNN"])


AFTER = "float[N, 3] last, float[T, N, 3] Z"


@pytest.mark.parametrize(
    ("after", "has_gaps"),
    [
        ("k = Unsqueeze (mask, s2) Z = Where (k, zero, Y)", False),
        ("k = Unsqueeze (mask, s2) Z = Where (k, one, Y)", True),
        ("k = Unsqueeze (mask, s2) Z = Where (k, Y, zero)", True),
        ("going = Less (column, n) k = Unsqueeze (going, s2) Z = Where (k, Y, zero)", False),
        (
            "late = Add (n, i1) early = Less (column, late) k = Unsqueeze (early, s2) Z = Where (k, Y, zero)",
            True,
        ),
        ("Z = Identity (Y)", True),
    ],
    ids=["zeros", "ones", "the others", "by rows that go on", "one step late", "no mask"],
)
@pytest.mark.parametrize("frame", [LOOP, SCAN], ids=["Loop", "Scan"])
def test_a_mask_follows_the_steps(frame: str, after: str, has_gaps: bool) -> None:
    read = "" if frame is SCAN else "ended = Gather (mask, t)"
    step = f"{CELL} {read} {COLUMN} next = Where (m, h, new) y = Identity (next)"
    text = HEADER.replace("RESULTS", AFTER).replace("MORE", "") + "mask = GreaterOrEqual (column, n) "
    text += frame.replace("STEP", step).replace("AXIS", "0").replace("AFTER", after)
    compare(onnx.parser.parse_model(text), ["RNN"], has_gaps=has_gaps)


@pytest.mark.parametrize("shape", ["", "[1]", "[1, 1]", "[1, 1, 1, 1]"])
def test_a_constant_of_other_axes_than_the_results_hides_none(shape: str) -> None:
    """The masks of all steps are constant."""
    result = "float[1, 3, 2, 3] Z" if shape.count("1") > 3 else "float[3, 2, 3] Z"
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        main (float[3, 2, 3] X) => ({result}) <bool[3, 2, 1] mask = {{1, 1, 1, 0, 1, 0}},
         bool{shape} all = {{1}}, float[2, 3] h0 = {{0, 0, 0, 0, 0, 0}}, float zero = {{0}},
         float[3, 3] R = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}> {{
            last, Y = Scan <num_scan_inputs = 2, body = each (
                float[2, 3] h, float[2, 3] x, bool[2, 1] m) => (float[2, 3] next, float[2, 3] y) {{
                {CELL} next = Where (m, new, h) y = Identity (next) }}>
                (h0, X, mask) Z = Where (all, Y, zero) }}""")
    onnx.checker.check_model(model, full_check=True)
    lifted = rnnlower.lift(model)
    assert recurrent_left(lifted) == ["RNN"]
    inputs = {"X": np.random.default_rng(0).normal(size=(3, 2, 3)).astype(np.float32)}
    np.testing.assert_allclose(run(lifted, inputs)["Z"], run(model, inputs)["Z"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "mask",
    [
        "late = Add (t, i1) ended = GreaterOrEqual (late, n)",
        "ended = Greater (t, n)",
        "still = Less (t, n) ended = Identity (still)",
        "ended = LessOrEqual (t, n)",
        "off = Sub (T, t) ended = GreaterOrEqual (off, n)",
        "a = Cast <to = 1> (t) b = Cast <to = 1> (n) ended = GreaterOrEqual (a, b)",
    ],
    ids=["one step early", "one step late", "rows that go on", "t <= n", "from the end", "floats"],
)
def test_other_masks_stay(mask: str) -> None:
    compare(make_model(LOOP, f"{mask} {COLUMN}"), [])


@pytest.mark.parametrize(
    "choice",
    [
        "next = Where (m, new, h) y = Where (m, zero, next)",
        "next = Where (m, h, new) y = Where (m, next, zero)",
        "next = Where (m, zero, new) y = Identity (next)",
        "kept = Where (m, h, zero) next = Add (kept, new) y = Identity (next)",
        """f = Cast <to = 1> (m) rest = Sub (one, f) a = Mul (f, f) b = Mul (rest, rest) all = Add (a, b)
        kept = Mul (f, h) added = Mul (rest, new) sums = Add (kept, added) next = Mul (sums, all)
        y = Mul (next, rest)""",
    ],
    ids=["exchanged", "results exchanged", "zeros as states", "sums", "products of masks"],
)
def test_other_choices_stay(choice: str) -> None:
    compare(make_model(LOOP, f"ended = GreaterOrEqual (t, n) {COLUMN}", choice), [])


def test_a_mask_may_multiply_results_beside_a_choice_of_rows_that_go_on() -> None:
    choice = "next = Where (m, new, h) f = Cast <to = 1> (m) y = Mul (next, f)"
    compare(make_model(LOOP, f"ended = Less (t, n) {COLUMN}", choice), ["RNN"])
    compare(make_model(LOOP, f"ended = Less (t, n) {COLUMN}", choice.replace("(next, f)", "(f, f)")), [])


def test_a_mask_that_no_step_reads_stays() -> None:
    text = HEADER.replace("RESULTS", "float[N, 3] last, bool[T, N] Y").replace("MORE", "")
    text += """going = Less (column, n) mask = Not (going) last, Y = Scan <num_scan_inputs = 1, body = each (
        float[N, 3] h, bool[N] ended) => (float[N, 3] h, bool[N] ended) { }> (h0, mask) }"""
    compare(onnx.parser.parse_model(text), [])


def test_a_mask_of_a_scan_with_an_axis_of_its_own_stays() -> None:
    model = onnx.parser.parse_model("""<ir_version: 4, opset_import: ["" : 8]>
        main (float[1, T, N, 3] X, bool[1, T, N, 1] going, float[1, N, 3] h0) => (float[1, N, 3] last) {
            mask = Not (going) last = Scan <num_scan_inputs = 2, body = each (
                float[N, 3] h, float[N, 3] x, bool[N, 1] ended) => (float[N, 3] next) {
                f = Cast <to = 1> (ended) kept = Mul (f, h) next = Add (kept, x) }> (, h0, X, mask) }""")
    onnx.checker.check_model(model, full_check=True)
    lifted, report = rnnlower.lift.with_report(model)
    assert texts(lifted) == texts(ir.to_proto(ir.from_proto(model)))
    assert report.nodes[0].reason == "a Scan of opset 8 has a batch axis of its own"


def test_a_scan_backward_of_opset_9_stays() -> None:
    """What its steps prepare would have to be reversed by a Slice of opset 10."""
    text = HEADER.replace("RESULTS", "float[N, 3] last, float[T, N, 3] Y").replace(
        "MORE", ", bool[T, N] mask"
    )
    text = text.replace(": 18]", ": 9]")[: text.index("sizes =") - 1]
    text += "h0 = ConstantOfShape (size)" + SCAN.replace("AXIS", "0").replace("AFTER", "")
    text = text.replace("input_axes = [0, 0]", "input_directions = [1, 1]").replace(
        "int64 i0", "int64[2] size = {2, 3}, int64 i0"
    )
    text = text.replace("STEP", f"{CELL} m = Unsqueeze <axes = [1]> (ended) {CHOICE}")
    model = onnx.parser.parse_model(text)
    _, report = rnnlower.lift.with_report(model)
    assert report.nodes[0].reason is not None
