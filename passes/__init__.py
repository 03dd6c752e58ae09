"""Compiler passes over `onnx_ir` models, each usable on its own in an `onnx_ir.passes.Sequential`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rnnlower.passes.adapt_nodes import AdaptNodesPass as AdaptNodesPass
    from rnnlower.passes.constant_inputs import FreezeInitializersPass as FreezeInitializersPass
    from rnnlower.passes.constant_inputs import LegacyConstantsPass as LegacyConstantsPass
    from rnnlower.passes.constant_inputs import SetInputsPass as SetInputsPass
    from rnnlower.passes.convert_opset import ConvertOpsetPass as ConvertOpsetPass
    from rnnlower.passes.declared_sizes import CorrectShapesPass as CorrectShapesPass
    from rnnlower.passes.declared_sizes import FreezeDimsPass as FreezeDimsPass
    from rnnlower.passes.declared_sizes import NameBatchPass as NameBatchPass
    from rnnlower.passes.exact_numbers import KeepNaNPass as KeepNaNPass
    from rnnlower.passes.exact_numbers import SeparateSumsPass as SeparateSumsPass
    from rnnlower.passes.expand_functions import ExpandDefinitionsPass as ExpandDefinitionsPass
    from rnnlower.passes.expand_functions import InlineFunctionsPass as InlineFunctionsPass
    from rnnlower.passes.folding import FoldConstantsPass as FoldConstantsPass
    from rnnlower.passes.folding import FoldWeightsPass as FoldWeightsPass
    from rnnlower.passes.graph_boundaries import CopyOutputsPass as CopyOutputsPass
    from rnnlower.passes.graph_boundaries import PlainLoopInputsPass as PlainLoopInputsPass
    from rnnlower.passes.lift_recurrent import LiftRecurrentPass as LiftRecurrentPass
    from rnnlower.passes.loop_forms import CountIterationsPass as CountIterationsPass
    from rnnlower.passes.loop_forms import WriteScansPass as WriteScansPass
    from rnnlower.passes.lower_recurrent import LowerRecurrentPass as LowerRecurrentPass
    from rnnlower.passes.lower_recurrent import LowerStateOperatorsPass as LowerStateOperatorsPass
    from rnnlower.passes.padding import PadLengthsPass as PadLengthsPass
    from rnnlower.passes.recurrent_forms import AdaptRecurrentPass as AdaptRecurrentPass
    from rnnlower.passes.recurrent_forms import AssumeLinearBeforeResetPass as AssumeLinearBeforeResetPass
    from rnnlower.passes.recurrent_forms import ConformSonnxPass as ConformSonnxPass
    from rnnlower.passes.recurrent_forms import DequantizeRecurrentPass as DequantizeRecurrentPass
    from rnnlower.passes.removing import RemoveNoopsPass as RemoveNoopsPass
    from rnnlower.passes.removing import RemoveUnusedPass as RemoveUnusedPass
    from rnnlower.passes.removing import StripPass as StripPass
    from rnnlower.passes.rows_and_sizes import UnfoldRowsPass as UnfoldRowsPass
    from rnnlower.passes.rows_and_sizes import WidenSizesPass as WidenSizesPass
    from rnnlower.passes.sequences import ResolveSequencesPass as ResolveSequencesPass
    from rnnlower.passes.sequences import StackSequencesPass as StackSequencesPass
    from rnnlower.passes.simpler_control_flow import CaptureStatesPass as CaptureStatesPass
    from rnnlower.passes.simpler_control_flow import TakeBranchesPass as TakeBranchesPass
    from rnnlower.passes.static_shapes import InferTypesPass as InferTypesPass
    from rnnlower.passes.static_shapes import StaticShapesPass as StaticShapesPass
    from rnnlower.passes.streaming import StreamPass as StreamPass
    from rnnlower.passes.unroll_control_flow import UnrollControlFlowPass as UnrollControlFlowPass

_HOMES = {
    "adapt_nodes": "AdaptNodesPass",
    "constant_inputs": "FreezeInitializersPass LegacyConstantsPass SetInputsPass",
    "convert_opset": "ConvertOpsetPass",
    "declared_sizes": "CorrectShapesPass FreezeDimsPass NameBatchPass",
    "exact_numbers": "KeepNaNPass SeparateSumsPass",
    "expand_functions": "ExpandDefinitionsPass InlineFunctionsPass",
    "folding": "FoldConstantsPass FoldWeightsPass",
    "graph_boundaries": "CopyOutputsPass PlainLoopInputsPass",
    "lift_recurrent": "LiftRecurrentPass",
    "loop_forms": "CountIterationsPass WriteScansPass",
    "lower_recurrent": "LowerRecurrentPass LowerStateOperatorsPass",
    "padding": "PadLengthsPass",
    "recurrent_forms": (
        "AdaptRecurrentPass AssumeLinearBeforeResetPass ConformSonnxPass DequantizeRecurrentPass"
    ),
    "removing": "RemoveNoopsPass RemoveUnusedPass StripPass",
    "rows_and_sizes": "UnfoldRowsPass WidenSizesPass",
    "sequences": "ResolveSequencesPass StackSequencesPass",
    "simpler_control_flow": "CaptureStatesPass TakeBranchesPass",
    "static_shapes": "InferTypesPass StaticShapesPass",
    "streaming": "StreamPass",
    "unroll_control_flow": "UnrollControlFlowPass",
}
_MODULE_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)  # The imports above are what a type checker reads.


def __getattr__(name: str) -> Any:
    """Import a pass on first use: a command that needs one does not pay for the others."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"rnnlower.passes.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
