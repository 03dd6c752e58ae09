"""ConvertOpsetPass."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from rnnlower.errors import OpsetError
from rnnlower.passes.convert_opset import ConvertOpsetPass

BEFORE = """<ir_version: 7, opset_import: ["" : 12]>
g (float[1,3] x) => (float[3] y) { y = Squeeze <axes = [0]> (x) }
"""


def test_it_converts_in_place_and_keeps_its_report() -> None:
    model = ir.from_onnx_text(BEFORE)
    conversion = ConvertOpsetPass(13)
    result = ir.passes.Sequential(conversion)(model)
    assert result.modified
    assert result.model is model
    assert [node.op_type for node in model.graph] == ["Constant", "Squeeze"]
    assert conversion.report is not None
    assert [(each.op_type, each.old, each.new) for each in conversion.report.adapted] == [("Squeeze", 11, 13)]


def test_it_changes_nothing_at_the_same_opset() -> None:
    assert not ConvertOpsetPass(12)(ir.from_onnx_text(BEFORE)).modified


def test_what_it_refuses_is_an_opset_error() -> None:
    model = ir.from_onnx_text(BEFORE)
    with pytest.raises(OpsetError, match="opset 99"):
        ConvertOpsetPass(99)(model)
    assert model.opset_imports[""] == 12
