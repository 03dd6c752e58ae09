"""Steps that multiply new and old states by a mask, and masks in other layouts."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.judge import all_nodes, recurrent_left, run

import rnnlower

STEPS = 4
HEADER = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[N, 4, 3] X, INPUT) => (RESULTS)
    <float[3, 3] R = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}, int64[1, 4] row = {0, 1, 2, 3},
     int64[1, 4] late = {1, 2, 3, 4}, float one = {1}, float two = {2}, float zero = {0},
     int64 p0 = {0}, int64 p1 = {1}, int64 p2 = {2}, int64 p3 = {3}, int64[1] s0 = {0}, int64[1] s1 = {1},
     int64[1] s2 = {2}, int64[1] s3 = {3}, int64[1] s4 = {4}, int64[1] three = {3}> {
        rows = Shape <start = 0, end = 1> (X) sizes = Concat <axis = 0> (rows, three)
        h0 = ConstantOfShape (sizes) column = Unsqueeze (lengths, s1)
"""
MASK = "mask = Less (row, column) m = Cast <to = 1> (mask)"
STEP = """xK = Gather <axis = 1> (X, pK) rK = MatMul (hK, R) sumK = Add (xK, rK) tK = Tanh (sumK) READ
    aK = Mul (mK, tK) REST bK = Mul (kK, hK) hNEXT = Add (aK, bK)"""
READ = "mK = Slice (m, sK, sNEXT, s1)"
REST = "kK = Sub (one, mK)"
NEGATED = "nK = Neg (mK) kK = Add (nK, one)"
COMPARED = "gK = Greater (lengths, pK) fK = Cast <to = 1> (gK) mK = Unsqueeze (fK, s1)"
LATER = COMPARED.replace("(lengths, pK)", "(lengths, pLATE)")


def make_line(
    read: str,
    rest: str = REST,
    start: str = MASK,
    given: str = "int64[N] lengths",
    more: str = "",
    end: str = "",
    step: str = STEP,
) -> onnx.ModelProto:
    """Return a line of four steps, whose results are zero past the end of a row, and its last state."""
    step = step.replace("READ", read).replace("REST", rest) + " yK = Mul (hNEXT, mK) zK = Unsqueeze (yK, s1)"
    lines = [
        step.replace("NEXT", str(k + 1)).replace("LATE", str(min(k + 1, 3))).replace("K", str(k))
        for k in range(STEPS)
    ]
    text = HEADER.replace("INPUT", given).replace("RESULTS", f"float[N, 4, 3] Y, float[A, 3] h4{more}")
    body = "\n".join(lines)
    return onnx.parser.parse_model(f"{text} {start} {body} Y = Concat <axis = 1> (z0, z1, z2, z3) {end} }}")


