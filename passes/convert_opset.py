"""The pass that moves a model to another opset.

Before, at opset 12::

    (float[1, 3] x) => (float[3] y) {
        y = Squeeze <axes = [0]> (x)
    }

After ``ConvertOpsetPass(13)``::

    (float[1, 3] x) => (float[3] y) {
        axes = Constant <value = int64[1] {0}> ()
        y = Squeeze (x, axes)
    }
"""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.arguments import integer
from rnnlower.graph.walk import default_opset
from rnnlower.opset import NodePredicate, OpsetReport, convert_opset
from rnnlower.passes.base import Pass


def _opset_is_target(model: ir.Model, converting: ConvertOpsetPass) -> bool:
    return default_opset(model) == converting.target


class ConvertOpsetPass(Pass):
    """Moves the model to the opset `target` of the default domain.

    Attributes:
        target: The opset of the result.
        keep: Whether to leave a node as it is, because the caller replaces it.
        report: The report on the last run.
    """

    ENSURES = (_opset_is_target,)

    def __init__(self, target: int, keep: NodePredicate | None = None) -> None:
        super().__init__()
        self.target = integer("opset", target)
        self.keep = keep
        self.report: OpsetReport | None = None

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Convert `model` in place.

        Raises:
            OpsetError: Something cannot be expressed in the target opset; the model is unchanged.
        """
        self.report = convert_opset(model, self.target, self.keep)
        return ir.passes.PassResult(model, modified=self.report.changed)
