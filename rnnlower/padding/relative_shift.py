"""The relative shift of attention, by which scores of distances become scores of keys."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from rnnlower.graph.walk import required_input
from rnnlower.padding.sizes import Axes, NoRuleError
from rnnlower.padding.validity import emit_max
from rnnlower.padding.validity_walk import PadFlow


def follow_shift(flow: PadFlow, node: ir.Node) -> Axes | None:
    """Follow the first or the second Reshape of a relative shift; ``None`` if the node is neither.

    Scores ``[.., steps, distances]`` become ``[.., distances, steps]``, lose their first row, and are shaped
    back. The element ``[i, j]`` is the score ``[i, steps - i + j]`` then. The padded model would take
    ``[i, maximum - i + j]``: all scores move to the right by ``maximum - steps``.
    """
    source, axes = required_input(node), flow.axes_of(node.inputs[0])
    last = len(flow.shape(source)) - 1
    if not {last - 1, last} <= {*axes}:
        return None
    cut = source.producer()
    if _is_shift(flow, node):
        _move(flow, node, axes)
    elif not (cut and cut.op_type == "Slice" and _is_shift(flow, required_input(cut).producer())):
        return None
    return axes | {last - 1: axes[last], last: axes[last - 1]}


def _is_shift(flow: PadFlow, first: ir.Node | None) -> bool:
    """Return whether a Reshape begins a relative shift, of whose result nothing else is read."""
    if first is None or first.op_type != "Reshape":
        return False
    values = [required_input(first), first.outputs[0]]
    for op_type in ("Slice", "Reshape"):
        readers = [use.node for use in values[-1].uses()]
        if [each.op_type for each in readers] != [op_type] or values[-1].is_graph_output():
            return False
        if op_type == "Slice" and not _begins(flow, readers[0], 1):
            return False
        values.append(readers[0].outputs[0])
    parts = [use.node for use in values[-1].uses()]
    if values[-1].is_graph_output() or not all(_begins(flow, part, 0) for part in parts):
        return False
    read = [part.outputs[0] for part in parts]
    return all(
        (turned, cut, back)
        == ((*outer, distances, steps), (*outer, distances - 1, steps), (*outer, steps, distances - 1))
        and all(part[-1] <= distances - steps for part in taken)
        for (*outer, steps, distances), turned, cut, back, *taken in zip(
            *map(flow.shapes, (*values, *read)), strict=True
        )
    )


def _begins(flow: PadFlow, node: ir.Node, start: int) -> bool:
    """Return whether a node is a Slice with step 1 from this element of an axis, and the first of others."""
    if node.op_type != "Slice":
        return False
    found, steps = flow.ints(node, "starts", 1) or [], flow.ints(node, "steps", 4) or []
    is_there = all(max(each) == start and min(each) >= 0 for each in found)
    return is_there and {*itertools.chain(*steps)} <= {1}


def _move(flow: PadFlow, first: ir.Node, axes: Axes) -> None:
    """Move the scores to where the relative shift of the padded model reads them."""
    if flow.rows is not None:
        raise NoRuleError("shifts scores by a number that differs from row to row")
    source, emitter = required_input(first), flow.emitter_for(first)
    last = len(flow.shape(source)) - 1
    places = emitter.constant(np.arange(axes[last].full, dtype=np.int64) - axes[last - 1].full)
    places = emitter.op("Add", places, flow.masks.count(axes[last - 1]))
    places = emit_max(emitter, places, emitter.constant(np.zeros(1, np.int64)))
    moved = emitter.op("Gather", source, places, axis=last)
    emitter.insert_before(first)
    flow.record_origin(moved, source)
    first.replace_input_with(0, moved)
