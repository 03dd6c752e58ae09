"""WriteScansPass: Loops over a series of any length become Scans that compute the same; others stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run

import rnnlower
from rnnlower.passes import WriteScansPass

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[T, N, 2] x, float[N, 2] h, float[N, 2] k) => ({outputs})
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64 first = {{0}}, int64 back = {{-1}}, bool on = {{1}},
     float half = {{0.5}}, float w = {{-0.25}}, int64[3] last_first = {{1, 0, 2}}, int64 beyond = {{1000}}>
    {{
        sizes = Shape (x)
        steps = Gather (sizes, first)
        {before}
        {loop}
    }}"""
STATE = "(int64 i, bool c, float[N, 2] h_in)"
OUTPUTS = "float[N, 2] last, float[T, N, 2] y"


def loop(
    nodes: str, body_inputs: str = STATE, results: str = "float[N, 2] h_out, float[N, 2] row", **more: str
) -> str:
    names, given = more.get("names", "last, y"), more.get("given", "steps, , h")
    goes = more.get("goes", "goes = Identity (c)")
    return (
        f"{names} = Loop ({given}) <body = each {body_inputs} => (bool goes, {results}) {{ {nodes} {goes} }}>"
    )


CELL = "s = Mul (h_in, half) h_out = Add (s, x_t) row = Tanh (h_out)"
CASES: dict[str, tuple[str, str, str]] = {
    "an element": ("", loop(f"x_t = Gather (x, i) {CELL}"), OUTPUTS),
    "an element of size 1": (
        "",
        loop(f"j = Unsqueeze (i, zero) e = Gather (x, j) x_t = Squeeze (e, zero) {CELL}"),
        OUTPUTS,
    ),
    "a slice": (
        "",
        loop(
            "j = Unsqueeze (i, zero) m = Add (j, one) e = Slice (x, j, m, zero)"
            f" x_t = Squeeze (e, zero) {CELL}"
        ),
        OUTPUTS,
    ),
    "another axis": (
        "turned = Transpose <perm = [1, 0, 2]> (x)",
        loop(f"x_t = Gather <axis = 1> (turned, i) {CELL}"),
        OUTPUTS,
    ),
    "from the end": (
        "most = Add (steps, back)",
        loop(f"j = Sub (most, i) x_t = Gather (x, j) {CELL}"),
        OUTPUTS,
    ),
    "two series, one read twice": (
        "other = Neg (x)",
        loop(
            "x_t = Gather (x, i) a = Gather (x, i) b = Gather (other, i) d = Mul (a, b) s = Add (h_in, d)"
            " h_out = Tanh (s) row = Add (x_t, h_out)"
        ),
        OUTPUTS,
    ),
    "the element and the state as results": (
        "",
        loop(
            "x_t = Gather (x, i) h_out = Add (h_in, x_t)",
            results="float[N, 2] h_out, float[N, 2] x_t, float[N, 2] h_out, float[N, 2] h_in",
            names="last, y, z, before",
        ),
        f"{OUTPUTS}, float[T, N, 2] z, float[T, N, 2] before",
    ),
    "a state that never changes": (
        "",
        loop(
            "x_t = Gather (x, i) s = Mul (h_in, k_in) h_out = Add (s, x_t) row = Neg (h_out)",
            "(int64 i, bool c, float[N, 2] h_in, float[N, 2] k_in)",
            "float[N, 2] h_out, float[N, 2] k_in, float[N, 2] row",
            names="last, kept, y",
            given="steps, , h, k",
        )
        + " z = Neg (kept)",
        f"{OUTPUTS}, float[N, 2] z",
    ),
    "a branch that reads the element": (
        "",
        loop(
            "x_t = Gather (x, i) t = ReduceSum <keepdims = 0> (x_t) p = Greater (t, half) q = If (p) <"
            "then_branch = more () => (float[N, 2] a) { a = Mul (x_t, half) },"
            "else_branch = less () => (float[N, 2] b) { b = Sub (h_in, x_t) }> h_out = Tanh (q)"
            " row = Identity (h_out)"
        ),
        OUTPUTS,
    ),
    "a buffer that the steps fill": (
        "zeros = ConstantOfShape (sizes)",
        loop(
            "x_t = Gather (x, i) s = Mul (h_in, half) h_out = Add (s, x_t) j = Unsqueeze (i, zero)"
            " place = Unsqueeze (j, one) u = Unsqueeze (h_out, zero) filled = ScatterND (held, place, u)",
            "(int64 i, bool c, float[N, 2] h_in, float[T, N, 2] held)",
            "float[N, 2] h_out, float[T, N, 2] filled",
            given="steps, , h, zeros",
        ),
        OUTPUTS,
    ),
    "TensorFlow's counters": (
        "go = Less (first, steps)",
        loop(
            f"x_t = Gather (x, t) {CELL} add = Constant <value = int64 {{1}}> () next = Add (t, add)",
            "(int64 i, bool c, int64 t, float[N, 2] h_in)",
            "int64 next, float[N, 2] h_out, float[N, 2] row",
            names="end, last, y",
            given=", go, first, h",
            goes="goes = Less (next, steps)",
        ),
        OUTPUTS,
    ),
    "constants of the body": (
        "",
        loop(f"x_e = Gather (x, i) c1 = Constant <value = float {{3}}> () x_t = Mul (x_e, c1) {CELL}"),
        OUTPUTS,
    ),
}


