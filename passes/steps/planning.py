"""Steps that decide what becomes of each recurrent node."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import onnx_ir as ir

from rnnlower import wording
from rnnlower.graph.walk import default_opset
from rnnlower.lowering.replacing import Gates, Plan, located_errors
from rnnlower.lowering.sketching import Preferences
from rnnlower.lowering.weights import Weights, private_weights
from rnnlower.passes.folding import FoldWeightsPass
from rnnlower.passes.lower_recurrent import dtype_of
from rnnlower.passes.recurrent_forms import AdaptRecurrentPass, ConformSonnxPass
from rnnlower.passes.static_shapes import InferTypesPass, StaticShapesPass, resolve_static_lengths
from rnnlower.passes.steps.work import LoweringWork, deselect
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import MAX_INPUTS, STATE_INPUTS, WEIGHT_INPUTS
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.sonnx import find_departures
from rnnlower.recurrent.suspicions import find_forgetful_operators, find_forgotten_states
from rnnlower.targets import find_target
from rnnlower.targets.choosing import Chooser, KeptNode
from rnnlower.targets.fit import cautions, require_supported


def choose_native(work: LoweringWork) -> None:
    """Decide on each node whether the target's own operator runs it.

    Before: marked nodes. After: those that stay as they are lose the mark; the others have a `Choice`.
    """
    work.apply(InferTypesPass())
    chooser = _chooser(work)
    for located in work.nodes:
        choice = chooser.choose(located)
        work.choices[located.node] = choice
        if choice.kind == "keep":
            work.kept.append(KeptNode(*located.origin, choice.reason, choice.prices))
            deselect(located.node)
    work.nodes = [each for each in work.nodes if work.choices[each.node].kind != "keep"]


def adapt_recurrent(work: LoweringWork) -> None:
    """Adapt nodes to the target's own operator, which runs them in another form only.

    Before: nodes that run there in another form. After: that form, with ops around it.
    """
    options = work.options
    chosen = {each: work.choices[each.node] for each in work.nodes}
    native = {each: choice.changes for each, choice in chosen.items() if choice.kind == "adapt"}
    # Adapting adds a zero state, which would hide the missing one.
    steps = [(each, parse_recurrent(each, options.semantics, lenient=True).seq_length) for each in native]
    forgetting = {each: find_forgotten_states([(each, length)]) for each, length in steps}
    adapting = work.apply(AdaptRecurrentPass(work.target, native, options.semantics))
    work.warnings += [warning for each in adapting.replaced for warning in forgetting[each]]
    for located, adapted in zip(adapting.replaced, adapting.adapted, strict=True):
        choice = work.choices[located.node]
        reason = "; ".join(filter(None, (adapted.reason, choice.reason)))
        work.adapted.append(dataclasses.replace(adapted, reason=reason, prices=choice.prices))
    work.nodes = [each for each in work.nodes if each not in adapting.replaced]


def check_nodes(work: LoweringWork) -> None:
    """Refuse nodes that break the ONNX spec. The graph stays as it is."""
    for located in work.nodes:
        parse_recurrent(located, work.options.semantics, lenient=True)


def conform_to_profile(work: LoweringWork) -> None:
    """Write nodes as the profile prescribes, which keeps the operator.

    Before: nodes of any form. After: the form that the profile prescribes.
    """
    nodes, parameters = work.nodes, range(1, MAX_INPUTS)
    work.apply(FoldWeightsPass([each.node for each in nodes], positions=parameters, may_grow=True))
    work.apply(InferTypesPass())
    found = [departure for located in nodes for departure in find_departures(located)]
    if any(departure.subject == "batch_size" and departure.level == "error" for departure in found):
        work.apply(StaticShapesPass(nodes))
    model, work.lowered = work.model, work.apply(ConformSonnxPass(nodes)).conformed
    work.notes += [str(note) for located in find_recurrent(model) for note in find_departures(located)]
    conformed = {(node.path, node.name) for node in work.lowered}
    work.nodes = [each for each in find_recurrent(model) if (each.path, each.name) in conformed]


def fold_weights(work: LoweringWork) -> None:
    """Fold weights and states, so that parts cut and joined from them are constant, too.

    Before: weights and states that follow from constants. After: constants.
    """
    nodes = [located.node for located in work.nodes]
    work.apply(FoldWeightsPass(nodes, positions=(*WEIGHT_INPUTS, *STATE_INPUTS)))
    work.apply(InferTypesPass())


def make_lengths_static(work: LoweringWork) -> None:
    """Find the numbers of steps, which a straight line writes out.

    Before: lengths may follow from shapes. After: every node to be unrolled has a known one.
    """
    work.nodes, unreachable, impossible = resolve_static_lengths(
        work.model, work.nodes, work.options.runtime, work.options.semantics, work.facts
    )
    work.unreachable += unreachable
    work.impossible += impossible


def warn_of_forgotten_states(work: LoweringWork) -> None:
    """Warn of nodes of a single step that lose their state. The graph stays as it is."""
    kept = {(node.path, node.name) for node in work.kept}
    found = [each for each in find_recurrent(work.model) if (each.path, each.name) in kept]
    nodes = [*work.nodes, *found]
    lengths = [(located, parse_recurrent(located, work.options.semantics).seq_length) for located in nodes]
    work.warnings += [*find_forgotten_states(lengths), *find_forgetful_operators(work.model, work.facts)]


def preferences(work: LoweringWork) -> Preferences:
    """Return the preferences of the user, or else of the target."""
    options, arithmetic = work.options, None if work.options.runtime is None else work.target.arithmetic
    gates, compute_type = options.gates, options.compute_type
    if arithmetic is not None:
        gates = cast(Gates, arithmetic.gates) if gates == "auto" else gates
        compute_type = "float32" if arithmetic.accumulates == "float16" else compute_type
    return Preferences(options.unroll_factor, gates, None if compute_type is None else ir.DataType.FLOAT)


def _chooser(work: LoweringWork) -> Chooser:
    return Chooser(
        work.options.runtime or find_target(),
        private_weights([located.node for located in work.nodes]),
        work.options.semantics,
        work.options.native,
        preferences(work),
        work.sketches,
    )


def plan_nodes(work: LoweringWork) -> None:
    """Choose strategy, form and opset of each node. The graph stays as it is."""
    options, nodes = work.options, []
    opset = work.opset or default_opset(work.model)
    chooser, strategy = _chooser(work), None if options.strategy == "target" else options.strategy
    for located in work.nodes:
        node = parse_recurrent(located, options.semantics)
        if options.runtime is not None:
            require_supported(options.runtime, node, located)
        weights = Weights(chooser.private, dtype_of(node, located))
        native = work.choices[located.node].prices if located.node in work.choices else {}
        with located_errors(located):
            work.plans[located.node] = chooser.plan(
                node, weights, opset, strategy, native, is_nested=located.is_nested
            )
        nodes.append(node)
    if options.runtime is not None:
        work.notes += cautions(options.runtime, nodes)
    _note_rounding(work, nodes)
    for located in work.impossible:
        work.plans[located.node] = Plan("unroll", reason="it cannot run", needs={"NonZero-9": 9})


def _note_rounding(work: LoweringWork, nodes: Sequence[ResolvedNode]) -> None:
    narrow = [node for node in nodes if node.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)]
    work.rounds = bool(narrow) and preferences(work).compute_type is None
    if narrow and work.options.compute_type is None and not work.rounds:
        work.notes.append(
            f"target {work.target.name} sums products of float16 in float16: "
            f"{wording.counted(len(narrow), 'recurrent node')} in float32, between Casts"
        )