def compare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Lift a model; check that it computes the same for rows of all lengths."""
    onnx.checker.check_model(model, full_check=True)
    lifted = rnnlower.lift(model)
    onnx.checker.check_model(lifted, full_check=True)
    for lengths in ([3], [4, 1], [1, 2, 3, 4, 2]):
        X = np.random.default_rng(0).normal(size=(len(lengths), STEPS, 3)).astype(np.float32)
        inputs = {"X": X, "lengths": np.array(lengths)}
        expected, actual = run(model, inputs), run(lifted, inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    return lifted


@pytest.mark.parametrize(
    ("read", "rest", "start"),
    [(READ, REST, MASK), (READ, NEGATED, MASK), (COMPARED, REST, ""), (COMPARED, NEGATED, "")],
    ids=["a part of a mask", "1 + -m", "the number of the step", "the number of the step, 1 + -m"],
)
def test_a_mask_that_steps_multiply_ends_rows(read: str, rest: str, start: str) -> None:
    lifted = compare(make_line(read, rest, start))
    assert recurrent_left(lifted) == ["RNN"]
    assert "Mul" not in {node.op_type for node in all_nodes(lifted)}


@pytest.mark.parametrize(
    ("read", "rest", "start"),
    [
        (READ, "kK = Sub (two, mK)", MASK),
        ("gK = Sigmoid (tK) mK = Mul (gK, one)", REST, ""),
    ],
    ids=["2 - m", "no mask"],
)
def test_other_products_stay(read: str, rest: str, start: str) -> None:
    model = make_line(read, rest, start)
    assert recurrent_left(compare(model)) == []


@pytest.mark.parametrize(
    ("read", "start"),
    [
        (LATER, ""),
        (READ, MASK.replace("row,", "late,")),
        (READ, MASK.replace("Less (row, column)", "Less (column, row)")),
    ],
    ids=["the number of another step", "one step early", "rows that have ended"],
)
def test_masks_that_no_length_gives_skip_steps(read: str, start: str) -> None:
    assert made_of(compare(make_line(read, REST, start))) == IN_ORDER


def made_of(model: onnx.ModelProto) -> list[str]:
    """Return what takes the steps, and what puts them in order."""
    return sorted(node.op_type for node in all_nodes(model) if node.op_type in ("RNN", "ScatterElements"))


PLAIN = STEP[: STEP.index("aK =")]
CHOSEN = "mask = Less (row, column) m = Cast <to = 1> (mask) w = Cast <to = 1> (mask)"
CONDITION = READ + " qK = Slice (mask, sK, sNEXT, s1) "
KEPT = "aK = Where (qK, tK, zero) bK = Where (qK, zero, hK) hNEXT = Add (aK, bK)"
LERP = """eK = Sub (tK, hK) fK = Mul (mK, eK) lowK = Add (hK, fK) kK = Sub (one, mK) gK = Mul (kK, eK)
    highK = Sub (tK, gK) isK = Less (mK, half) hNEXT = Where (isK, lowK, highK)"""


@pytest.mark.parametrize(
    ("read", "chosen"),
    [
        (CONDITION, KEPT),
        (CONDITION + "uK = Not (qK)", KEPT.replace("(qK, tK, zero)", "(uK, zero, tK)")),
        (
            CONDITION + "vK = Cast <to = 1> (qK) kK = Sub (one, vK)",
            KEPT.replace("Where (qK, zero, hK)", "Mul (hK, kK)"),
        ),
        (READ, "eK = Sub (tK, hK) fK = Mul (mK, eK) hNEXT = Add (hK, fK)"),
        (READ, "eK = Sub (tK, hK) kK = Sub (one, mK) fK = Mul (eK, kK) hNEXT = Sub (tK, fK)"),
        (CONDITION, "eK = Sub (tK, hK) fK = Where (qK, eK, zero) hNEXT = Add (fK, hK)"),
        (READ, LERP),
        (
            READ + " vK = Slice (w, sK, sNEXT, s1) kK = Sub (one, vK)",
            "aK = Mul (mK, tK) bK = Mul (kK, hK) hNEXT = Add (aK, bK)",
        ),
    ],
    ids=["two Where", "Not", "Where and Mul", "h + m d", "t - k d", "h + Where", "lerp", "cast twice"],
)
def test_sums_of_what_a_mask_keeps_end_rows(read: str, chosen: str) -> None:
    model = make_line(read, "", CHOSEN, step=PLAIN + chosen)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
    assert recurrent_left(compare(model)) == ["RNN"]


@pytest.mark.parametrize(
    "chosen",
    [
        KEPT.replace("zero, hK", "hK, zero"),
        KEPT.replace("(qK, tK, zero)", "(qK, tK, one)"),
        KEPT.replace("Add", "Sub"),
        "eK = Sub (hK, tK) fK = Mul (mK, eK) hNEXT = Add (hK, fK)",
        "eK = Sub (tK, hK) fK = Mul (mK, eK) hNEXT = Sub (hK, fK)",
        LERP.replace("Sub (tK, gK)", "Add (tK, gK)"),
    ],
    ids=["the same mask", "not zeros", "Sub", "h + m (h - t)", "h - m (t - h)", "another lerp"],
)
def test_sums_that_are_no_choices_stay(chosen: str) -> None:
    model = make_line(CONDITION, "", CHOSEN, step=PLAIN + chosen)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "half"))
    assert recurrent_left(compare(model)) == []


IN_ORDER = ["RNN", "ScatterElements"]
INVERTED = MASK.replace("Less", "GreaterOrEqual")
OF_ENDED = READ.replace("mK =", "kK =") + " mK = Sub (one, kK)"
COLUMN = (
    "eK = Gather <axis = 1> (mask, pK) cK = Unsqueeze (eK, s1) kK = Cast <to = 1> (cK) mK = Sub (one, kK)"
)
TURNED = COLUMN.replace("axis = 1", "axis = 0")


@pytest.mark.parametrize(
    ("read", "start", "left"),
    [
        (OF_ENDED, INVERTED, ["RNN"]),
        (OF_ENDED, MASK.replace("mask)", "other)").replace("m =", "other = Not (mask) m ="), ["RNN"]),
        (OF_ENDED, INVERTED.replace("row,", "late,"), IN_ORDER),
        (OF_ENDED, MASK, IN_ORDER),
        (COLUMN, INVERTED, ["RNN"]),
        (COLUMN, INVERTED.replace("row,", "late,"), IN_ORDER),
        (TURNED, "across = Transpose (row) mask = LessOrEqual (lengths, across)", ["RNN"]),
        (
            TURNED,
            "across = Transpose (row) line = Unsqueeze (lengths, s0) mask = LessOrEqual (line, across)",
            ["RNN"],
        ),
        (TURNED, "across = Transpose (late) mask = LessOrEqual (lengths, across)", IN_ORDER),
        (TURNED, "across = Transpose (row) mask = LessOrEqual (across, lengths)", IN_ORDER),
    ],
    ids=[
        *(
            "t >= n",
            "not t < n",
            "one step early",
            "rows that go on",
            "a column of a mask",
            "an early column",
        ),
        *("a row of a mask", "a row of lengths", "an early row", "t <= n"),
    ],
)
def test_a_mask_of_rows_that_have_ended_multiplies_the_old_state(
    read: str, start: str, left: list[str]
) -> None:
    model = make_line(read, "", start)
    lifted = compare(model)
    assert made_of(lifted) == left
    for node in rnnlower.lift.with_report(model)[1].nodes:
        assert "Where" not in (node.reason or ""), "The model has none."


@pytest.mark.parametrize("shape", [(3, 1), (1, 1, 1)])
def test_a_sum_of_another_shape_than_its_mask_stays(shape: tuple[int, ...]) -> None:
    """A line next to it is lifted; a Where would not have the shape of ``ones - m``."""
    end = """row0 = Slice (m, s0, s1, s0) own = Slice (row0, s0, s1, s1) other = Sub (ones, own)
        line0 = Slice (R, s0, s1, s0) line1 = Slice (R, s1, s2, s0)
        left = Mul (own, line0) right = Mul (other, line1) Z = Add (left, right)"""
    model = make_line(READ, more=f", float[{', '.join(map(str, (*shape[:-1], 3)))}] Z", end=end)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), "ones"))
    assert recurrent_left(compare(model)) == ["RNN"]


WHERE = """xK = Gather <axis = 1> (X, pK) rK = MatMul (hK, R) sumK = Add (xK, rK) tK = Tanh (sumK)
    mK = Slice (mask, sK, sNEXT, s1) hNEXT = Where (mK, tK, hK) zK = Unsqueeze (hNEXT, s1)"""


def test_the_reason_for_lengths_with_a_size_of_another_name_says_so() -> None:
    """Lengths of one row would be those of all rows."""
    step = WHERE.replace(
        "mK = Slice (mask, sK, sNEXT, s1)", COMPARED.replace("fK = Cast <to = 1> (gK)", "fK = Identity (gK)")
    )
    lines = [step.replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(3)]
    text = HEADER.replace("INPUT", "int64[M] lengths").replace("RESULTS", "float[A, 3] h3")
    model = onnx.parser.parse_model(f"{text} {' '.join(lines)} }}")
    (node,) = rnnlower.lift.with_report(model)[1].nodes
    reason = "its states may have different sizes, as where axes of the same size have different names"
    assert (node.op_type, node.reason) == (None, reason)


CONSTANT = WHERE.replace("zK = Unsqueeze (hNEXT", "yK = Where (mK, hNEXT, zero) zK = Unsqueeze (yK")


@pytest.mark.parametrize("is_chosen", [False, True], ids=["Mul", "Where"])
def test_other_products_with_a_mask_of_a_line_stay(is_chosen: bool) -> None:
    """In the rows that have ended, infinity times 0 is no number."""
    end, more = "far = Div (one, zero) Z = Mul (m2, far)", ", float[N, 1] Z"
    model = make_line(READ, more=more, end=end)
    if is_chosen:
        text = HEADER.replace("INPUT", "int64[N] lengths").replace(
            "RESULTS", f"float[N, 4, 3] Y, float[A, 3] h4{more}"
        )
        steps = [CONSTANT.replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(STEPS)]
        end = end.replace("Mul (m2", "Mul (f").replace("Z =", "f = Cast <to = 1> (m2) Z =")
        model = onnx.parser.parse_model(
            f"{text} {MASK} {' '.join(steps)} Y = Concat <axis = 1> (z0, z1, z2, z3) {end} }}"
        )
    lifted = compare(model)
    assert recurrent_left(lifted) == ["RNN"]
    assert [node.op_type for node in lifted.graph.node if node.output[0] == "Z"] == ["Mul"]


@pytest.mark.parametrize(
    "last", ["Gather <axis = 1> (X, p4)", "Identity (h4)"], ids=["the input", "the last state"]
)
def test_results_that_are_joined_to_other_values_stay(last: str) -> None:
    """Masks are constant, and the results of four steps stand before a fifth value that no mask hides."""
    steps = [CONSTANT.replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(STEPS)]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> main (float[2, 5, 3] X) => (float[2, 5, 3] Y)
        <float[3, 3] R = {{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}}, int64 p0 = {{0}}, int64 p1 = {{1}},
         int64 p2 = {{2}}, int64 p3 = {{3}}, int64 p4 = {{4}}, int64[1] s0 = {{0}}, int64[1] s1 = {{1}},
         int64[1] s2 = {{2}}, int64[1] s3 = {{3}}, int64[1] s4 = {{4}}, float zero = {{0}},
         float[2, 3] h0 = {{0, 0, 0, 0, 0, 0}}, bool[2, 5] mask = {{1, 1, 1, 1, 0, 1, 1, 0, 0, 0}}> {{
            {" ".join(steps)} last = {last} z4 = Unsqueeze (last, s1)
            Y = Concat <axis = 1> (z0, z1, z2, z3, z4) }}"""
    )
    lifted = rnnlower.lift(model)
    inputs = {"X": np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)}
    np.testing.assert_allclose(run(lifted, inputs)["Y"], run(model, inputs)["Y"], rtol=1e-4, atol=1e-5)


