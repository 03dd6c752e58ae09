"""Steps that decide what becomes of each recurrent node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import MissingOperatorError
from rnnlower.files import beyond_ir
from rnnlower.graph.walk import default_opset
from rnnlower.lowering.replacing import Plan
from rnnlower.lowering.weights import Weights, private_weights
from rnnlower.passes.adapt_recurrent import AdaptRecurrentPass
from rnnlower.passes.fold_weights import FoldWeightsPass
from rnnlower.passes.infer_types import InferTypesPass
from rnnlower.passes.lower_recurrent import dtype_of
from rnnlower.passes.steps.contracts import (
    contract,
    lengths_are_numbers,
    nodes_are_outside_functions,
    nodes_are_planned,
    nodes_are_there,
    nodes_can_be_read,
    nodes_have_one_fate,
)
from rnnlower.passes.steps.lengths import with_static_lengths
from rnnlower.passes.steps.profile import conform
from rnnlower.passes.steps.work import Work, leave_out
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import STATE_INPUTS
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.state_warnings import forgotten_states, other_recurrences
from rnnlower.targets import find_target
from rnnlower.targets.choosing import Chooser, KeptNode
from rnnlower.targets.requirements import cautions, require_known


@contract(requires=[nodes_are_outside_functions], ensures=[nodes_have_one_fate])
def settle_native(work: Work) -> None:
    InferTypesPass()(work.model, work.facts)
    chooser = _chooser(work)
    for located in work.nodes:
        choice = chooser.choose(located)
        work.choices[located.node] = choice
        if choice.kind == "keep":
            name, op_type, path = located.name, located.node.op_type, located.path
            work.kept.append(KeptNode(name, op_type, path, choice.reason, choice.prices))
            leave_out(located.node)
    work.nodes = [each for each in work.nodes if work.choices[each.node].kind != "keep"]


@contract(requires=[nodes_are_outside_functions], ensures=[nodes_have_one_fate, nodes_are_there])
def adapt_recurrent(work: Work) -> None:
    options = work.options
    native = [each for each in work.nodes if work.choices[each.node].kind == "adapt"]
    # Afterward a state of zeros stands where there was none.
    steps = [(each, parse_recurrent(each, options.semantics, lenient=True).seq_length) for each in native]
    forgetting = {each: forgotten_states([(each, length)]) for each, length in steps}
    adapting = AdaptRecurrentPass(work.target, native, options.semantics)
    adapting(work.model, work.facts)
    work.warnings += [warning for each in adapting.gone for warning in forgetting[each]]
    for located, adapted in zip(adapting.gone, adapting.adapted, strict=True):
        choice = work.choices[located.node]
        reason = "; ".join(filter(None, (adapted.reason, choice.reason)))
        work.adapted.append(dataclasses.replace(adapted, reason=reason, prices=choice.prices))
    work.nodes = [each for each in work.nodes if each not in adapting.gone]


def warn_of_other_recurrences(work: Work) -> None:
    work.warnings += other_recurrences(work.model)


@contract(ensures=[nodes_can_be_read])
def read_nodes(work: Work) -> None:
    for located in work.nodes:
        parse_recurrent(located, work.options.semantics, lenient=True)


@contract(requires=[nodes_can_be_read])
def conform_to_profile(work: Work) -> None:
    work.lowered, notes = conform(work.model, work.nodes, work.facts)
    work.notes += notes
    conformed = {(node.path, node.name) for node in work.lowered}
    work.nodes = [each for each in find_recurrent(work.model) if (each.path, each.name) in conformed]


@contract(requires=[nodes_can_be_read], ensures=[nodes_are_there])
def fold_weights(work: Work) -> None:
    nodes = [located.node for located in work.nodes]
    FoldWeightsPass(nodes)(work.model)
    FoldWeightsPass(nodes, positions=STATE_INPUTS)(work.model)
    InferTypesPass()(work.model, work.facts)


@contract(requires=[nodes_can_be_read], ensures=[lengths_are_numbers])
def fix_lengths(work: Work) -> None:
    work.nodes, unreachable, impossible = with_static_lengths(
        work.model, work.nodes, work.options.target, work.options.semantics, work.facts
    )
    work.unreachable += unreachable
    work.impossible += impossible


def warn_of_forgotten_states(work: Work) -> None:
    kept = {(node.path, node.name) for node in work.kept}
    found = [each for each in find_recurrent(work.model) if (each.path, each.name) in kept]
    nodes = [*work.nodes, *found]
    lengths = [(located, parse_recurrent(located, work.options.semantics).seq_length) for located in nodes]
    work.warnings += forgotten_states(lengths)


def _chooser(work: Work) -> Chooser:
    trained = beyond_ir.names_in_training(work.model)
    return Chooser(
        work.options.target or find_target("onnxruntime"),
        private_weights([located.node for located in work.nodes], trained),
        work.options.semantics,
        work.options.native,
        work.preferences,
        work.sketches,
    )


@contract(requires=[nodes_can_be_read, nodes_are_outside_functions], ensures=[nodes_are_planned])
def plan_nodes(work: Work) -> None:
    options, nodes = work.options, []
    opset = work.opset or default_opset(work.model)
    chooser, strategy = _chooser(work), None if options.strategy == "target" else options.strategy
    for located in work.nodes:
        node = parse_recurrent(located, options.semantics)
        if options.target is not None:
            require_known(options.target, node, located)
        weights = Weights(chooser.private, dtype_of(node, located))
        native = work.choices[located.node].prices if located.node in work.choices else {}
        try:
            plan = chooser.plan(node, weights, opset, strategy, native)
        except MissingOperatorError as error:
            raise error.at(located) from None
        nodes.append(node)
        work.plans[located.node] = plan
        work.needs[located] = dict(plan.needs)
    if options.target is not None:
        work.notes += cautions(options.target, nodes)
    _look_at_types(work, nodes)
    for located in work.impossible:
        work.plans[located.node] = Plan("unroll", reason="it cannot run")
        work.needs[located] = {"NonZero-9": 9}


def _look_at_types(work: Work, nodes: Sequence[ResolvedNode]) -> None:
    narrow = [node for node in nodes if node.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)]
    work.rounds = bool(narrow) and work.preferences.compute_type is None
    if narrow and work.options.compute_type is None and not work.rounds:
        work.notes.append(
            f"target {work.target.name} sums products of float16 in float16: "
            f"{wording.counted(len(narrow), 'recurrent node')} in float32, between Casts"
        )
