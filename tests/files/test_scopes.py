"""Scopes of names: what a body may read and must not redefine, checked in linear time."""

from __future__ import annotations

import onnx
import pytest

import rnnlower
from rnnlower.files import scopes

NESTED = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (bool b, float[1] x) => (float[1] z)
    {{
        before = Neg (x)
        y = If (b) <
            then_branch = t () => (float[1] p) {{ {then} }},
            else_branch = e () => (float[1] q) {{ q = Neg (x) }}
        >
        after = Neg (x)
        z = Add (y, {read})
    }}
"""


def nested(then: str, read: str = "after") -> onnx.ModelProto:
    return onnx.parser.parse_model(NESTED.format(then=then, read=read))


@pytest.mark.parametrize(
    "then",
    [
        "p = Neg (x)",
        "p = Neg (before)",
        # A value of the graph around it that comes later may share its name.
        "after = Neg (x)  p = Neg (after)",
        # So may values of two bodies.
        "q = Neg (x)  p = Neg (q)",
    ],
)
def test_what_a_body_may_do(then: str) -> None:
    rnnlower.inspect(nested(then))


@pytest.mark.parametrize(
    ("then", "read", "message"),
    [
        ("before = Neg (x)  p = Neg (before)", "after", "produces 'before', which exists already"),
        ("p = Neg (q)", "after", "reads 'q', which nothing produces"),
        ("inner = Neg (x)  p = Neg (inner)", "inner", "reads 'inner', which nothing produces"),
        ("deeper = If (b) <then_branch = tt () => (float[1] i) { before = Neg (x)  i = Neg (before) }, "
         "else_branch = ee () => (float[1] j) { j = Neg (x) }>  p = Neg (deeper)",
         "after", "produces 'before', which exists already"),
        ("float_p = Neg (x)  p = Neg (p)  p = Neg (x)", "after", "produces 'p', which exists already"),
    ],
)  # fmt: skip
def test_what_a_body_must_not_do(then: str, read: str, message: str) -> None:
    with pytest.raises(rnnlower.InvalidModelError, match=message):
        rnnlower.inspect(nested(then, read))


def test_names_are_not_copied_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bodies see one set of what stands before them, which grows: n copies of n names are n squared."""
    seen: list[set[str]] = []
    check = scopes._check_graph

    def watched(graph: onnx.GraphProto, label: str, outer: scopes._Scope | None) -> None:
        if outer is not None:
            seen.append(outer.before)
        check(graph, label, outer)

    monkeypatch.setattr(scopes, "_check_graph", watched)
    model = nested("p = Neg (x)")
    second = model.graph.node.add()
    second.CopyFrom(model.graph.node[1])
    second.output[0] = "y2"
    scopes.check_graph_scope(model.graph, "the model")
    assert len(seen) == 4
    assert all(each is seen[0] for each in seen)
