"""The number of iterations of Loop and Scan nodes, if it is known before the model runs."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.knowledge import Knowledge

__all__ = ["iterations"]


def iterations(knowledge: Knowledge, node: ir.Node) -> int | None:
    """Return how often the body of a Loop or Scan runs, or ``None`` if that is not known."""
    if node.op_type == "Scan":
        return _of_scan(knowledge, node)
    most = knowledge.constant(node.inputs[0])
    if node.inputs[0] is not None and most is None:
        return None
    limit = None if most is None else max(int(most.reshape(-1)[0]), 0)
    begins = len(node.inputs) < 2 or node.inputs[1] is None
    if not begins:
        condition = knowledge.constant(node.inputs[1])
        if condition is None:
            return None
        if not condition.reshape(-1)[0]:
            return 0
    if limit == 0:
        return 0
    body = node.attributes["body"].as_graph()
    condition = knowledge.constant(body.outputs[0])
    if condition is not None and not condition.reshape(-1)[0]:
        return 1
    if condition is not None or _passes_on(body.outputs[0], body.inputs[1]):
        return limit
    return knowledge.count_iterations(node, limit)


def _of_scan(knowledge: Knowledge, node: ir.Node) -> int | None:
    scanned = node.attributes.get_int("num_scan_inputs", 1)
    if not scanned:
        return None
    axes = node.attributes.get_ints("scan_input_axes", [0] * scanned)
    for value, axis in zip(node.inputs[-scanned:], axes, strict=True):
        shape = knowledge.shape(value)
        if shape is not None and -len(shape) <= axis < len(shape) and shape[axis] is not None:
            return shape[axis]
    return None


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
