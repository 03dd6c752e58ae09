"""The prices of Loops and Scans on a target, as they are and as the operators that they compute."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.iterations import iterations
from rnnlower.graph.walk import subgraphs_of, values_of
from rnnlower.lowering.pricing import count
from rnnlower.lowering.sketching import USUAL_STEPS, cheapest
from rnnlower.lowering.weights import private_weights
from rnnlower.passes.infer_types import InferTypesPass
from rnnlower.passes.lift_recurrent import LiftRecurrentPass, frames
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.targets.choosing import Chooser
from rnnlower.targets.target import Target


def prices_of_lifting(
    model: ir.Model, lifting: LiftRecurrentPass, target: Target
) -> tuple[float, float] | None:
    """Return the microseconds of what a pass would lift, as it is and lifted; ``None``: one is not known.

    What the target lacks has no price: lifting may make it run at all.
    """
    trial, facts, costs = model.clone(), Facts(model), target.prices.microseconds
    before = {(each.path, each.name) for each in find_recurrent(model)}
    lifting(trial)
    lifted = {(node.path, node.name) for node in lifting.lifted if node.op_type is not None}
    sources = [each.node for each, _ in frames(model) if (each.path, each.name) in lifted]
    InferTypesPass()(trial)
    made = [each for each in find_recurrent(trial) if (each.path, each.name) not in before]
    is_priced = costs and len(sources) == len(lifted) and all(target.has(node.op_type) for node in sources)
    if not is_priced or not made:
        return None
    own = sum(_price(facts, node, target) for node in sources)
    chooser = Chooser(target, private_weights([each.node for each in made], ()))
    found = [chooser.candidates(each) for each in made]
    if not all(found):
        return None
    return own, sum(cheapest(each).price or 0.0 for each in found)


def _price(facts: Facts, node: ir.Node, target: Target) -> float:
    """Return the price of a Loop or Scan; rows that are not known count as one."""
    (body,) = subgraphs_of(node)
    values = {*values_of(body), *(value for each in body for value in each.inputs if value is not None)}
    shapes = {str(value.name): tuple(size or 1 for size in facts.shape(value) or ()) for value in values}
    constants = {str(value.name) for value in values if facts.constant(value) is not None}
    graph = onnx.GraphProto(node=[ir.serde.serialize_node(node)])
    steps = iterations(facts, node) or USUAL_STEPS
    return count(graph, shapes, constants, steps, target.prices.fused).price(target.prices.microseconds)
