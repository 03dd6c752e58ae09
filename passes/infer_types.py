"""Inference of types and shapes of the inputs of recurrent nodes, where the model does not declare them.

Before::

    (float[3, 1, 1] x, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) {
        X = Neg (x)
        Y = RNN <hidden_size = 1> (X, W, R)
    }

After ``InferTypesPass()``::

    (float[3, 1, 1] x, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) <float[3, 1, 1] X> {
        X = Neg (x)
        Y = RNN <hidden_size = 1> (X, W, R)
    }
"""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.passes.base import Pass
from rnnlower.recurrent.typing import infer_input_types


class InferTypesPass(Pass):
    """Notes inferred types and shapes on the inputs of recurrent nodes, and nowhere else.

    Anything that cannot be inferred stays unknown.
    """

    KEEPS_FACTS = True

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        return ir.passes.PassResult(model, modified=infer_input_types(model, self.facts))
