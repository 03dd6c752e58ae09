"""Steps that transform the whole model until its recurrent nodes can be assessed."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.inlining import functions_with
from rnnlower.graph.walk import default_opset, op_types, subgraphs_of, walk
from rnnlower.lowering import FIRST_OPSET, LAST_OPSET
from rnnlower.passes.adapt_nodes import AdaptNodesPass, has_fallback
from rnnlower.passes.convert_opset import convert_to_first_possible
from rnnlower.passes.declared_sizes import FreezeDimsPass, NameBatchPass, batches_of_states
from rnnlower.passes.expand_functions import InlineFunctionsPass
from rnnlower.passes.recurrent_forms import DequantizeRecurrentPass
from rnnlower.passes.removing import remove_zero_states
from rnnlower.passes.sequences import SEQUENCE_OPS, ResolveSequencesPass, StackSequencesPass
from rnnlower.passes.static_shapes import InferTypesPass, StaticShapesPass
from rnnlower.passes.steps import shared
from rnnlower.passes.steps.work import LoweringWork, Work, is_selected, select
from rnnlower.passes.unroll_control_flow import UnrollControlFlowPass
from rnnlower.recurrent.finding import find_recurrent, is_recurrent, is_stateful, matches_pattern
from rnnlower.recurrent.operators import QUANTIZED_LSTM
from rnnlower.targets.fit import has_excluded_loops, refuses, require_static_inputs


def determine_opset(work: LoweringWork) -> None:
    """Find out which opset the result is to have. The graph stays as it is."""
    opset, target = default_opset(work.model), work.options.runtime
    work.opset = work.options.opset
    if work.opset is None and target is not None and opset > target.opset.range[1]:
        work.opset = target.opset.range[1]
    elif work.opset is None and opset > LAST_OPSET:
        raise UnsupportedModelError(
            f"the model has opset {opset}, and the last supported one is {LAST_OPSET}",
            remedy=f"ask for a lower one ({wording.option('opset', LAST_OPSET)})",
        )


def pad(work: LoweringWork) -> None:
    """Pad to a maximal length, so that the length is static.

    Before: a model of any length. After: one of the maximal length, which takes the length as an input.
    """
    from rnnlower.passes.padding import PadLengthsPass

    work.notes += work.apply(PadLengthsPass(work.options.max or {})).notes


def select_nodes(work: LoweringWork) -> None:
    """Mark the nodes to be lowered.

    Before: recurrent nodes as `inspect` shows them. After: those that the user asks for are marked.
    """
    work.options.report_progress("preparing")
    found, patterns = find_recurrent(work.model, is_stateful), work.options.nodes
    for pattern in patterns or ():
        if not any(matches_pattern(located, pattern) for located in found):
            names = ", ".join(located.name for located in found) or "none"
            raise OptionError(f"no recurrent node matches {pattern!r}; the model has {names}")
    for located in found:
        if patterns is None or any(matches_pattern(located, pattern) for pattern in patterns):
            select(located)
            (work.nodes if is_recurrent(located.node) else work.state_nodes).append(located)


def fix_batch(work: Work) -> None:
    """Give an open batch the size of initial states, as the model runs in no other.

    Before: initial states of a known batch, and an X of an open one. After: the number, wherever it stands.
    """
    sizes = batches_of_states(work.model, work.facts)
    if sizes:
        work.apply(FreezeDimsPass(sizes))
    work.notes += [
        f"dimension {name!r} is {size}: the initial states have that batch size, and no other runs"
        for name, size in sizes.items()
    ]


def prepare_model_format(work: LoweringWork) -> None:
    """Make the model one that the target can read.

    Before: any IR version. After: one in which initializers need not be inputs; static inputs if required.
    """
    # In older versions, integer constants need ops that a target may lack.
    work.model.ir_version = max(work.model.ir_version, FREE_INITIALIZERS_IR)
    require_static_inputs(work.model, work.target)


def raise_opset(work: LoweringWork) -> None:
    """Make the model one in which replacements can be written.

    Before: any opset. After: one of 7 or more, and one that the target takes.
    """
    target, last = work.options.runtime, work.opset or LAST_OPSET
    lowest = FIRST_OPSET if target is None else max(FIRST_OPSET, target.opset.range[0])
    first = max(lowest, work.opset or 0)
    if first > default_opset(work.model):
        work.notes += convert_to_first_possible(work.model, first, work.facts, last=last)


def inline_functions(work: LoweringWork) -> None:
    """Inline functions, as the sizes and constants of a node in one are only known at the call.

    Before: nodes to be lowered may be in functions. After: they are in the main graph or its subgraphs.
    """
    model, target = work.model, work.options.runtime
    inlines_all = work.options.folds and target is not None and not target.ops.functions
    wanted = (lambda node: True) if inlines_all else is_selected
    opset = default_opset(model)
    versions = {function.opset_imports.get("", opset) for function in functions_with(model, wanted)}
    if versions - {opset}:
        # All at one opset. An unknown version is refused at once.
        highest = min(max(opset, *versions), max(LAST_OPSET, opset))
        work.notes += convert_to_first_possible(model, opset, work.facts, last=highest)
    work.notes += [
        f"function {each.domain}::{each.name} is never called; it and its recurrent nodes are removed"
        for each in work.apply(InlineFunctionsPass(wanted)).uncalled
    ]
    work.find_nodes()


def expand_definitions(work: LoweringWork) -> None:
    """Express operators that the target lacks by their definitions.

    Before: operators of other domains and composite ones that the target lacks. After: those they consist of.
    """
    _express_nodes(
        work,
        lambda node: (
            work.lacks(node) and not is_selected(node) and (bool(node.domain) or not has_fallback(node))
        ),
        "has no {op_type}",
    )


def unroll_control_flow(work: LoweringWork) -> None:
    """Unroll the model's own Loops and Scans, where the target lacks them or the user asks for it.

    Before: Loops and Scans that the target lacks. After: straight lines, where the iterations can be counted.
    """
    options = work.options
    unrolling = UnrollControlFlowPass(
        options.unrolls,
        strict=options.control_flow == "unroll",
        also=lambda node: options.control_flow is None and _has_unsupported_body(work, node),
    )
    work.apply(unrolling)
    work.notes += [
        f"{name!r} became a straight line of {count} iterations" for name, count in unrolling.unrolled.items()
    ]
    work.find_nodes()


def _has_unsupported_body(work: LoweringWork, node: ir.Node) -> bool:
    """Return whether a Loop or Scan does not run as it is.

    Its body may have ops that the target lacks, such as those of sequences: in a straight line sequences
    become tensors, and constants can be folded. Or its body has Loops, which the target does not take there.
    """
    if work.options.runtime is not None and has_excluded_loops(work.target, node):
        return True
    inner = [each for graph in subgraphs_of(node) for each, _ in walk(graph)]
    return any(not is_stateful(each) and work.lacks(each) and not has_fallback(each) for each in inner)


def resolve_sequences(work: LoweringWork) -> None:
    """Replace sequences by their tensors, as the target lacks operators of sequences.

    Before: operators of sequences that the target lacks. After: their tensors, where they can be followed.
    """
    used = op_types(work.model) & SEQUENCE_OPS
    if not used <= work.target.op_types:
        work.apply(StackSequencesPass())
        work.apply(ResolveSequencesPass())


def simplify_around_nodes(work: LoweringWork) -> None:
    """Simplify as `shared.simplify` does, and find out which nodes never run.

    Before: nodes may be in branches that never run. After: those nodes are gone, and known as unreachable.
    """
    shared.simplify(work)
    before = [*work.nodes, *work.state_nodes]
    work.find_nodes()
    here = {(located.path, located.name) for located in (*work.nodes, *work.state_nodes)}
    work.unreachable += [located for located in before if (located.path, located.name) not in here]


def name_batch(work: LoweringWork) -> None:
    """Give the batch of a recurrent node one name.

    Before: X and the initial states may declare several. After: one, the same wherever it stands.
    """
    names = work.apply(NameBatchPass()).names
    work.notes += [f"dimension {old!r} is called {new!r}, which it must equal" for old, new in names.items()]


def drop_zero_states(work: LoweringWork) -> None:
    """Leave out initial states that exporters compute as zeros.

    Before: an Expand or ConstantOfShape may make them, in the batch size. After: nodes start without them.
    """
    remove_zero_states(work.facts, (located.node for located in work.nodes))


def dequantize_recurrent(work: Work) -> None:
    """Make quantized recurrent nodes float ones, which more runtimes have.

    Before: DynamicQuantizeLSTM. After: LSTM with dequantized weights.
    """
    target = work.options.runtime
    keep_integers = target is None or "DequantizeLinear" in target.op_types
    work.apply(InferTypesPass())
    quantized = [located.node for located in work.nodes if located.node.op_type == QUANTIZED_LSTM]
    work.dequantized = [output.name for node in quantized for output in node.outputs if output.name]
    work.apply(DequantizeRecurrentPass(work.nodes, keep_integers=keep_integers))


def adapt_nodes(work: LoweringWork) -> None:
    """Express the rest of the model in the target's operators.

    Before: nodes that the target refuses. After: other operators, where there is a form of them.
    """
    _express_nodes(
        work,
        lambda node: not (is_recurrent(node) or is_selected(node)) and refuses(work.target, node, work.facts),
        "refuses {op_type} as it is",
    )


def _express_nodes(work: LoweringWork, refused: Callable[[ir.Node], bool], problem: str) -> None:
    work.notes += [
        f"target {work.target.name} {problem.format(op_type=op_type)}: "
        f"{len(names)} expressed as other operators"
        for op_type, names in work.apply(AdaptNodesPass(refused)).adapted.items()
    ]


def set_aside_impossible(work: LoweringWork) -> None:
    """Set nodes aside that cannot run on inputs of these shapes, and need no plan.

    Before: branches that inputs of the given shapes never take. After: the same; their nodes need no plan.
    """
    if not work.nodes:
        return
    analysis = work.apply(StaticShapesPass(work.nodes))
    work.unreachable += analysis.unreachable
    work.impossible += analysis.impossible
    gone = {located.node for located in (*analysis.unreachable, *analysis.impossible)}
    work.nodes = [located for located in work.nodes if located.node not in gone]
