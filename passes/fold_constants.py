"""Constant folding: values that are the same in every run become initializers.

Before::

    (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
        c = Add (a, b)
        y = Mul (x, c)
    }

After ``FoldConstantsPass()``::

    (float[2] x) => (float[2] y) <float[2] c = {4, 6}> {
        y = Mul (x, c)
    }
"""

from __future__ import annotations

from collections.abc import Callable, Container

import onnx_ir as ir

from rnnlower.files import beyond_ir
from rnnlower.graph.cleanup import remove_orphans
from rnnlower.graph.constants import constant_of
from rnnlower.graph.evaluation import Array
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, names_in
from rnnlower.graph.splicing import take_place
from rnnlower.graph.walk import default_opset, subgraphs_of, value_names, walk
from rnnlower.passes.base import Pass

_SLACK_BYTES = 1024
# Constant-1 holds floating-point tensors only.
_TYPED_CONSTANT = 9


class FoldConstantsPass(Pass):
    """Replaces what follows from constants and static sizes by initializers of the main graph.

    A constant that is larger than its sources (DequantizeLinear of int8 weights, an expanded mask, a
    weight with other readers) stays computed, so that files do not grow.

    Args:
        unwanted: Whether a node must be folded however large the result is, because it cannot stay.
    """

    KEEPS_FACTS = True

    def __init__(self, unwanted: Callable[[ir.Node], bool] = lambda node: False) -> None:
        super().__init__()
        self._unwanted = unwanted

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        constants: dict[ir.Value, Array] = {}
        nodes = []
        for node, _ in walk(model.graph):
            contents = {out: self.facts.computed(out) for out in node.outputs}
            known = {out: content for out, content in contents.items() if content is not None}
            if known and len(known) == len(contents) and next(subgraphs_of(node), None) is None:
                constants |= known
                nodes.append(node)
        trained = beyond_ir.names_in_training(model)
        budget = _Budget(nodes)
        pool = InitializerPool(model, NameSource(names_that_stay(model, constants)))
        modified = False
        # From last to first, so that nodes that only folded nodes read are removed with them.
        for node in reversed(nodes):
            needed = [out for out in node.outputs if out.uses() or out.is_graph_output()]
            if node.graph is None or not needed or any(out.name in trained for out in node.outputs):
                continue
            size = sum(constants[out].nbytes for out in needed)
            if not self._unwanted(node) and not budget.allows(node, size):
                continue
            for out in needed:
                tensor = constant_of(out) or ir.Tensor(constants[out], dtype=out.dtype)
                modified |= _replace(out, tensor, pool, default_opset(model))
        return ir.passes.PassResult(model, modified)


def names_that_stay(model: ir.Model, constants: Container[ir.Value]) -> set[str]:
    """Return names that must stay after folding; an initializer may take any other."""
    counts = value_names(model)
    outputs = [out for node, _ in walk(model.graph) for out in node.outputs]
    return names_in(model) - {
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
                is_freed = all(user in foldable for user, _ in value.uses())
                if tensor is None:
                    found |= self._sources.get(value.producer(), frozenset())  # type: ignore[arg-type]
                elif value.producer() is node or (tensor.nbytes > _SLACK_BYTES and is_freed):
                    self._left[value] = tensor.nbytes
                    found.add(value)
            self._sources[node] = frozenset(found)

    def allows(self, node: ir.Node, size: int) -> bool:
        """Return whether this many bytes may be stored in the place of the node."""
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


def _replace(out: ir.Value, tensor: ir.TensorProtocol, pool: InitializerPool, opset: int) -> bool:
    """Put a constant in the place of a node's output; a graph output stays a node's output."""
    node = out.producer()
    assert node is not None
    assert node.graph is not None
    name = str(out.name)
    if out.is_graph_output():
        if node.op_type == "Constant" or (opset < _TYPED_CONSTANT and not tensor.dtype.is_floating_point()):
            return False
        constant = ir.node("Constant", [], {"value": tensor}, name=f"{name}/Constant")
        node.graph.insert_before(node, constant)
        take_place(constant.outputs[0], out)
    else:
        out.replace_all_uses_with(pool.of(tensor, name))
    remove_orphans([out])
    return True
