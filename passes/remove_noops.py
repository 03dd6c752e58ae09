"""Removal of nodes that return their input.

Before::

    (float[2] x) => (float[2] y) {
        a = Cast <to = 1> (x)
        b = Identity (a)
        y = Abs (b)
    }

After ``RemoveNoopsPass()``::

    (float[2] x) => (float[2] y) {
        y = Abs (x)
    }
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.files import beyond_ir
from rnnlower.graph.facts import Facts
from rnnlower.graph.splicing import replace_outputs
from rnnlower.graph.walk import walk
from rnnlower.passes.base import Pass

_SAME_IF_SAME_SHAPE = frozenset(["Expand", "Flatten", "Reshape", "Squeeze", "Tile", "Unsqueeze"])


class RemoveNoopsPass(Pass):
    """Removes Identity nodes, casts to the type that is there, and reshaping to the shape that is there.

    A node that produces a graph output stays if the output would otherwise lose its name.
    """

    KEEPS_FACTS = True

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        trained = beyond_ir.names_in_training(model)
        modified = False
        for node, _ in list(walk(model.graph)):
            if _does_nothing(node, self.facts) and _can_go(node) and node.outputs[0].name not in trained:
                replace_outputs(node, node.inputs[:1])  # type: ignore[arg-type]
                modified = True
        return ir.passes.PassResult(model, modified)


def _does_nothing(node: ir.Node, facts: Facts) -> bool:
    if node.domain or not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
        return False
    value, out = node.inputs[0], node.outputs[0]
    if node.op_type == "Identity":
        return True
    if node.op_type == "Cast":
        type_ = facts.type(value)
        return isinstance(type_, ir.TensorType) and type_.dtype == node.attributes.get_int("to", 0)
    shape = facts.shape(value)
    if shape is None or None in shape or shape != facts.shape(out):
        return False
    return node.op_type in _SAME_IF_SAME_SHAPE or (node.op_type == "Slice" and _is_forward(node, facts))


def _is_forward(node: ir.Node, facts: Facts) -> bool:
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return True
    steps = facts.constant(node.inputs[4])
    return steps is not None and bool(np.all(steps > 0))


def _can_go(node: ir.Node) -> bool:
    """Return whether the output can do without a node of its own."""
    value, out = node.inputs[0], node.outputs[0]
    if not out.is_graph_output():
        return True
    producer = None if value is None else value.producer()
    return producer is not None and producer.graph is node.graph and not value.is_graph_output()  # type: ignore[union-attr]
