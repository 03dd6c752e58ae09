"""Types and shapes of what recurrent nodes read, where the model does not write them down.

Before::

    t = Transpose(x)              # no type, no shape
    Y = LSTM(t, W, R)

After::

    t = Transpose(x)              # float[4, N, 128]
    Y = LSTM(t, W, R)
"""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.recurrent.typing import infer_input_types

__all__ = ["InferTypesPass"]


class InferTypesPass(ir.passes.InPlacePass):
    """Notes inferred types and shapes on the inputs of recurrent nodes, and nowhere else.

    What cannot be inferred stays unknown.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, modified=infer_input_types(model))
