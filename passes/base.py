"""Common parts of all passes."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.restoring import undone_on_failure

__all__ = ["Pass"]


class Pass(ir.passes.InPlacePass):
    """A pass that does all it is to do, or nothing: after a failure the model is as it was."""

    def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> ir.passes.PassResult:
        model = model_or_result if isinstance(model_or_result, ir.Model) else model_or_result.model
        with undone_on_failure(model):
            return super().__call__(model_or_result)
