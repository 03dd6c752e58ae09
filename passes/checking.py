"""The pipeline of check, and the forecast of a lowering."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.errors import RnnLowerError
from rnnlower.graph.walk import LocatedNode, count_ops, default_opset
from rnnlower.passes.command_options import CheckOptions
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.pipeline import LOWER
from rnnlower.passes.steps import emitting, preparing, shared
from rnnlower.passes.steps.work import LoweringWork, Step, Work, is_selected, run_steps
from rnnlower.recurrent.finding import find_recurrent, is_stateful
from rnnlower.targets.fit import find_misfits, note_open_inputs, profile_notes
from rnnlower.targets.misfits import Misfit, group_misfits


@dataclasses.dataclass(frozen=True)
class Forecast:
    """The expected result of a lowering.

    Attributes:
        lowered: The names of the nodes that would be lowered.
        adapted: The names of the recurrent nodes that would be adapted.
        kept: The names of the recurrent nodes that would be kept.
        misfits: What the target would still not run.
        left: The same in words, a line for each operator and reason.
        refused: Why the lowering would be refused, if it would.
    """

    lowered: Sequence[str] = ()
    adapted: Sequence[str] = ()
    kept: Sequence[str] = ()
    misfits: Sequence[Misfit] = ()
    left: Sequence[str] = ()
    refused: str | None = None


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """The report on a check.

    Attributes:
        misfits: The nodes that the target does not run.
        recurrent: The recurrent nodes that were checked.
        nodes: The number of all nodes that were checked.
        notes: Messages for the user.
        after: The forecast of a lowering, if it was asked for and something does not fit.
    """

    misfits: list[Misfit]
    recurrent: Sequence[LocatedNode]
    nodes: int
    notes: Sequence[str]
    after: Forecast | None = None


def check_model(model: ir.Model, options: CheckOptions) -> CheckReport:
    """Prepare the model in place, and check it for its target.

    Raises:
        OptionError: A size or value does not fit the model.
    """
    options.report_progress("checking")
    work = run_steps(CHECK, Work(model, options))
    misfits = find_misfits(model, work.target, options.semantics)
    notes = [*work.notes, *profile_notes(model, work.target), *note_open_inputs(model, work.target)]
    return CheckReport(misfits, find_recurrent(model, is_stateful), sum(count_ops(model).values()), notes)


CHECK: Sequence[Step[Work, CheckOptions]] = (
    *shared.FIX_INPUTS,
    Step(preparing.fix_batch, "A lowering does so, too."),
    Step(shared.raise_opset_to_operators, "Later steps would not know an operator that the opset lacks."),
    Step(shared.fold, "Nodes that never run need not fit.", when=lambda o: o.folds),
    Step(shared.note_ifs, "Those of known condition are gone.", when=lambda o: o.folds),
    Step(shared.lift_constants, "Simplifying may leave Constant nodes."),
)
"""The steps of check, in order."""


def forecast(model: ir.Model, options: CheckOptions) -> Forecast:
    """Return what a lowering would do to the model, or why it would refuse it.

    All steps of `lower_model` run but the emission; the model is unusable afterward.
    """
    steps = LOWER[: [step.run for step in LOWER].index(emitting.lower_nodes)]
    names = ("dims", "input_shapes", "sets", "freeze", "semantics")
    try:
        lowering = LoweringOptions(
            "target", target=options.runtime, **{name: getattr(options, name) for name in names}
        )
        work = run_steps(steps, LoweringWork(model, lowering))
        if work.opset is not None and work.opset < default_opset(model):
            ConvertOpsetPass(work.opset, keep=is_selected)(model, work.facts)
    except RnnLowerError as error:
        return Forecast(refused=str(error))
    replaced = {each.node for each in (*work.nodes, *work.state_nodes, *work.impossible) if lowering.emits}
    misfits = find_misfits(model, work.target, options.semantics, emitted=False, skipped=replaced)
    return Forecast(
        [located.name for located in (*work.nodes, *work.state_nodes)],
        [node.name for node in work.adapted],
        [node.name for node in work.kept],
        misfits,
        group_misfits(misfits),
    )
