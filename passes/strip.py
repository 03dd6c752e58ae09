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

import onnx_ir as ir

from rnnlower.graph.walk import all_graphs, roots, values_of, walk, walk_all
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
        for graph in (*all_graphs(model), *roots(model)):
            graph.doc_string = None
        for value in (value for root in roots(model) for value in values_of(root)):
            value.doc_string = None
            if value not in lasting:
                value.metadata_props.clear()
        for node, _ in walk_all(model):
            node.name = node.doc_string = None
            node.metadata_props.clear()
        return ir.passes.PassResult(model, modified=True)
