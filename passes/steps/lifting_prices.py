"""The prices of Loops and Scans on a target, as they are and as the operators that they compute."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.iterations import iterations
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
    counts = [
        count([node], facts, iterations(facts, node) or USUAL_STEPS, target.prices.fused) for node in sources
    ]
    own = sum(each.price(costs) for each in counts)
    chooser = Chooser(target, private_weights([each.node for each in made], ()))
    found = [chooser.candidates(each) for each in made]
    if not all(found):
        return None
    return own, sum(cheapest(each).price or 0.0 for each in found)
