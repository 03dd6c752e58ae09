"""Replacement of sequences whose elements are known by tensors.

Before::

    (float[2] a, float[2] b) => (float[2, 2] y) {
        none = SequenceEmpty ()
        one = SequenceInsert (none, a)
        two = SequenceInsert (one, b)
        y = ConcatFromSequence <axis = 0, new_axis = 1> (two)
    }

After ``ResolveSequencesPass()``::

    (float[2] a, float[2] b) => (float[2, 2] y) <int64[1] axes = {0}> {
        a_0 = Unsqueeze (a, axes)
        b_0 = Unsqueeze (b, axes)
        y = Concat <axis = 0> (a_0, b_0)
    }
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.splicing import replace_outputs
from rnnlower.graph.walk import subgraphs_of, walk
from rnnlower.lowering.replacing import Emitters
from rnnlower.passes.base import Pass

_MAKERS = frozenset(
    ["SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SplitToSequence"]
)
_READERS = frozenset(["ConcatFromSequence", "SequenceAt", "SequenceLength"])
SEQUENCE_OPS = _MAKERS | _READERS


class ResolveSequencesPass(Pass):
    """Replaces what reads a sequence by what reads its elements, where these are known one by one.

    They are known if the positions of insertions and the sizes of splits are constants, and no Loop builds
    the sequence. Nodes that build a sequence are removed when nothing reads it any more.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if not any(node.op_type in SEQUENCE_OPS and not node.domain for node, _ in walk(model.graph)):
            return ir.passes.PassResult(model, modified=False)
        resolver = _Resolver(model, self.facts)
        resolver.resolve(model.graph)
        return ir.passes.PassResult(model, modified=resolver.modified)


class _Resolver:
    """A walk over the nodes in order; ``_elements`` are those of each sequence that is known."""

    def __init__(self, model: ir.Model, facts: Facts) -> None:
        self.modified = False
        self._facts = facts
        self._emitters = Emitters(model)
        self._elements: dict[ir.Value, list[ir.Value]] = {}

    def resolve(self, graph: ir.Graph) -> None:
        nodes = list(graph)
        for node in nodes:
            kind = "" if node.domain else node.op_type
            if kind in _READERS:
                result = self._read(node)
                if result is not None:
                    replace_outputs(node, [result])
                    self.modified = True
            elif (elements := self._made_by(node)) is not None:
                self._elements[node.outputs[0]] = elements
            for inner in subgraphs_of(node):
                self.resolve(inner)
        for node in reversed(nodes):
            if node.graph is graph and not node.domain and node.op_type in _MAKERS:
                out = node.outputs[0]
                if not out.uses() and not out.is_graph_output():
                    graph.remove(node, safe=True)
                    self.modified = True

    def _of(self, node: ir.Node) -> list[ir.Value] | None:
        value = node.inputs[0]
        return None if value is None else self._elements.get(value)

    def _made_by(self, node: ir.Node) -> list[ir.Value] | None:
        """Return the elements of the sequence that a node builds; ``None`` if there are no known ones."""
        kind = "" if node.domain else node.op_type
        if kind == "SequenceEmpty":
            return []
        if kind == "SequenceConstruct":
            return [value for value in node.inputs if value is not None]
        if kind == "SplitToSequence":
            return self._split(node)
        if kind not in ("Identity", "SequenceInsert", "SequenceErase"):
            return None
        elements = self._of(node)
        if elements is None or kind == "Identity":
            return elements
        if kind == "SequenceErase":
            place = self._place(node, 1, len(elements), len(elements) - 1)
            return None if place is None else [*elements[:place], *elements[place + 1 :]]
        place, element = self._place(node, 2, len(elements), len(elements)), node.inputs[1]
        if place is None or element is None:
            return None
        return [*elements[:place], element, *elements[place:]]

    def _place(self, node: ir.Node, index: int, length: int, last: int) -> int | None:
        """Return the position that an input names, or else the last; ``None`` if unknown or invalid."""
        place = last
        if index < len(node.inputs) and node.inputs[index] is not None:
            constant = self._facts.constant(node.inputs[index])
            if constant is None:
                return None
            place = int(constant.reshape(-1)[0])
            place += length if place < 0 else 0
        return place if 0 <= place <= last else None

    def _split(self, node: ir.Node) -> list[ir.Value] | None:
        value, axis = node.inputs[0], node.attributes.get_int("axis", 0)
        shape = self._facts.shape(value)
        if value is None or shape is None or not -len(shape) <= axis < len(shape):
            return None
        size = shape[axis]
        given = node.inputs[1] if len(node.inputs) > 1 else None
        if size is None:
            return None
        if given is None and not node.attributes.get_int("keepdims", 1):
            with self._emitters.before(node) as e:
                return e.slices(value, size, axis)
        sizes = np.array(1) if given is None else self._facts.constant(given)
        if sizes is None or (not sizes.ndim and int(sizes) < 1):
            return None
        each = [int(part) for part in sizes] if sizes.ndim else []
        if not sizes.ndim:
            each = [min(int(sizes), size - first) for first in range(0, size, int(sizes))]
        with self._emitters.before(node) as e:
            return list(e.split(value, each, axis))

    def _read(self, node: ir.Node) -> ir.Value | None:
        """Return the element that a node reads from a sequence; ``None`` if it is not known."""
        elements = self._of(node)
        if elements is None:
            return None
        if node.op_type == "SequenceLength":
            return self._emitters.constants.of(ir.Tensor(np.array(len(elements), np.int64)))
        if node.op_type == "SequenceAt":
            place = self._place(node, 1, len(elements), len(elements) - 1)
            return None if place is None else elements[place]
        if not elements:
            return None
        axis = node.attributes.get_int("axis", 0)
        with self._emitters.before(node) as e:
            return (e.stack if node.attributes.get_int("new_axis", 0) else e.join)(elements, axis)
