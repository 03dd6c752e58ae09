"""Replacement of If nodes whose condition is known by their branches.

Before::

    (float[2] x) => (float[2] y) <bool yes = {1}> {
        y = If (yes) <
            then_branch = p () => (a) { a = Neg (x) },
            else_branch = q () => (b) { b = Abs (x) }
        >
    }

After ``TakeBranchesPass()``::

    (float[2] x) => (float[2] y) {
        y = Neg (x)
    }
"""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.splicing import splice
from rnnlower.graph.walk import called, subgraphs_of, walk
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import has_node


def _decided_ifs_are_gone(model: ir.Model, taking: TakeBranchesPass) -> bool:
    return not any(has_node(model, "If", name) for name in taking.taken)


class TakeBranchesPass(Pass):
    """Replaces every If whose condition follows from constants and static sizes by its branch, at any depth.

    Attributes:
        taken: The branch of each such If, by the If's name or that of its first output.
    """

    KEEPS_FACTS = True
    ENSURES = (_decided_ifs_are_gone,)

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[str, str] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if any(node.op_type == "If" and not node.domain for node, _ in walk(model.graph)):
            self._take(model, model.graph)
        return ir.passes.PassResult(model, modified=bool(self.taken))

    def _take(self, model: ir.Model, graph: ir.Graph) -> None:
        for node in list(graph):
            taken = self.facts.condition(node) if node.op_type == "If" and not node.domain else None
            if taken is None:
                for inner in subgraphs_of(node):
                    self._take(model, inner)
                continue
            name = "then_branch" if taken else "else_branch"
            self.taken[called(node)] = name
            branch = node.attributes[name].as_graph()
            self._take(model, branch)
            splice(model, node, branch)
