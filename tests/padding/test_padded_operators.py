"""Padded operators against onnxruntime's own kernels, at every length."""

from __future__ import annotations

import onnx
import pytest
from support.padded_models import MODELS, MOST, differences, padded_case
from support.padded_operators import OPERATORS, operator_case

import rnnlower
from rnnlower.padding.padding_rules import RULES
from rnnlower.timeflow.pointwise import POINTWISE

NOT_PER_ROW = {
    "DynamicQuantizeLSTM": "quantizes rows by one range",
    "DynamicQuantizeMatMul": "combines rows",
    "Flatten": "folds time",
    "GatherElements": "differ from row to row",
    "GatherElements from the end": "differ from row to row",
    "ReverseSequence": "differs from row to row",
    "Upsample": "stretches rows",
}
"""Operators by which rows meet, or whose steps move by a number of their own in each row."""
ONE_ROW = ("EyeLike", "FusedGemm", "Gemm")
NOT_REACHED = ("Range", "Shape")
"""Operators with a rule that only refuses."""


def _operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def test_every_rule_has_a_case() -> None:
    tried = {op for name in OPERATORS for op in _operators(operator_case(name))}
    tried |= {op for name in MODELS for op in _operators(padded_case(name))}
    assert RULES.keys() - POINTWISE.keys() - tried - {*NOT_REACHED} == set()


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_is_right_at_every_length(name: str, mask: bool) -> None:
    source = operator_case(name)
    padded = rnnlower.pad(source, max={"T": MOST}, mask=mask)
    for fill in (0.0, 5.0, -300.0, float("nan")):
        assert max(differences(source, padded, fill).values()) < 2e-6


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in (*NOT_PER_ROW, *ONE_ROW)])
def test_rows_of_different_lengths_are_right(name: str, mask: bool) -> None:
    source = operator_case(name, batch="B")
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MOST}, mask=mask, per_row=True))


@pytest.mark.parametrize("name", NOT_PER_ROW)
def test_operators_that_join_rows_are_refused(name: str) -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match=NOT_PER_ROW[name]):
        rnnlower.pad(operator_case(name, batch="B"), max={"T": MOST}, per_row=True)
