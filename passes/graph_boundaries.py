"""Passes that change inputs and outputs of graphs for runtimes that get them wrong."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import constant_holds
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import prepend, take_place_of
from rnnlower.graph.walk import default_opset, look_through, operand, producer_of
from rnnlower.passes.base import Pass, finds_nothing
from rnnlower.passes.simpler_control_flow import loops

_FIRST_STATE = 2
"""The number of the first state among the inputs of a Loop and of its body."""
# A runtime may fuse these with what computes their input.
_FUSED = ("Clip", "LeakyRelu", "PRelu", "Relu")


class CopyOutputsPass(Pass):
    """Copies, by a Cast to the same type, every output of a graph or body that nodes read as well.

    An output also counts as read if an equal node has the same inputs: a runtime may merge the two.

    Some runtimes overwrite such outputs, give them other axes, or refuse them. A reshaped value has no memory
    of its own. A runtime that computes an element-wise op in place must not reuse that memory if the value is
    also an output.

    Before::

        (float[2, 1] x) => (float[2] y, float[2] z) <int64[1] shape = {2}> {
            t = Tanh (x)
            y = Reshape (t, shape)
            z = Neg (y)
        }

    After ``CopyOutputsPass()``::

        (float[2, 1] x) => (float[2] y, float[2] z) <int64[1] shape = {2}> {
            t = Tanh (x)
            y_read = Reshape (t, shape)
            z = Neg (y_read)
            y = Cast <to = 1> (y_read)
        }

    Args:
        op_types: Operators whose results are copied, too, where they are outputs.
        read: Whether outputs that nodes read are copied.
    """

    KEEPS_FACTS = True
    ENSURES = (finds_nothing,)

    def __init__(self, op_types: Collection[str] = (), *, read: bool = True) -> None:
        self._read = read
        self._op_types = frozenset(op_types)

    def find(self, model: ir.Model) -> list[tuple[ir.Graph, int]]:
        """Return the outputs that need a copy: the graph and the number of each."""
        return [
            (graph, index)
            for graph in model.graphs()
            for index, value in enumerate(graph.outputs)
            if (self._read and _is_read(value))
            or producer_of(look_through(value, _FUSED), *self._op_types) is not None
        ]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = self.find(model)
        if found:
            names = NameSource(all_names(model))
            for graph, index in found:
                value = graph.outputs[index]
                cast = _cast_of(value, names, self.facts)
                graph.append(cast)
                take_place_of(cast.outputs[0], value, old_name=names.fresh(f"{value.name}_read"), readers=())
        return ir.passes.PassResult(model, modified=bool(found))


def _is_read(value: ir.Value) -> bool:
    """Return whether other nodes read an output, or that of an equal node."""
    node = value.producer()
    if node is None or node.op_type == "Cast":
        return False
    first = next((each for each in node.inputs if each is not None), None)
    equal = [] if first is None else [each for each, _ in first.uses() if each is not node]
    return bool(value.uses()) or any(
        each.op_identifier() == node.op_identifier() and [*each.inputs] == [*node.inputs] for each in equal
    )


def _cast_of(value: ir.Value, names: NameSource, facts: Facts) -> ir.Node:
    type_ = facts.type(value)
    if not isinstance(type_, ir.TensorType):
        raise UnsupportedModelError(
            f"{value.name!r} needs a copy, and is not known to be a tensor",
            remedy="give the model types, by onnx.shape_inference",
        )
    return ir.node("Cast", [value], {"to": type_.dtype.value}, name=names.fresh(f"{value.name}/Cast"))


class PlainLoopInputsPass(Pass):
    """Inserts a Squeeze after the iteration number of each Loop, and replaces its condition by a constant.

    Some runtimes pass wrong ones to the body. The number is a scalar. Where a runtime turns it into a matrix,
    a Gather by it and outputs computed from it have too many axes: a Squeeze without axes is right in both
    cases. The condition is true whenever the body runs. A runtime that reads other memory for it ends the
    Loop too soon. The initial value of a state that is read elsewhere, as by another state, is copied by a
    Cast: the runtime computes the state in its memory.

    Before::

        (float[5, 2] x, float[2] h) => (float[2] last) <int64 steps = {5}> {
            last = Loop (steps, , h) <body = p (int64 i, bool c, float[2] h_in) => (bool d, float[2] h_out) {
                x_t = Gather (x, i)
                h_out = Add (h_in, x_t)
                d = Identity (c)
            }>
        }

    After ``PlainLoopInputsPass()``::

        (float[5, 2] x, float[2] h) => (float[2] last) <int64 steps = {5}> {
            last = Loop (steps, , h) <body = p (int64 i, bool c, float[2] h_in) => (bool d, float[2] h_out) {
                c_plain = Constant <value = bool {1}> ()
                i_plain = Squeeze (i)
                x_t = Gather (x, i_plain)
                h_out = Add (h_in, x_t)
                d = Identity (c_plain)
            }>
        }
    """

    KEEPS_FACTS = True
    ENSURES = (finds_nothing,)

    def find(self, model: ir.Model) -> list[tuple[ir.Node, int]]:
        """Return Loops and numbers of inputs.

        These are iteration numbers (0) that are read by a node other than their Squeeze, conditions (1), and
        states whose initial value is read elsewhere.
        """
        return [
            (loop, index)
            for loop in loops(model)
            for index, given in enumerate(loop.attributes["body"].as_graph().inputs)
            if (_is_read_plainly(given, index) if index < _FIRST_STATE else _is_shared(operand(loop, index)))
        ]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = self.find(model)
        names = NameSource(all_names(model) if found else ())
        for loop, index in found:
            initial = operand(loop, index)
            if index < _FIRST_STATE:
                body = loop.attributes["body"].as_graph()
                _replace_loop_input(body, index, names, default_opset(model))
            elif initial is not None:
                cast = _cast_of(initial, names, self.facts)
                cast.outputs[0].name = names.fresh(f"{initial.name}_copy")
                loop.prepend(cast)
                loop.replace_input_with(index, cast.outputs[0])
        return ir.passes.PassResult(model, modified=bool(found))


def _is_shared(initial: ir.Value | None) -> bool:
    """Return whether a Loop is not the only reader of a computed value, or reads it twice."""
    if initial is None or initial.producer() is None:
        return False
    return len(initial.uses()) > 1 or initial.is_graph_output()


def _is_read_plainly(given: ir.Value, index: int) -> bool:
    readers = [node for node, _ in given.uses()]
    if index == 0:
        readers = [
            node
            for node in readers
            if (node.op_type, len(node.inputs)) != (("Reshape", 2) if given.shape else ("Squeeze", 1))
        ]
    return bool(readers) or given.is_graph_output()


def _replace_loop_input(body: ir.Graph, index: int, names: NameSource, opset: int) -> None:
    given = body.inputs[index]
    # A body may declare scalars with an axis, and then gets that.
    axes = [1] if given.shape else []
    plain = ir.Value(name=names.fresh(f"{given.name}_plain"), type=given.type, shape=ir.Shape(axes))
    given.replace_all_uses_with(plain, replace_graph_outputs=True)
    if index == 0 and axes:
        size = ir.node("Constant", [], {"value": ir.tensor(np.array(axes))})
        size.outputs[0].name = names.fresh(f"{given.name}_shape")
        nodes = [size, ir.node("Reshape", [given, *size.outputs], outputs=[plain])]
    elif index == 0:
        nodes = [ir.node("Squeeze", [given], outputs=[plain])]
    elif constant_holds(ir.DataType.BOOL, opset):
        nodes = [ir.node("Constant", [], {"value": ir.tensor(np.ones(axes, bool))}, outputs=[plain])]
    else:
        one = ir.node("Constant", [], {"value": ir.tensor(np.ones(axes, np.float32))})
        one.outputs[0].name = names.fresh(f"{given.name}_one")
        nodes = [one, ir.node("Cast", one.outputs, {"to": int(ir.DataType.BOOL)}, outputs=[plain])]
    for node in nodes:
        node.name = names.fresh(f"{given.name}/{node.op_type}")
    prepend(body, nodes)
