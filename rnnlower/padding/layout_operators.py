"""Operators that move elements and axes, and those that cut or join sequences."""

from __future__ import annotations

import functools
import math
import operator

import numpy as np
import onnx_ir as ir

from rnnlower.graph.operator_kinds import source_axes
from rnnlower.graph.walk import required_input
from rnnlower.padding.sizes import ROWS, Axes, NoRuleError, OpenSizeError, Size
from rnnlower.padding.validity import emit_max, emit_min
from rnnlower.padding.validity_walk import PadFlow, Rule


def _move_axes(flow: PadFlow, node: ir.Node) -> Axes:
    """Follow the axes of a Transpose, Squeeze or Unsqueeze."""
    shape, given = flow.shape(node.inputs[0]), flow.ints(node, "axes", 1)
    if node.op_type == "Squeeze" and given is None:
        for size in flow.lengths_of(node.inputs[0]).values():
            # A sequence of one step would lose its axis.
            flow.require(size, 2)
    sources, axes = source_axes(node, shape, given[0] if given else None), flow.axes_of(node.inputs[0])
    return {sources.index(axis): size for axis, size in axes.items() if axis in sources}


def _reshape(flow: PadFlow, node: ir.Node) -> Axes:
    """Follow each axis to the one that has as many elements before it."""
    before, after = flow.shapes(node.inputs[0]), flow.shapes(node.outputs[0])
    open_axes = {axis for axis, sizes in enumerate(zip(*after, strict=True)) if len({*sizes}) > 1}
    axes: Axes = {}
    for axis, size in flow.axes_of(node.inputs[0]).items():
        outer = [math.prod(shape[:axis]) for shape in before]
        is_rows = size.symbol == ROWS
        candidates = range(len(after[0])) if is_rows else open_axes
        places = [p for p in candidates if [math.prod(shape[:p]) for shape in after] == outer]
        if is_rows:
            # Each row of elements goes on: an axis of size 1 is none of rows.
            each = flow.rows.full if flow.rows is not None else 1
            places = [p for p in places if p not in open_axes and not after[0][p] % each][-1:]
            places = [p for p in places if flow.is_multiple(node, axis, p)]
        if len(places) != 1:
            _refuse_fixed_length(flow, node, outer, after)
            raise OpenSizeError("folds time after another axis, or mixes it with one")
        factor = math.gcd(after[0][places[0]], before[0][axis])
        axes[places[0]] = size.affine(after[0][places[0]] // factor, 0, before[0][axis] // factor)
    return axes


def _refuse_fixed_length(
    flow: PadFlow, node: ir.Node, outer: list[int], after: list[tuple[int, ...]]
) -> None:
    """Refuse a shape that holds a number where the sequence has its steps."""
    contents = flow.contents(node.inputs[1]) if node.op_type == "Reshape" else None
    places = [p for p in range(len(after[0])) if [math.prod(shape[:p]) for shape in after] == outer]
    if contents and places and all(np.array_equal(each, contents[0]) for each in contents):
        steps = contents[0].reshape(-1)[places[0]]
        if steps > 0:
            raise NoRuleError(
                f"has a shape with a fixed number of steps, {steps}, such as an exporter's example"
            )


def _depth_to_space(flow: PadFlow, node: ir.Node) -> Axes:
    axes, factor = flow.axes_of(node.inputs[0]), node.attributes.get_int("blocksize", 1)
    if 1 in axes:
        raise NoRuleError("has channels over time")
    return {axis: size.affine(factor if axis > 1 else 1) for axis, size in axes.items()}


def _tile(flow: PadFlow, node: ir.Node) -> Axes:
    repeats, axes = flow.ints(node, "repeats", 1) or [], flow.axes_of(node.inputs[0])
    if any(repeats[0][axis] != 1 for axis in axes):
        raise NoRuleError("repeats the sequence")
    # A single element may be repeated as often as there are steps.
    return flow.varying_axes(node.outputs[0]) | axes


def _concat(flow: PadFlow, node: ir.Node) -> Axes:
    """Concatenate; whatever follows the last step moves to the end of the sequence."""
    if len(node.inputs) == 1:
        return flow.axes_of(node.inputs[0])
    rank = len(flow.shape(node.outputs[0]))
    along = node.attributes.get_int("axis", 0) % rank
    axes: Axes = {}
    ends: list[tuple[int, Size]] = []
    begin = 0
    for value in node.inputs:
        for axis, size in flow.axes_of(value).items():
            if axis == along:
                ends.append((begin, size))
            else:
                flow.add_axis(axes, axis, size)
        begin += flow.shape(value)[along]
    if not ends:
        return axes
    if len({size.symbol for _, size in ends}) > 1 or ends[0][1].symbol == ROWS:
        raise NoRuleError("puts sequences of different lengths one after another")
    others = begin - sum(size.full for _, size in ends)
    valid = functools.reduce(operator.add, (size for _, size in ends)).affine(offset=others)
    if ends[-1][0] + ends[-1][1].full != begin or len(ends) > 1:
        _close_gaps(flow, node, along, ends, valid)
    return axes | {along: valid}


def _close_gaps(flow: PadFlow, node: ir.Node, axis: int, ends: list[tuple[int, Size]], valid: Size) -> None:
    """Gather the elements after each sequence from their positions in the padded one."""
    if flow.rows is not None:
        raise NoRuleError("puts something after the last step, which differs from row to row")
    emitter, old = flow.emitter_for(node), node.outputs[0]
    places = emitter.constant(np.arange(valid.full, dtype=np.int64))
    for begin, size in ends:
        # Elements after the end of this sequence follow its padding.
        end = emitter.op("Add", flow.masks.count(size), emitter.integers(begin))
        skipped = emitter.op("Sub", emitter.integers(size.full), flow.masks.count(size))
        shifted = emitter.op("Add", places, skipped)
        places = emitter.op("Where", emitter.op("Less", places, end), places, shifted)
    last = emitter.integers(valid.full - 1)
    places = emit_min(emitter, places, last)
    flow.replace(node, emitter.op("Gather", old, places, axis=axis), emitter)


def _split(flow: PadFlow, node: ir.Node) -> list[Axes]:
    axes = flow.axes_of(node.inputs[0])
    if node.attributes.get_int("axis", 0) % len(flow.shape(node.inputs[0])) in axes:
        raise NoRuleError("cuts the sequence into parts")
    return [axes] * len(node.outputs)


def _bounds(flow: PadFlow, node: ir.Node) -> dict[int, tuple[list[int], list[int], int]]:
    """Return the starts and ends at the example lengths, and the step, for each axis of a Slice."""
    rank = len(flow.shape(node.inputs[0]))
    starts, ends = (flow.ints(node, name, index) or [] for index, name in enumerate(("starts", "ends"), 1))
    axes, steps = flow.ints(node, "axes", 3), flow.ints(node, "steps", 4)
    places = [*range(len(starts[0]))] if axes is None else [axis % rank for axis in axes[0]]
    return {
        axis: (
            [each[number] for each in starts],
            [each[number] for each in ends],
            1 if steps is None else steps[0][number],
        )
        for number, axis in enumerate(places)
    }


def _slice(flow: PadFlow, node: ir.Node) -> Axes:
    value, axes, bounds = node.inputs[0], dict(flow.axes_of(node.inputs[0])), _bounds(flow, node)
    out = dict(enumerate(zip(*flow.shapes(node.outputs[0]), strict=True)))
    cut = [axis for axis in bounds if axis in axes]
    for axis, (starts, _, step) in bounds.items():
        if axis not in axes and len({*out[axis]}) > 1:
            if len({*starts}) > 1 or step < 1 or starts[0] < 0:
                raise NoRuleError("cuts a part that counts from the end of the sequence")
            axes[axis] = flow.match_size(out[axis])
    if not cut:
        return axes
    places = [place for place, axis in enumerate(bounds) if axis in cut]
    if any(flow.follows_from_other_sizes(each, places) for each in node.inputs[1:3]):
        raise OpenSizeError("cuts a part whose size follows from another open size")
    for axis in cut:
        sizes = [shape[axis] for shape in flow.shapes(value)]
        starts, _, step = bounds[axis]
        first = [start + size if start < 0 else start for start, size in zip(starts, sizes, strict=True)]
        is_front = len({*starts}) == 1 and starts[0] >= 0 and step > 0
        if is_front:
            axes[axis] = _size_from_fixed_start(flow, node, axis, axes[axis], sizes)
        elif len(bounds) > 1:
            raise NoRuleError("cuts several axes, and time from its end")
        elif (step == -1 and first == [s - 1 for s in sizes]) or (starts[0] >= 2**31 - 1 and step == -1):
            if out[axis] != tuple(sizes):
                raise NoRuleError("cuts a part of the reversed sequence")
            _flip(flow, node, axis, axes)
            continue
        elif step == 1 and len({*out[axis]}) == 1:
            offsets = [f - s for f, s in zip(first, sizes, strict=True)]
            _last_steps(flow, node, axis, axes, offsets, out[axis][0])
            del axes[axis]
        else:
            raise NoRuleError("cuts a part that counts from the end of the sequence")
    return axes


def _size_from_fixed_start(flow: PadFlow, node: ir.Node, axis: int, size: Size, sizes: list[int]) -> Size:
    """Return the size of a slice that begins at a fixed step."""
    bounds = _bounds(flow, node)
    place, (starts, ends, step) = [*bounds].index(axis), bounds[axis]
    if len({*ends}) > 1:
        end_offsets = {
            min(end + have if end < 0 else end, have) - have for end, have in zip(ends, sizes, strict=True)
        }
        if len(end_offsets) == 1:
            found = size.affine(1, end_offsets.pop() - starts[0] + step - 1, step)
        elif min(ends) < 0 or (end := flow.size_in(node.inputs[2], place)).symbol != size.symbol:
            raise NoRuleError("cuts a part whose end follows from the length")
        else:
            parts = [
                range(have)[starts[0] : last : step] for have, last in zip(size.table, end.table, strict=True)
            ]
            found = size.with_table(map(len, parts))
    else:
        found = size.sliced(starts[0], ends[0], step)
    # Shorter sequences would leave nothing.
    flow.require(found, 1)
    return found


def _last_steps(flow: PadFlow, node: ir.Node, axis: int, axes: Axes, offsets: list[int], count: int) -> None:
    if len({*offsets}) != 1 or axes[axis].symbol == ROWS:
        raise NoRuleError("cuts a part whose start follows from the length")
    emitter, source = flow.emitter_for(node), required_input(node)
    flow.require(axes[axis], -offsets[0])
    rank, steps = len(flow.shape(source)), range(offsets[0], offsets[0] + count)
    flow.replace(node, flow.masks.last_steps(emitter, source, axis, axes, steps, rank), emitter)


def _flip(flow: PadFlow, node: ir.Node, axis: int, axes: Axes) -> None:
    emitter, source, size = flow.emitter_for(node), required_input(node), axes[axis]
    if flow.rows is not None:
        rank = len(flow.shape(source))
        places = [*range(rank)]
        rows = next((place for place, each in axes.items() if each.symbol == ROWS), rank)
        if size.symbol == ROWS or rows == rank or axes[rows] != flow.rows:
            raise NoRuleError("reverses time where rows are not one axis, while each has a length of its own")
        first = [rows, axis, *(place for place in places if place not in (rows, axis))]
        moved = source if first == places else emitter.transpose(source, first)
        count = flow.masks.count(size)
        turned = emitter.op("ReverseSequence", moved, count, since=10, batch_axis=0, time_axis=1)
        back = [first.index(place) for place in places]
        flow.replace(node, turned if first == places else emitter.transpose(turned, back), emitter)
        return
    last = emitter.constant(np.arange(-1, -size.full - 1, -1, dtype=np.int64))
    steps = emitter.op("Add", flow.masks.count(size), last)
    zero = emitter.constant(np.zeros(1, np.int64))
    positions = emit_max(emitter, steps, zero)
    flow.replace(node, emitter.op("Gather", source, positions, axis=axis), emitter)


def _reverse(flow: PadFlow, node: ir.Node) -> Axes:
    if flow.axes_of(node.inputs[1]):
        raise NoRuleError("takes lengths over time")
    return _same(flow, node)


def _refuse(what: str, flow: PadFlow, node: ir.Node) -> Axes:
    """Refuse an operator on values that are not known."""
    raise NoRuleError(what)


def _same(flow: PadFlow, node: ir.Node) -> Axes:
    return flow.axes_of(node.inputs[0])


LAYOUT_OPERATORS: dict[str, Rule] = {
    "Concat": _concat,
    "ConstantOfShape": lambda flow, node: flow.varying_axes(node.outputs[0]),
    "DepthToSpace": _depth_to_space,
    "Expand": lambda flow, node: flow.varying_axes(node.outputs[0]) | flow.broadcast(node, [0]),
    "EyeLike": _same,
    "Flatten": _reshape,
    "Range": functools.partial(_refuse, "numbers steps from a value that is computed while it runs"),
    "Reshape": _reshape,
    "ReverseSequence": _reverse,
    "Shape": functools.partial(_refuse, "takes the shape of a value whose shape is not known"),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _move_axes,
    "Tile": _tile,
    "Transpose": _move_axes,
    "Trilu": _same,
    "Unsqueeze": _move_axes,
}
