"""The pipeline of lift."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.graph.walk import place_name
from rnnlower.lifting.lifted_nodes import LiftedNode
from rnnlower.passes.command_options import LiftOptions
from rnnlower.passes.lift_recurrent import LiftRecurrentPass
from rnnlower.passes.reports import LiftReport
from rnnlower.passes.steps import lifting_steps, shared
from rnnlower.passes.steps.work import Step, Work, run_steps


@dataclasses.dataclass
class LiftWork(Work):
    """The data that the steps of lift share.

    Attributes:
        lifted: All recurrences that were examined, with the reason for each that was not lifted.
    """

    options: LiftOptions
    lifted: Sequence[LiftedNode] = ()


def lift_model(model: ir.Model, options: LiftOptions) -> LiftReport:
    """Lift the model's recurrences in place. A failure leaves it half changed, so pass a copy.

    Raises:
        OptionError: An option does not fit the model.
    """
    options.report_progress("preparing")
    work = run_steps(LIFT, LiftWork(model, options))
    return LiftReport(nodes=work.lifted, **work.summary())


def _lift(work: LiftWork) -> None:
    """Lift every recurrence that computes an operator, and say why the others stay.

    Before: Loops, Scans and straight lines that compute an LSTM, GRU or RNN. After: these operators.
    """
    work.options.report_progress("lifting")
    options = work.options
    lifting = LiftRecurrentPass(options.nodes, steps=options.steps, semantics=options.semantics)
    work.lifted = work.apply(lifting).lifted
    work.notes += [
        f"{node.form} {place_name(node.path, node.name)!r} stays: {node.reason}"
        for node in work.lifted
        if node.reason is not None
    ]
    if not work.lifted:
        work.notes.append(
            "nothing to lift: there is no Loop, no Scan and no straight line of recurrent cells"
        )


def _legacy_constants(work: LiftWork) -> None:
    """Suit an old IR version, where something was lifted or folded.

    Before: initializers that are not inputs, which IR version 3 lacks. After: Constant nodes there.
    """
    if work.options.folds or any(node.op_type for node in work.lifted):
        shared.legacy_constants(work)


LIFT: Sequence[Step[LiftWork, LiftOptions]] = (
    *shared.FIX_INPUTS,
    Step(shared.simplify, "Conditions of a Loop may be constants.", when=lambda o: o.folds),
    Step(_lift, "It is known which values are constant."),
    Step(shared.note_ifs, "Lifting removes some.", when=lambda o: o.folds),
    Step(_legacy_constants, "In old IR versions every initializer is an input."),
    Step(lifting_steps.note_zero_steps, "Only kept nodes may lose the initial state."),
    Step(shared.strip, "Earlier messages use node names, so stripping is last.", when=lambda o: o.strip),
)
"""The steps of lift, in order."""
