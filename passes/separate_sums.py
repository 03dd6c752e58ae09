"""A Max between a sum and an activation.

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
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from rnnlower.graph.names import NameSource, names_in
from rnnlower.graph.walk import REARRANGING, reached, walk
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import nothing_is_found

_SUMS = ("Add", "Conv", "ConvTranspose", "Gemm", "MatMul", "Sum")
# Ops that compute nothing, so that a runtime may fuse what comes before and after them.
_LAYOUT = REARRANGING | {"Cast", "Concat"}


class SeparateSumsPass(Pass):
    """Puts a Max between a sum and the operators that a runtime computes less exactly there.

    Products of matrices are sums, too. A sum also counts if ops that only change its shape or type stand
    between.

    Args:
        op_types: These operators.
        also: Whether a Max goes in front of another node: a runtime may fuse it wrongly with other nodes.
    """

    ENSURES = (nothing_is_found,)

    def __init__(
        self, op_types: Collection[str], *, also: Callable[[ir.Node], bool] = lambda node: False
    ) -> None:
        super().__init__()
        self._also = also
        self._op_types = frozenset(op_types)

    def found(self, model: ir.Model) -> list[ir.Node]:
        """Return the nodes that need a Max."""
        return [
            node
            for node, _ in walk(model.graph)
            if node.domain == ""
            and ((node.op_type in self._op_types and _is_sum(node.inputs[0])) or self._also(node))
        ]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = self.found(model)
        if found:
            names = NameSource(names_in(model))
            for node in found:
                _separate(node, names)
        return ir.passes.PassResult(model, modified=bool(found))


def _is_sum(value: ir.Value | None) -> bool:
    """Return whether a value is a sum, or a sum in another shape or type."""

    def before(node: ir.Node) -> list[ir.Node | None]:
        is_layout = node.op_type in _LAYOUT and not node.domain
        return [used.producer() for used in node.inputs if used is not None] if is_layout else []

    node = None if value is None else value.producer()
    found = [] if node is None else reached([node], before)
    return any(each.op_type in _SUMS and not each.domain for each in found)


def _separate(node: ir.Node, names: NameSource) -> None:
    value, graph = node.inputs[0], node.graph
    assert value is not None
    assert graph is not None
    maximum = ir.node("Max", [value, value], name=names.fresh(f"{value.name}/Max"))
    apart = maximum.outputs[0]
    apart.name = names.fresh(f"{value.name}_apart")
    apart.type, apart.shape = value.type, value.shape
    graph.insert_before(node, maximum)
    node.replace_input_with(0, apart)
