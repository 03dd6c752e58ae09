"""Passes that replace nodes which a runtime refuses or lacks by equivalent ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.evaluation import Shape
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, Scope, all_names
from rnnlower.graph.rewiring import detach, remove_orphans, replace_with_values
from rnnlower.graph.slicing import keeps_split_axis
from rnnlower.graph.versions import version_at
from rnnlower.graph.walk import display_name, is_read, operand, qualified_op_type, subgraphs_of, walk
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.lowering.fallbacks import FALLBACKS
from rnnlower.lowering.node_emitter import AttributeValue, make_node
from rnnlower.opset.version_fit import type_misfit, type_string
from rnnlower.passes.base import Pass, are_gone
from rnnlower.passes.expand_functions import ExpandDefinitionsPass

_ROUNDS = 8
_READERS = frozenset(["ConcatFromSequence", "SequenceAt", "SequenceLength"])
SEQUENCE_OPS = _READERS | {
    "SequenceEmpty",
    "SequenceConstruct",
    "SequenceInsert",
    "SequenceErase",
    "SplitToSequence",
}
Refused = Callable[[ir.Node], bool]


def has_fallback(node: ir.Node) -> bool:
    """Return whether the table of fallbacks has the node's operator."""
    return qualified_op_type(node) in FALLBACKS


def _adapted_nodes_are_gone(model: ir.Model, adapting: AdaptNodesPass) -> bool:
    return are_gone(model, adapting.adapted)


class AdaptNodesPass(Pass):
    """Replaces nodes that a runtime refuses by equivalent ones that it accepts.

    The replacements come from `FALLBACKS`, as for the nodes that a lowering emits, or else from onnx's own
    definition of the operator (`ExpandDefinitionsPass`). Many of them need known sizes.

    Before::

        (float[2, 1] x) => (float[2] y) <int64[1] axes = {1}> {
            y = Squeeze (x, axes)
        }

    After ``AdaptNodesPass(lambda node: node.op_type == "Squeeze")``::

        (float[2, 1] x) => (float[2] y) <int64[1] shape = {2}> {
            y = Reshape (x, shape)
        }

    Args:
        refused: Whether a node must be replaced, and may not be emitted.

    Attributes:
        adapted: The names of the replaced nodes, by operator.
    """

    KEEPS_FACTS = True
    ENSURES = (_adapted_nodes_are_gone,)

    def __init__(self, refused: Refused) -> None:
        self._refused = refused
        self.adapted: dict[str, list[str]] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Express the nodes.

        Raises:
            InvalidModelError: A node does not fit its operator's definition.
        """
        for _ in range(_ROUNDS):
            changed = self._express(model)
            expanding = ExpandDefinitionsPass(self._refused, has_fallback)
            if not expanding(model, self.facts).modified and not changed:
                break
            for op_type, names in expanding.expanded.items():
                self.adapted.setdefault(op_type, []).extend(names)
        return ir.passes.PassResult(model, modified=bool(self.adapted))

    def _express(self, model: ir.Model) -> bool:
        nodes = [node for node, _ in walk(model.graph)]
        refused = {node for node in nodes if has_fallback(node) and self._refused(node)}
        if not refused:
            return False
        facts, names = self.facts, NameSource(all_names(model))
        pool, changed = InitializerPool(model, names), False
        for node in nodes:
            if node in refused:
                # Standard operators are preferred to those of other domains, even if also refused.
                is_refused = (lambda each: bool(each.domain)) if node.domain else self._refused
                changed |= self._adapt(node, _NodeWriter(node, facts, names, pool, is_refused))
            elif changed:
                # Replacing a node of another domain makes more known about the nodes after it.
                facts.visit(node)
        return changed

    def _adapt(self, node: ir.Node, writer: _NodeWriter) -> bool:
        key, attributes = qualified_op_type(node), _attributes_with_defaults(node, writer.opset)
        try:
            results = writer.express(key, node.inputs, attributes)
        except (MissingOperatorError, OpsetError):
            results = []
        used = [index for index, out in enumerate(node.outputs) if is_read(out)]
        graph = node.graph
        if graph is None or not results or (used and used[-1] >= len(results)):
            detach(writer.nodes)
            return False
        self.adapted.setdefault(key, []).append(display_name(node))
        graph.insert_before(node, writer.nodes)
        node.resize_outputs(min(len(results), len(node.outputs)))
        for result, old in zip(results, node.outputs, strict=False):
            writer.facts.transfer(old, result)
        results = results[: len(node.outputs)]
        names = [old.name for old in node.outputs]
        replace_with_values(node, results)
        for result, name in zip(results, names, strict=True):
            # The verification follows a value of the model by its name.
            if name and result.producer() in writer.nodes and not result.is_graph_output():
                result.name = name
        remove_orphans(out for made in writer.nodes for out in made.outputs)
        return True


def _attributes_with_defaults(node: ir.Node, opset: int) -> dict[str, Any]:
    """Return the attributes of a node, with the operator's defaults."""
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    if node.op_type == "Split" and not given.get("split"):
        given["num_outputs"] = len(node.outputs)
    version = None if node.domain else version_at(node.op_type, opset)
    declared = {} if version is None else version.attributes
    return {name: each.default for name, each in declared.items() if each.default is not None} | given