CELL = """xK = Gather <axis = 1> (X, pK) wK = MatMul (xK, W) rK = MatMul (hK, RR) sumK = Add (wK, rK)
    aK, bK, dK, eK = Split <axis = 1> (sumK) iK = Sigmoid (aK) oK = Sigmoid (bK) fK = Sigmoid (dK)
    gK = Tanh (eK) igK = Mul (iK, gK) fcK = Mul (fK, cK) ncK = Add (igK, fcK) tcK = Tanh (ncK)
    nhK = Mul (oK, tcK) mK = Slice (mask, sK, sNEXT, s1) hNEXT = Where (mK, nhK, hK) cNEXT = KEPT"""


@pytest.mark.parametrize(
    ("kept", "end", "left"),
    [
        ("Where (mK, ncK, cK)", "out = Add (c4, one)", ["LSTM"]),
        ("Where (mK, ncK, cK)", "out = Add (nc3, one)", []),
        ("Identity (ncK)", "out = Identity (c4)", []),
        ("Identity (ncK)", "out = Add (h4, one)", ["LSTM"]),
        ("Identity (ncK)", "out = Add (tc3, one)", []),
    ],
    ids=["masked", "before its mask", "no mask", "no mask, not read", "no mask, its activation"],
)
def test_a_cell_state_that_no_mask_keeps_is_not_returned(kept: str, end: str, left: list[str]) -> None:
    cell = CELL.replace("KEPT", kept)
    lines = [cell.replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(STEPS)]
    body = "\n".join(lines)
    if "c4" not in end:
        body = body.replace("c4 = Identity (nc3)", "")
    text = HEADER.replace("INPUT", "int64[N] lengths").replace("RESULTS", "float[A, 3] h4, float[A, 3] out")
    model = onnx.parser.parse_model(f"{text} c0 = Identity (h0) {MASK} {body} {end} }}")
    rng = np.random.default_rng(1)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.normal(size=(3, 12)).astype(np.float32), name)
        for name in ("W", "RR")
    )
    assert recurrent_left(compare(model)) == left


