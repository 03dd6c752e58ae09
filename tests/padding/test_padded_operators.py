"""Padded operators against onnxruntime's own kernels, at every length."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.padded_models import MAXIMUM, MODELS, difference, padded_case
from support.padded_operators import OPERATORS, operator_case
from support.sessions import session

import rnnlower
from rnnlower.graph.operator_kinds import POINTWISE
from rnnlower.passes.padding import RULES

NOT_PER_ROW = {
    "DynamicQuantizeLSTM": "quantizes rows by one range",
    "DynamicQuantizeLSTM of steps": "quantizes rows by one range",
    "DynamicQuantizeMatMul": "combines rows",
    "Flatten": "steps that are folded",
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
    assert RULES.keys() - POINTWISE - tried - {*NOT_REACHED} == set()


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_is_right_at_every_length(name: str, mask: bool) -> None:
    source = operator_case(name)
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask)
    assert difference(source, padded, 0.0, 5.0, -300.0, float("nan")) < 2e-6


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in (*NOT_PER_ROW, *ONE_ROW)])
def test_rows_of_different_lengths_are_right(name: str, mask: bool) -> None:
    source = operator_case(name, batch="B")
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, mask=mask, per_row=True)
    assert rnnlower.verify(source, padded, trials=1)


@pytest.mark.parametrize("name", NOT_PER_ROW)
def test_operators_that_join_rows_are_refused(name: str) -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match=NOT_PER_ROW[name]):
        rnnlower.pad(operator_case(name, batch="B"), max={"T": MAXIMUM}, per_row=True)


@pytest.mark.parametrize(
    ("interface", "nodes"),
    [
        ("int64[T, 4] x) => (int64[T, 4] z", "z = Div (twelve, x)"),
        ("int64[T, 4] x) => (int64[T, 4] z", "z = Mod (twelve, x)"),
        ("int64[T] x) => (float[T, 5] z", "z = Gather (table, x)"),
        ("int64[T] x) => (float[T] z", "f = Cast <to = 1> (x) t = Neg (x) z = Gather (f, t)"),
        ("int64[T, 5] x) => (float[T, 5] z", "z = GatherElements (table, x)"),
        ("int64[T, 1] x) => (float[T, 5] z", "z = GatherND (table, x)"),
    ],
)
def test_padding_is_no_divisor_and_no_position(interface: str, nodes: str) -> None:
    """Runtimes stop at a division by an integer zero, and at a position that the data does not have."""
    constants = (
        f"int64 twelve = {{12}}, float[{MAXIMUM}, 5] table = {{{', '.join(map(str, range(5 * MAXIMUM)))}}}"
    )
    source = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> main ({interface}) <{constants}> {{ {nodes} }}'
    )
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    whole, fixed = session(source), session(padded)
    shape = whole.get_inputs()[0].shape
    for length in range(1, MAXIMUM + 1):
        x = np.ones([length, *shape[1:]], np.int64)
        (expected,) = whole.run(None, {"x": x})
        for fill in (0, -1000, 1000):
            padding = np.full([MAXIMUM - length, *shape[1:]], fill)
            (actual,) = fixed.run(None, {"x": np.concatenate([x, padding]), "length": np.array([length])})
            assert (actual[:length] == expected).all()


@pytest.mark.parametrize(("op_type", "limit"), [("ReduceMax", 0.5), ("ReduceMin", -0.5)])
def test_booleans_over_time(op_type: str, limit: float) -> None:
    source = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 23]> main (float[T, 4] x) => (bool[4] z)
        <float limit = {{{limit}}}, int64[1] first = {{0}}> {{
            b = Greater (x, limit) z = {op_type} <keepdims = 0> (b, first)
        }}
    """)
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert difference(source, padded, -3.0, 3.0) == 0
