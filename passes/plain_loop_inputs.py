"""The number and the condition that the body of a Loop gets, for a runtime that hands them in wrongly.

The number is a scalar. Where a runtime makes a matrix of it, Gather by it and outputs computed from it have
axes too many: a Squeeze without axes is right in both cases. The condition is true whenever the body runs.
A runtime that reads other memory for it ends the Loop too soon.

Before::

    (float[5, 2] x, float[2] h) => (float[2] last) <int64 steps = {5}> {
        last = Loop (steps, , h) <body = each (int64 i, bool c, float[2] h_in) => (bool d, float[2] h_out) {
            x_t = Gather (x, i)
            h_out = Add (h_in, x_t)
            d = Identity (c)
        }>
    }

After ``PlainLoopInputsPass()``::

    (float[5, 2] x, float[2] h) => (float[2] last) <int64 steps = {5}> {
        last = Loop (steps, , h) <body = each (int64 i, bool c, float[2] h_in) => (bool d, float[2] h_out) {
            c_plain = Constant <value = bool {1}> ()
            i_plain = Squeeze (i)
            x_t = Gather (x, i_plain)
            h_out = Add (h_in, x_t)
            d = Identity (c_plain)
        }>
    }
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.graph.names import NameSource, names_in
from rnnlower.graph.walk import default_opset, walk
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import nothing_is_found

_FIRST_BOOL_CONSTANT = 9


class PlainLoopInputsPass(Pass):
    """Gives the bodies of Loops a Squeeze of their number, and a constant in the place of their condition."""

    KEEPS_FACTS = True
    ENSURES = (nothing_is_found,)

    def found(self, model: ir.Model) -> list[tuple[ir.Graph, int]]:
        """Return the numbers (0) and conditions (1) that are read, a number by anything but its Squeeze."""
        loops = (node for node, _ in walk(model.graph) if node.op_type == "Loop" and not node.domain)
        bodies = [loop.attributes["body"].as_graph() for loop in loops]
        return [(body, index) for body in bodies for index in (0, 1) if _is_read(body.inputs[index], index)]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = self.found(model)
        names = NameSource(names_in(model) if found else ())
        for body, index in found:
            _replace(body, index, names, default_opset(model))
        return ir.passes.PassResult(model, modified=bool(found))


def _is_read(given: ir.Value, index: int) -> bool:
    readers = [node for node, _ in given.uses()]
    if index == 0:
        readers = [node for node in readers if node.op_type != "Squeeze" or len(node.inputs) > 1]
    return bool(readers) or given.is_graph_output()


def _replace(body: ir.Graph, index: int, names: NameSource, opset: int) -> None:
    given = body.inputs[index]
    plain = ir.Value(name=names.fresh(f"{given.name}_plain"), type=given.type, shape=ir.Shape([]))
    given.replace_all_uses_with(plain, replace_graph_outputs=True)
    if index == 0:
        nodes = [ir.node("Squeeze", [given], outputs=[plain])]
    elif opset >= _FIRST_BOOL_CONSTANT:
        nodes = [ir.node("Constant", [], {"value": ir.tensor(np.array(True))}, outputs=[plain])]
    else:
        one = ir.node("Constant", [], {"value": ir.tensor(np.array(1, np.float32))})
        one.outputs[0].name = names.fresh(f"{given.name}_one")
        nodes = [one, ir.node("Cast", one.outputs, {"to": int(ir.DataType.BOOL)}, outputs=[plain])]
    for node in nodes:
        node.name = names.fresh(f"{given.name}/{node.op_type}")
    body.insert_before(body[0], nodes)