@pytest.mark.parametrize(
    ("end", "left"),
    [
        ("z = Unsqueeze (m, s2) Y = Mul (all, z)", ["RNN"]),
        ("z = Unsqueeze (m, s2) Y = Mul (z, all)", ["RNN"]),
        (
            "other = Less (late, column) n = Cast <to = 1> (other) z = Unsqueeze (n, s2) Y = Mul (all, z)",
            IN_ORDER,
        ),
        ("n = Cast <to = 1> (row) z = Unsqueeze (n, s2) Y = Mul (all, z)", IN_ORDER),
    ],
    ids=["times a mask", "a mask times", "another mask", "no mask"],
)
def test_a_mask_may_multiply_the_results_of_all_steps(end: str, left: list[str]) -> None:
    lines = [WHERE.replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(STEPS)]
    text = HEADER.replace("INPUT", "int64[N] lengths").replace("RESULTS", "float[N, 4, 3] Y, float[A, 3] h4")
    model = onnx.parser.parse_model(
        f"{text} {MASK} {chr(10).join(lines)} all = Concat <axis = 1> (z0, z1, z2, z3) {end} }}"
    )
    assert made_of(compare(model)) == left


def make_loop(results: str, y: str) -> onnx.ModelProto:
    """Return a Loop whose step multiplies its states by a mask that the number of the step gives."""
    step = STEP.replace("NEXT", "next").replace("READ", COMPARED).replace("REST", REST).replace("pK", "n")
    body = step.replace("K", "")
    return onnx.parser.parse_model(
        HEADER.replace("INPUT", "int64[N] lengths").replace("RESULTS", f"{results}float[A, 3] last")
        + f"""go = Equal (p0, p0) size = Shape (X) steps = Gather (size, p1)
        last, Y = Loop (steps, go, h0) <body = each (int64 n, bool goes, float[N, 3] h) => (
            bool on, float[N, 3] hnext, float[N, 3] y) {{ on = Identity (goes) {body} {y} }}> }}"""
    )


def test_a_loop_may_return_zeros_for_rows_that_have_ended() -> None:
    assert recurrent_left(compare(make_loop("float[T, B, 3] Y, ", "y = Mul (hnext, m)"))) == ["RNN"]


def test_a_loop_may_return_states_of_rows_that_have_ended() -> None:
    assert recurrent_left(compare(make_loop("float[T, B, 3] Y, ", "y = Identity (hnext)"))) == ["RNN"]
