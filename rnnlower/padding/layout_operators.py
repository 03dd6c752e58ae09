"""Operators that move elements and axes, and those that cut or join sequences."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator

import numpy as np
import onnx_ir as ir

from rnnlower.graph.operator_kinds import source_axes
from rnnlower.graph.walk import operand, required_input
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.reshapes import reshape
from rnnlower.padding.sizes import ROWS, Axes, NoRuleError, OpenSizeError, Size
from rnnlower.padding.validity import emit_max, emit_min, emit_numbers
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


def _depth_to_space(flow: PadFlow, node: ir.Node) -> Axes:
    axes = flow.feature_axes(node, [1], "has channels over time")
    factor = node.attributes.get_int("blocksize", 1)
    return {axis: size.affine(factor if axis > 1 else 1) for axis, size in axes.items()}


def _tile(flow: PadFlow, node: ir.Node) -> Axes:
    repeats, axes = flow.ints(node, "repeats", 1) or [], flow.axes_of(node.inputs[0])
    if any(repeats[0][axis] != 1 for axis in axes):
        raise NoRuleError("repeats the sequence")
    # A single element may be repeated as often as there are steps.
    return flow.varying_axes(node.outputs[0], known=axes)


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
        if flow.rows is None:
            _close_gaps(flow, node, along, ends, valid)
        else:
            _close_gaps_of_rows(flow, node, along, ends, axes | {along: valid})
    return axes | {along: valid}


def _close_gaps(flow: PadFlow, node: ir.Node, axis: int, ends: list[tuple[int, Size]], valid: Size) -> None:
    """Gather the elements after each sequence from their positions in the padded one."""
    emitter, old = flow.emitter_for(node), node.outputs[0]
    places = emit_numbers(emitter, valid.full)
    for begin, size in ends:
        # Elements after the end of this sequence follow its padding.
        end = emitter.op("Add", flow.masks.count(size), emitter.integers(begin))
        skipped = emitter.op("Sub", emitter.integers(size.full), flow.masks.count(size))
        shifted = emitter.op("Add", places, skipped)
        places = emitter.op("Where", emitter.op("Less", places, end), places, shifted)
    last = emitter.integers(valid.full - 1)
    places = emit_min(emitter, places, last)
    flow.replace(node, emitter.op("Gather", old, places, axis=axis), emitter)


def _close_gaps_of_rows(
    flow: PadFlow, node: ir.Node, axis: int, ends: list[tuple[int, Size]], axes: Axes
) -> None:
    """Move what follows each sequence in front of its padding, where each row has a length of its own.

    Reversed, it is put in front of the sequence, whose padding comes last; both are reversed again.
    """
    emitter, value = flow.emitter_for(node), node.outputs[0]
    shape = flow.shape(value)
    for begin, size in reversed(ends):
        end = begin + size.full
        if left := shape[axis] - end:
            first = emitter.slice(value, [0], [end], [axis])
            rest = emitter.op(
                "Gather", value, emitter.integers(*range(shape[axis] - 1, end - 1, -1)), axis=axis
            )
            turned = flow.masks.reversed(emitter, first, axis, axes, size.affine(offset=begin), len(shape))
            joined = emitter.op("Concat", rest, turned, axis=axis)
            count = size.affine(offset=begin + left)
            value = flow.masks.reversed(emitter, joined, axis, axes, count, len(shape))
    flow.replace(node, value, emitter)


def _split(flow: PadFlow, node: ir.Node) -> list[Axes]:
    axes = flow.axes_of(node.inputs[0])
    along = node.attributes.get_int("axis", 0) % len(flow.shape(node.inputs[0]))
    if along in axes or any(flow.varies(part, along) for part in node.outputs):
        raise NoRuleError("cuts the sequence into parts")
    return [axes] * len(node.outputs)


_TO_THE_END = np.iinfo(np.int32).max
"""The least end that exporters write for a part that has all elements up to the last."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Cut:
    """The part of one axis that a Slice takes.

    Attributes:
        axis, step: The axis and its step.
        place: The element of the Slice's inputs for it.
        starts, ends: The bounds at the example lengths, the maximum first.
    """

    axis: int
    place: int
    starts: list[int]
    ends: list[int]
    step: int

    @property
    def is_whole(self) -> bool:
        return self.starts == [0] * len(self.starts) and min(self.ends) >= _TO_THE_END and self.step == 1


