"""Compiler passes over `onnx_ir` models, each usable on its own in an `onnx_ir.passes.Sequential`."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnnlower.passes.adapt_nodes import AdaptNodesPass
    from rnnlower.passes.adapt_recurrent import AdaptRecurrentPass
    from rnnlower.passes.assume_linear import AssumeLinearBeforeResetPass
    from rnnlower.passes.capture_states import CaptureStatesPass
    from rnnlower.passes.conform_sonnx import ConformSonnxPass
    from rnnlower.passes.convert_opset import ConvertOpsetPass
    from rnnlower.passes.copy_outputs import CopyOutputsPass
    from rnnlower.passes.correct_shapes import CorrectShapesPass
    from rnnlower.passes.dequantize_recurrent import DequantizeRecurrentPass
    from rnnlower.passes.expand_definitions import ExpandDefinitionsPass
    from rnnlower.passes.fold_constants import FoldConstantsPass
    from rnnlower.passes.fold_weights import FoldWeightsPass
    from rnnlower.passes.freeze_dims import FreezeDimsPass
    from rnnlower.passes.freeze_initializers import FreezeInitializersPass
    from rnnlower.passes.infer_types import InferTypesPass
    from rnnlower.passes.inline_functions import InlineFunctionsPass
    from rnnlower.passes.keep_nan import KeepNaNPass
    from rnnlower.passes.legacy_constants import LegacyConstantsPass
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass
    from rnnlower.passes.lower_recurrent import LowerRecurrentPass
    from rnnlower.passes.lower_state_operators import LowerStateOperatorsPass
    from rnnlower.passes.pad_lengths import PadLengthsPass
    from rnnlower.passes.plain_loop_inputs import PlainLoopInputsPass
    from rnnlower.passes.remove_noops import RemoveNoopsPass
    from rnnlower.passes.remove_unused import RemoveUnusedPass
    from rnnlower.passes.resolve_sequences import ResolveSequencesPass
    from rnnlower.passes.separate_sums import SeparateSumsPass
    from rnnlower.passes.set_inputs import SetInputsPass
    from rnnlower.passes.static_shapes import StaticShapesPass
    from rnnlower.passes.stream import StreamPass
    from rnnlower.passes.strip import StripPass
    from rnnlower.passes.take_branches import TakeBranchesPass
    from rnnlower.passes.unroll_control_flow import UnrollControlFlowPass

__all__ = [
    "AdaptNodesPass",
    "AdaptRecurrentPass",
    "AssumeLinearBeforeResetPass",
    "CaptureStatesPass",
    "ConformSonnxPass",
    "ConvertOpsetPass",
    "CopyOutputsPass",
    "CorrectShapesPass",
    "DequantizeRecurrentPass",
    "ExpandDefinitionsPass",
    "FoldConstantsPass",
    "FoldWeightsPass",
    "FreezeDimsPass",
    "FreezeInitializersPass",
    "InferTypesPass",
    "InlineFunctionsPass",
    "KeepNaNPass",
    "LegacyConstantsPass",
    "LiftRecurrentPass",
    "LowerRecurrentPass",
    "LowerStateOperatorsPass",
    "PadLengthsPass",
    "PlainLoopInputsPass",
    "RemoveNoopsPass",
    "RemoveUnusedPass",
    "ResolveSequencesPass",
    "SeparateSumsPass",
    "SetInputsPass",
    "StaticShapesPass",
    "StreamPass",
    "StripPass",
    "TakeBranchesPass",
    "UnrollControlFlowPass",
]


def __getattr__(name: str) -> Any:
    """Import a pass on first use: a command that needs one does not pay for the others."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # KeepNaNPass is in keep_nan.py; one file has a shorter name than its pass.
    home = re.sub("(?<=[a-z])(?=[A-Z][a-z])", "_", name.removesuffix("Pass")).lower()
    home = home.removesuffix("_before_reset")
    return getattr(importlib.import_module(f"rnnlower.passes.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
