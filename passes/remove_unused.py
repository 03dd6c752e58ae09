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

from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from rnnlower.files import beyond_ir
from rnnlower.graph.cleanup import remove_orphans
from rnnlower.graph.walk import walk
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import Condition, nothing_is_dead


class RemoveUnusedPass(Pass):
    """Removes dead nodes and initializers, uncalled functions, and imports of unused domains.

    Omitted inputs at the end of a node's list are removed, too. Inputs and outputs of the graph stay, and so
    do values that the model's training reads.
    """

    KEEPS_FACTS = True
    ENSURES: ClassVar[Sequence[Condition]] = (nothing_is_dead,)

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
        modified |= _remove_functions(model)
        modified |= _remove_imports(model)
        return ir.passes.PassResult(model, modified)


def _remove_functions(model: ir.Model) -> bool:
    called = {node.op_identifier() for node, _ in walk(model.graph)}
    pending = [model.functions[key] for key in called if key in model.functions]
    while pending:
        inner = {node.op_identifier() for node, _ in walk(pending.pop())} - called
        pending += [model.functions[key] for key in inner if key in model.functions]
        called |= inner
    uncalled = [key for key in model.functions if key not in called]
    for key in uncalled:
        del model.functions[key]
    return bool(uncalled)


def _remove_imports(model: ir.Model) -> bool:
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    used = {"", *(node.domain for graph in graphs for node, _ in walk(graph))}
    rest = beyond_ir.find(model)
    if rest is not None and rest.training_info:
        return False
    unused = [domain for domain in model.opset_imports if domain not in used]
    for domain in unused:
        del model.opset_imports[domain]
    return bool(unused)
