"""The pass that moves a model to another opset, and the moves of a lowering."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from rnnlower.arguments import integer
from rnnlower.errors import OpsetError
from rnnlower.graph.facts import Facts
from rnnlower.graph.inlining import functions_with, inline_functions
from rnnlower.graph.versions import needed_opset
from rnnlower.graph.walk import Located, default_opset
from rnnlower.lowering import LAST_OPSET
from rnnlower.opset import NodePredicate, OpsetReport, convert_opset
from rnnlower.passes.base import Pass


def _opset_is_target(model: ir.Model, converting: ConvertOpsetPass) -> bool:
    return default_opset(model) == converting.target


class ConvertOpsetPass(Pass):
    """Moves the model to the opset `target` of the default domain.

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
        report: The report on the last run.
    """

    ENSURES = (_opset_is_target,)

    def __init__(self, target: int, keep: NodePredicate | None = None) -> None:
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


def move(
    model: ir.Model, opsets: Iterable[int], facts: Facts, keep: NodePredicate | None = None
) -> list[str]:
    """Convert the model to the first of the opsets that can express it; return the conversion's notes.

    Raises:
        OpsetError: None of them can.
    """
    refusals = []
    for opset in opsets:
        conversion = ConvertOpsetPass(opset, keep)
        try:
            conversion(model, facts)
        except OpsetError as error:
            refusals.append(error)
        else:
            return [] if conversion.report is None else conversion.report.notes
    raise refusals[0]


def move_to_operators(model: ir.Model, facts: Facts, asked: int | None = None) -> list[str]:
    """Convert a model whose opset lacks one of its operators to the first that has them all; return notes.

    From there to the opset that is asked for, if that lacks it, too.

    Raises:
        OpsetError: The operator cannot be expressed in the opset that is asked for.
    """
    needed = needed_opset(model)
    if needed == default_opset(model):
        return []
    notes = move(model, [needed], facts)
    return notes if asked is None or asked >= needed else notes + move(model, [asked], facts)


def reach(model: ir.Model, asked: int, needs: Mapping[Located, Mapping[str, int]], facts: Facts) -> list[str]:
    """Convert the lowered model to a lower opset than that of its new nodes; return notes.

    Raises:
        OpsetError: A new node cannot be expressed there.
    """
    lowest = default_opset(model)
    for opset in range(asked, lowest):
        with contextlib.suppress(OpsetError):
            notes = move(model, [opset], facts)
            if opset == asked:
                return notes
            lowest = opset
            break
    located, what = next(
        (located, what) for located, each in needs.items() for what, opset in each.items() if opset >= lowest
    )
    raise OpsetError(
        f"its replacement ({what}) cannot be expressed in opset {asked}",
        node=located,
        remedy=f"ask for opset {lowest} or higher",
        opset=lowest,
    )


def inline(model: ir.Model, wanted: NodePredicate, facts: Facts) -> list[str]:
    """Inline the functions that hold a wanted node, at one opset for all; return notes."""
    opset = default_opset(model)
    functions = functions_with(model, wanted)
    versions = {opset, *(function.opset_imports.get("", opset) for function in functions)}
    # An unknown version is refused at once.
    highest = min(max(versions), max(LAST_OPSET, opset))
    notes = move(model, range(opset, highest + 1), facts) if len(versions) > 1 else []
    if not (functions := functions_with(model, wanted)):
        return notes
    uncalled = inline_functions(model, functions)
    facts.forget()
    return notes + [
        f"function {function.domain}::{function.name} is never called; it and its recurrent nodes are removed"
        for function in uncalled
    ]
