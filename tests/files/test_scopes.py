"""Scopes of names: what a body may read and must not redefine, checked in linear time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
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
def test_valid_names_in_a_body_are_accepted(then: str) -> None:
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
def test_invalid_names_in_a_body_are_refused(then: str, read: str, message: str) -> None:
    with pytest.raises(rnnlower.InvalidModelError, match=message):
        rnnlower.inspect(nested(then, read))


def test_names_are_not_copied_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bodies see one set of what stands before them, which grows: n copies of n names are n squared."""
    seen: list[set[str]] = []
    check = scopes.check_graph_scope

    def watched(graph: onnx.GraphProto, label: str, outer: scopes._Scope | None = None) -> None:
        if outer is not None:
            seen.append(outer.before)
        check(graph, label, outer)

    monkeypatch.setattr(scopes, "check_graph_scope", watched)
    model = nested("p = Neg (x)")
    second = model.graph.node.add()
    second.CopyFrom(model.graph.node[1])
    second.output[0] = "y2"
    scopes.check_graph_scope(model.graph, "the model")
    assert len(seen) == 4
    assert all(each is seen[0] for each in seen)


REPEATED = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (bool b, float[2] x{input}) => (float[2] z) <float[2] w = {{1, 2}}>
    {{
        z = If (b) <
            then_branch = t () => (float[2] p) <float[2] w = {{{inner}}}> {{ y = Mul (x, w)  p = Abs (y) }},
            else_branch = e () => (float[2] q) {{ q = Add (x, w) }}
        >
    }}
"""


def test_an_initializer_that_a_body_repeats_is_renamed() -> None:
    """Simplifiers write such models. Both have the same value, so nothing is ambiguous."""
    model = onnx.parser.parse_model(REPEATED.format(input="", inner="1, 2"))
    converted = rnnlower.convert(model, opset=18)
    branch = converted.graph.node[0].attribute[0].g
    assert [tensor.name for tensor in branch.initializer] == [branch.node[0].input[1]] != ["w"]
    assert [tensor.name for tensor in converted.graph.initializer] == ["w"]
    assert rnnlower.verify(model, converted)


@pytest.mark.parametrize(("inner", "overridable"), [("1, 3", ""), ("1, 2", ", float[2] w")])
def test_an_initializer_that_may_differ_is_refused(inner: str, overridable: str) -> None:
    model = onnx.parser.parse_model(REPEATED.format(input=overridable, inner=inner))
    with pytest.raises(rnnlower.InvalidModelError, match="an initializer of a body has the name 'w'"):
        rnnlower.convert(model, opset=18)


SHADOWED = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2] h, float[2] w, int64 n) => (float[2] y)
    {
        y, same = Loop (n, , h, w) <body = b (int64 i, bool c, float[2] w, float[2] h)
            => (bool d, float[2] next, float[2] h) { d = Identity (c)  next = Mul (w, h) }>
    }
"""


@pytest.mark.parametrize("given", [lambda model: model, ir.from_proto])
def test_an_input_of_a_body_with_the_name_of_a_value_outside(given: Callable[..., Any]) -> None:
    """The state that never changes is captured: under the name that it has outside, the body had another."""
    model = onnx.parser.parse_model(SHADOWED)
    lowered = rnnlower.lower(given(model), target="primitive")
    assert rnnlower.verify(model, lowered)


WINDOWS = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[T, 2, 4] x, float[3, 2, 3] w) => (float[T, c, n] y) { y = NODE }
"""


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("Conv <strides = [0]> (x, w)", r"'strides' is \[0\]; each element must be at least 1"),
        ("MaxPool <kernel_shape = [2], strides = [0]> (x)", r"'strides' is \[0\]"),
        ("AveragePool <kernel_shape = [0]> (x)", r"'kernel_shape' is \[0\]"),
        ("Conv <dilations = [-1]> (x, w)", r"'dilations' is \[-1\]"),
        ("Conv <pads = [1]> (x, w)", "'pads' has 1 element, but needs 2 for each axis"),
        ("LpPool <kernel_shape = [2, 2], strides = [1]> (x)", "'strides' has 1 element, but needs 1 for"),
        ("ConvTranspose <kernel_shape = [3], pads = [1, 1, 0, 0]> (x, w)", "'kernel_shape' has 1 element"),
    ],
)
def test_windows_that_no_signal_has_are_refused(node: str, message: str) -> None:
    with pytest.raises(rnnlower.InvalidModelError, match=message):
        rnnlower.pad(onnx.parser.parse_model(WINDOWS.replace("NODE", node)), max={"T": 9})


@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_windows_over_more_axes_than_the_signal_have_no_shape(op_type: str) -> None:
    rnnlower.inspect(onnx.parser.parse_model(WINDOWS.replace("NODE", f"{op_type} <strides = [1, 1]> (x, w)")))
    empty = onnx.parser.parse_model(WINDOWS.replace("NODE", f"{op_type} <strides = [1]> (x, w)"))
    del empty.graph.node[0].attribute[0].ints[:]
    rnnlower.convert(empty, opset=18)
