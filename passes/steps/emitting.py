"""Steps that replace the recurrent nodes and check the rest."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OpsetError, UnsupportedModelError
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import prepend
from rnnlower.graph.walk import default_opset, place_name
from rnnlower.lowering.replacing import LoweredNode
from rnnlower.passes.convert_opset import ConvertOpsetPass, convert_to_first_possible
from rnnlower.passes.declared_sizes import CorrectShapesPass
from rnnlower.passes.exact_numbers import KeepNaNPass, SeparateSumsPass
from rnnlower.passes.folding import FoldConstantsPass
from rnnlower.passes.graph_boundaries import CopyOutputsPass, PlainLoopInputsPass
from rnnlower.passes.lower_recurrent import LowerRecurrentPass
from rnnlower.passes.steps.planning import preferences
from rnnlower.passes.steps.work import LoweringWork, is_selected
from rnnlower.targets.choosing import KeptNode
from rnnlower.targets.fit import find_misfits, require_emitted_fit
from rnnlower.targets.misfits import group_misfits
from rnnlower.targets.native import find_repeating_op


def raise_opset_for_plans(work: LoweringWork) -> None:
    """Raise the opset for the replacements.

    Before: the opset may lack operators of the plans. After: it has them.
    """
    model, asked = work.model, work.opset or default_opset(work.model)
    written = max([asked, *(opset for plan in work.plans.values() for opset in plan.needs.values())])
    if asked < written and work.opset is not None:
        # The rest of the model must be convertible back: refused here, it has the names that the user knows.
        ConvertOpsetPass(asked, keep=is_selected)(model.clone())
    if written != default_opset(model):
        work.notes += convert_to_first_possible(model, written, work.facts, keep=is_selected)


def lower_nodes(work: LoweringWork) -> None:
    """Replace each recurrent node by primitive operators, as it was planned.

    Before: recurrent nodes with a plan. After: the ops of their plans.
    """
    lowering = LowerRecurrentPass(
        work.plans,
        work.nodes,
        semantics=work.options.semantics,
        impossible=work.impossible,
        dialect=work.options.runtime,
        compute_type=preferences(work).compute_type,
        tell=work.options.report_progress,
        listen=work.listen,
        namespaces=work.options.namespaces,
    )
    work.apply(lowering)
    work.lowered = lowering.lowered
    work.notes += [
        f"{located.label} never runs with these inputs, and was removed with its branch"
        if "_branch" in located.path
        else f"{located.label} was removed, as nothing that runs with these inputs reads it"
        for located in work.unreachable
    ]
    work.notes += [
        f"{located.label} cannot run on inputs of these shapes; its replacement fails in the same way"
        for located in work.impossible
    ]
    work.notes += lowering.notes


def restore_requested_opset(work: LoweringWork) -> None:
    """Lower the opset to the requested one, which the emitted ops may have exceeded.

    Before: the opset that the emitted ops need. After: the requested one.
    """
    asked, written = work.opset, default_opset(work.model)
    if asked is None or asked >= written:
        return
    notes = convert_to_first_possible(work.model, asked, work.facts, last=written)
    lowest = default_opset(work.model)
    if lowest == asked:
        work.notes += notes
        return
    # The model has the highest opset of these needs, or a lower one.
    needs = {each: work.plans[each.node].needs for each in (*work.nodes, *work.impossible)} | work.needs
    located, what = next(
        (located, what) for located, each in needs.items() for what, opset in each.items() if opset >= lowest
    )
    raise OpsetError(
        f"its replacement ({what}) cannot be expressed in opset {asked}",
        node=located,
        remedy=f"ask for opset {lowest} or higher",
        opset=lowest,
    )


def require_fit(work: LoweringWork) -> None:
    """Refuse emitted ops that the target does not run. The graph stays as it is."""
    require_emitted_fit(work.model, work.target, work.facts)


def share_constants(work: LoweringWork) -> None:
    """Share the constants of products, as the target would copy them for each product.

    Before: products read the same constant, of which the target makes copies. After: one Identity of it.
    """
    graph, names = work.model.graph, NameSource(all_names(work.model))
    for value in list(graph.initializers.values()):
        uses = [(node, index) for node, index in value.uses() if node.op_type in ("Gemm", "MatMul")]
        if len(uses) < 2:
            continue
        name = names.fresh(f"{value.name}/shared")
        copy = ir.Value(name=name, type=value.type, shape=value.shape)
        prepend(graph, [ir.node("Identity", [value], outputs=[copy], name=name)])
        for node, index in uses:
            node.replace_input_with(index, copy)


def separate_sums(work: LoweringWork) -> None:
    """Separate sums from activations that the target computes inexactly right after one.

    Before: activations that the target computes inexactly after a sum. After: a Max in between.
    """
    limits = [each for each in work.target.limits if each.alone_behind and "Max" in work.target.op_types]

    def reads_repetition(node: ir.Node) -> bool:
        mine = (limit for limit in limits if node.op_type in limit.ops)
        return any(find_repeating_op(node.inputs[0], limit.alone_behind, alone=True) for limit in mine)

    work.apply(SeparateSumsPass(work.target.ops.inexact_behind_sum, also=reads_repetition))


def fold_constants(work: LoweringWork) -> None:
    """Fold what is computed from constants where the target would drop its axes.

    Before: results of constants that lose axes on the target. After: constants, however large they are.
    """
    work.apply(FoldConstantsPass(lambda node: True))


def keep_nan(work: LoweringWork) -> None:
    """Restore NaN where the target's operators make a number of it.

    Before: operators that turn NaN into a number on the target. After: ops after them that restore it.
    """
    keeping = work.apply(KeepNaNPass(work.target.ops.loses_nan))
    work.notes += [
        f"target {work.target.name} makes numbers of NaN in {op_type}: {len(names)} get ops that keep it"
        for op_type, names in keeping.kept.items()
    ]


def copy_outputs(work: LoweringWork) -> None:
    """Copy outputs that the target may overwrite, or gets right only after a Cast.

    Before: outputs that the target overwrites. After: copies of them are the outputs.
    """
    ops = work.target.ops
    work.apply(CopyOutputsPass(ops.copied_outputs, read=ops.overwrites_outputs))


def plain_loop_inputs(work: LoweringWork) -> None:
    """Give the bodies of Loops inputs that the target computes correctly.

    Before: numbers and conditions that are wrong on the target. After: scalars and constants.
    """
    work.apply(PlainLoopInputsPass())


def declare_outputs(work: LoweringWork) -> None:
    """Correct the declared shapes of outputs, on which the caller relies.

    Before: declared shapes that are known to be wrong. After: correct ones.
    """
    work.notes += work.apply(CorrectShapesPass(outputs=True)).notes


def note_unused_factor(work: LoweringWork) -> None:
    """Report nodes on which the unroll factor has no effect. The graph stays as it is."""
    if work.options.unroll_factor == 1:
        return
    factor = wording.option("unroll-factor", work.options.unroll_factor)
    done: list[tuple[LoweredNode | KeptNode, str]] = [(node, "is kept") for node in work.kept]
    for node in (*work.adapted, *work.lowered):
        if node.strategy not in ("scan", "loop"):
            done.append((node, "is unrolled" if node.strategy == "unroll" else "is kept"))
    work.notes += [
        f"{node.op_type} node {place_name(node.path, node.name)!r} {what}: "
        f"{factor}, which is for Scan and Loop, has no effect on it"
        for node, what in done
    ]


def note_misfits(work: LoweringWork) -> None:
    """Report the other nodes that the target does not run. The graph stays as it is."""
    misfits = find_misfits(work.model, work.target, work.options.semantics, emitted=False, facts=work.facts)
    if misfits and work.options.strict:
        raise UnsupportedModelError(
            f"target {work.target.name} does not run all of the rest of the model: "
            + "; ".join(group_misfits(misfits))
        )
    work.notes += [f"target {work.target.name} does not run {line}" for line in group_misfits(misfits)]
