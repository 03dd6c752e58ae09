"""The search for recurrent nodes in graphs, subgraphs and functions."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import onnx_ir as ir

from rnnlower.graph.names import NameSource
from rnnlower.graph.walk import Located, default_opset, walk_all
from rnnlower.recurrent.operators import SIGNATURES
from rnnlower.recurrent.state_operators import is_state_operator


def is_recurrent(node: ir.Node) -> bool:
    """Return whether the node is an LSTM, GRU or RNN, or an onnxruntime operator that wraps one."""
    return (node.domain, node.op_type) in SIGNATURES


def matches(located: Located, pattern: str) -> bool:
    """Return whether a shell wildcard matches the node; a name with brackets also matches itself."""
    return located.name == pattern or fnmatch.fnmatchcase(located.name, pattern)


def carries_state(node: ir.Node) -> bool:
    """Return whether the node is recurrent, or a LinearAttention or CausalConvWithState."""
    return is_recurrent(node) or is_state_operator(node)


def find_recurrent(model: ir.Model, wanted: Callable[[ir.Node], bool] = is_recurrent) -> list[Located]:
    """List every recurrent node of the model, functions included.

    Args:
        model: The model.
        wanted: Which of the nodes that carry a state to list. Unnamed ones are numbered among all of these.
    """
    opset = default_opset(model)
    opsets = {
        node: function.opset_imports.get("", opset)
        for function in model.functions.values()
        for node in function.all_nodes()
    }
    found = [(node, path) for node, path in walk_all(model) if carries_state(node)]
    names = NameSource(node.name for node, _ in found if node.name)
    located = [
        Located(node, node.name or names.fresh(f"{node.op_type}_{index}"), path, opsets.get(node, opset))
        for index, (node, path) in enumerate(found)
    ]
    return [each for each in located if wanted(each.node)]
