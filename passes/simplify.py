"""Simplification of a model by inputs that are set, sizes that are fixed, and constants."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rnnlower.graph.dependence import decided_by
from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import called, walk
from rnnlower.passes.capture_states import CaptureStatesPass
from rnnlower.passes.correct_shapes import CorrectShapesPass
from rnnlower.passes.fold_constants import FoldConstantsPass
from rnnlower.passes.remove_noops import RemoveNoopsPass
from rnnlower.passes.remove_unused import RemoveUnusedPass
from rnnlower.passes.take_branches import TakeBranchesPass


def simplify(
    model: ir.Model, unwanted: Callable[[ir.Node], bool] = lambda node: False, facts: Facts | None = None
) -> list[str]:
    """Replace If nodes of known condition, fold constants and remove unused nodes; return notes.

    Args:
        model: The model, which is changed.
        unwanted: Whether a node must be folded however large the result is, because it cannot stay.
        facts: The facts about the model, if there are any yet.
    """
    facts = facts or Facts(model)
    correcting = CorrectShapesPass()
    simplifying = (TakeBranchesPass(), CaptureStatesPass(), FoldConstantsPass(unwanted), RemoveNoopsPass())
    for each in (*simplifying, RemoveUnusedPass(), correcting):
        each(model, facts)
    return correcting.notes + [
        f"If {called(node)!r} stays: {reason}"
        for node, _ in walk(model.graph)
        if node.op_type == "If" and not node.domain and (reason := decided_by(model, node.inputs[0]))
    ]
