"""Lowering to a profile, which keeps the recurrent nodes in a prescribed form."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import Located
from rnnlower.lowering.replacing import LoweredNode
from rnnlower.passes.conform_sonnx import ConformSonnxPass
from rnnlower.passes.fold_weights import FoldWeightsPass
from rnnlower.passes.infer_types import InferTypesPass
from rnnlower.passes.static_shapes import StaticShapesPass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.sonnx import departures

_BEHIND_X = range(1, 8)


def conform(model: ir.Model, nodes: Sequence[Located], facts: Facts) -> tuple[list[LoweredNode], list[str]]:
    """Make the nodes conform to SONNX; return reports on them, and notes.

    Raises:
        UnsupportedModelError: A node departs from the profile in a way that cannot be corrected.
    """
    folding = FoldWeightsPass([located.node for located in nodes], positions=_BEHIND_X, may_grow=True)
    folding(model, facts)
    InferTypesPass()(model, facts)
    found = [departure for located in nodes for departure in departures(located)]
    if any(departure.subject == "batch_size" and departure.level == "error" for departure in found):
        StaticShapesPass(nodes)(model, facts)
    conforming = ConformSonnxPass(nodes)
    conforming(model, facts)
    notes = [str(note) for located in find_recurrent(model) for note in departures(located)]
    return conforming.conformed, notes
