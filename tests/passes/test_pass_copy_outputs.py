"""CopyOutputsPass: outputs that other nodes read are copies."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run

from rnnlower.errors import UnsupportedModelError
from rnnlower.passes.graph_boundaries import CopyOutputsPass

LOOP = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2, 4] X) => (float[2, 4] H, float[T, 2, 4] Y)
    <int64 trips = {3}, bool go = {1}, int64[2] shape = {2, 4}> {
        H, Y = Loop (trips, go, X) <body: graph = step (int64 i, bool c, float[2, 4] h)
            => (bool d, float[2, 4] next, float[2, 4] y) {
            d = Identity (c)
            t = Tanh (h)
            next = Reshape (t, shape)
            y = Neg (next)
        }>
    }
"""


def main_model(nodes: str, outputs: str = "float[2] y, float[2] z") -> ir.Model:
    return ir.from_onnx_text(
        f'<ir_version: 8, opset_import: ["" : 17]> main (float[2] x) => ({outputs}) {{ {nodes} }}'
    )


def casts(model: ir.Model) -> list[str | None]:
    nodes = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.op_type == "Cast"]
    return [node.outputs[0].name for node in nodes]


def test_a_state_that_the_body_reads() -> None:
    own = ir.from_onnx_text(LOOP)
    before = ir.to_proto(own)
    assert CopyOutputsPass()(own).modified
    assert casts(own) == ["next"]
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    feeds = {"X": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    expected = run(before, feeds)
    for name, array in run(after, feeds).items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize(
    ("nodes", "copied"),
    [
        ("y = Neg (x) z = Abs (x)", []),
        ("y = Neg (x) z = Abs (y)", ["y"]),
        ("z = Neg (x) again = Neg (x) y = Abs (again)", ["z"]),
        ("z = Add (x, x) other = Add (x, z) y = Abs (other)", ["z"]),
    ],
    ids=["alone", "read", "an equal one is read", "other inputs"],
)
def test_only_outputs_that_others_read(nodes: str, copied: list[str]) -> None:
    own = main_model(nodes)
    assert CopyOutputsPass()(own).modified == bool(copied)
    assert casts(own) == copied
    assert [value.name for value in own.graph.outputs] == ["y", "z"]


def test_outputs_of_an_operator_alone() -> None:
    own = main_model("y = Neg (x) z = Abs (y)")
    assert CopyOutputsPass(["Abs"], read=False)(own).modified
    assert casts(own) == ["z"]


def test_a_copy_is_not_copied() -> None:
    own = main_model("y = Cast <to = 1> (x) z = Abs (y)")
    assert not CopyOutputsPass()(own).modified


def test_a_branch_that_reads_an_output_of_the_graph_around_it() -> None:
    own = main_model("""
        y = Neg (x)
        c = Constant <value = bool {1}> ()
        z = If (c) <then_branch: graph = a () => (float[2] p) { p = Abs (y) },
                    else_branch: graph = b () => (float[2] q) { q = Neg (y) }>
    """)
    CopyOutputsPass()(own)
    assert casts(own) == ["y"]


def test_an_unknown_type_is_refused() -> None:
    own = main_model("y = Unknown (x) z = Unknown (y)")
    own.graph.outputs[0].type = None
    with pytest.raises(UnsupportedModelError, match=r"'y' needs a copy"):
        CopyOutputsPass()(own)
