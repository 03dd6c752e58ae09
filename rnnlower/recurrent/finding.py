"""The recurrent nodes in graphs, subgraphs and functions, and the types of their inputs."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import LocatedNode, default_opset, node_names, walk, walk_all
from rnnlower.recurrent.operators import MAX_INPUTS, SIGNATURES
from rnnlower.recurrent.state_operators import is_state_operator


def is_recurrent(node: ir.Node) -> bool:
    """Return whether the node is an LSTM, GRU or RNN, or an onnxruntime operator that wraps one."""
    return (node.domain, node.op_type) in SIGNATURES


def matches_pattern(located: LocatedNode, pattern: str) -> bool:
    """Return whether a shell wildcard matches the node; a name with brackets also matches itself."""
    return located.name == pattern or fnmatch.fnmatchcase(located.name, pattern)


def is_stateful(node: ir.Node) -> bool:
    """Return whether the node is recurrent, or a LinearAttention or CausalConvWithState."""
    return is_recurrent(node) or is_state_operator(node)


def find_recurrent(model: ir.Model, wanted: Callable[[ir.Node], bool] = is_recurrent) -> list[LocatedNode]:
    """List every recurrent node of the model, functions included.

    Args:
        wanted: Which of the nodes that carry a state to list. Unnamed ones are numbered among all of these.
    """
    opset = default_opset(model)
    opsets = {
        node: function.opset_imports.get("", opset)
        for function in model.functions.values()
        for node in function.all_nodes()
    }
    found = [(node, path) for node, path in walk_all(model) if is_stateful(node)]
    names = NameSource(node.name for node, _ in found if node.name)
    located = [
        LocatedNode(node, node.name or names.fresh(f"{node.op_type}_{index}"), path, opsets.get(node, opset))
        for index, (node, path) in enumerate(found)
    ]
    return [each for each in located if wanted(each.node)]


def shown_names(model: ir.Model) -> dict[ir.Node, str]:
    """Return the names of all nodes as `inspect` and paths show them, functions included."""
    return node_names(model) | {each.node: each.name for each in find_recurrent(model, is_stateful)}


RANK_OF_X = 3


def infer_input_types(model: ir.Model, facts: Facts | None = None) -> bool:
    """Annotate the inputs of recurrent nodes with inferred types and shapes, in the main graph and subgraphs.

    Anything that cannot be inferred stays unknown. Returns whether anything was annotated.
    """
    if not any(is_recurrent(node) for node, _ in walk(model.graph)):
        return False
    facts = facts or Facts(model)
    declared = {
        dim_name(dim)
        for value in model.graph.inputs
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim)
    }
    modified = False
    for node, path in walk(model.graph):
        for index, value in enumerate(node.inputs[:MAX_INPUTS] if is_recurrent(node) else ()):
            is_integer = node.domain and index in (1, 2)
            if is_integer or value is None or value.is_graph_input() or value.is_initializer():
                continue
            dims = facts.dims(value)
            # A branch that inputs of these shapes must not take may be invalid for them.
            if index or not path or dims is None or len(dims) == RANK_OF_X:
                modified |= _declare(value, facts, declared)
    return modified


def _declare(value: ir.Value, facts: Facts, declared: set[str | None]) -> bool:
    """Adopt what is known of a value; it takes precedence over what the model declares.

    Symbols of inputs alone can be given a size by a user.
    """
    before, dims = (value.type, value.shape), facts.dims(value)
    value.type = facts.type(value)
    if dims is not None:
        old = [None] * len(dims) if value.shape is None else list(value.shape)
        if len(old) == len(dims):
            new = [dim if isinstance(dim, int) or dim_name(dim) in declared else None for dim in dims]
            value.shape = ir.Shape([a if b is None else b for a, b in zip(old, new, strict=True)])
    return (value.type, value.shape) != before
