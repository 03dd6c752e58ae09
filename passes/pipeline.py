"""The order of the passes of unroll, scan, loop and lower, as the list `LOWER`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from rnnlower.errors import OpsetError
from rnnlower.graph.walk import LocatedNode, walk_all
from rnnlower.lowering.node_emitter import Listener
from rnnlower.lowering.replacing import EMITTED
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.reports import Report
from rnnlower.passes.steps import emitting, lifting_steps, planning, preparing, shared, stateful
from rnnlower.passes.steps.work import LoweringWork, Step, deselect, is_selected, run_steps


def lower_model(
    model: ir.Model, options: LoweringOptions, listen: Callable[[LocatedNode], Listener] | None = None
) -> Report:
    """Lower the recurrent nodes of the model in place. A failure leaves it half lowered, so pass a copy.

    Args:
        listen: Returns the listener for a node, which receives the roles of the values in its steps.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: A recurrent node breaks the ONNX spec.
        UnsupportedModelError: A node uses an unsupported feature, or an unrolled one has no static length.
        OpsetError: The model cannot be converted to the opset that is requested or needed.
    """
    target = options.runtime
    try:
        work = run_steps(LOWER, LoweringWork(model, options, listen=listen))
    except OpsetError as error:
        if target is not None and error.opset is not None and error.opset > target.opset.range[1]:
            # The target does not support the opset that the remedy asks for.
            first, last = target.opset.range
            error.advise(
                f"opset {error.opset} has it, but target {target.name} takes {first} to {last}: "
                "choose a target that takes more, or take the operator out of the model"
            )
        raise
    finally:
        _clear_marks(model)
    return Report(
        nodes=[*work.adapted, *work.lowered],
        target=None if target is None else target.name,
        kept=work.kept,
        **work.summary(),
    )


def _clear_marks(model: ir.Model) -> None:
    """Remove the marks of the steps, which another lowering would take for its own."""
    for node, _ in walk_all(model):
        node.meta.pop(EMITTED, None)
        if is_selected(node):
            deselect(node)


LOWER: Sequence[Step[LoweringWork, LoweringOptions]] = (
    Step(preparing.determine_opset, "A model whose opset is too new is refused first."),
    Step(
        shared.assume_linear_before_reset,
        "The assumption concerns the exporter's nodes, not lifted ones.",
        when=lambda o: o.assume_linear_before_reset,
    ),
    *shared.FIX_INPUTS,
    Step(
        preparing.fix_batch,
        "A warning asks for it, and targets may take static sizes only.",
        when=lambda o: o.target,
    ),
    Step(
        shared.warn_of_suspicions,
        "Fixed sizes make some warnings unnecessary, and what lifting writes is no exporter's fault.",
    ),
    Step(lifting_steps.lift, "Lifted nodes can be selected.", when=lambda o: o.lift),
    Step(
        lifting_steps.lift_lines,
        "Steps inside a lifted Loop are not a straight line.",
        when=lambda o: o.lifts_lines,
    ),
    Step(
        lifting_steps.write_scans,
        "Loops that compute an operator have been lifted.",
        when=lambda o: o.target and o.lift,
    ),
    Step(
        lifting_steps.simplify_loops, "Loops that compute an operator have been lifted.", when=lambda o: o.max
    ),
    Step(preparing.pad, "The added nodes are lowered, too.", when=lambda o: o.max),
    Step(preparing.select_nodes, "Nodes only have the names that `inspect` shows before anything is moved."),
    Step(
        preparing.prepare_model_format,
        "Refuse models the target cannot load, before any work.",
        when=lambda o: o.target,
    ),
    Step(shared.raise_opset_to_operators, "Later steps would not know an operator that the opset lacks."),
    Step(
        preparing.raise_opset,
        "A model too old for the emitted ops is converted to the first opset that suffices.",
    ),
    Step(
        preparing.inline_functions,
        "The attributes, shapes and constants of a node in a function are only known at the call.",
    ),
    Step(
        preparing.expand_definitions,
        "Definitions contain Scans and constants, and no size is known after an operator of another domain.",
        when=lambda o: o.target and o.folds,
    ),
    Step(preparing.unroll_control_flow, "Unrolling makes sizes known.", when=lambda o: o.may_unroll),
    Step(
        preparing.resolve_sequences,
        "The elements of a sequence are known once no loop inserts them.",
        when=lambda o: o.target and o.folds,
    ),
    Step(
        preparing.simplify_around_nodes,
        "Nodes that never run need not be lowered, nor fit.",
        when=lambda o: o.folds,
    ),
    Step(
        preparing.name_batch,
        "A runtime that follows names knows then that these sizes are equal.",
        when=lambda o: o.target and o.folds,
    ),
    Step(
        preparing.drop_zero_states,
        "More runtimes run a node without initial states, and its first step is shorter.",
        when=lambda o: o.fold is not False,
    ),
    Step(shared.note_ifs, "Those of known condition are gone.", when=lambda o: o.folds),
    Step(preparing.dequantize_recurrent, "A target may run the float operator.", when=lambda o: o.dequantize),
    Step(
        preparing.adapt_nodes,
        "Other forms need known sizes, and folded nodes need no form.",
        when=lambda o: o.target and o.folds,
    ),
    Step(
        preparing.set_aside_impossible,
        "Branches that inputs of the given shapes must not take may be invalid for them.",
        when=lambda o: o.fixes_sizes and o.emits,
    ),
    Step(
        planning.choose_native,
        "A node's types and sizes, now known, decide whether the target runs it.",
        when=lambda o: o.target,
    ),
    Step(
        planning.adapt_recurrent,
        "A node that runs as it is needs nothing around it.",
        when=lambda o: o.target and o.emits,
    ),
    Step(stateful.choose_state_kernels, "As for recurrent nodes.", when=lambda o: o.target and o.emits),
    Step(
        shared.warn_of_other_recurrences,
        "The model's own Loops can still be distinguished from emitted ones.",
    ),
    Step(planning.check_nodes, "A node that breaks the ONNX spec is refused before work is spent on it."),
    Step(
        planning.conform_to_profile,
        "A profile keeps the recurrent nodes, in another form.",
        when=lambda o: o.runtime is not None and o.runtime.profile,
    ),
    Step(
        planning.fold_weights,
        "Weights that are cut and joined from constants can be folded into new constants.",
        when=lambda o: o.emits,
    ),
    Step(
        planning.make_lengths_static,
        "Straight lines need the number of steps.",
        when=lambda o: o.emits and o.needs_lengths,
    ),
    Step(planning.warn_of_forgotten_states, "Once lengths are static, nodes of a single step are known."),
    Step(
        planning.plan_nodes,
        "Strategy and opset are chosen with all that is now known of a node.",
        when=lambda o: o.emits,
    ),
    Step(
        emitting.raise_opset_for_plans,
        "The opset must have the planned forms before they are emitted.",
        when=lambda o: o.emits,
    ),
    Step(emitting.lower_nodes, "All previous steps prepare this one.", when=lambda o: o.emits),
    Step(
        stateful.lower_state_operators,
        "Sizes are final, and the model has the opset that the result is to have, if it can.",
        when=lambda o: o.emits,
    ),
    Step(
        shared.legacy_constants, "In old IR versions every initializer is an input.", when=lambda o: o.emits
    ),
    Step(
        emitting.restore_requested_opset,
        "The ops were emitted at the opset that they need; many can be expressed at a lower one.",
        when=lambda o: o.emits,
    ),
    Step(
        emitting.separate_sums,
        "Simplifying would remove the Max of two equal values; the target may need it to run the ops.",
        when=lambda o: o.target and o.emits,
    ),
    Step(
        emitting.require_fit,
        "The emitted ops must agree with the target's data.",
        when=lambda o: o.target and o.emits,
    ),
    Step(
        emitting.share_constants,
        "The nodes that read the constants are final.",
        when=lambda o: o.emits and o.runtime is not None and o.runtime.ops.copies_constants,
    ),
    Step(
        emitting.fold_constants,
        "The emitted ops follow from constants, too, if all lengths are 0.",
        when=lambda o: o.folds and o.emits and o.runtime is not None and o.runtime.ops.loses_constant_axes,
    ),
    Step(
        emitting.keep_nan,
        "Emitted ops lose NaN, too, and no later step looks for the forms of the operators.",
        when=lambda o: o.folds and o.emits and o.runtime is not None and o.runtime.ops.loses_nan,
    ),
    Step(
        emitting.plain_loop_inputs,
        "Simplifying would remove the Squeeze of a scalar.",
        when=lambda o: o.emits and o.runtime is not None and o.runtime.control_flow.keeps_gathered_axis,
    ),
    Step(
        emitting.copy_outputs,
        "A later step could remove a Cast to the same type.",
        when=lambda o: o.target and o.emits,
    ),
    Step(
        emitting.declare_outputs,
        "The nodes that produce the outputs are final.",
        when=lambda o: o.target and o.folds,
    ),
    Step(emitting.note_unused_factor, "An option without effect is reported.", when=lambda o: o.target),
    Step(
        emitting.note_misfits, "The remaining nodes are checked in their final form.", when=lambda o: o.target
    ),
    Step(lifting_steps.note_zero_steps, "Only kept nodes may lose the initial state.", when=lambda o: o.lift),
    Step(shared.strip, "Earlier messages use node names, so stripping is last.", when=lambda o: o.strip),
)
"""The steps of a lowering, in order."""
