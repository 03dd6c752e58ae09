"""Constants of models in an IR version whose only initializers are those of graph inputs.

Raising the IR version instead would turn the model's own weights, which must be listed as inputs there,
from constants into defaults that a caller may override, and keep runtimes from folding them.

Before, at opset 7 and IR version 3::

    (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
        y = Add (x, c)
    }

After ``LegacyConstantsPass()``::

    (float[2] x) => (float[2] y) {
        c = Constant <value = float[2] {1, 2}> ()
        y = Add (x, c)
    }
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.splicing import take_place
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import initializers_suit_ir_version


class LegacyConstantsPass(Pass):
    """Turns initializers that are not graph inputs into Constant nodes where the IR version demands it."""

    ENSURES = (initializers_suit_ir_version,)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        if model.ir_version >= FREE_INITIALIZERS_IR:
            return ir.passes.PassResult(model, modified=False)
        values = [value for value in graph.initializers.values() if not value.is_graph_input()]
        nodes = [node for value in values for node in _replace(value, model.opset_imports.get("", 1))]
        if nodes:
            graph.insert_before(next(iter(graph)), nodes)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _replace(value: ir.Value, opset: int) -> list[ir.Node]:
    """Remove the initializer from its graph; return nodes that produce it instead."""
    assert value.graph is not None
    assert value.name is not None
    assert value.const_value is not None
    value.graph.initializers.pop(value.name)
    tensor = value.const_value
    # Constant-1 holds floating-point tensors only.
    through_cast = opset < 9 and not tensor.dtype.is_floating_point()
    if through_cast:
        tensor = ir.Tensor(tensor.numpy().astype(np.float64))
    nodes = [ir.node("Constant", [], {"value": tensor}, name="")]
    if through_cast:
        nodes[0].outputs[0].name = f"{value.name}.float64"
        nodes.append(ir.node("Cast", nodes[0].outputs, {"to": value.const_value.dtype.value}, name=""))
    take_place(nodes[-1].outputs[0], value)
    return nodes
