"""remove_orphans: leftovers of a rewrite are removed, dead code of the model stays."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.rewiring import remove_orphans

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
main (float[2] X, float[2] given, bool c) => (float[2] Y)
<float[2] shared = {1, 2}, float[2] own = {3, 4}, float[2] given = {5, 6}, float[2] inner = {7, 8}>
{
    Y = Mul (X, shared)
    a = Add (own, shared)
    b = Add (a, given)
    dead = Neg (X)
    e = If (c) <
        then_branch = yes () => (float[2] f) { f = Neg (inner) },
        else_branch = no () => (float[2] g) { g = Abs (a) }
    >
    last = Add (b, e)
}
"""


def left_without(*orphans: str) -> tuple[set[str | None], set[str]]:
    """Return the values that nodes produce, and the initializers, once the given ones are gone."""
    own = ir.from_onnx_text(MODEL)
    values = {out.name: out for node in own.graph for out in node.outputs} | dict(own.graph.initializers)
    remove_orphans(values[name] for name in orphans)
    return {out.name for node in own.graph for out in node.outputs}, set(own.graph.initializers)


def test_nodes_that_only_an_orphan_reads_are_removed() -> None:
    nodes, initializers = left_without("last")
    assert nodes == {"Y", "dead"}
    assert initializers == {"shared", "given"}


def test_values_that_are_read_stay() -> None:
    nodes, initializers = left_without("a", "b", "own", "shared")
    assert nodes == {"Y", "a", "b", "dead", "e", "last"}
    assert initializers == {"shared", "own", "given", "inner"}


def test_graph_outputs_stay() -> None:
    assert "Y" in left_without("Y")[0]


def test_dead_code_of_the_model_stays_unless_it_is_named() -> None:
    assert "dead" not in left_without("dead")[0]
    assert "dead" in left_without("last")[0]


def test_an_unread_initializer_is_removed() -> None:
    own = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2] X) => (float[2] Y) <float[2] unread = {1, 2}> { Y = Neg (X) }
    """)
    remove_orphans([own.graph.initializers["unread"]])
    assert not own.graph.initializers
