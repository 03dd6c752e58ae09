"""Passes that replace nodes which a runtime refuses or lacks by equivalent ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.errors import MissingOperatorError, OpsetError
from rnnlower.graph.evaluation import Shape
from rnnlower.graph.facts import Facts, cover_axis
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, Scope, all_names
from rnnlower.graph.rewiring import detach, remove_orphans, replace_with_values
from rnnlower.graph.versions import version_at
from rnnlower.graph.walk import display_name, is_read, qualified_op_type, walk
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.fallbacks import FALLBACKS
from rnnlower.lowering.node_emitter import AttributeValue
from rnnlower.opset.version_fit import type_misfit, type_string
from rnnlower.passes.base import Pass, are_gone
from rnnlower.passes.expand_functions import ExpandDefinitionsPass

_ROUNDS = 8
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
        if node.graph is None or not results or (used and used[-1] >= len(results)):
            detach(writer.nodes)
            return False
        self.adapted.setdefault(key, []).append(display_name(node))
        node.prepend(writer.nodes)
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

    def covers(self, lengths: ir.Value, tensor: ir.Value, axis: int) -> bool:
        return cover_axis(self.facts, lengths, tensor, axis)

    def content(self, value: ir.Value | None) -> np.ndarray | None:
        return self.facts.constant(value)

    def result_shape(
        self, op_type: str, *inputs: ir.Value | None, **attributes: AttributeValue
    ) -> Shape | None:
        node = ir.node(op_type, inputs, attributes, outputs=[ir.Value(name="result")])
        self.facts.visit(node)
        shape = self.facts.shape(node.outputs[0])
        detach([node])
        return shape