class _NodeWriter(Emitter):
    """An emitter of a node's replacement, with the facts about the model's values."""

    def __init__(
        self, node: ir.Node, facts: Facts, names: NameSource, pool: InitializerPool, refused: Refused
    ) -> None:
        scope = Scope(names, f"{display_name(node)}/")
        # After an operator of another domain, the weights may be all whose type is known.
        dtype = next(filter(None, map(facts.dtype, node.inputs)), ir.DataType.UNDEFINED)
        super().__init__(facts.opset, scope, dtype, pool)
        self.facts = facts
        self._refused = refused

    def scalar(self, number: float) -> ir.Value:
        if self.dtype == ir.DataType.UNDEFINED:
            raise self.missing("Constant")
        return super().scalar(number)

    def has(self, op_type: str) -> bool:
        return not self._refused(ir.node(op_type, []))

    def ops(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        outputs: int,
        since: int = 1,
        **attributes: AttributeValue,
    ) -> Sequence[ir.Value]:
        made = super().ops(op_type, *inputs, outputs=outputs, since=since, **attributes)
        node = self.nodes[-1]
        self.facts.visit(node)
        version = None if node.domain else version_at(op_type, self.opset)
        if self._refused(node) or (version and type_misfit(node, version, self._types_of)):
            raise self.missing(op_type)
        for out in made:
            out.type = self.facts.type(out)
        return made

    def _types_of(self, value: ir.Value) -> frozenset[str]:
        known = type_string(self.facts.type(value))
        return frozenset() if known is None else frozenset([known])

    def type_of(self, value: ir.Value | None) -> ir.DataType | None:
        return self.facts.dtype(value)

    def shape(self, value: ir.Value | None) -> Shape | None:
        return self.facts.shape(value)

    def content(self, value: ir.Value | None) -> np.ndarray | None:
        return self.facts.constant(value)

    def result_shape(
        self, op_type: str, *inputs: ir.Value | None, **attributes: AttributeValue
    ) -> Shape | None:
        node = make_node(op_type, inputs, attributes, [ir.Value(name="result")])
        self.facts.visit(node)
        shape = self.facts.shape(node.outputs[0])
        detach([node])
        return shape


