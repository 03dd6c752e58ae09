"""The order of the passes behind unroll, scan, loop and lower, as a list: `PIPELINE`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rnnlower.errors import OpsetError
from rnnlower.graph.restoring import changes_may_stay
from rnnlower.graph.walk import default_opset
from rnnlower.passes.lowering_options import LoweringOptions, Report, count_ops
from rnnlower.passes.steps import choosing, emitting, preparing
from rnnlower.passes.steps.work import Tell, Work, forget_marks
from rnnlower.targets import Target
from rnnlower.targets.plan import wants_numbers

__all__ = ["PIPELINE", "LoweringOptions", "Report", "Step", "lower_model"]


@changes_may_stay()
def lower_model(model: ir.Model, options: LoweringOptions, tell: Tell = lambda *_: None) -> Report:
    """Lowers the recurrent nodes of the model in place; ``tell`` hears what is being done, and how far it is.

    A failure leaves the model half lowered: it is to be a copy.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: A recurrent node breaks its operator's text.
        UnsupportedModelError: A node asks for what is refused, or an unrolled one has no static length.
        OpsetError: The model cannot be brought to the opset that is asked for or needed.
    """
    work = Work(model, options, tell)
    ops_before = count_ops(model)
    try:
        for step in PIPELINE:
            if step.when(options):
                step.run(work)
    except OpsetError as error:
        _advise_on_target(error, options.target)
        raise
    finally:
        forget_marks(model)
    return Report(
        [*work.adapted, *work.lowered],
        default_opset(model),
        ops_before,
        count_ops(model),
        work.notes,
        None if options.target is None else options.target.name,
        work.kept,
        work.sets,
        work.warnings,
        work.rounds,
        work.dequantized,
    )


def _advise_on_target(error: OpsetError, target: Target | None) -> None:
    """An opset that the target does not take is no way out."""
    if target is None or error.opset is None:
        return
    first, last = target.opset.range
    if error.opset > last:
        error.advise(
            f"opset {error.opset} has it, but target {target.name} takes {first} to {last}: "
            "choose a target that takes more, or take the operator out of the model"
        )


def _always(options: LoweringOptions) -> bool:
    return True


def _emits(options: LoweringOptions) -> bool:
    return options.emits


def _folds(options: LoweringOptions) -> bool:
    return options.folds


def _has_target(options: LoweringOptions) -> bool:
    return options.target is not None


def _emits_for_target(options: LoweringOptions) -> bool:
    return _has_target(options) and options.emits


def _folds_for_target(options: LoweringOptions) -> bool:
    return _has_target(options) and options.folds


def _adapts(options: LoweringOptions) -> bool:
    return _emits_for_target(options) and options.native != "lower"


def _has_profile(options: LoweringOptions) -> bool:
    return not options.emits


def _may_be_impossible(options: LoweringOptions) -> bool:
    return bool(options.dims or options.input_shapes) and options.emits


def _needs_lengths(options: LoweringOptions) -> bool:
    if options.strategy == "unroll":
        return True
    return options.target is not None and options.emits and wants_numbers(options.target)


def _may_waste_factor(options: LoweringOptions) -> bool:
    return _has_target(options) and options.unroll_factor != 1


def _sets_inputs(options: LoweringOptions) -> bool:
    return bool(options.sets)


def _unrolls_control_flow(options: LoweringOptions) -> bool:
    return bool(options.unrolls)


def _dequantizes(options: LoweringOptions) -> bool:
    return options.dequantize


def _assumes_linear(options: LoweringOptions) -> bool:
    return options.assume_linear_before_reset


@dataclasses.dataclass(frozen=True)
class Step:
    """An entry of the pipeline. The contract of what it does stands with the function.

    Attributes:
        run: What it does.
        reason: Why it stands where it stands.
        when: Whether it is wanted.
    """

    run: Callable[[Work], None]
    reason: str
    when: Callable[[LoweringOptions], bool] = _always


PIPELINE: Sequence[Step] = (
    Step(preparing.select_nodes, "Nodes have the names that `inspect` shows only before anything moves."),
    Step(preparing.freeze_dims, "What follows is easier to tell where sizes are numbers."),
    Step(preparing.assume_linear_before_reset, "What follows reads the attribute.", when=_assumes_linear),
    Step(
        preparing.warn_of_suspicions,
        "Names are still those that the user knows, and fixed sizes excuse some.",
    ),
    Step(preparing.set_inputs, "A value fills the shape that is now known.", when=_sets_inputs),
    Step(
        preparing.open_to_target,
        "A model that the target takes in no form is refused first.",
        when=_has_target,
    ),
    Step(
        preparing.raise_opset,
        "A model too old for what is written here moves to the first opset that suffices.",
    ),
    Step(
        preparing.inline_functions,
        "Only a call knows the attributes, shapes and constants of a node in a function.",
    ),
    Step(preparing.expand_definitions, "Definitions hold Scans, and what folds.", when=_folds_for_target),
    Step(preparing.unroll_control_flow, "Iterations tell sizes and constants.", when=_unrolls_control_flow),
    Step(preparing.resolve_sequences, "Sequences are whole once no loop fills them.", when=_folds_for_target),
    Step(preparing.simplify_model, "What never runs need not be lowered, nor fit.", when=_folds),
    Step(preparing.dequantize_recurrent, "A target may run the float operator.", when=_dequantizes),
    Step(
        preparing.adapt_nodes,
        "Other forms need sizes, and what is folded needs no form.",
        when=_folds_for_target,
    ),
    Step(
        preparing.set_impossible_aside,
        "Branches that inputs of the given shapes must not take need not make sense for them.",
        when=_may_be_impossible,
    ),
    Step(
        choosing.settle_native,
        "A node's types and sizes, now known, decide whether the target runs it.",
        when=_has_target,
    ),
    Step(choosing.adapt_recurrent, "What runs as it is needs nothing around it.", when=_adapts),
    Step(
        choosing.warn_of_other_recurrences,
        "Loops of the model's own are still told from those of a lowering.",
    ),
    Step(choosing.read_nodes, "What breaks an operator's text is refused before work is spent on it."),
    Step(
        choosing.conform_to_profile,
        "A profile keeps the recurrent nodes, and changes how they are written.",
        when=_has_profile,
    ),
    Step(
        choosing.fold_weights,
        "Weights that are cut and joined from constants can be packed anew.",
        when=_emits,
    ),
    Step(choosing.fix_lengths, "Straight lines need the number of steps.", when=_needs_lengths),
    Step(choosing.warn_of_forgotten_states, "Whether a node runs one step shows once lengths are numbers."),
    Step(
        choosing.plan_nodes,
        "Strategy and opset are chosen from all that is now known of a node.",
        when=_emits,
    ),
    Step(emitting.reach_forms, "The forms of the plans must exist before they are emitted.", when=_emits),
    Step(emitting.lower_nodes, "Everything before was for this.", when=_emits),
    Step(emitting.legacy_constants, "Old IR versions have no initializers that are no inputs.", when=_emits),
    Step(
        emitting.return_to_asked,
        "Forms are written at the opset that they need; many exist in other words.",
        when=_emits,
    ),
    Step(emitting.require_fit, "The target's data and the forms must agree.", when=_emits_for_target),
    Step(emitting.declare_outputs, "What gives the outputs is final.", when=_folds_for_target),
    Step(emitting.tell_unused_factor, "An option that changed nothing is no secret.", when=_may_waste_factor),
    Step(emitting.tell_misfits, "What is left is judged in its final form.", when=_has_target),
)
"""What a lowering does, in order."""
