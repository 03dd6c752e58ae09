"""Removal of everything that nothing reads.

Before::

    (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
        a = Add (x, c)
        y = Clip (x, , )
    }

After ``RemoveUnusedPass()``::

    (float[2] x) => (float[2] y) {
        y = Clip (x)
    }
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedOpsetsPass

from rnnlower.files import beyond_ir
from rnnlower.graph.cleanup import remove_orphans
from rnnlower.graph.walk import walk
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import nothing_is_dead


class RemoveUnusedPass(Pass):
    """Removes dead nodes and initializers, uncalled functions, and imports of unused domains.

    Omitted inputs at the end of a node's list are removed, too. Inputs and outputs of the graph stay, and so
    do values that the model's training reads.
    """

    KEEPS_FACTS = True
    ENSURES = (nothing_is_dead,)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        trained = beyond_ir.names_in_training(model)
        modified = False
        for node, _ in reversed(list(walk(model.graph))):
            if node.graph is not None and not any(out.name in trained for out in node.outputs):
                remove_orphans(node.outputs)
                modified |= node.graph is None
        for graph in (model.graph, *model.graph.subgraphs()):
            before = len(graph.initializers)
            remove_orphans(value for value in graph.initializers.values() if value.name not in trained)
            modified |= len(graph.initializers) < before
        for node, _ in walk(model.graph):
            while node.inputs and node.inputs[-1] is None and not node.domain:
                # An omitted input at the end is redundant, and some runtimes treat it as present.
                node.resize_inputs(len(node.inputs) - 1)
                modified = True
        modified |= RemoveUnusedFunctionsPass()(model).modified  # type: ignore[no-untyped-call]
        if (rest := beyond_ir.find(model)) is None or not rest.training_info:
            modified |= RemoveUnusedOpsetsPass(process_functions=False)(model).modified
        return ir.passes.PassResult(model, modified)