def _cuts(flow: PadFlow, node: ir.Node) -> list[_Cut]:
    """Return the parts that a Slice takes of axes, without whole ones."""
    rank = len(flow.shape(node.inputs[0]))
    starts, ends = (flow.ints(node, name, index) or [] for index, name in enumerate(("starts", "ends"), 1))
    axes, steps = flow.ints(node, "axes", 3), flow.ints(node, "steps", 4)
    found = [
        _Cut(
            number if axes is None else axes[0][number] % rank,
            number,
            [each[number] for each in starts],
            [each[number] for each in ends],
            1 if steps is None else steps[0][number],
        )
        for number in range(len(starts[0]))
    ]
    return [cut for cut in found if not cut.is_whole]


def _slice(flow: PadFlow, node: ir.Node) -> Axes:
    axes, cuts = dict(flow.axes_of(node.inputs[0])), _cuts(flow, node)
    out = dict(enumerate(zip(*flow.shapes(node.outputs[0]), strict=True)))
    for cut in cuts:
        if cut.axis in axes:
            continue
        varying = next((each for each in (out[cut.axis], cut.starts, cut.ends) if len({*each}) > 1), None)
        if varying is None and flow.short_numbers(operand(node, 1), cut.place) - {*cut.starts}:
            raise NoRuleError("cuts a part whose start follows from the length")
        if varying is not None:
            # Of what has one size, each length takes a part of its own.
            size = flow.deciding_length(varying)
            axes[cut.axis] = size.with_table([flow.shape(node.inputs[0])[cut.axis]] * len(size.table))
    over_time = [cut for cut in cuts if cut.axis in axes]
    _refuse_other_sizes(flow, node, over_time)
    emitter, sizes, moved = flow.emitter_for(node), dict(axes), dict[_Cut, ir.Value]()
    for cut in over_time:
        sizes[cut.axis], part = _cut(flow, node, cut, axes, emitter, is_fixed=len({*out[cut.axis]}) == 1)
        if part is not None:
            moved[cut] = part
    if len(moved) > 1:
        raise NoRuleError("cuts several axes from their ends")
    for cut, part in moved.items():
        others = [each for each in cuts if each is not cut]
        flow.replace(node, _cut_others(flow, node, others, part, emitter), emitter)
    return sizes


def _refuse_other_sizes(flow: PadFlow, node: ir.Node, cuts: list[_Cut]) -> None:
    places = [cut.place for cut in cuts]
    if places and any(flow.follows_from_other_sizes(each, places) for each in node.inputs[1:3]):
        raise OpenSizeError("cuts a part whose size follows from another open size")


def _cut(
    flow: PadFlow, node: ir.Node, cut: _Cut, axes: Axes, emitter: Emitter, *, is_fixed: bool
) -> tuple[Size, ir.Value | None]:
    """Take a part of the valid steps along one axis.

    Returns:
        Its size (`is_fixed` if that is one number), and the part, unless the Slice itself takes it.
    """
    size, source, axis, step = axes[cut.axis], required_input(node), cut.axis, cut.step
    first, last = operand(node, 1), operand(node, 2)
    start = flow.bound_of(first, cut.place, cut.starts, size, is_start=True)
    end = flow.bound_of(last, cut.place, cut.ends, size, is_start=False)
    if start is None or end is None:
        raise NoRuleError(f"cuts a part whose {'start' if start is None else 'end'} follows from the length")
    parts = [range(have)[a:b:step] for have, a, b in zip(size.table, start.table, end.table, strict=True)]
    if step < 0:
        if step < -1 or [*map(len, parts)] != [*size.table]:
            raise NoRuleError("cuts a part of the reversed sequence")
        return size, _flip(flow, source, axis, axes, emitter)
    found, begins = _growing(size.with_table(map(len, parts))), [part.start for part in parts]
    is_front = len({*itertools.compress(begins, found.table)}) == 1
    # Shorter sequences would leave nothing, or less than a number of steps that count from the end.
    flow.require(found, found.full if is_fixed and not is_front else 1)
    if first is not None and not flow.fits_short_elements(start, first, cut.place):
        raise NoRuleError("cuts a part whose start follows from the length")
    valid = slice(flow.least[size.symbol], None)
    if not found.full or len({*begins[valid]}) == 1:
        return found, None
    steps = range(0, found.full * step, step)
    offsets = {begin - have for begin, have in zip(begins[valid], size.table[valid], strict=True)}
    rank = len(flow.shape(source))
    if len(offsets) == 1:
        from_end = offsets.pop()
        steps = range(from_end, from_end + steps.stop, step)
        return found, flow.masks.last_steps(emitter, source, axis, axes, steps, rank)
    begin = size.with_table(begins)
    return found, flow.masks.steps_from(emitter, source, axis, axes, begin, steps, rank)


