"""The passes used on their own, in a Sequential of the user."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.passes import (
    FoldConstantsPass,
    FoldWeightsPass,
    FreezeDimsPass,
    InferTypesPass,
    InlineFunctionsPass,
    LowerRecurrentPass,
    RemoveUnusedPass,
    StaticShapesPass,
)

TEXT = """
    <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    main (float[T, 1, 3] X, float[1, 4, 3] W, float[1, 4, 4] R) => (float[T, 1, 1, 4] Y)
    {
        Y = local.encoder (X, W, R)
    }
    <domain: "local", opset_import: ["" : 17]>
    encoder (x, w, r) => (y)
    {
        n = Neg (x)
        y = RNN <hidden_size = 4> (n, w, r)
    }
"""


@pytest.mark.parametrize(("strategy", "dims"), [("scan", {}), ("loop", {}), ("unroll", {"T": 5})])
def test_a_sequence_of_passes_lowers_a_model(strategy: str, dims: dict[str, int]) -> None:
    own = ir.from_onnx_text(TEXT)
    passes = ir.passes.Sequential(
        FreezeDimsPass(dims, {}),
        InlineFunctionsPass(),
        FoldWeightsPass(),
        InferTypesPass(),
        StaticShapesPass(),
        LowerRecurrentPass(strategy),
    )
    assert passes(own).modified
    lowered = ir.to_proto(own)
    onnx.checker.check_model(lowered, full_check=True)
    assert not rnnlower.inspect(lowered)
    assert rnnlower.verify(ir.to_proto(ir.from_onnx_text(TEXT)), lowered)


def test_a_model_may_import_the_default_domain_by_its_long_name() -> None:
    text = TEXT.replace('["" : 17', '["ai.onnx" : 17')
    own = ir.from_onnx_text(text)
    ir.passes.Sequential(RemoveUnusedPass(), InlineFunctionsPass(), LowerRecurrentPass("scan"))(own)
    assert own.opset_imports[""] == 17
    assert not rnnlower.inspect(own)


COMPUTED = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[B, T, 3] x, float[1, 4, 3] W, float[1, 4, 4] R) => (float[T, 1, B, 4] Y)
    {
        sizes = Shape (x)
        same = Reshape (x, sizes)
        steps = Transpose <perm = [1, 0, 2]> (same)
        n = Neg (steps)
        Y = RNN <hidden_size = 4> (n, W, R)
    }
"""


def test_a_length_that_follows_from_frozen_shapes_needs_no_pass_of_its_own() -> None:
    own = ir.from_onnx_text(COMPUTED)
    passes = ir.passes.Sequential(
        FreezeDimsPass({"B": 1, "T": 5}), FoldConstantsPass(), LowerRecurrentPass("unroll")
    )
    passes(own)
    lowered = ir.to_proto(own)
    assert not rnnlower.inspect(lowered)
    assert rnnlower.verify(ir.to_proto(ir.from_onnx_text(COMPUTED)), lowered)


def test_a_length_that_is_open_is_asked_for_and_nothing_changes() -> None:
    own = ir.from_onnx_text(COMPUTED)
    FreezeDimsPass({"B": 1})(own)
    before = ir.to_proto(own).SerializeToString()
    with pytest.raises(rnnlower.UnsupportedModelError, match=r'dims=\{"T": 16\}'):
        LowerRecurrentPass("unroll")(own)
    assert ir.to_proto(own).SerializeToString() == before


def test_a_node_in_a_function_is_refused_by_name() -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"local::encoder/RNN_0.*InlineFunctionsPass"):
        LowerRecurrentPass("scan")(ir.from_onnx_text(TEXT))
