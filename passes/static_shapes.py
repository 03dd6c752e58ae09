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
from rnnlower.recurrent.typing import RANK_OF_X, infer_input_types


class StaticShapesPass(Pass):
    """Notes the shapes that follow from the model's inputs, as `InferTypesPass` does.

    An If whose condition the shapes decide is replaced by the branch that runs if a node to be unrolled is in
    it: the other branch never runs, and the length of its sequences is not known.

    Args:
        nodes: The recurrent nodes that may be unreachable or impossible, in the main graph or its subgraphs;
            ``None``: all.

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
        nodes = find_recurrent(model) if self._nodes is None else self._nodes
        never = {inner for node, _ in walk(model.graph) for inner in _never_run(node, facts)}
        modified = infer_input_types(model, facts)
        for located in nodes:
            X = located.node.inputs[0]
            is_given = located.node in never or X is None or X.is_graph_input()
            dims = None if is_given else facts.dims(X)
            # A branch that inputs of these shapes must not take may be invalid for them.
            if dims is not None and len(dims) != RANK_OF_X and located.path:
                self.impossible.append(located)
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
