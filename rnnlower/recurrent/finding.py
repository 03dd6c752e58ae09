"""The search for recurrent nodes in graphs, subgraphs and functions."""

from __future__ import annotations

import fnmatch

import onnx_ir as ir

from rnnlower.graph.names import NameSource
from rnnlower.graph.walk import Located, default_opset, walk
from rnnlower.recurrent.operators import SIGNATURES


def is_recurrent(node: ir.Node) -> bool:
    """Return whether the node is an LSTM, GRU or RNN, or an onnxruntime operator that wraps one."""
    return (node.domain, node.op_type) in SIGNATURES


def matches(located: Located, pattern: str) -> bool:
    """Return whether a shell wildcard matches the node; a name with brackets also matches itself."""
    return located.name == pattern or fnmatch.fnmatchcase(located.name, pattern)


def find_recurrent(model: ir.Model) -> list[Located]:
    """List every recurrent node of the model, functions included."""
    opset = default_opset(model)
    found = [(node, path, opset) for node, path in walk(model.graph) if is_recurrent(node)]
    for function in model.functions.values():
        path = f"function:{function.domain}::{function.name}"
        found += [
            (node, inner, function.opset_imports.get("", opset))
            for node, inner in walk(function, path)
            if is_recurrent(node)
        ]
    names = NameSource(node.name for node, _, _ in found if node.name)
    located = []
    for index, (node, path, node_opset) in enumerate(found):
        name = node.name or names.fresh(f"{node.op_type}_{index}")
        located.append(Located(node, name, path, node_opset))
    return located
