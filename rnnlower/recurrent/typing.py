"""Types and shapes of the inputs of recurrent nodes, where the model does not declare them."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.walk import walk
from rnnlower.recurrent.analysis import inferred_copy
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.recurrent.operators import MOST_INPUTS

__all__ = ["infer_input_types"]


def infer_input_types(model: ir.Model) -> bool:
    """Annotate the inputs of recurrent nodes with inferred types and shapes, in the main graph and subgraphs.

    Anything that cannot be inferred stays unknown. Returns whether anything was annotated.
    """
    if not any(is_recurrent(node) for node, _ in walk(model.graph)):
        return False
    inferred = inferred_copy(model)
    declared = {
        dim.value
        for value in model.graph.inputs
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim)
    }
    modified = False
    for (node, _), (twin, _) in zip(list(walk(model.graph)), list(walk(inferred.graph)), strict=True):
        for index in _positions(node):
            value, known = node.inputs[index], twin.inputs[index]
            if value is None or known is None:
                continue
            if not value.is_graph_input() and not value.is_initializer():
                modified |= _learn(value, known, declared)
    return modified


def _positions(node: ir.Node) -> list[int]:
    """Return the indices of a recurrent node's inputs; without the weights if it is of another domain."""
    known = range(min(len(node.inputs), MOST_INPUTS)) if is_recurrent(node) else range(0)
    return [index for index in known if not (node.domain and index in (1, 2))]


def _learn(value: ir.Value, known: ir.Value, declared: set[str | None]) -> bool:
    """Adopt what inference knows of a value; it takes precedence over what the model declares.

    Symbols that inference has made up are ignored: a user cannot give them a size.
    """
    before = value.type, value.shape
    value.type = value.type or known.type
    if known.shape is not None:
        old = [None] * len(known.shape) if value.shape is None else list(value.shape)
        if len(old) == len(known.shape):
            new = [dim if isinstance(dim, int) or dim.value in declared else None for dim in known.shape]
            merged = [b if b is not None else a for a, b in zip(old, new, strict=True)]
            value.shape = ir.Shape(merged)
    return (value.type, value.shape) != before
