"""The number of iterations of Loop and Scan nodes, if it is known before the model runs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts

_MOST_ITERATIONS = 1000


def iterations(facts: Facts, node: ir.Node) -> int | None:
    """Return how many times the body of a Loop or Scan runs, or ``None`` if that is not known."""
    if node.op_type == "Scan":
        return _steps_of_scan(facts, node)
    most = facts.constant(node.inputs[0])
    if node.inputs[0] is not None and most is None:
        return None
    limit = None if most is None else max(int(most.reshape(-1)[0]), 0)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        condition = facts.constant(node.inputs[1])
        if condition is None:
            return None
        if not condition.reshape(-1)[0]:
            return 0
    if limit == 0:
        return 0
    body = node.attributes["body"].as_graph()
    condition = facts.constant(body.outputs[0])
    if condition is not None and not condition.reshape(-1)[0]:
        return 1
    if condition is not None or _passes_on(body.outputs[0], body.inputs[1]):
        return limit
    return _count(facts, node, limit)


def _steps_of_scan(facts: Facts, node: ir.Node) -> int | None:
    scanned = node.attributes.get_int("num_scan_inputs", 1)
    axes = node.attributes.get_ints("scan_input_axes", [0] * scanned)
    for value, axis in zip(node.inputs[len(node.inputs) - scanned :], axes, strict=True):
        shape = facts.shape(value)
        if shape is not None and -len(shape) <= axis < len(shape) and shape[axis] is not None:
            return shape[axis]
    return None


def _count(facts: Facts, node: ir.Node, limit: int | None) -> int | None:
    """Count the iterations of a Loop whose condition follows from constants, by running it."""
    body = node.attributes["body"].as_graph()
    number, condition, *states = body.inputs
    values = [facts.constant(source) for source in node.inputs[2:]]
    count: int | None = None
    for step in range(min(_MOST_ITERATIONS if limit is None else limit, _MOST_ITERATIONS)):
        known = {state: value for state, value in zip(states, values, strict=True) if value is not None}
        given = {number: np.array(step, np.int64), condition: np.array(True), **known}
        facts.run_iteration(body, given)
        goes_on = facts.constant(body.outputs[0])
        if goes_on is None:
            break
        if not goes_on.reshape(-1)[0] or step + 1 == limit:
            count = step + 1
            break
        values = [facts.constant(out) for out in body.outputs[1 : 1 + len(states)]]
    facts.leave_iterations(node)
    return count


def _passes_on(out: ir.Value, given: ir.Value) -> bool:
    """Return whether a body returns the condition it was given."""
    while out is not given:
        producer = out.producer()
        if producer is None or producer.domain or producer.op_type not in ("Identity", "Cast"):
            return False
        source = producer.inputs[0]
        if source is None:
            return False
        out = source
    return True
