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

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.splicing import splice
from rnnlower.graph.walk import Located, subgraphs_of, walk
from rnnlower.passes.base import Pass
from rnnlower.recurrent.finding import find_recurrent

_RANK = 3


class StaticShapesPass(Pass):
    """Notes the shape of X that follows from the model's inputs.

    An If whose condition the shapes decide is replaced by the branch that runs if a node to be unrolled is in
    it: the other branch never runs, and the length of its sequences is not known.

    Args:
        nodes: The recurrent nodes whose X is annotated, in the main graph or its subgraphs; ``None``: all.

    Attributes:
        unreachable: The nodes that were removed with a branch that never runs.
        impossible: The nodes whose X has a wrong rank: their branch fails if it is ever taken.
    """

    KEEPS_FACTS = True

    def __init__(self, nodes: Sequence[Located] | None = None) -> None:
        super().__init__()
        self._nodes = nodes
        self.unreachable: list[Located] = []
        self.impossible: list[Located] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        facts = self.facts
        modified = False
        nodes = find_recurrent(model) if self._nodes is None else self._nodes
        never = {inner for node, _ in walk(model.graph) for inner in _never_run(node, facts)}
        for located in nodes:
            X = located.node.inputs[0]
            dims = None if located.node in never else facts.dims(X)
            if X is None or dims is None or X.is_graph_input():
                continue
            if len(dims) != _RANK and located.path:
                # A branch that inputs of these shapes must not take may be invalid for them.
                self.impossible.append(located)
                continue
            agrees = X.shape is not None and len(X.shape) == len(dims)
            named = list(X.shape) if X.shape is not None and agrees else [None] * len(dims)
            X.shape = ir.Shape(
                [new if isinstance(new, int) else old for new, old in zip(dims, named, strict=True)]
            )
            # A shape needs a type.
            X.type = facts.type(X)
            modified = True
        for node, _ in list(walk(model.graph)):
            inside = set(_never_run(node, facts))
            gone = [located for located in nodes if located.node in inside]
            inner = {each for graph in subgraphs_of(node) for each, _ in walk(graph)}
            if inside and node.graph is not None and any(located.node in inner for located in nodes):
                splice(model, node, _branch(node, taken=facts.condition(node)))
                self.unreachable += gone
                modified = True
        return ir.passes.PassResult(model, modified)


def _branch(node: ir.Node, *, taken: bool | None) -> ir.Graph:
    return node.attributes["then_branch" if taken else "else_branch"].as_graph()


def _never_run(node: ir.Node, facts: Facts) -> Iterator[ir.Node]:
    """Yield the nodes in the branch of an If that is never taken."""
    taken = facts.condition(node) if node.op_type == "If" and not node.domain else None
    if taken is not None:
        yield from (inner for inner, _ in walk(_branch(node, taken=not taken)))