def build(before: str, loop: str, outputs: str) -> ir.Model:
    return ir.from_onnx_text(MODEL.format(before=before, loop=loop, outputs=outputs))


@pytest.mark.parametrize("name", CASES)
def test_a_scan_computes_the_same(name: str) -> None:
    own = build(*CASES[name])
    before = ir.to_proto(own)
    assert WriteScansPass()(own).modified
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    assert not any(node.op_type == "Loop" for node in after.graph.node)
    for steps, rows in ((1, 1), (3, 2), (50, 1)):
        rng = np.random.default_rng(steps)
        x, h, k = (
            rng.standard_normal(shape, np.float32) for shape in ((steps, rows, 2), (rows, 2), (rows, 2))
        )
        feeds = {"x": x, "h": h, "k": k}
        expected, actual = run(before, feeds), run(after, feeds)
        for output in before.graph.output:
            np.testing.assert_array_equal(actual[output.name], expected[output.name], strict=True)


@pytest.mark.parametrize(
    ("before", "nodes", "more"),
    [
        # The number of the iteration is a number.
        ("", f"x_e = Gather (x, i) n = Cast <to = 1> (i) x_t = Add (x_e, n) {CELL}", {}),
        # Fewer steps than elements, or every other one.
        ("fewer = Add (steps, back)", f"x_t = Gather (x, i) {CELL}", {"given": "fewer, , h"}),
        (
            "two = Constant <value = int64 {2}> () fewer = Div (steps, two)",
            f"j = Add (i, i) x_t = Gather (x, j) {CELL}",
            {"given": "fewer, , h"},
        ),
        # The steps end when a state says so.
        (
            "",
            f"x_t = Gather (x, i) {CELL} t = ReduceSum <keepdims = 0> (h_out)",
            {"goes": "goes = Less (t, half)"},
        ),
        # No series at all.
        ("", "h_out = Tanh (h_in) row = Neg (h_out)", {}),
        ("", f"x_t = Gather (x, first) {CELL}", {"given": "beyond, , h"}),
    ],
)
def test_other_loops_stay(before: str, nodes: str, more: dict[str, str]) -> None:
    own = build(before, loop(nodes, **more), OUTPUTS)
    text = str(ir.to_proto(own))
    assert not WriteScansPass()(own).modified
    assert str(ir.to_proto(own)) == text


def test_an_output_of_a_state_that_never_changes_stays_a_loop() -> None:
    before, nodes, _ = CASES["a state that never changes"]
    own = build(before, nodes.replace(" z = Neg (kept)", ""), f"{OUTPUTS}, float[N, 2] kept")
    assert not WriteScansPass()(own).modified


@pytest.mark.parametrize(
    ("nodes", "state", "start", "results"),
    [
        # Each step appends to the state: a Scan's states keep their shapes.
        (
            "x_t = Gather (x, i) h_out = Concat <axis = 0> (h_in, x_t) row = Neg (x_t)",
            "float[M, 2] h_in",
            "h",
            "float[K, 2] h_out, float[N, 2] row",
        ),
        # A Scan's states are tensors.
        (
            "x_t = Gather (x, i) a = SequenceAt (h_in, first) row = Add (a, x_t)"
            " h_out = SequenceConstruct (row)",
            "seq(float[N, 2]) h_in",
            "parts",
            "seq(float[N, 2]) h_out, float[N, 2] row",
        ),
    ],
)
def test_loops_whose_states_a_scan_does_not_carry_stay(
    nodes: str, state: str, start: str, results: str
) -> None:
    steps = loop(nodes, f"(int64 i, bool c, {state})", results, names="end, y", given=f"steps, , {start}")
    own = build("parts = SequenceConstruct (h)", steps, "float[T, N, 2] y")
    assert not WriteScansPass()(own).modified


def test_a_loop_that_omits_its_last_output_stays() -> None:
    own = build("", loop(f"x_t = Gather (x, i) {CELL}", names="last"), "float[N, 2] last")
    assert not WriteScansPass()(own).modified


def test_lower_writes_scans_where_a_target_has_no_loop() -> None:
    source = ir.to_proto(build(*CASES["TensorFlow's counters"]))
    lowered, report = rnnlower.lower.with_report(source, target="tract")
    assert [node.op_type for node in lowered.graph.node if node.op_type in ("Loop", "Scan")] == ["Scan"]
    assert any("is written as a Scan: tract has no Loop" in note for note in report.notes)
    assert rnnlower.verify(source, lowered)
    kept = rnnlower.lower(source, target="onnxruntime")
    assert "Scan" not in {node.op_type for node in kept.graph.node}
