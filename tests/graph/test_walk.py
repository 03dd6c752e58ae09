"""The sources of a node's values."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from rnnlower.graph.walk import origin

_HEAD = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[2] X, bool c) => (float[2] Y)
<float[2] W = {1.0, 2.0}>
{
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("Y = Identity (X)", "runtime"),
        ("Y = Add (W, W)", "computed"),
        ("Y = Constant <value = float[2] {1.0, 2.0}> ()", "constant"),
        ("r = RandomNormal <shape = [2]> () \n Y = Add (r, W)", "runtime"),
        ("Y = RandomNormalLike (W)", "runtime"),
        (
            "t = Constant <value = bool {1}> () \n"
            "Y = If (t) <then_branch = a () => (float[2] p) { p = Add (W, W) },"
            " else_branch = b () => (float[2] q) { q = Identity (X) }>",
            "runtime",
        ),
        (
            "t = Constant <value = bool {1}> () \n"
            "Y = If (t) <then_branch = a () => (float[2] p) { p = Add (W, W) },"
            " else_branch = b () => (float[2] q) { q = RandomNormal <shape = [2]> () }>",
            "runtime",
        ),
        (
            "t = Constant <value = bool {1}> () \n"
            "Y = If (t) <then_branch = a () => (float[2] p) { p = Add (W, W) },"
            " else_branch = b () => (float[2] q) { q = Neg (W) }>",
            "computed",
        ),
    ],
    ids=["input", "sum", "constant", "random", "random like", "captured input", "random branch", "fixed If"],
)
def test_origin_follows_captured_values_and_random_nodes(body: str, expected: str) -> None:
    model = ir.from_onnx_text(_HEAD + body + "\n}")
    assert origin(model.graph.outputs[0]) == expected
