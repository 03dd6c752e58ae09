"""Static lengths for the nodes to be unrolled, if the shapes must be computed.

Before::

    (float[2, 3] x, float[1, 1, 3] W, float[1, 1, 1] R) => (float[2, 1, 1, 1] Y) <int64[1] axes = {1}> {
        X = Unsqueeze (x, axes)
        Y = RNN <hidden_size = 1> (X, W, R)
    }

After ``StaticShapesPass()``::

    (float[2, 3] x, float[1, 1, 3] W, float[1, 1, 1] R) => (float[2, 1, 1, 1] Y)
    <int64[1] axes = {1}, float[2, 1, 3] X> {
        X = Unsqueeze (x, axes)
        Y = RNN <hidden_size = 1> (X, W, R)
    }
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.constants import constant_of
from rnnlower.graph.inference import guarded
from rnnlower.graph.splicing import splice
from rnnlower.graph.suppression import quiet_libraries
from rnnlower.graph.walk import Located, op_types, walk
from rnnlower.passes.base import Pass
from rnnlower.recurrent.analysis import bare_copy
from rnnlower.recurrent.finding import find_recurrent

__all__ = ["StaticShapesPass"]

_TAG = "rnnlower.analysis"
_SMALL = 4096
_RANK = 3


class StaticShapesPass(Pass):
    """Notes the shape of X that follows from the model's inputs, by folding constants on a copy of the model.

    An If whose condition the shapes decide is replaced by the branch that runs if a node to be unrolled is in
    it: the other branch never runs, and the length of its sequences is not known.

    Args:
        nodes: The recurrent nodes whose X is annotated, in the main graph or its subgraphs; ``None``: all.

    Attributes:
        unreachable: The nodes that were removed with a branch that never runs.
        impossible: The nodes whose X has a wrong rank: their branch fails if it is ever taken.
    """

    def __init__(self, nodes: Sequence[Located] | None = None) -> None:
        super().__init__()
        self._nodes = nodes
        self.unreachable: list[Located] = []
        self.impossible: list[Located] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        analysis = _analyze(model)
        modified = False
        nodes = find_recurrent(model) if self._nodes is None else self._nodes
        for located in nodes:
            X = located.node.inputs[0]
            found = analysis.x_shape(located.node)
            if X is None or found is None or X.is_graph_input():
                continue
            if len(found) != _RANK and located.path:
                # A branch that inputs of these shapes must not take may be invalid for them.
                self.impossible.append(located)
                continue
            agrees = X.shape is not None and len(X.shape) == len(found)
            named = list(X.shape) if X.shape is not None and agrees else [None] * len(found)
            X.shape = ir.Shape(
                [new if isinstance(new, int) else old for new, old in zip(found, named, strict=True)]
            )
            # A shape needs a type, which X shares with the weights.
            X.type = X.type or _type_of_weights(located.node)
            modified = True
        for node, _ in list(walk(model.graph)):
            if node.op_type == "If" and node.domain == "" and node.graph is not None:
                modified |= self._resolve(model, node, nodes, analysis)
        return ir.passes.PassResult(model, modified)

    def _resolve(self, model: ir.Model, node: ir.Node, nodes: Sequence[Located], analysis: _Analysis) -> bool:
        """Replace an If by the branch that the analysis kept, if a node to be unrolled is in it."""
        if analysis.is_alive(node):
            return False
        branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        inner = [[inner for inner, _ in walk(branch)] for branch in branches]
        wanted = {located.node for located in nodes}
        if not any(wanted & set(branch) for branch in inner):
            return False
        alive = [any(analysis.is_alive(inside) for inside in branch) for branch in inner]
        if sum(alive) != 1:
            return False
        splice(model, node, branches[alive.index(True)])
        self.unreachable += [located for located in nodes if located.node in inner[alive.index(False)]]
        return True


def _type_of_weights(node: ir.Node) -> ir.TypeProtocol | None:
    """Return the type of W or R, unless they are quantized."""
    types = [value.type for value in node.inputs[1:3] if value is not None and value.type is not None]
    return next((each for each in types if each.dtype.is_floating_point()), None)


@dataclasses.dataclass(frozen=True)
class _Analysis:
    """The result of folding constants on a copy; nodes of the model and of the copy share a tag."""

    tags: dict[ir.Node, int]
    survivors: dict[int, ir.Node]

    def is_alive(self, node: ir.Node) -> bool:
        return self.tags[node] in self.survivors

    def x_shape(self, node: ir.Node) -> ir.Shape | None:
        survivor = self.survivors.get(self.tags[node])
        X = None if survivor is None else survivor.inputs[0]
        return None if X is None else X.shape


def _analyze(model: ir.Model) -> _Analysis:
    tags = {node: tag for tag, (node, _) in enumerate(walk(model.graph))}
    copy = bare_copy(model)
    for tag, (node, _) in enumerate(walk(copy.graph)):
        node.meta[_TAG] = tag
    with quiet_libraries():
        guarded(op_types(copy), _optimize, copy)
    survivors = {node.meta[_TAG]: node for node, _ in walk(copy.graph) if _TAG in node.meta}
    return _Analysis(tags, survivors)


def _optimize(model: ir.Model) -> None:
    from onnxscript import optimizer

    optimizer.optimize_ir(
        model, input_size_limit=_SMALL, output_size_limit=_SMALL, should_fold=_should_fold, inline=False
    )


def _should_fold(node: ir.Node) -> bool | None:
    """Return True to also fold a small ConstantOfShape, with which exporters build the amounts of a Pad."""
    if node.op_type != "ConstantOfShape" or node.domain:
        return None
    shape = constant_of(node.inputs[0])
    return True if shape is not None and int(np.prod(shape.numpy())) <= _SMALL else None
