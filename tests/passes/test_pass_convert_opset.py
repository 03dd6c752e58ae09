"""ConvertOpsetPass."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.errors import OpsetError
from rnnlower.graph.facts import Facts
from rnnlower.passes.convert_opset import ConvertOpsetPass, convert_to_first_possible

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


def test_an_unknown_opset_is_an_opset_error() -> None:
    model = ir.from_onnx_text(BEFORE)
    with pytest.raises(OpsetError, match="opset 99"):
        ConvertOpsetPass(99)(model)
    with pytest.raises(OpsetError, match="opset 99"):
        convert_to_first_possible(model, 99, Facts(model), last=28)
    assert model.opset_imports[""] == 12


AHEAD = """
    <ir_version: 8, opset_import: ["" : 16]>
    main (float[3, 2, 4] x) => (float[3, 1, 2, 4] y)
        <float[4] s = {1, 2, 3, 4}, float[1, 4, 4] W = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1},
         float[1, 4, 4] R = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}>
    { n = LayerNormalization <axis = -1> (x, s)  y = RNN <hidden_size = 4> (n, W, R) }
"""


@pytest.mark.parametrize(("asked", "opset"), [(None, 17), (16, 16), (18, 18)])
def test_an_operator_ahead_of_the_opset_raises_it(asked: int | None, opset: int) -> None:
    """As onnxruntime's optimizer writes it: the length of the sequence is behind the operator."""
    source = onnx.parser.parse_model(AHEAD)
    lowered, report = rnnlower.unroll.with_report(source, opset=asked)
    assert [entry.version for entry in lowered.opset_import] == [opset]
    assert "opset 16 has no LayerNormalization: it is taken as that of opset 17" in report.notes
    assert rnnlower.verify(source, lowered)
    streamed, notes = rnnlower.stream.with_report(source)
    assert report.notes[0] in notes.notes
    assert rnnlower.verify(source, streamed)
    assert rnnlower.check(source, target="onnxruntime") == []
