"""The graphs in the docstrings of passes: each pass turns the first into the second."""

from __future__ import annotations

import inspect
import re
import textwrap

import onnx_ir as ir
import pytest
from support.graph_text import canonical, parse_text

import rnnlower.passes
from rnnlower.targets import find_target

PASSES = {name: getattr(rnnlower.passes, name) for name in rnnlower.passes.__all__}
BLOCK = re.compile(
    r"^Before(?:, at opset (?P<opset>\d+))?(?: and IR version (?P<ir_version>\d+))?::\n\n"
    r"(?P<before>(?:    .*\n|\n)+)"
    r"^After ``(?P<call>.+)``::\n\n"
    r"(?P<after>(?:    .*\n?|\n)+)",
    re.MULTILINE,
)


@pytest.mark.parametrize("name", PASSES)
def test_docstring_shows_what_the_pass_makes(name: str) -> None:
    shown = BLOCK.search(inspect.getdoc(PASSES[name]) or "")
    assert shown is not None, "the docstring shows no graph before and after"
    opset = int(shown["opset"] or 17)
    ir_version = int(shown["ir_version"] or 8)
    own = ir.from_proto(parse_text(textwrap.dedent(shown["before"]), opset, ir_version))
    pass_ = eval(shown["call"], PASSES | {"find_target": find_target})
    assert type(pass_) is PASSES[name]
    assert pass_(own).modified
    made = canonical(ir.to_proto(own))
    expected = canonical(parse_text(textwrap.dedent(shown["after"]), opset, ir_version))
    assert made.parts == expected.parts
    assert made.types == made.types | expected.types


def test_texts_that_differ_are_told_apart() -> None:
    one, other = (
        "(float[2] x) => (float[2] y) { y = Neg (x) }",
        "(float[2] x) => (float[2] y) { y = Abs (x) }",
    )
    inner = "(float[2] x) => (float[2] y) { h = Neg (x) y = Neg (h) }"
    assert canonical(parse_text(one)) == canonical(parse_text(one))
    assert canonical(parse_text(one)) != canonical(parse_text(other))
    assert canonical(parse_text(inner)) == canonical(parse_text(inner.replace("h", "between")))
