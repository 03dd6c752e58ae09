"""Types and shapes of what recurrent nodes read, where the model does not write them down."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.walk import walk
from rnnlower.recurrent.analysis import inferred_copy
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.recurrent.operators import MOST_INPUTS

__all__ = ["infer_input_types"]


def infer_input_types(model: ir.Model) -> bool:
    """Notes inferred types and shapes on the inputs of recurrent nodes of the main graph and its subgraphs.

    What cannot be inferred stays unknown. Tells whether anything was noted.
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
    """The inputs of a recurrent node that its twin has too: of another domain's, all but the weights."""
    known = range(min(len(node.inputs), MOST_INPUTS)) if is_recurrent(node) else range(0)
    return [index for index in known if not (node.domain and index in (1, 2))]


def _learn(value: ir.Value, known: ir.Value, declared: set[str | None]) -> bool:
    """Takes over what inference knows of a value, which wins over what the model says of it.

    Names that inference has made up are nothing: a user cannot give them a size.
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
