"""Steps that transform the whole model until its recurrent nodes can be assessed."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OptionError
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.walk import default_opset, op_types, subgraphs_of, walk
from rnnlower.lowering import FIRST_OPSET, LAST_OPSET
from rnnlower.passes.adapt_nodes import AdaptNodesPass, has_fallback
from rnnlower.passes.assume_linear import AssumeLinearBeforeResetPass
from rnnlower.passes.dequantize_recurrent import DequantizeRecurrentPass
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.freeze_initializers import FreezeInitializersPass
from rnnlower.passes.infer_types import InferTypesPass
from rnnlower.passes.resolve_sequences import SEQUENCE_OPS, ResolveSequencesPass
from rnnlower.passes.set_inputs import SetInputsPass
from rnnlower.passes.simplify import simplify
from rnnlower.passes.static_shapes import StaticShapesPass
from rnnlower.passes.steps.contracts import (
    contract,
    nodes_are_floats,
    nodes_are_outside_functions,
    nodes_are_there,
    nodes_have_one_fate,
    opset_can_be_written,
)
from rnnlower.passes.steps.opset_moves import inline, move, raise_to_operators
from rnnlower.passes.steps.work import Work, is_selected, select
from rnnlower.passes.unroll_control_flow import UnrollControlFlowPass
from rnnlower.recurrent.exporter_warnings import find_suspicions
from rnnlower.recurrent.finding import find_recurrent, is_recurrent, matches
from rnnlower.recurrent.operators import QUANTIZED_LSTM
from rnnlower.targets.fit import refuses, runs_op
from rnnlower.targets.requirements import require_static_inputs
from rnnlower.wording import counted


@contract(ensures=[nodes_are_there])
def select_nodes(work: Work) -> None:
    work.tell("preparing", 0, 0)
    found, patterns = find_recurrent(work.model), work.options.nodes
    for pattern in patterns or ():
        if not any(matches(located, pattern) for located in found):
            names = ", ".join(located.name for located in found) or "none"
            raise OptionError(f"no recurrent node matches {pattern!r}; the model has {names}")
    for located in found:
        if patterns is None or any(matches(located, pattern) for pattern in patterns):
            select(located)
            work.nodes.append(located)


def freeze_dims(work: Work) -> None:
    FreezeDimsPass(work.options.dims, work.options.input_shapes)(work.model, work.facts)


def assume_linear_before_reset(work: Work) -> None:
    reading = AssumeLinearBeforeResetPass()
    reading(work.model)
    work.notes.append(
        f"GRU nodes are read as linear_before_reset=1, as asked for: {reading.mended} had another form"
    )


def warn_of_suspicions(work: Work) -> None:
    work.warnings += find_suspicions(work.model)


def set_inputs(work: Work) -> None:
    setting = SetInputsPass(work.options.sets)
    setting(work.model, work.facts)
    work.sets = setting.values


def freeze_initializers(work: Work) -> None:
    freezing = FreezeInitializersPass()
    # Without being asked, nothing is taken away that a caller can feed.
    if work.options.freeze or work.model.ir_version < FREE_INITIALIZERS_IR:
        freezing(work.model)
        work.notes += freezing.notes
    elif defaults := sum(value.is_initializer() for value in work.model.graph.inputs):
        work.notes.append(
            f"{counted(defaults, 'graph input')} with an initializer stay, as callers can override them; "
            f"{wording.option('freeze', True)} takes them as constants"
        )


def open_to_target(work: Work) -> None:
    # In older versions, integer constants need ops that a target may lack.
    work.model.ir_version = max(work.model.ir_version, FREE_INITIALIZERS_IR)
    require_static_inputs(work.model, work.target)


@contract(ensures=[opset_can_be_written])
def raise_opset(work: Work) -> None:
    target, last = work.options.target, work.opset or LAST_OPSET
    lowest = FIRST_OPSET if target is None else max(FIRST_OPSET, target.opset.range[0])
    first = max(lowest, work.opset or 0)
    work.notes += raise_to_operators(work.model, work.opset)
    if first > default_opset(work.model):
        work.notes += move(work.model, range(first, last + 1))
        work.facts.forget()


@contract(requires=[nodes_are_there], ensures=[nodes_are_there, nodes_are_outside_functions])
def inline_functions(work: Work) -> None:
    target = work.options.target
    in_the_way = work.options.folds and target is not None and not target.ops.functions
    work.notes += inline(work.model, (lambda node: True) if in_the_way else is_selected)
    work.facts.forget()
    work.find_nodes()


def expand_definitions(work: Work) -> None:
    _adapt(
        work,
        lambda node: not runs_op(work.target, node) and (bool(node.domain) or not has_fallback(node)),
        "has no {op_type}",
    )


@contract(requires=[nodes_are_outside_functions], ensures=[nodes_are_there])
def unroll_control_flow(work: Work) -> None:
    options = work.options
    unrolling = UnrollControlFlowPass(
        options.unrolls,
        strict=options.control_flow == "unroll",
        also=lambda node: options.control_flow is None and _does_not_run_there(work, node),
    )
    unrolling(work.model, work.facts)
    work.notes += [
        f"{name!r} became a straight line of {count} iterations" for name, count in unrolling.unrolled.items()
    ]
    work.find_nodes()


def _does_not_run_there(work: Work, node: ir.Node) -> bool:
    """Return whether a Loop or Scan does not run as it is.

    Its body may have ops that the target lacks, such as those of sequences: in a straight line sequences
    become tensors, and constants can be folded. Or it gathers by the iteration's number, which has an axis
    there.
    """
    target = work.options.target
    if target is None:
        return False
    if target.control_flow.keeps_gathered_axis and node.op_type == "Loop" and _gathers_by_number(node):
        return True
    inner = [each for graph in subgraphs_of(node) for each, _ in walk(graph)]
    return any(
        not is_recurrent(each) and not runs_op(target, each) and not has_fallback(each) for each in inner
    )


def _gathers_by_number(loop: ir.Node) -> bool:
    body = loop.attributes["body"].as_graph()
    behind: list[ir.Value] = [body.inputs[0]]
    for value in behind:
        for node, index in value.uses():
            if node.op_type == "Gather" and index == 1:
                return True
            behind += [out for out in node.outputs if out not in behind]
    return False


def resolve_sequences(work: Work) -> None:
    used = op_types(work.model) & SEQUENCE_OPS
    if not used <= work.target.op_types:
        ResolveSequencesPass()(work.model, work.facts)


@contract(requires=[nodes_are_outside_functions], ensures=[nodes_are_there])
def simplify_model(work: Work) -> None:
    target = work.options.target
    work.notes += simplify(
        work.model, lambda node: target is not None and not runs_op(target, node), work.facts
    )
    before = work.nodes
    work.find_nodes()
    here = {located.name for located in work.nodes}
    work.unreachable += [located for located in before if located.name not in here]


@contract(requires=[nodes_are_outside_functions], ensures=[nodes_are_floats])
def dequantize_recurrent(work: Work) -> None:
    target = work.options.target
    keep_integers = target is None or "DequantizeLinear" in target.op_types
    InferTypesPass()(work.model, work.facts)
    quantized = [located.node for located in work.nodes if located.node.op_type == QUANTIZED_LSTM]
    work.dequantized = [output.name for node in quantized for output in node.outputs if output.name]
    DequantizeRecurrentPass(work.nodes, keep_integers=keep_integers)(work.model, work.facts)


def adapt_nodes(work: Work) -> None:
    opset = default_opset(work.model)
    _adapt(
        work,
        lambda node: not is_recurrent(node) and refuses(work.target, node, opset),
        "refuses {op_type} as it is",
    )


def _adapt(work: Work, refused: Callable[[ir.Node], bool], problem: str) -> None:
    adapting = AdaptNodesPass(refused)
    adapting(work.model, work.facts)
    work.notes += [
        f"target {work.target.name} {problem.format(op_type=op_type)}: "
        f"{len(names)} expressed as other operators"
        for op_type, names in adapting.adapted.items()
    ]


@contract(requires=[nodes_are_outside_functions], ensures=[nodes_have_one_fate])
def set_impossible_aside(work: Work) -> None:
    if not work.nodes:
        return
    analysis = StaticShapesPass(work.nodes)
    analysis(work.model, work.facts)
    work.unreachable += analysis.unreachable
    work.impossible += analysis.impossible
    gone = {located.node for located in (*analysis.unreachable, *analysis.impossible)}
    work.nodes = [located for located in work.nodes if located.node not in gone]
