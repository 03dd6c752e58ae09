"""Compiler passes over `onnx_ir` models, each usable by itself in an `onnx_ir.passes.Sequential`."""

from __future__ import annotations

from rnnlower.passes.conform_sonnx import ConformSonnxPass
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.fold_weights import FoldWeightsPass
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.infer_types import InferTypesPass
from rnnlower.passes.inline_functions import InlineFunctionsPass
from rnnlower.passes.legacy_constants import LegacyConstantsPass
from rnnlower.passes.lower_recurrent import LowerRecurrentPass
from rnnlower.passes.static_shapes import StaticShapesPass

__all__ = [
    "ConformSonnxPass",
    "ConvertOpsetPass",
    "FoldWeightsPass",
    "FreezeDimsPass",
    "InferTypesPass",
    "InlineFunctionsPass",
    "LegacyConstantsPass",
    "LowerRecurrentPass",
    "StaticShapesPass",
]
