"""The prices of recurrences on a target, as they are and as the operators that they compute."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import onnx_ir as ir

from rnnlower.errors import OpsetError, UnsupportedModelError
from rnnlower.graph.facts import Facts, trip_count
from rnnlower.graph.loop_signature import loops_and_scans
from rnnlower.graph.walk import walk
from rnnlower.lowering.pricing import count_costs
from rnnlower.lowering.sketching import USUAL_STEPS, cheapest
from rnnlower.lowering.weights import private_weights
from rnnlower.passes.lift_recurrent import LiftRecurrentPass
from rnnlower.passes.lower_recurrent import LowerStateOperatorsPass
from rnnlower.passes.static_shapes import InferTypesPass
from rnnlower.passes.steps.stateful import choose_strategy
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.recurrent.state_operators import LINEAR_ATTENTION, is_state_operator, parse_state_operators
from rnnlower.targets.choosing import Chooser
from rnnlower.targets.fit import find_misfits
from rnnlower.targets.target import Target


class Prices(NamedTuple):
    """The microseconds of recurrences as they are, and as the operators that they compute."""

    own: float
    lifted: float


def price_lifting(model: ir.Model, lifting: LiftRecurrentPass, target: Target) -> Prices | None:
    """Return the prices of the Loops and Scans that a pass would lift, or of the straight lines.

    ``None``: there are none, or a price is not known. A Loop or Scan that the target lacks has none: lifting
    may make it run at all. A line that it cannot run costs infinitely much, and so does a LinearAttention.
    """
    trial, facts = model.clone(), Facts(model)
    twins = [(node, twin) for (node, _), (twin, _) in zip(walk(model.graph), walk(trial.graph), strict=True)]
    known = {twin for _, twin in twins}
    lifting(trial)
    lifted = {(node.path, node.name) for node in lifting.lifted if node.op_type is not None}
    if not lifted:
        return None
    try:
        fits = _lower_attentions(trial, target, known)
    except OpsetError:
        # The model is converted later; a line stays as it is.
        fits = lifting.frames
    if not fits:
        return Prices(0.0, math.inf)
    if lifting.frames:
        gone = [each.node for each, _ in loops_and_scans(model) if (each.path, each.name) in lifted]
    else:
        gone = [node for node, twin in twins if twin.graph is None and node.op_type != "Constant"]
    is_run = all(target.has(node.op_type) for node in gone)
    if lifting.frames and (len(gone) != len(lifted) or not is_run):
        return None
    if not target.prices.microseconds:
        return None
    made = _price_recurrent_nodes(trial, known, target)
    if made is None:
        return None
    if lifting.frames:
        own = (_price_nodes(facts, [node], target, trip_count(facts, node) or USUAL_STEPS) for node in gone)
        return Prices(sum(own), made)
    new = [node for node, _ in walk(trial.graph) if node not in known]
    others, after = [node for node in new if node.op_type not in RECURRENT_OPS], Facts(trial)
    chunks = [trip_count(after, node) or USUAL_STEPS for node in others if node.op_type in ("Loop", "Scan")]
    made += _price_nodes(after, others, target, max(chunks, default=1))
    return Prices(_price_nodes(facts, gone, target) if is_run else math.inf, made)


def _lower_attentions(model: ir.Model, target: Target, known: Collection[ir.Node]) -> bool:
    """Lower LinearAttentions for a target without a kernel; return whether it runs what they become.

    Args:
        known: Nodes that were there before.

    Raises:
        OpsetError: The model's opset lacks an operator.
    """
    found = find_recurrent(model, is_state_operator)
    nodes = [each for each in found if each.node.op_type == LINEAR_ATTENTION]
    if not nodes or target.has_foreign("com.microsoft", LINEAR_ATTENTION):
        return True
    InferTypesPass()(model)
    try:
        for node in parse_state_operators(nodes, Facts(model)):
            strategy, reason = choose_strategy(node, target)
            LowerStateOperatorsPass(strategy, [node.located], dialect=target, reason=reason)(model)
    except UnsupportedModelError:
        return False
    # Recurrent nodes may still be lowered, and the opset and the inputs are not due to them.
    skipped = {*known, *(each.node for each in find_recurrent(model))}
    misfits = find_misfits(model, target, skipped=skipped)
    return all(misfit.op_type in ("(input)", "(model)") for misfit in misfits)


def _price_recurrent_nodes(model: ir.Model, known: set[ir.Node], target: Target) -> float | None:
    """Return the price of the recurrent nodes that are new, each in its cheapest form."""
    InferTypesPass()(model)
    made = [each for each in find_recurrent(model) if each.node not in known]
    chooser = Chooser(target, private_weights([each.node for each in made]))
    found = [chooser.candidates(each) for each in made]
    return sum(cheapest(each).price or 0.0 for each in found) if all(found) else None


def _price_nodes(facts: Facts, nodes: Sequence[ir.Node], target: Target, steps: int = 1) -> float:
    """Return the price of nodes, of which Loops and Scans have `steps`."""
    return count_costs(nodes, facts, steps, target.prices.fused).price(target.prices.microseconds)
