"""Masks that steps multiply, ``m * new + (1 - m) * old``, as the Where that lifting knows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource
from rnnlower.graph.rewiring import replace_with_values
from rnnlower.lifting.row_masks import truth_of_mask
from rnnlower.lowering.emitter import Emitters

_SINCE = 9
"""The first version of ONNX that has Where."""


def has_arithmetic_masks(facts: Facts, graph: ir.Graph) -> bool:
    """Return whether a graph chooses between two values by a sum of products with a mask."""
    return any(True for _ in _choices(facts, graph))


def write_choices(facts: Facts, names: NameSource, graph: ir.Graph) -> None:
    """Write sums of products with a mask, and products with the same mask, as Where."""
    emitters = Emitters(facts.model, names=names)
    written: dict[ir.Value, ir.Value] = {}
    conditions: dict[ir.Value, ir.Value] = {}
    for node, mask, *values in list(_choices(facts, graph)):
        condition = conditions[mask] = conditions.get(mask) or _condition(emitters, mask)
        with emitters.before(node) as e:
            chosen = e.op("Where", condition, *(written.get(value, value) for value in values))
        written[node.outputs[0]] = chosen
        _replace(node, chosen)
    for mask, condition in conditions.items():
        for reader, index in mask.uses():
            value = reader.inputs[1 - index] if reader.op_type == "Mul" and not reader.domain else None
            dtype = facts.dtype(value)
            if dtype is not None and reader.graph is graph:
                with emitters.before(reader) as e:
                    kept = e.op("Where", condition, value, e.constant(np.zeros((), dtype.numpy())))
                _replace(reader, kept)


def _replace(node: ir.Node, chosen: ir.Value) -> None:
    """Replace a node by a Where of its name: reasons for which a line stays are about the model as it was."""
    names, choice = (node.name, node.outputs[0].name), chosen.producer()
    replace_with_values(node, [chosen])
    assert choice is not None
    choice.name, chosen.name = names


def _choices(facts: Facts, graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Value, ir.Value, ir.Value]]:
    """Yield each ``m * new + (1 - m) * old`` with its m, new and old."""
    for node in graph if facts.opset >= _SINCE else ():
        if node.op_type != "Add" or node.domain:
            continue
        for first, second in itertools.permutations(map(_factors, node.inputs)):
            yield from (
                (node, mask, new, old)
                for (mask, new), (rest, old) in itertools.product(first, second)
                if _is_rest(facts, rest, mask) and truth_of_mask(facts, mask) is not None
            )


def _factors(value: ir.Value | None) -> list[tuple[ir.Value, ir.Value]]:
    """Return the factors of a product in both orders."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Mul" or node.domain:
        return []
    first, second = node.inputs
    assert first is not None
    assert second is not None
    return [(first, second), (second, first)]


def _is_rest(facts: Facts, value: ir.Value, mask: ir.Value) -> bool:
    """Return whether a value is 1 - mask, in the mask's shape."""
    node = value.producer()
    if node is None or node.domain or node.op_type not in ("Add", "Sub"):
        return False
    first, second = node.inputs
    if node.op_type == "Add":
        first, second = (first, second) if facts.constant(first) is not None else (second, first)
        negated = None if second is None else second.producer()
        second = negated.inputs[0] if negated is not None and negated.op_type == "Neg" else None
    one, dims = facts.constant(first), facts.dims(mask)
    is_same = second is mask and dims is not None and facts.dims(value) == dims
    return is_same and one is not None and bool((one == 1).all())


def _condition(emitters: Emitters, mask: ir.Value) -> ir.Value:
    """Return the condition of a mask: moved as the mask is, but not cast."""
    node = mask.producer()
    assert node is not None
    source = node.inputs[0]
    assert source is not None
    if node.op_type == "Cast":
        return source
    moved = _condition(emitters, source)
    with emitters.before(node) as e:
        return e.op(node.op_type, moved, *node.inputs[1:], **{k: a.value for k, a in node.attributes.items()})
