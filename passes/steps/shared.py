"""Steps that several pipelines share: options, opset, warnings, cleaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx_ir.passes.common import LiftConstantsToInitializersPass

from rnnlower import wording
from rnnlower.graph.dynamic_sizes import describe_deciding_inputs
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.versions import needed_opset
from rnnlower.graph.walk import default_opset, display_name, walk
from rnnlower.passes.base import Pass
from rnnlower.passes.constant_inputs import (
    FreezeInitializersPass,
    LegacyConstantsPass,
    SetInputsPass,
    constant_defaults,
)
from rnnlower.passes.convert_opset import convert_to_first_possible
from rnnlower.passes.declared_sizes import CorrectShapesPass, FreezeDimsPass
from rnnlower.passes.folding import FoldConstantsPass
from rnnlower.passes.removing import RemoveNoopsPass, RemoveUnusedPass, StripPass
from rnnlower.passes.rows_and_sizes import UnfoldRowsPass, WidenSizesPass
from rnnlower.passes.simpler_control_flow import CaptureStatesPass, TakeBranchesPass
from rnnlower.passes.steps.work import Step, Work
from rnnlower.recurrent.suspicions import find_other_recurrences, find_suspicions
from rnnlower.wording import call, counted


def freeze_dims(work: Work) -> None:
    """Give open dimensions the sizes that the user knows, as other sizes follow from them.

    Before: inputs have open dimensions. After: those that the user gave are numbers wherever they stand.
    """
    work.apply(FreezeDimsPass(work.options.dims, work.options.input_shapes))


def assume_linear_before_reset(work: Work) -> None:
    """Read every GRU as one of the form that some exporters fail to write.

    Before: GRU nodes of both forms. After: all have linear_before_reset=1.
    """
    # A conversion need not load what gives nodes other forms.
    from rnnlower.passes.recurrent_forms import AssumeLinearBeforeResetPass

    reading = work.apply(AssumeLinearBeforeResetPass())
    work.notes.append(
        f"GRU nodes are read as linear_before_reset=1, as asked for: {reading.changed} had another form"
    )


def warn_of_suspicions(work: Work) -> None:
    """Warn of what looks like a fault of an exporter. The graph stays as it is."""
    work.warnings += find_suspicions(work.model)


def warn_of_other_recurrences(work: Work) -> None:
    """Warn of Loops and Scans that are cells written out by hand. The graph stays as it is."""
    work.warnings += find_other_recurrences(work.model)


def set_inputs(work: Work) -> None:
    """Make constants of inputs whose value the user gives, as what follows from them can be folded.

    Before: all inputs of the source. After: those with a value are constants.
    """
    work.sets = work.apply(SetInputsPass(work.options.sets or {})).values


def freeze_initializers(work: Work) -> None:
    """Take the defaults of inputs as constants, so that what follows from them is known.

    Before: inputs may have an initializer. After: none has, if asked for, or if no caller can override it.
    """
    # Unless asked, keep every input that a caller can override.
    if work.options.freeze or work.model.ir_version < FREE_INITIALIZERS_IR:
        work.notes += work.apply(FreezeInitializersPass()).notes
    elif defaults := constant_defaults(work.model):
        work.notes.append(
            f"{counted(len(defaults), 'graph input')} with an initializer stay, as callers can override "
            f"them; {wording.option('freeze', True)} takes them as constants"
        )


def raise_opset_to_operators(work: Work) -> None:
    """Correct an opset that lacks operators of the model, as onnxruntime's optimizer writes it.

    Before: the opset may lack an operator of the model. After: it has them all, or they are expressed in it.
    """
    needed = needed_opset(work.model)
    if needed == default_opset(work.model):
        return
    work.notes += convert_to_first_possible(work.model, needed, work.facts)
    if work.opset is not None and work.opset < needed:
        work.notes += convert_to_first_possible(work.model, work.opset, work.facts)


def fold(work: Work) -> None:
    """Fold constants, take known branches and remove what never runs, so that less must fit.

    Before: nodes that follow from constants, and Ifs of known condition. After: constants, and a branch each.
    """
    _simplify(work)


def simplify(work: Work) -> None:
    """Fold as `fold` does, and write sizes and layers of rows so that later steps see more.

    Before: sizes in int32, and rows folded into one axis. After: sizes in int64, and rows on all axes.
    """
    _simplify(work, WidenSizesPass(), UnfoldRowsPass())


def _simplify(work: Work, *rewriting: Pass) -> None:
    folding = TakeBranchesPass(), CaptureStatesPass(), FoldConstantsPass(work.lacks)
    for each in (*folding, *rewriting, RemoveNoopsPass(), RemoveUnusedPass()):
        work.apply(each)
    work.notes += work.apply(CorrectShapesPass()).notes


def note_ifs(work: Work) -> None:
    """Note the Ifs that stay, with the inputs that decide them. The graph stays as it is."""
    names: dict[str, list[str]] = {}
    for node, _ in walk(work.model.graph):
        if node.op_type == "If" and not node.domain:
            reason = describe_deciding_inputs(work.model, node.inputs[0])
            names.setdefault(reason, []).append(repr(display_name(node)))
    work.notes += [
        f"If {wording.listed(group)} stay{'s' * (len(group) == 1)}: {reason}"
        for reason, group in names.items()
        if reason
    ]


def simplify_around_ifs(work: Work) -> None:
    """Simplify as `simplify` does, if asked for or if there is an If, of which a branch may never run.

    Before: Ifs of known condition. After: a branch each.
    """
    if work.options.folds or any(
        node.op_type == "If" and not node.domain for node, _ in walk(work.model.graph)
    ):
        simplify(work)


def lift_constants(work: Work) -> None:
    """Make initializers of Constants if the target has no Constant, as a lowering does.

    Before: Constant nodes. After: initializers.
    """

    def count() -> int:
        return sum(node.op_type == "Constant" and not node.domain for node, _ in walk(work.model.graph))

    if "Constant" in work.target.op_types or not (before := count()):
        return
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(work.model)
    work.facts.forget()
    lowering = call("lower", target=work.target.address)
    work.notes.append(
        f"{work.target.name} has no Constant: `{lowering}` makes initializers of "
        f"{counted(before - count(), 'node')}"
    )


def legacy_constants(work: Work) -> None:
    """Make Constants of initializers where the IR version requires that these are inputs.

    Before: initializers that are not inputs, which IR version 3 lacks. After: Constant nodes there.
    """
    work.apply(LegacyConstantsPass())


def strip(work: Work) -> None:
    """Remove names, metadata and doc strings, for the smallest file.

    Before: nodes have names and metadata. After: neither, and nothing has a doc string.
    """
    work.apply(StripPass())


FIX_INPUTS: Sequence[Step[Any, Any]] = (
    Step(freeze_dims, "Later steps know more if sizes are static."),
    Step(set_inputs, "The value fills the shape, which is now known.", when=lambda o: o.sets),
    Step(freeze_initializers, "Later steps know constants.", when=lambda o: o.may_freeze),
)
"""The steps that fix inputs; at a higher IR version, initializers that are not frozen would be defaults."""
