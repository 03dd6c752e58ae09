"""A forecast of a lowering for a target, without the emission."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnnlower.graph.walk import Located, default_opset
from rnnlower.lowering.replacing import EMITTED, LoweredNode
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.lowering_options import LoweringOptions
from rnnlower.passes.pipeline import PIPELINE
from rnnlower.passes.steps import emitting
from rnnlower.passes.steps.work import Work, is_selected
from rnnlower.targets.choosing import KeptNode
from rnnlower.targets.fit import find_misfits
from rnnlower.targets.misfits import Misfit


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The outcome that a lowering for a target would have.

    Attributes:
        lowered: The recurrent nodes that it would lower.
        adapted: The recurrent nodes that it would keep in another form.
        kept: The recurrent nodes that it would keep.
        misfits: The nodes that the target would still not run.
        notes: Its other messages.
    """

    lowered: list[Located]
    adapted: list[LoweredNode]
    kept: list[KeptNode]
    misfits: list[Misfit]
    notes: list[str]


def forecast(model: ir.Model, options: LoweringOptions) -> Forecast:
    """Run all steps of `lower_model` but the emission, and return what it would do.

    The steps change the model, which is unusable afterward. The errors are those of `lower_model`.
    """
    work = Work(model, options)
    for step in PIPELINE[: [step.run for step in PIPELINE].index(emitting.lower_nodes)]:
        if step.is_needed(options):
            step.run(work)
    if work.opset is not None and work.opset < default_opset(work.model):
        ConvertOpsetPass(work.opset, keep=is_selected)(work.model)
    if options.emits:
        for located in (*work.nodes, *work.impossible):
            located.node.meta[EMITTED] = True
    misfits = find_misfits(work.model, work.target, options.semantics, emitted=False)
    return Forecast(work.nodes, work.adapted, work.kept, misfits, work.notes)
