"""Copies of outputs that a runtime would overwrite, give other axes, or refuse.

A reshaped value has no memory of its own. A runtime that computes an element-wise op in place must not take
that memory if the value is an output, too.

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
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource, names_in
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import nothing_is_found

# A runtime may fuse these with what computes their input.
_FUSED = ("Clip", "LeakyRelu", "PRelu", "Relu")


class CopyOutputsPass(Pass):
    """Gives every output of a graph or body that other nodes read a Cast to its own type.

    An output also counts as read if a node like the one that computes it has the same inputs: a runtime may
    make one of the two.

    Args:
        op_types: Operators whose results get one, too, where they are outputs.
        read: Whether outputs that other nodes read get one.
    """

    KEEPS_FACTS = True
    ENSURES = (nothing_is_found,)

    def __init__(self, op_types: Collection[str] = (), *, read: bool = True) -> None:
        super().__init__()
        self._read = read
        self._op_types = frozenset(op_types)

    def found(self, model: ir.Model) -> list[tuple[ir.Graph, int]]:
        """Return the outputs that need a copy: the graph and the number of each."""
        return [
            (graph, index)
            for graph in model.graphs()
            for index, value in enumerate(graph.outputs)
            if (self._read and _is_read(value)) or _is_made_by(value, self._op_types)
        ]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = self.found(model)
        if found:
            names = NameSource(names_in(model))
            for graph, index in found:
                _copy(graph, index, names, self.facts)
        return ir.passes.PassResult(model, modified=bool(found))


def _is_read(value: ir.Value) -> bool:
    """Return whether other nodes read an output, or what an equal node computes."""
    node = value.producer()
    if node is None or node.op_type == "Cast":
        return False
    first = next((each for each in node.inputs if each is not None), None)
    equal = [] if first is None else [each for each, _ in first.uses() if each is not node]
    return bool(value.uses()) or any(
        each.op_identifier() == node.op_identifier() and [*each.inputs] == [*node.inputs] for each in equal
    )


def _is_made_by(value: ir.Value, op_types: Collection[str]) -> bool:
    """Return whether one of these operators computes a value, maybe followed by an activation."""
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in _FUSED and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.domain == "" and node.op_type in op_types


def _copy(graph: ir.Graph, index: int, names: NameSource, facts: Facts) -> None:
    value = graph.outputs[index]
    type_ = facts.type(value)
    if not isinstance(type_, ir.TensorType):
        raise UnsupportedModelError(
            f"output {value.name!r} needs a copy, and is not known to be a tensor",
            remedy="give the model types, by onnx.shape_inference",
        )
    cast = ir.node("Cast", [value], {"to": type_.dtype.value}, name=names.fresh(f"{value.name}/Cast"))
    copy = cast.outputs[0]
    copy.type, copy.shape = value.type, value.shape
    copy.name, value.name = value.name, names.fresh(f"{value.name}_read")
    graph.append(cast)
    graph.outputs[index] = copy
