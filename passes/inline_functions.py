"""Inlining of the model-local functions that hold the nodes to be lowered.

The attributes, shapes and constants that a lowering needs are only known at the call.

Before::

    (float[3, 1, 1] X, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) {
        Y = own.Layer (X, W, R)
    }
    <domain: "own", opset_import: ["" : 17]>
    Layer (x, w, r) => (y) {
        h = Neg (x)
        y = RNN <hidden_size = 1> (h, w, r)
    }

After ``InlineFunctionsPass()``::

    (float[3, 1, 1] X, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) {
        h = Neg (X)
        Y = RNN <hidden_size = 1> (h, W, R)
    }
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rnnlower.graph.inlining import functions_with, inline_functions
from rnnlower.passes.base import Pass
from rnnlower.recurrent.finding import is_recurrent


def _no_function_is_wanted(model: ir.Model, inlining: InlineFunctionsPass) -> bool:
    return not functions_with(model, inlining._wanted)


class InlineFunctionsPass(Pass):
    """Inlines the functions that hold a wanted node, or call one that does, and removes those functions.

    Args:
        wanted: Whether to inline the function of a node; by default, if the node is recurrent.

    Attributes:
        uncalled: The functions that were removed because nothing called them.
    """

    ENSURES = (_no_function_is_wanted,)

    def __init__(self, wanted: Callable[[ir.Node], bool] = is_recurrent) -> None:
        super().__init__()
        self._wanted = wanted
        self.uncalled: list[ir.Function] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Inline the functions.

        Raises:
            InvalidModelError: The functions call each other in a circle, or a call does not fit its function.
            OpsetError: A function imports another version of a domain than the model.
        """
        functions = functions_with(model, self._wanted)
        if functions:
            self.uncalled = inline_functions(model, functions)
        return ir.passes.PassResult(model, modified=bool(functions))
