"""Loops and Scans that padding refuses, and declared sizes; those that it takes are in `padded_models`."""

from __future__ import annotations

import onnx
import pytest
from support.padded_models import MAXIMUM, loop, scan, with_weights

import rnnlower

SHORTER = "minus = Constant <value_ints = [-1]> () y = Slice (x, zero1, minus, zero1) "
TWO_SEQUENCES = (
    scan(sequence="x, y")
    .replace("inputs = 1", "inputs = 2")
    .replace("float[B, 3] v", "float[B, 3] v, float[B, 3] w")
)
OTHER_SIZE = "has a size that follows from a length in an unsupported way"
OTHER_ITERATIONS = "iterations that does not follow from the length alone"
REFUSED = {
    "at most five steps": (
        OTHER_SIZE,
        loop().replace("d = Identity (c)", "d = Less (i, four)"),
    ),
    "another open size": (
        OTHER_ITERATIONS,
        "whole = Shape (x)" + loop(trips="ReduceProd <keepdims = 0> (whole)"),
    ),
    "two directions": ("some sequences from the end", scan(", scan_input_directions = [1]")),
    "two lengths in a Scan": ("steps of sequences of different lengths", SHORTER + TWO_SEQUENCES),
    "two lengths in a Loop": (
        "steps of a sequence of another length",
        SHORTER + loop("w = Gather (y, i) n = Add (h, w) o = Add (n, v)"),
    ),
    "more iterations than a short sequence has steps": (
        OTHER_SIZE,
        loop("n = Tanh (h) o = Identity (n)", trips="Max (counted, four)").replace(
            "trips", "counted = Squeeze (sizes) trips", 1
        ),
    ),
    "a condition that a short sequence does not fulfil": (
        OTHER_SIZE,
        loop()
        .replace("(trips, , h0)", "(trips, goes, h0)")
        .replace("state, steps", "goes = Less (four, trips) state, steps"),
    ),
    "a state that grows": ("unknown shape", scan(cell="n = Concat <axis = 0> (h, v) o = Identity (v)")),
    "a list that is not empty at first": (
        "Loop.*has a state 'l' that is a list",
        loop("n = Add (h, v) o = Exp (v) more = SequenceInsert (l, n)")
        .replace("(trips, , h0)", "(trips, , h0, l0)")
        .replace("float[B, 3] h)", "float[B, 3] h, seq(float[B, 3]) l)")
        .replace("float[B, 3] n, ", "float[B, 3] n, seq(float[B, 3]) more, ")
        .replace("state, steps", "final, all, steps")
        .replace("sizes =", "l0 = SequenceConstruct (h0) sizes =")
        + " state = ConcatFromSequence <axis = 0> (all)",
    ),
    "a size": ("returns a size", scan(cell="n = Add (h, v) o1 = Shape (x) o = Cast <to = 1> (o1)")),
    "no rule": (
        "NonZero node .* no rule says what NonZero",
        scan(cell="i = NonZero (x) j = ReduceSum (i) k = Cast <to = 1> (j) n = Add (h, k) o = Exp (v)"),
    ),
}
PER_ROW = {
    "steps of rows": (
        "combines rows",
        "h0 = ReduceSum <keepdims = 0> (x, f2) z1, z = Scan <num_scan_inputs = 1, scan_input_axes = [1], "
        "body = step (float[T] h, float[T, 3] v) => (float[T] n, float[T, 3] o) "
        "{ n = Neg (h) o = Exp (v) }> (h0, x) state = ReduceSum (z)",
    ),
    "a state of as many rows as features": (
        "state 'h' whose axis of rows is not known",
        scan().replace("state, steps", "last_state, steps") + "state = Identity (steps)",
    ),
}


@pytest.mark.parametrize("name", [*REFUSED, *PER_ROW])
def test_a_body_is_refused_by_name(name: str) -> None:
    reason, nodes = {**REFUSED, **PER_ROW}[name]
    rows = 3 if name in PER_ROW else "B"
    source = with_weights(
        '<ir_version: 10, opset_import: ["" : 18]> '
        f"main (float[T, {rows}, 3] x) => (float state) {{ {nodes} }}"
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match=reason) as caught:
        rnnlower.pad(source, max={"T": MAXIMUM}, per_row=name in PER_ROW)
    assert caught.value.remedy


def test_rows_of_a_static_batch_are_those_of_its_states() -> None:
    """As TorchScript exports states that begin as zeros."""
    source = with_weights(
        '<ir_version: 10, opset_import: ["" : 18]> main (float[T, 2, 3] x) => (float[2, 3] state) '
        f"{{ {scan().replace('h0 = Expand (s, row)', 'h0 = ConstantOfShape (row)').replace('B', '2')} }}"
    )
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True))


def test_names_of_sizes_in_bodies_are_not_trusted() -> None:
    """TorchScript names the sizes of all states alike; onnxruntime reused the memory of one for another."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        main (float[T, N, 3] x, float[N, 1] gate) => (float[N, 3] h, float[N, 1] u, float[T, N, 3] y)
        <int64 zero = {0}, bool on = {1}> {
            sizes = Shape (x)  steps = Gather (sizes, zero)  x_0 = Gather (x, zero)  start = Sub (x_0, x_0)
            h, u, y = Loop (steps, on, start, gate) <body = step (int64 t, bool go, float[a, b] h_in,
                float[a, b] u_in) => (bool goes, float[c, d] h_out, float[e, f] u_out, float[g, k] row) {
                goes = Identity (go)  x_t = Gather (x, t)  s = Sigmoid (u_in)  scaled = Mul (s, h_in)
                joined = Add (scaled, x_t)  h_out = Tanh (joined)  u_out = Mul (s, u_in)  row = Neg (h_out)
            }>
        }""")
    padded = rnnlower.pad(model, max={"T": 8})
    (body,) = (node.attribute[0].g for node in padded.graph.node if node.op_type == "Loop")
    dims = [dim for value in body.input for dim in value.type.tensor_type.shape.dim]
    assert dims
    assert not any(dim.dim_param for dim in dims)
    assert rnnlower.verify(model, padded)
