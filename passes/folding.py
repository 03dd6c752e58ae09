"""Passes for constant folding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Container, Sequence

import onnx_ir as ir

from rnnlower.errors import InvalidModelError
from rnnlower.files import beyond_ir
from rnnlower.graph.evaluation import Array
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool, constant_holds, constant_of
from rnnlower.graph.names import NameSource, all_names, count_value_names
from rnnlower.graph.rewiring import remove_orphans, take_place_of
from rnnlower.graph.walk import ancestors, is_read, reachable, subgraphs_of, walk
from rnnlower.passes.base import Pass
from rnnlower.recurrent.finding import is_recurrent, shown_names
from rnnlower.recurrent.operators import INPUT_NAMES, WEIGHT_INPUTS

_SLACK_BYTES = 1024


class FoldConstantsPass(Pass):
    """Replaces values computed from constants and static sizes by initializers of the main graph.

    A constant that is larger than its sources (DequantizeLinear of int8 weights, an expanded mask, a
    weight with other readers) stays computed, so that files do not grow.

    Before::

        (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
            c = Add (a, b)
            y = Mul (x, c)
        }

    After ``FoldConstantsPass()``::

        (float[2] x) => (float[2] y) <float[2] c = {4, 6}> {
            y = Mul (x, c)
        }

    Args:
        unwanted: Whether a node must be folded however large the result is, because it cannot stay.
    """

    KEEPS_FACTS = True

    def __init__(self, unwanted: Callable[[ir.Node], bool] = lambda node: False) -> None:
        self._unwanted = unwanted

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants: dict[ir.Value, Array] = {}
        nodes = []
        for node, _ in walk(model.graph):
            contents = {out: self.facts.computed_constant(out) for out in node.outputs}
            known = {out: content for out, content in contents.items() if content is not None}
            if known and len(known) == len(contents) and next(subgraphs_of(node), None) is None:
                constants |= known
                nodes.append(node)
        trained = beyond_ir.names_in_training(model)
        budget = _Budget(nodes)
        pool = InitializerPool(model, NameSource(reserved_names(model, constants)))
        modified = False
        # From last to first, so that nodes that only folded nodes read are removed with them.
        for node in reversed(nodes):
            needed = [out for out in node.outputs if is_read(out)]
            if node.graph is None or not needed or any(out.name in trained for out in node.outputs):
                continue
            tensors = {out: constant_of(out) or ir.Tensor(constants[out], dtype=out.dtype) for out in needed}
            # What the copies of a body compute alike is stored once, so only the first copy pays for it.
            size = sum(tensor.nbytes for tensor in tensors.values() if not pool.holds(tensor))
            if not self._unwanted(node) and not budget.allows(node, size):
                continue
            for out, tensor in tensors.items():
                modified |= _replace_by_constant(out, tensor, pool, self.facts.opset)
        return ir.passes.PassResult(model, modified)


def reserved_names(model: ir.Model, constants: Container[ir.Value]) -> set[str]:
    """Return the names that stay in use after folding; a new initializer may have any other name."""
    counts = count_value_names(model)
    outputs = [out for node, _ in walk(model.graph) for out in node.outputs]
    return all_names(model) - {
        str(out.name) for out in outputs if out in constants and counts[str(out.name)] == 1
    }


class _Budget:
    """The bytes that folding frees: those of constants that only folded nodes read, each counted once."""

    def __init__(self, nodes: list[ir.Node]) -> None:
        foldable = set(nodes)
        self._left: dict[ir.Value, int] = {}
        self._sources: dict[ir.Node, frozenset[ir.Value]] = {}
        for node in nodes:
            found: set[ir.Value] = set()
            read = () if node.op_type in ("Shape", "Size") else node.inputs
            for value in filter(None, (*read, *node.outputs)):
                tensor = constant_of(value)
                if tensor is None:
                    found |= self._sources.get(value.producer(), frozenset())  # type: ignore[arg-type]
                elif value.producer() is node or (
                    tensor.nbytes > _SLACK_BYTES and all(user in foldable for user, _ in value.uses())
                ):
                    self._left[value] = tensor.nbytes
                    found.add(value)
            self._sources[node] = frozenset(found)

    def allows(self, node: ir.Node, size: int) -> bool:
        """Return whether this many bytes may be stored in place of the node, and deduct them."""
        if size <= _SLACK_BYTES:
            return True
        sources = [value for value in self._sources[node] if self._left[value]]
        if size > sum(self._left[value] for value in sources) + _SLACK_BYTES:
            return False
        for value in sources:
            paid = min(size, self._left[value])
            self._left[value] -= paid
            size -= paid
        return True


def _replace_by_constant(out: ir.Value, tensor: ir.TensorProtocol, pool: InitializerPool, opset: int) -> bool:
    """Replace a node's output by a constant; a graph output stays a node's output."""
    node = out.producer()
    assert node is not None
    name = str(out.name)
    if out.is_graph_output():
        if node.op_type == "Constant" or not constant_holds(tensor.dtype, opset):
            return False
        constant = ir.node("Constant", [], {"value": tensor}, name=f"{name}/Constant")
        node.prepend(constant)
        take_place_of(constant.outputs[0], out)
    else:
        out.replace_all_uses_with(pool.intern(tensor, name))
    remove_orphans([out])
    return True


@dataclasses.dataclass(eq=False)
class FoldWeightsPass(Pass):
    """Replaces computed weights of the given nodes by initializers of the main graph.

    A weight whose constant is larger than its sources (DequantizeLinear of an int8 tensor), or
    whose sources have other readers, stays computed: folding it would store it twice.

    Before::

        (float[3, 1, 1] X, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y)
        <float[1, 1] w = {2}, int64[1] axes = {0}> {
            W = Unsqueeze (w, axes)
            Y = RNN <hidden_size = 1> (X, W, R)
        }

    After ``FoldWeightsPass()``::

        (float[3, 1, 1] X, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) <float[1, 1, 1] W = {2}> {
            Y = RNN <hidden_size = 1> (X, W, R)
        }

    Args:
        nodes: The recurrent nodes whose weights are folded; ``None``: all of the model.
        positions: Which inputs count as weights.
        may_grow: Fold even if that makes the model larger.
    """

    KEEPS_FACTS = True

    nodes: Sequence[ir.Node] | None = None
    _: dataclasses.KW_ONLY
    positions: Collection[int] = WEIGHT_INPUTS
    may_grow: bool = False

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Fold the weights.

        Raises:
            InvalidModelError: A constant input cannot be computed.
        """
        trained = beyond_ir.names_in_training(model)
        nodes = self.nodes
        if nodes is None:
            nodes = [node for node, _ in walk(model.graph) if is_recurrent(node)]
        arrays = {
            value: array
            for value, array in self._weights(model, nodes).items()
            if not any(source.name in trained for source in ancestors(value))
        }
        needed = {value: _values_computing(value) for value in arrays}
        needed = needed if self.may_grow else _read_by_nothing_else(needed)
        pool = InitializerPool(model, NameSource(reserved_names(model, needed)))
        modified = False
        for value, values in needed.items():
            array = arrays[value]
            freed = sum(tensor.nbytes for tensor in map(constant_of, values) if tensor is not None)
            # Zeros are always folded: a zero initial state is dropped later.
            if not self.may_grow and array.any() and array.nbytes > freed + _SLACK_BYTES:
                continue
            folded = pool.intern(ir.Tensor(arrays[value]), str(value.name))
            for node, index in tuple(value.uses()):
                node.replace_input_with(index, folded)
            remove_orphans([value])
            modified = True
        return ir.passes.PassResult(model, modified)

    def _weights(self, model: ir.Model, nodes: Sequence[ir.Node]) -> dict[ir.Value, Array]:
        """Return the computed weights that are constant, with their contents."""
        facts = Facts(model, weights=True)
        found = {}
        for node in nodes:
            for position in (i for i in self.positions if i < len(node.inputs)):
                value = node.inputs[position]
                if value is None or value.producer() is None:
                    continue
                if (array := facts.constant(value)) is not None:
                    found[value] = array
                for producer in filter(None, (source.producer() for source in ancestors(value))):
                    if array is None and producer in facts.failures:
                        raise InvalidModelError(
                            f"{node.op_type} node {shown_names(model)[node]!r}: its constant input "
                            f"{INPUT_NAMES[position]} {value.name!r} cannot be computed: "
                            f"{facts.failures[producer]}"
                        )
        return found


def _values_computing(weight: ir.Value) -> set[ir.Value]:
    """Return the values that compute a weight, and the other outputs of the nodes that do."""

    def following(value: ir.Value) -> list[ir.Value | None]:
        node = value.producer()
        if node is None:
            return []
        return [*node.outputs, *(() if node.op_type in ("Shape", "Size") else node.inputs)]

    return {*reachable([weight], following)}


def _read_by_nothing_else(needed: dict[ir.Value, set[ir.Value]]) -> dict[ir.Value, set[ir.Value]]:
    """Return the weights whose sources nothing else reads, so that folding frees these."""
    while True:
        inside = {value.producer() for values in needed.values() for value in values}
        closed = {
            weight: values
            for weight, values in needed.items()
            if not weight.is_graph_output()
            and not any(
                value.is_graph_output() or any(user not in inside for user, _ in value.uses())
                for value in values - needed.keys()
            )
        }
        if len(closed) == len(needed):
            return needed
        needed = closed
