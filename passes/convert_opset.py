"""The pass that converts a model to another opset, or to the first possible one of several."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.arguments import integer
from rnnlower.errors import OpsetError
from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import default_opset
from rnnlower.opset import NodePredicate, OpsetReport, convert_opset
from rnnlower.passes.base import Pass


def _opset_is_target(model: ir.Model, converting: ConvertOpsetPass) -> bool:
    return default_opset(model) == converting.target


class ConvertOpsetPass(Pass):
    """Converts the model to the opset `target` of the default domain.

    Before, at opset 12::

        (float[1, 3] x) => (float[3] y) {
            y = Squeeze <axes = [0]> (x)
        }

    After ``ConvertOpsetPass(13)``::

        (float[1, 3] x) => (float[3] y) {
            axes = Constant <value = int64[1] {0}> ()
            y = Squeeze (x, axes)
        }

    Attributes:
        target: The opset of the result.
        keep: Whether to leave a node as it is, because the caller replaces it.
        report: The report on the run.
    """

    ENSURES = (_opset_is_target,)

    def __init__(self, target: int, keep: NodePredicate | None = None) -> None:
        self.target = integer("opset", target)
        self.keep = keep
        self.report: OpsetReport

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Convert `model` in place.

        Raises:
            OpsetError: Something cannot be expressed in the target opset; the model is unchanged.
        """
        self.report = convert_opset(model, self.target, self.keep)
        return ir.passes.PassResult(model, modified=self.report.changed)


def convert_to_first_possible(
    model: ir.Model, first: int, facts: Facts, *, last: int = 0, keep: NodePredicate | None = None
) -> list[str]:
    """Convert to the first opset, or else to the next one up to the last; return the conversion's notes.

    Raises:
        OpsetError: None of them can.
    """
    refusals = []
    for opset in (first, *range(first + 1, last + 1)):
        conversion = ConvertOpsetPass(opset, keep)
        try:
            conversion(model, facts)
        except OpsetError as error:
            refusals.append(error)
        else:
            return conversion.report.notes
    raise refusals[0]
