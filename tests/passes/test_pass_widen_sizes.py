"""WidenSizesPass: sizes are computed in int64, and numbers stay as they are."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import all_nodes, run

from rnnlower.passes import RemoveUnusedPass, WidenSizesPass

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[N, T, 6] x, int64[2] other, bool on) => ({outputs})
    <int32[1] six = {{6}}, int64[1] zero = {{0}}, int64[1] two = {{2}}, int32[2] places = {{0, 1}},
     int32 last = {{-1}}, int64[1] start = {{0}}, int64[1] most = {{9223372036854775807}}>
    {{
        sizes = Shape (x)
        narrow = Cast <to = 6> (sizes)
        {nodes}
    }}"""
PRODUCT = """
    first = Slice (narrow, zero, two)
    count = ReduceProd <axes = [0], keepdims = 0> (first)
    length = Unsqueeze (count, zero)
    shape = Concat <axis = 0> (length, six)"""
PLACES = """
    first = Gather (narrow, places)
    size = Gather (narrow, last)
    thrice = Add (size, six)
    twice = Sub (thrice, six)
    shape = Concat <axis = 0> (first, twice)"""


def build(nodes: str, outputs: str) -> ir.Model:
    return ir.from_onnx_text(MODEL.format(nodes=nodes, outputs=outputs))


def casts(model: ir.Model) -> int:
    return sum(node.op_type == "Cast" for node in all_nodes(ir.to_proto(model)))


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        (f"{PRODUCT} wide = Cast <to = 7> (shape) y = Reshape (x, wide)", "float[a, b] y"),
        (f"{PLACES} wide = Cast <to = 7> (shape) y = Reshape (x, wide)", "float[a, b, c] y"),
        (
            f"{PRODUCT} wide = If (on) <"
            " then_branch = one () => (int64[2] p) { n = Cast <to = 7> (shape) p = Add (n, zero) },"
            " else_branch = two () => (int64[2] q) { m = Cast <to = 7> (shape) q = Sub (m, zero) }>"
            " y = Reshape (x, wide)",
            "float[a, b] y",
        ),
    ],
    ids=["product", "places", "branches"],
)
def test_sizes_are_computed_in_int64(nodes: str, outputs: str) -> None:
    own = build(nodes, outputs)
    before = ir.to_proto(own)
    assert WidenSizesPass()(own).modified
    RemoveUnusedPass()(own)
    assert casts(own) == 0
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    for sizes in ((1, 1), (2, 3), (0, 2)):
        x = np.random.default_rng(0).standard_normal((*sizes, 6), np.float32)
        feeds = {"x": x, "other": np.ones(2, np.int64), "on": np.array(True)}
        np.testing.assert_array_equal(run(after, feeds)["y"], run(before, feeds)["y"], strict=True)


def test_readers_of_the_narrow_sizes_keep_them() -> None:
    own = build(f"{PRODUCT} wide = Cast <to = 7> (shape) y = Reshape (x, wide) z = Neg (shape)", "int32[2] z")
    own.graph.outputs.append(next(node for node in own.graph if node.op_type == "Reshape").outputs[0])
    assert WidenSizesPass()(own).modified
    assert casts(own) == 1
    feeds = {"x": np.ones((2, 3, 6), np.float32), "other": np.ones(2, np.int64), "on": np.array(True)}
    results = run(ir.to_proto(own), feeds)
    np.testing.assert_array_equal(results["z"], [-6, -6])
    assert results["y"].shape == (6, 6)


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        # Not a size: a cast to int32 loses digits.
        ("n = Cast <to = 6> (other) m = Identity (n) y = Cast <to = 7> (m) z = Neg (y)", "int64[2] z"),
        # An operator that is not known to compute sizes.
        ("m = Mod (narrow, six) y = Cast <to = 7> (m) z = Neg (y)", "int64[3] z"),
        # One of the operands is not a size.
        (
            "n = Cast <to = 6> (other) m = Concat <axis = 0> (narrow, n) y = Cast <to = 7> (m) z = Neg (y)",
            "int64[5] z",
        ),
        # A number that is -1 in int32.
        (
            "n = Concat <axis = 0> (sizes, most) m = Cast <to = 6> (n) k = Identity (m) y = Cast <to = 7> (k)"
            " z = Neg (y)",
            "int64[4] z",
        ),
        # The name of an output.
        ("m = Identity (narrow) z = Cast <to = 7> (m)", "int64[3] z"),
    ],
)
def test_other_numbers_stay(nodes: str, outputs: str) -> None:
    own = build(nodes, outputs)
    before = ir.to_proto(own)
    assert not WidenSizesPass()(own).modified
    assert ir.to_proto(own) == before
