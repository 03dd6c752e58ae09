"""Removal of what no runtime reads: metadata and names of nodes, and doc strings.

Before::

    (float[2] x) => (float[2] y) {
        [scope_relu] y = Relu (x)
    }

After ``StripPass()``::

    (float[2] x) => (float[2] y) {
        y = Relu (x)
    }
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from rnnlower.graph.walk import walk
from rnnlower.passes.base import Pass


def _nodes_are_bare(model: ir.Model, owner: object) -> bool:
    return not any(node.name or node.doc_string or node.metadata_props for node, _ in walk(model.graph))


class StripPass(Pass):
    """Removes the metadata and names of nodes, the metadata of inner values, and all doc strings.

    Names of values stay, because nodes refer to them, and so does the metadata of the model and of its graph.
    """

    ENSURES = (_nodes_are_bare,)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        model.doc_string = None
        lasting = {*model.graph.inputs, *model.graph.outputs}
        owners: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
        for owner in owners:
            for graph in (owner, *owner.subgraphs()):
                graph.doc_string = None
                _strip_values([*graph.inputs, *graph.outputs], lasting)
                if isinstance(graph, ir.Graph):
                    _strip_values([*graph.initializers.values()], lasting)
                for node in graph:
                    node.name = node.doc_string = None
                    node.metadata_props.clear()
                    _strip_values(node.outputs, lasting)
        return ir.passes.PassResult(model, modified=True)


def _strip_values(values: Sequence[ir.Value], lasting: Collection[ir.Value]) -> None:
    for value in values:
        value.doc_string = None
        if value not in lasting:
            value.metadata_props.clear()