class ResolveSequencesPass(Pass):
    """Replaces operators that read a sequence by operators that read its elements, where these are known.

    They are known if the positions of insertions and the sizes of splits are constants, and no Loop builds
    the sequence. Nodes that build a sequence are removed when nothing reads it any more.

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

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if not any(node.op_type in SEQUENCE_OPS and not node.domain for node, _ in walk(model.graph)):
            return ir.passes.PassResult(model, modified=False)
        resolver = _SequenceResolver(model, self.facts)
        resolver.resolve(model.graph)
        return ir.passes.PassResult(model, modified=resolver.modified)


class _SequenceResolver:
    """A walk over the nodes in order that records the elements of each known sequence."""

    def __init__(self, model: ir.Model, facts: Facts) -> None:
        self.modified = False
        self._facts = facts
        self._emitters = Emitters(model)
        self._elements: dict[ir.Value | None, list[ir.Value]] = {}

    def resolve(self, graph: ir.Graph) -> None:
        for node in list(graph):
            kind = "" if node.domain else node.op_type
            if kind in _READERS:
                result = self._resolve_read(node)
                if result is not None:
                    replace_with_values(node, [result])
                    self.modified = True
            elif (elements := self._built_elements(node)) is not None:
                self._elements[node.outputs[0]] = elements
            for inner in subgraphs_of(node):
                self.resolve(inner)

    def _built_elements(self, node: ir.Node) -> list[ir.Value] | None:
        """Return the elements of the sequence that a node builds; ``None`` if they are unknown."""
        kind = "" if node.domain else node.op_type
        if kind == "SequenceEmpty":
            return []
        if kind == "SequenceConstruct":
            return [value for value in node.inputs if value is not None]
        if kind == "SplitToSequence":
            return self._split_elements(node)
        if kind not in ("Identity", "SequenceInsert", "SequenceErase"):
            return None
        elements = self._elements.get(node.inputs[0])
        if elements is None or kind == "Identity":
            return elements
        if kind == "SequenceErase":
            place = self._position(node, 1, len(elements), len(elements) - 1)
            return None if place is None else [*elements[:place], *elements[place + 1 :]]
        place, element = self._position(node, 2, len(elements), len(elements)), node.inputs[1]
        if place is None or element is None:
            return None
        return [*elements[:place], element, *elements[place:]]

    def _position(self, node: ir.Node, index: int, length: int, last: int) -> int | None:
        """Return the position that an input gives, by default the last; ``None`` if unknown or invalid."""
        place = last
        if (given := operand(node, index)) is not None:
            constant = self._facts.constant(given)
            if constant is None:
                return None
            place = int(constant.reshape(-1)[0])
            place += length if place < 0 else 0
        return place if 0 <= place <= last else None

    def _split_elements(self, node: ir.Node) -> list[ir.Value] | None:
        value, axis = node.inputs[0], node.attributes.get_int("axis", 0)
        shape = self._facts.shape(value)
        if value is None or shape is None or not -len(shape) <= axis < len(shape):
            return None
        size = shape[axis]
        given = operand(node, 1)
        sizes = np.array(1) if given is None else self._facts.constant(given)
        if size is None or sizes is None or (not sizes.ndim and int(sizes) < 1):
            return None
        if not keeps_split_axis(node, sizes):
            with self._emitters.before(node) as e:
                return e.unstack(value, size, axis) if int(sizes) == 1 else None
        each = [int(part) for part in sizes] if sizes.ndim else []
        if not sizes.ndim:
            each = [min(int(sizes), size - first) for first in range(0, size, int(sizes))]
        with self._emitters.before(node) as e:
            return list(e.split(value, each, axis))

    def _resolve_read(self, node: ir.Node) -> ir.Value | None:
        """Return the element that a node reads from a sequence; ``None`` if it is not known."""
        elements = self._elements.get(node.inputs[0])
        if elements is None:
            return None
        if node.op_type == "SequenceLength":
            return self._emitters.constants.intern(ir.Tensor(np.array(len(elements), np.int64)))
        if node.op_type == "SequenceAt":
            place = self._position(node, 1, len(elements), len(elements) - 1)
            return None if place is None else elements[place]
        if not elements:
            return None
        axis = node.attributes.get_int("axis", 0)
        with self._emitters.before(node) as e:
            return (e.stack if node.attributes.get_int("new_axis", 0) else e.concat_tree)(elements, axis)
