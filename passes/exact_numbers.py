"""Passes that preserve numbers which a runtime would change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.operator_kinds import REARRANGING
from rnnlower.graph.rewiring import replace_with_values
from rnnlower.graph.walk import display_name, producer_of, reachable, subgraph_owners, subgraphs_of, walk
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.passes.base import Pass, finds_nothing

_SOFTMAX = "Softmax"
_GUARDED = "rnnlower.keeps_nan"
_SUMS = ("Add", "Conv", "ConvTranspose", "Gemm", "MatMul", "Sum")
# Ops that compute nothing, so that a runtime may fuse what comes before and after them.
_FUSED_ACROSS = REARRANGING | {"Cast", "Concat"}


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
        nodes = [node for node, _ in walk(model.graph)]
        # In their order: the name of a tensor that several share is that of the value asked last.
        values = dict.fromkeys(value for node in nodes for value in (*node.inputs, *node.outputs))
        infinite = _affected(model, filter(_is_infinite, values))
        masked = {node for node in nodes if node.op_type == _SOFTMAX and node.inputs[0] in infinite}
        nan = _affected(model, {out for node in masked for out in node.outputs})
        own = [node for node in nodes if node.op_type in self._op_types and not node.domain]
        return [
            node
            for node in own
            if _GUARDED not in node.meta and (node in masked or not nan.isdisjoint(node.inputs))
        ]

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


def _affected(model: ir.Model, values: Iterable[ir.Value | None]) -> set[ir.Value | None]:
    """Return these values and all that depend on them."""
    owners = subgraph_owners(model.graph)

    def following(value: ir.Value | None) -> Iterator[ir.Value]:
        readers = [] if value is None else [node for node, _ in value.uses()]
        if value is not None and value.is_graph_output() and (owner := owners.get(value.graph)) is not None:
            # The next iteration reads what this one computes.
            readers.append(owner)
        for node in readers:
            yield from node.outputs
            yield from (inner for body in subgraphs_of(node) for inner in body.inputs)

    return {*reachable(values, following)}


def _is_infinite(value: ir.Value | None) -> bool:
    tensor, maker = constant_of(value), producer_of(value, "ConstantOfShape")
    if maker is not None and "value" in maker.attributes:
        tensor = maker.attributes["value"].as_tensor()
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
        is_between = node.op_type in _FUSED_ACROSS and not node.domain
        return [used.producer() for used in node.inputs if used is not None] if is_between else []

    node = None if value is None else value.producer()
    found = [] if node is None else reachable([node], before)
    return any(each.op_type in _SUMS and not each.domain for each in found)


def _insert_max(node: ir.Node, names: NameSource) -> None:
    value = node.inputs[0]
    assert value is not None
    name = names.fresh(f"{value.name}/Max")
    apart = ir.Value(name=names.fresh(f"{value.name}_apart"), type=value.type, shape=value.shape)
    node.prepend(ir.node("Max", [value, value], outputs=[apart], name=name))
    node.replace_input_with(0, apart)