def _cut_others(flow: PadFlow, node: ir.Node, cuts: list[_Cut], part: ir.Value, emitter: Emitter) -> ir.Value:
    """Cut the other axes of a Slice, of which a part along one has been taken."""
    if not cuts:
        return part
    _refuse_other_sizes(flow, node, cuts)
    bounds = [(cut.starts[0], cut.ends[0], cut.axis, cut.step) for cut in cuts]
    starts, ends, axes, steps = zip(*bounds, strict=True)
    if {*steps} == {1}:
        return emitter.slice(part, starts, ends, axes)
    return emitter.op("Slice", part, *(emitter.integers(*each) for each in (starts, ends, axes, steps)))


def _growing(size: Size) -> Size:
    """Return a size that is 0 where a bound below 0 leaves more of a short sequence than of a longer one."""
    fewer = [length for length, (one, other) in enumerate(itertools.pairwise(size.table), 1) if one > other]
    least = max(fewer, default=0)
    if 2 * least > len(size.table) or (least and not size.full):
        raise NoRuleError("cuts a part that gets shorter where the sequence gets longer")
    return size.with_table([0] * least + [*size.table[least:]])


def _flip(flow: PadFlow, source: ir.Value, axis: int, axes: Axes, emitter: Emitter) -> ir.Value:
    size = axes[axis]
    if flow.rows is not None:
        return flow.masks.reversed(emitter, source, axis, axes, size, len(flow.shape(source)))
    last = emitter.constant(np.arange(-1, -size.full - 1, -1, dtype=np.int64))
    steps = emitter.op("Add", flow.masks.count(size), last)
    zero = emitter.constant(np.zeros(1, np.int64))
    return emitter.op("Gather", source, emit_max(emitter, steps, zero), axis=axis)


def _reverse(flow: PadFlow, node: ir.Node) -> Axes:
    if flow.axes_of(node.inputs[1]):
        raise NoRuleError("takes lengths over time")
    flow.refuse_rows(node.inputs[0], node.attributes.get_int("time_axis", 0))
    return _same(flow, node)


def _triangle(flow: PadFlow, node: ir.Node) -> Axes:
    rank = len(flow.shape(node.inputs[0]))
    flow.refuse_rows(node.inputs[0], rank - 2, rank - 1)
    return _same(flow, node)


def _refuse(what: str, flow: PadFlow, node: ir.Node) -> Axes:
    """Refuse an operator on values that are not known."""
    raise NoRuleError(what)


def _same(flow: PadFlow, node: ir.Node) -> Axes:
    return flow.axes_of(node.inputs[0])


LAYOUT_OPERATORS: dict[str, Rule] = {
    "Concat": _concat,
    "ConstantOfShape": lambda flow, node: flow.varying_axes(node.outputs[0], is_repeated=True),
    "DepthToSpace": _depth_to_space,
    "Expand": lambda flow, node: (
        flow.varying_axes(node.outputs[0], is_repeated=True) | flow.broadcast(node, [0])
    ),
    **dict.fromkeys(("EyeLike", "Trilu"), _triangle),
    **dict.fromkeys(("Flatten", "Reshape"), reshape),
    "Range": functools.partial(_refuse, "numbers steps from a value that is computed while it runs"),
    "ReverseSequence": _reverse,
    "Shape": functools.partial(_refuse, "takes the shape of a value whose shape is not known"),
    "Slice": _slice,
    "Split": _split,
    **dict.fromkeys(("Squeeze", "Transpose", "Unsqueeze"), _move_axes),
    "Tile": _tile,
}
