"""Types and shapes of the inputs of recurrent nodes, where the model does not declare them."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import dim_name, walk
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.recurrent.operators import MOST_INPUTS

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
        for index, value in enumerate(node.inputs[:MOST_INPUTS] if is_recurrent(node) else ()):
            is_integer = node.domain and index in (1, 2)
            if is_integer or value is None or value.is_graph_input() or value.is_initializer():
                continue
            dims = facts.dims(value)
            # A branch that inputs of these shapes must not take may be invalid for them.
            if index or not path or dims is None or len(dims) == RANK_OF_X:
                modified |= _learn(value, facts, declared)
    return modified


def _learn(value: ir.Value, facts: Facts, declared: set[str | None]) -> bool:
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
