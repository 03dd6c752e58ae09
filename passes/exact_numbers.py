"""Passes that preserve numbers which a runtime would change."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import replace_with_values
from rnnlower.graph.walk import REARRANGING, display_name, reachable, subgraphs_of, walk
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.passes.base import Pass, finds_nothing

_SOFTMAX = "Softmax"
_GUARDED = "rnnlower.keeps_nan"
_SUMS = ("Add", "Conv", "ConvTranspose", "Gemm", "MatMul", "Sum")
# Ops that compute nothing, so that a runtime may fuse what comes before and after them.
_LAYOUT = REARRANGING | {"Cast", "Concat"}


class KeepNaNPass(Pass):
    """Preserves NaN after a Softmax whose input depends on an infinite constant, such as a mask.

    A unary operator gets a Where that lets NaN through. A Softmax gets an Add of twice the largest element of
    the row less itself: NaN if that is infinite, else 0.

    A Softmax of a row that a mask fills with -inf is NaN, and so is all that is computed from it. Some
    runtimes turn such a row into zeros, or have kernels that turn NaN into a number.

    Before::

        (float[2, 3] x) => (float[2, 3] y) <float mask = {-inf}> {
            masked = Add (x, mask)
            weights = Softmax <axis = -1> (masked)
            y = Tanh (weights)
        }

    After ``KeepNaNPass(["Tanh"])``::

        (float[2, 3] x) => (float[2, 3] y) <float mask = {-inf}> {
            masked = Add (x, mask)
            weights = Softmax <axis = -1> (masked)
            number = Tanh (weights)
            is_nan = IsNaN (weights)
            y = Where (is_nan, weights, number)
        }

    Args:
        op_types: The operators that turn NaN into a number; a Softmax does so for a row of -inf.

    Attributes:
        kept: The names of the nodes, by operator.
    """

    ENSURES = (finds_nothing,)

    def __init__(self, op_types: Collection[str]) -> None:
        self._op_types = frozenset(op_types)
        self.kept: dict[str, list[str]] = {}

    def find(self, model: ir.Model) -> list[ir.Node]:
        """Return the nodes that may lose NaN."""
        if not any(_is_infinite(value) for node, _ in walk(model.graph) for value in node.inputs):
            return []
        search = _NaNSearch(self._op_types)
        search.visit_graph(model.graph)
        return search.found

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = self.find(model)
        if found:
            emitters = Emitters(model)
            for node in found:
                self.kept.setdefault(node.op_type, []).append(display_name(node))
                with emitters.before(node) as e:
                    kept = _emit_guarded(e, node, self.facts)
                self.facts.transfer(node.outputs[0], kept)
                replace_with_values(node, [kept])
        return ir.passes.PassResult(model, modified=bool(found))


class _NaNSearch:
    """A walk over the nodes in order that records what infinite constants and NaN may reach."""

    def __init__(self, op_types: Collection[str]) -> None:
        self.found: list[ir.Node] = []
        self._op_types = op_types
        self._infinite: set[ir.Value] = set()
        self._nan: set[ir.Value] = set()

    def visit_graph(self, graph: ir.Graph) -> bool:
        """Visit the nodes of a graph; return whether one of them may produce NaN."""
        seen = [self._visit_node(node) for node in graph]
        return any(seen)

    def _visit_node(self, node: ir.Node) -> bool:
        bodies = list(subgraphs_of(node))
        read = [value for value in node.inputs if value is not None]
        marks = []
        for marked, by_itself in ((self._infinite, _is_infinite), (self._nan, lambda value: False)):
            inside = (value for body in bodies for inner, _ in walk(body) for value in inner.inputs)
            mark = any(value in marked or by_itself(value) for value in (*read, *inside) if value is not None)
            # The next iteration reads what this one computes.
            marked.update(value for body in bodies if mark for value in body.inputs)
            marks.append(mark)
        is_infinite, is_nan = marks
        is_nan |= is_infinite and node.op_type == _SOFTMAX
        for body in bodies:
            if self.visit_graph(body) and not is_nan:
                is_nan = True
                self._nan.update(body.inputs)
                self.visit_graph(body)
        self._infinite.update(node.outputs if is_infinite else ())
        self._nan.update(node.outputs if is_nan else ())
        loses_nan = node.domain == "" and node.op_type in self._op_types and _GUARDED not in node.meta
        if is_nan and loses_nan and node not in self.found:
            self.found.append(node)
        return is_nan


def _is_infinite(value: ir.Value | None) -> bool:
    tensor = constant_of(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return False
    return bool(np.isinf(tensor.numpy().astype(np.float64)).any())


def _emit_guarded(e: Emitter, node: ir.Node, facts: Facts) -> ir.Value:
    """Emit a copy of the node, and the ops that preserve NaN."""
    twin = ir.Node("", node.op_type, node.inputs, node.attributes.values(), name=node.name)
    twin.meta.update(node.meta)
    twin.meta[_GUARDED] = True
    x, number = node.inputs[0], twin.outputs[0]
    assert x is not None
    number.name, number.type = e.names.fresh(node.op_type), node.outputs[0].type
    e.add(twin)
    if node.op_type != _SOFTMAX:
        return e.op("Where", e.op("IsNaN", x), x, number)
    # Before opset 13, a Softmax normalizes over all axes from the given one on.
    axis, shape = node.attributes.get_int("axis", -1 if facts.opset >= 13 else 1), facts.shape(x)
    axes = [axis] if facts.opset >= 13 or shape is None else [*range(axis % len(shape), len(shape))]
    largest = e.with_axes("ReduceMax", x, axes, since=18)
    # A runtime may give the largest finite number for a row of -inf: twice that is -inf.
    doubled = e.op("Add", largest, largest)
    return e.op("Add", number, e.op("Sub", doubled, doubled))


class SeparateSumsPass(Pass):
    """Inserts a Max between a sum and an operator that a runtime computes less exactly after one.

    Matrix products are sums, too. Ops in between that only change the shape or the type make no difference.

    A runtime that fuses an Add, a Gemm or a Conv with the Sigmoid or Tanh after it may compute the two less
    exactly than separately. The maximum of a value and itself is the value, and keeps them apart.

    Before::

        (float[2] x, float[2] y) => (float[2] z) {
            sum = Add (x, y)
            z = Tanh (sum)
        }

    After ``SeparateSumsPass(["Tanh"])``::

        (float[2] x, float[2] y) => (float[2] z) {
            sum = Add (x, y)
            sum_apart = Max (sum, sum)
            z = Tanh (sum_apart)
        }

    Args:
        op_types: The operators that read the sums.
        also: Whether a Max goes in front of another node: a runtime may fuse it wrongly with other nodes.
    """

    ENSURES = (finds_nothing,)

    def __init__(
        self, op_types: Collection[str], *, also: Callable[[ir.Node], bool] = lambda node: False
    ) -> None:
        self._also = also
        self._op_types = frozenset(op_types)

    def find(self, model: ir.Model) -> list[ir.Node]:
        """Return the nodes that need a Max."""
        return [
            node
            for node, _ in walk(model.graph)
            if node.domain == ""
            and ((node.op_type in self._op_types and _is_sum(node.inputs[0])) or self._also(node))
        ]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = self.find(model)
        if found:
            names = NameSource(all_names(model))
            for node in found:
                _insert_max(node, names)
        return ir.passes.PassResult(model, modified=bool(found))


def _is_sum(value: ir.Value | None) -> bool:
    """Return whether a value is a sum, or a sum in another shape or type."""

    def before(node: ir.Node) -> list[ir.Node | None]:
        is_layout = node.op_type in _LAYOUT and not node.domain
        return [used.producer() for used in node.inputs if used is not None] if is_layout else []

    node = None if value is None else value.producer()
    found = [] if node is None else reachable([node], before)
    return any(each.op_type in _SUMS and not each.domain for each in found)


def _insert_max(node: ir.Node, names: NameSource) -> None:
    value, graph = node.inputs[0], node.graph
    assert value is not None
    assert graph is not None
    name = names.fresh(f"{value.name}/Max")
    apart = ir.Value(name=names.fresh(f"{value.name}_apart"), type=value.type, shape=value.shape)
    graph.insert_before(node, ir.node("Max", [value, value], outputs=[apart], name=name))
    node.replace_input_with(0, apart)
