"""Folding of recurrent nodes' weights that are computed from constants.

Before::

    (float[3, 1, 1] X, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) <float[1, 1] w = {2}, int64[1] axes = {0}> {
        W = Unsqueeze (w, axes)
        Y = RNN <hidden_size = 1> (X, W, R)
    }

After ``FoldWeightsPass()``::

    (float[3, 1, 1] X, float[1, 1, 1] R) => (float[3, 1, 1, 1] Y) <float[1, 1, 1] W = {2}> {
        Y = RNN <hidden_size = 1> (X, W, R)
    }
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from rnnlower.errors import InvalidModelError
from rnnlower.files import beyond_ir
from rnnlower.graph.cleanup import remove_orphans
from rnnlower.graph.constants import constant_of
from rnnlower.graph.evaluation import Array
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource
from rnnlower.graph.walk import reached, sources, walk
from rnnlower.passes.base import Pass
from rnnlower.passes.fold_constants import names_that_stay
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.recurrent.operators import INPUT_NAMES, WEIGHT_INPUTS

_SLACK_BYTES = 1024


class FoldWeightsPass(Pass):
    """Replaces computed weights of the given nodes by initializers of the main graph.

    A weight whose constant is larger than its sources (DequantizeLinear of an int8 tensor), or
    whose sources have other readers, stays computed: folding it would store it twice.

    Args:
        nodes: The recurrent nodes whose weights are folded; ``None``: all of the model.
        positions: Which inputs count as weights.
        may_grow: Fold even if that makes the model larger.
    """

    KEEPS_FACTS = True

    def __init__(
        self,
        nodes: Iterable[ir.Node] | None = None,
        *,
        positions: Collection[int] = WEIGHT_INPUTS,
        may_grow: bool = False,
    ) -> None:
        super().__init__()
        self._nodes = None if nodes is None else list(nodes)
        self._positions = positions
        self._may_grow = may_grow

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Fold the weights.

        Raises:
            InvalidModelError: A constant input cannot be computed.
        """
        trained = beyond_ir.names_in_training(model)
        nodes = self._nodes
        if nodes is None:
            nodes = [node for node, _ in walk(model.graph) if is_recurrent(node)]
        arrays = {
            value: array
            for value, array in self._weights(model, nodes).items()
            if not any(source.name in trained for source in sources(value))
        }
        needed = {value: _needed_by(value) for value in arrays}
        needed = needed if self._may_grow else _closed(needed)
        pool = InitializerPool(model, NameSource(names_that_stay(model, needed)))
        modified = False
        for value, values in needed.items():
            array = arrays[value]
            freed = sum(tensor.nbytes for tensor in map(constant_of, values) if tensor is not None)
            # Zeros are always folded: a zero initial state is dropped later.
            if not self._may_grow and array.any() and array.nbytes > freed + _SLACK_BYTES:
                continue
            folded = pool.of(ir.Tensor(arrays[value]), str(value.name))
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
            for position in (i for i in self._positions if i < len(node.inputs)):
                value = node.inputs[position]
                if value is None or value.producer() is None:
                    continue
                if (array := facts.constant(value)) is not None:
                    found[value] = array
                for producer in filter(None, (source.producer() for source in sources(value))):
                    if array is None and producer in facts.failures:
                        raise InvalidModelError(
                            f"{node.op_type} node {node.name or '(unnamed)'!r}: its constant input "
                            f"{INPUT_NAMES[position]} {value.name!r} cannot be computed: "
                            f"{facts.failures[producer]}"
                        )
        return found


def _needed_by(weight: ir.Value) -> set[ir.Value]:
    """Return the values that compute a weight, and the other outputs of the nodes that do."""

    def following(value: ir.Value) -> list[ir.Value | None]:
        node = value.producer()
        if node is None:
            return []
        return [*node.outputs, *(() if node.op_type in ("Shape", "Size") else node.inputs)]

    return {*reached([weight], following)}


def _closed(needed: dict[ir.Value, set[ir.Value]]) -> dict[ir.Value, set[ir.Value]]:
    """Return the weights that alone read what computes them, so that folding them frees it."""
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
