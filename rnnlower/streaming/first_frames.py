"""First frames that a model keeps as they are and puts before those that it computes from neighbors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import POINTWISE
from rnnlower.graph.rewiring import replace_with_values
from rnnlower.graph.slicing import axis_slices, cut_parts
from rnnlower.graph.walk import default_opset, operand, producer_of, reachable
from rnnlower.lowering.emitter import Emitters
from rnnlower.recurrent.operators import FLOAT_TYPES

_MIN_OPSET = 11
"""The first with Range and with a Pad whose pads are an input."""


def choose_first_frames(model: ir.Model, facts: Facts) -> None:
    """Choose the first frames of a sequence by their number where a Concat puts them before others.

    Pre-emphasis is written so. The Pad only moves the other frames to their places. onnxruntime has Pad and
    Where for floats, and not for all other types.

    Before: ``Concat(x[:, 0:1], x[:, 1:] - 0.97 * x[:, :-1])``.
    After: ``Where(Range(T) < 1, x, Pad(x[:, 1:] - 0.97 * x[:, :-1]))``.
    """
    if default_opset(model) < _MIN_OPSET:
        return
    emitters = Emitters(model)
    for node in [node for node in model.graph if node.op_type == "Concat" and len(node.inputs) == 2]:
        first, rest = node.inputs
        rank = len(facts.dims(rest) or ())
        axis = node.attributes.get_int("axis", 0) % max(rank, 1)
        source, count = _match_first_frames(first, axis, facts)
        dtype = facts.dtype(source)
        if source is None or rest is None or dtype not in FLOAT_TYPES:
            continue
        if not _continues(rest, source, axis, count, facts):
            continue
        emitter = emitters.at(node.name or "", dtype)
        pads = [0] * 2 * rank
        pads[axis] = count
        start, step = (emitter.constant(np.array(number)) for number in (0, 1))
        steps = emitter.op("Gather", emitter.op("Shape", source), emitter.constant(np.array(axis)))
        is_first = emitter.op("Less", emitter.op("Range", start, steps, step), emitter.integers(count))
        if axis + 1 < rank:
            is_first = emitter.with_axes("Unsqueeze", is_first, [*range(1, rank - axis)])
        later = emitter.op("Pad", rest, emitter.integers(*pads))
        chosen = emitter.op("Where", is_first, source, later)
        emitter.insert_before(node)
        replace_with_values(node, [chosen])


def _match_first_frames(value: ir.Value | None, axis: int, facts: Facts) -> tuple[ir.Value | None, int]:
    """Return the sequence of which a value is the first frames, and how many; ``None`` if it is not."""
    added = producer_of(value, "Unsqueeze")
    node = producer_of(value if added is None else added.inputs[0], "Gather", "Slice")
    parts = [] if node is None else cut_parts(node, facts)
    if [(part.axis, part.start, part.keeps_axis) for part in parts] != [(axis, 0, added is None)]:
        return None, 0
    axes = [axis] if added is None else facts.constant(operand(added, 1))
    if axes is None or np.ravel(axes).tolist() != [axis]:
        return None, 0
    rank, cuts = len(facts.dims(parts[0].whole) or ()), axis_slices(node, facts.constant) or ()
    count = next((cut.end for cut in cuts if cut.axis % rank == axis), 1)
    return (parts[0].whole, count) if count > 0 else (None, 0)


def _continues(rest: ir.Value, source: ir.Value, axis: int, count: int, facts: Facts) -> bool:
    """Return whether a value is computed, element by element, from a sequence without its first frames."""

    def operands(value: ir.Value) -> Sequence[ir.Value]:
        node = value.producer()
        return [] if node is None or node.op_type not in POINTWISE else [*filter(None, node.inputs)]

    dims = facts.dims(source) or ()
    for value in reachable([rest], operands):
        node = producer_of(value, "Slice")
        cuts = axis_slices(node, facts.constant) or ()
        if node is None or node.inputs[0] is not source or len(cuts) != 1 or not dims:
            continue
        if (cuts[0].axis % len(dims), cuts[0].start, cuts[0].step) == (axis, count, 1):
            return cuts[0].is_to_end(dims[axis])
    return False
