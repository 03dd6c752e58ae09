"""Operators that move elements and axes, and those that pick some of them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from rnnlower.padding.combining import broadcast
from rnnlower.padding.flow import Axes, PadFlow, Rule
from rnnlower.padding.sizes import NoRuleError, Size


def _transpose(flow: PadFlow, node: ir.Node) -> Axes:
    rank = len(flow.shape(node.inputs[0]))
    perm = node.attributes.get_ints("perm") or [*reversed(range(rank))]
    return {[*perm].index(axis): size for axis, size in flow.axes_of(node.inputs[0]).items()}


def _squeeze(flow: PadFlow, node: ir.Node) -> Axes:
    shape, given = flow.shape(node.inputs[0]), flow.ints(node, "axes", 1)
    removed = [i for i, size in enumerate(shape) if size == 1] if given is None else given[0]
    gone = {axis % len(shape) for axis in removed}
    axes = flow.axes_of(node.inputs[0])
    return {axis - sum(each < axis for each in gone): size for axis, size in axes.items()}


def _unsqueeze(flow: PadFlow, node: ir.Node) -> Axes:
    rank, given = len(flow.shape(node.outputs[0])), flow.ints(node, "axes", 1)
    new = {axis % rank for axis in (given or [[]])[0]}
    left = [axis for axis in range(rank) if axis not in new]
    return {left[axis]: size for axis, size in flow.axes_of(node.inputs[0]).items()}


def _reshape(flow: PadFlow, node: ir.Node) -> Axes:
    """Follow each axis to the one that has as many elements before it."""
    before, after = flow.shapes(node.inputs[0]), flow.shapes(node.outputs[0])
    open_axes = {axis for axis, sizes in enumerate(zip(*after, strict=True)) if len({*sizes}) > 1}
    axes: Axes = {}
    for axis, size in flow.axes_of(node.inputs[0]).items():
        outer = [math.prod(shape[:axis]) for shape in before]
        places = [p for p in open_axes if [math.prod(shape[:p]) for shape in after] == outer]
        if len(places) != 1:
            raise NoRuleError("folds time behind another axis, or mixes it with one")
        factor = math.gcd(after[0][places[0]], before[0][axis])
        axes[places[0]] = size.via(after[0][places[0]] // factor, 0, before[0][axis] // factor)
    return axes


def _expand(flow: PadFlow, node: ir.Node) -> Axes:
    axes = flow.varying(node.outputs[0])
    own = broadcast(flow, node, [0], len(flow.shape(node.outputs[0])))
    return axes | own


def _filled(flow: PadFlow, node: ir.Node) -> Axes:
    return flow.varying(node.outputs[0])


def _tile(flow: PadFlow, node: ir.Node) -> Axes:
    repeats, axes = flow.ints(node, "repeats", 1), flow.axes_of(node.inputs[0])
    assert repeats is not None
    if any(repeats[0][axis] != 1 for axis in axes):
        raise NoRuleError("repeats the sequence")
    # A single element may be repeated as often as there are steps.
    return flow.varying(node.outputs[0]) | axes


def _concat(flow: PadFlow, node: ir.Node) -> Axes:
    rank = len(flow.shape(node.outputs[0]))
    along = node.attributes.get_int("axis", 0) % rank
    axes: Axes = {}
    for index, value in enumerate(node.inputs):
        for axis, size in flow.axes_of(value).items():
            if axis == along:
                if index != len(node.inputs) - 1:
                    raise NoRuleError("puts something behind the last step")
                size = size.via(offset=sum(flow.shape(each)[along] for each in node.inputs[:-1]))
            if axes.setdefault(axis, size) != size:
                raise NoRuleError("combines values of different lengths")
    return axes


def _split(flow: PadFlow, node: ir.Node) -> list[Axes]:
    axes = flow.axes_of(node.inputs[0])
    if node.attributes.get_int("axis", 0) % len(flow.shape(node.inputs[0])) in axes:
        raise NoRuleError("cuts the sequence into parts")
    return [axes] * len(node.outputs)


def _gather(flow: PadFlow, node: ir.Node) -> Axes:
    data, indices = node.inputs[:2]
    rank, axes, own = len(flow.shape(data)), flow.axes_of(data), flow.axes_of(indices)
    along = node.attributes.get_int("axis", 0) % rank
    if along in axes:
        _gather_steps(flow, node, axes[along])
    more = len(flow.shape(indices)) - 1
    found = {axis + (more if axis > along else 0): size for axis, size in axes.items() if axis != along}
    return found | {along + axis: size for axis, size in own.items()}


def _gather_steps(flow: PadFlow, node: ir.Node, size: Size) -> None:
    """Let positions that count from the end count from the last valid step."""
    value = node.inputs[1]
    contents = flow.contents(value)
    if contents is None or flow.axes_of(value):
        raise NoRuleError("reads steps at positions that are computed while it runs")
    positions = contents[0]
    # A position that follows from the length is that number already.
    if any((each != positions).any() for each in contents) or (positions >= 0).all():
        return
    emitter = flow.emitter_for(node)
    count = flow.count(size, positions.dtype)
    if not positions.ndim:
        count = emitter.squeeze(count, 0, [])
    is_behind = emitter.constant((positions < 0).astype(positions.dtype))
    steps = emitter.op("Add", emitter.op("Mul", count, is_behind), emitter.constant(positions))
    flow.place(emitter, node)
    node.replace_input_with(1, steps)


def _bounds(flow: PadFlow, node: ir.Node) -> dict[int, tuple[list[int], list[int], int]]:
    """Return for each axis that a Slice cuts its starts and ends at the example lengths, and the step."""
    rank = len(flow.shape(node.inputs[0]))
    starts, ends = flow.ints(node, "starts", 1), flow.ints(node, "ends", 2)
    assert starts is not None
    assert ends is not None
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
    out = dict(zip(range(99), zip(*flow.shapes(node.outputs[0]), strict=True), strict=False))
    cut = [axis for axis in bounds if axis in axes]
    for axis, (starts, _, step) in bounds.items():
        if axis not in axes and len({*out[axis]}) > 1:
            if len({*starts}) > 1 or step < 1 or starts[0] < 0:
                raise NoRuleError("cuts a part that counts from the end of the sequence")
            axes[axis] = flow.matched(out[axis])
    if not cut:
        return axes
    for axis in cut:
        sizes = [shape[axis] for shape in flow.shapes(value)]
        starts, ends, step = bounds[axis]
        first = [start + size if start < 0 else start for start, size in zip(starts, sizes, strict=True)]
        is_front = len({*starts}) == 1 and starts[0] >= 0 and step > 0
        if is_front:
            size = _front(axes[axis], starts, ends, step, sizes, out[axis])
        elif len(bounds) > 1:
            raise NoRuleError("cuts several axes, and time from its end")
        elif (step == -1 and first == [s - 1 for s in sizes]) or (starts[0] >= 2**31 - 1 and step == -1):
            if out[axis] != tuple(sizes):
                raise NoRuleError("cuts a part of the reversed sequence")
            _flip(flow, node, axis, axes[axis])
            continue
        elif step == 1 and len({*out[axis]}) == 1:
            _last_steps(
                flow, node, axis, axes[axis], [f - s for f, s in zip(first, sizes, strict=True)], out[axis][0]
            )
            size = None
        else:
            raise NoRuleError("cuts a part that counts from the end of the sequence")
        if size is None:
            del axes[axis]
        else:
            axes[axis] = size
    return axes


def _front(
    size: Size, starts: list[int], ends: list[int], step: int, sizes: list[int], out: tuple[int, ...]
) -> Size | None:
    """Return the size of a part that begins at a fixed step."""
    if len({*out}) == 1:
        return None
    if len({*ends}) == 1 and 0 <= ends[0] < max(sizes):
        raise NoRuleError("cuts a number of steps that a short sequence does not have")
    behind = {min(end + have if end < 0 else end, have) - have for end, have in zip(ends, sizes, strict=True)}
    if len(behind) != 1:
        raise NoRuleError("cuts a part whose end follows from the length")
    return size.via(1, behind.pop() - starts[0] + step - 1, step)


def _last_steps(flow: PadFlow, node: ir.Node, axis: int, size: Size, behind: list[int], count: int) -> None:
    if len({*behind}) != 1:
        raise NoRuleError("cuts a part whose start follows from the length")
    emitter = flow.emitter_for(node)
    steps = emitter.constant(np.arange(behind[0], behind[0] + count, dtype=np.int64))
    source = node.inputs[0]
    assert source is not None
    picked = emitter.op("Gather", source, emitter.op("Add", flow.count(size), steps), axis=axis)
    flow.replace(node, picked, emitter)


def _flip(flow: PadFlow, node: ir.Node, axis: int, size: Size) -> None:
    emitter, source = flow.emitter_for(node), node.inputs[0]
    assert source is not None
    last = emitter.constant(np.arange(-1, -size.full - 1, -1, dtype=np.int64))
    steps = emitter.op("Add", flow.count(size), last)
    zero = emitter.constant(np.zeros(1, np.int64))
    places = emitter.op("Where", emitter.op("Less", steps, zero), zero, steps)
    flow.replace(node, emitter.op("Gather", source, places, axis=axis), emitter)


def _reverse(flow: PadFlow, node: ir.Node) -> Axes:
    if flow.axes_of(node.inputs[1]):
        raise NoRuleError("takes lengths over time")
    return flow.axes_of(node.inputs[0])


def _range(flow: PadFlow, node: ir.Node) -> Axes:
    raise NoRuleError("numbers steps from a value that is computed while it runs")


def _where_shape(flow: PadFlow, node: ir.Node) -> Axes:
    raise NoRuleError("takes the shape of a value whose shape is not known")


def _trilu(flow: PadFlow, node: ir.Node) -> Axes:
    return flow.axes_of(node.inputs[0])


def _one_hot(flow: PadFlow, node: ir.Node) -> Axes:
    rank = len(flow.shape(node.outputs[0]))
    axis = node.attributes.get_int("axis", -1) % rank
    return {place + (place >= axis): size for place, size in flow.axes_of(node.inputs[0]).items()}


MOVING: dict[str, Rule] = {
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Expand": _expand,
    "EyeLike": _trilu,
    "Flatten": _reshape,
    "Gather": _gather,
    "OneHot": _one_hot,
    "Range": _range,
    "Reshape": _reshape,
    "ReverseSequence": _reverse,
    "Shape": _where_shape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
