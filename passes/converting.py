"""The pipeline of convert."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.opset import OpsetReport
from rnnlower.passes.command_options import ConvertOptions
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.steps import shared
from rnnlower.passes.steps.work import Step, Work, is_selected, run_steps, select
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.state_operators import has_sizes, is_state_operator, parse_state_operators


@dataclasses.dataclass
class ConvertWork(Work):
    """The data that the steps of convert share."""

    options: ConvertOptions
    report: OpsetReport = dataclasses.field(init=False)


def convert_model(model: ir.Model, options: ConvertOptions) -> OpsetReport:
    """Convert the model in place. A failure leaves it half changed, so pass a copy.

    Raises:
        OptionError: A value does not fit the model.
        OpsetError: The model has something that this version cannot express.
    """
    options.report_progress("converting")
    work = run_steps(CONVERT, ConvertWork(model, options))
    return dataclasses.replace(work.report, notes=[*work.notes, *work.report.notes], sets=work.sets)


def _convert(work: ConvertWork) -> None:
    """Convert the model to the requested opset.

    Before: the opset of the source. After: the requested one.
    """
    work.report = work.apply(ConvertOpsetPass(work.options.opset, keep=is_selected)).report


def _select_state_operators(work: ConvertWork) -> None:
    """Mark the operators that the requested opset lacks; their definitions fail where there are no steps.

    Before: LinearAttention and CausalConvWithState. After: those of known sizes are marked.
    """
    located = [
        each
        for each in find_recurrent(work.model, is_state_operator)
        if not each.node.domain and not each.path.startswith("function:")
    ]
    work.nodes = [each.located for each in parse_state_operators(located, work.facts) if has_sizes(each)]
    for each in work.nodes:
        select(each)


def _lower_state_operators(work: ConvertWork) -> None:
    """Lower the marked operators, which the requested opset lacks.

    Before: LinearAttention and CausalConvWithState in an opset without them. After: primitive operators.
    """
    if not work.nodes:
        return
    # Other conversions need not load what lowers.
    from rnnlower.passes.steps.stateful import lower_for_older_opset

    lower_for_older_opset(work)


CONVERT: Sequence[Step[ConvertWork, ConvertOptions]] = (
    Step(shared.set_inputs, "Later steps know constants.", when=lambda o: o.sets),
    Step(shared.freeze_initializers, "Later steps know constants.", when=lambda o: o.may_freeze),
    Step(shared.fold, "Nodes that never run need not be converted.", when=lambda o: o.folds),
    Step(shared.note_ifs, "Those of known condition are gone.", when=lambda o: o.folds),
    Step(
        shared.legacy_constants,
        "In old IR versions every initializer is an input.",
        when=lambda o: o.changes_inputs,
    ),
    Step(
        _select_state_operators,
        "The definitions that a conversion would take are slower, and need a step.",
        when=lambda o: o.lacks_state_operators,
    ),
    Step(_convert, "Nodes that need no conversion are gone."),
    Step(
        _lower_state_operators,
        "Operators are written in the opset that they are to have.",
        when=lambda o: o.lacks_state_operators,
    ),
    Step(shared.strip, "Earlier messages use node names, so stripping is last.", when=lambda o: o.strip),
)
"""The steps of convert, in order."""
