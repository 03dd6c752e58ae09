"""Slice, Gather, Concat and Pad: operators that select steps, or change where a sequence begins and ends."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.streaming.edits import Bypassed, Replaced, SetAttribute, Start
from rnnlower.streaming.facts import Array, CoupledError, Track, number, numbers
from rnnlower.streaming.flow import LATEST, Flow, Outcome, Rule
from rnnlower.streaming.moved import axes_of, moved_track
from rnnlower.streaming.pointwise import per_chunk

_END = np.iinfo(np.int64).max
_FROM_THE_END = 11
"""The first Gather that takes negative indices."""


def _slice(flow: Flow, node: ir.Node) -> Outcome:
    track, rank = moved_track(flow, node), len(flow.shape(node))
    bounds = [_bounds(flow, node, name, index) for index, name in enumerate(("starts", "ends"), 1)]
    axes = axes_of(flow, node, 3)
    axes = list(range(len(bounds[0][0]))) if axes is None else [axis % rank for axis in axes]
    if track.axis not in axes:
        return track
    where = axes.index(track.axis)
    content = flow.content(node, 4)
    step = 1 if content is None else int(content[0].reshape(-1)[where])
    if len(node.inputs) > 4 and node.inputs[4] is not None and content is None:
        raise CoupledError("takes steps that are not constant")
    if step != 1:
        raise CoupledError("reverses time" if step < 0 else "leaves out steps")
    (starts, later), (ends, soon) = bounds
    start, end = (_clamp(each[where], track.size) for each in (starts, ends))
    moves = flow.sample.steps != flow.sample.chunk
    if 0 < ends[where] < track.size and ends[where] == soon[where] and moves and _is_open(flow):
        raise CoupledError("takes the first steps of the sequence")
    if start and start == track.size - track.inner and end == track.size and track.frames > 1:
        _last_only(flow, track, track.frames - 1)
        _set_bounds(flow, node, where, (starts, -1), (ends, _END))
        return LATEST
    if starts[where] < 0 or starts[where] != later[where]:
        raise CoupledError("takes the last steps of the sequence")
    if start % track.inner or end % track.inner or track.outer != 1:
        raise CoupledError("cuts an axis in which time is folded")
    if start or end != track.size:
        _set_bounds(flow, node, where, (starts, 0), (ends, _END))
    skipped = start // track.inner
    lag = track.lag + skipped
    if min(skipped, lag) > 0:
        flow.ahead[node] = min(skipped, lag)
    frames = (end - start) // track.inner
    return track.with_(frames=frames, lag=lag, tail=track.tail - (track.frames - frames))


def _is_open(flow: Flow) -> bool:
    """Return whether the length of the sequence is dynamic in the model."""
    inputs = {value.name: value for value in flow.model.graph.inputs}
    for name, axis in flow.sample.axes.items():
        shape = inputs[name].shape
        if shape is not None and not isinstance(shape[axis], int):
            return True
    return False


def _bounds(flow: Flow, node: ir.Node, name: str, index: int) -> tuple[list[int], list[int]]:
    given = numbers(node, name)
    if given is not None:
        return list(given), list(given)
    content = flow.content(node, index)
    if content is None:
        raise CoupledError("cuts at positions that are not constant")
    whole, chunk = ([int(each) for each in world.reshape(-1)] for world in content)
    return whole, chunk


def _clamp(bound: int, size: int) -> int:
    return max(0, min(bound + size if bound < 0 else bound, size))


def _set_bounds(
    flow: Flow, node: ir.Node, where: int, starts: tuple[list[int], int], ends: tuple[list[int], int]
) -> None:
    for index, (name, (bounds, new)) in enumerate((("starts", starts), ("ends", ends)), 1):
        changed = [new if place == where else bound for place, bound in enumerate(bounds)]
        if name in node.attributes:
            flow.edits.append(SetAttribute(node, name, tuple(changed)))
        else:
            flow.edits.append(Replaced(node, index, np.array(changed, np.int64)))


def _gather(flow: Flow, node: ir.Node) -> Outcome:
    data, indices = (flow.fact(value) for value in node.inputs)
    axis = number(node, "axis", 0) % len(flow.shape(node))
    width = len(flow.shape(node, 1))
    if indices.track is not None:
        if data.streams:
            raise CoupledError("looks up values of the stream at positions of the stream")
        return flow.settle(node, 1).at(axis + indices.track.axis).with_(fill=0.0)
    track = moved_track(flow, node)
    if axis != track.axis:
        return track.at(track.axis + (width - 1 if axis < track.axis else 0))
    content = indices.content
    if content is None or content[0].size != 1:
        raise CoupledError("picks steps of the sequence")
    place = int(content[0].reshape(-1)[0]) % track.size
    _last_only(flow, track, place)
    last = -1 if flow.opset >= _FROM_THE_END else track.chunk - 1
    flow.edits.append(Replaced(node, 1, np.full(content[0].shape, last, content[0].dtype)))
    return LATEST


def _last_only(flow: Flow, track: Track, place: int) -> None:
    if place != track.frames - 1 or (track.outer, track.inner) != (1, 1):
        raise CoupledError("picks a step of the sequence that is not the last one")
    if track.tail + track.lag:
        raise CoupledError(f"picks the last step after {flow.shifts()}")


def _concat(flow: Flow, node: ir.Node) -> Outcome:
    facts = [flow.fact(value) for value in node.inputs]
    rank = len(flow.result(node))
    axis = number(node, "axis", 1) % rank
    tracked = {index: fact.track for index, fact in enumerate(facts) if fact.track is not None}
    if not tracked:
        raise CoupledError("computes with the number of time steps, which a stream does not have")
    track = next(iter(tracked.values()))
    if any(t.axis == axis for t in tracked.values()):
        return _joined(flow, node, axis, tracked)
    for other in tracked.values():
        if (other.axis, other.outer, other.inner, other.chunk, other.tail) != (
            track.axis,
            track.outer,
            track.inner,
            track.chunk,
            track.tail,
        ):
            raise CoupledError("combines values whose time lies on different axes, or runs at another rate")
    for index, fact in enumerate(facts):
        if fact.latest and track.frames > 1:
            raise CoupledError("combines every step with the last one (a final state, or the last frame)")
        if fact.track is None and not fact.latest:
            flow.edits.append(Replaced(node, index, per_chunk(flow, node, index, track.axis, track)))
    same = {(other.lag, other.fill) for other in tracked.values()}
    if len(tracked) == len(facts) and len(same) == 1:
        return track
    lag = max(0, *(other.lag for other in tracked.values()))
    for index in tracked:
        flow.settle(node, index, lag)
    return track.with_(lag=lag, fill=0.0)


def _joined(flow: Flow, node: ir.Node, axis: int, tracked: dict[int, Track]) -> Outcome:
    """Handle constant frames before or after the stream."""
    if len(tracked) > 1:
        raise CoupledError("concatenates sequences over time")
    ((index, track),) = tracked.items()
    fronts: list[np.ndarray] = []
    backs: list[np.ndarray] = []
    for other, value in enumerate(node.inputs):
        content = flow.fact(value).content
        if other != index and (content is None or flow.fact(value).is_sized):
            raise CoupledError("puts frames before or after the stream that are not constant")
        if other != index and content is not None:
            (fronts if other < index else backs).append(content[0])
    if (track.outer, track.inner) != (1, 1):
        raise CoupledError("joins an axis in which time is folded")
    front = sum(array.shape[axis] for array in fronts)
    back = sum(array.shape[axis] for array in backs)
    frames = front + track.frames + back
    later = track.with_(frames=frames, tail=track.tail + front + back)
    if front:
        start = np.concatenate(fronts, axis)
        same = np.unique(start).size == 1
        later = _in_front(flow, node, index, later, front, float(start.reshape(-1)[0]) if same else start)
    flow.edits.append(Bypassed(node, index))
    return later


def _in_front(flow: Flow, node: ir.Node, index: int, later: Track, frames: int, front: Start) -> Track:
    """Handle frames before the stream: they become its initial state, not frames of its own.

    Where the stream is late, they come before its first frame, which begins a chunk.
    """
    if not isinstance(front, np.ndarray) and (not later.lag or (later.lag < 0 and later.fill == front)):
        return later.with_(lag=later.lag - frames, fill=front)
    track, calls = flow.wait(node, index)
    if isinstance(front, np.ndarray):
        front = _in_all_rows(flow, flow.shape(node, index), later.axis, front)
    flow.cache(node, index, track, frames, track.chunk, front, calls)
    return later.with_(lag=track.lag, fill=0.0)


def _in_all_rows(flow: Flow, shape: tuple[int, ...], axis: int, front: Array) -> Array:
    """Return frames with one row for all of a dynamic batch, where they must be equal."""
    for place, size in enumerate(shape):
        if place != axis and not isinstance(flow.sample.named(size), int):
            if not np.array_equal(front, np.repeat(front.take([0], place), front.shape[place], place)):
                raise CoupledError("puts frames before the stream that differ in rows of a dynamic batch")
            front = front.take([0], place)
    return front


def _pad(flow: Flow, node: ir.Node) -> Outcome:
    track, rank = moved_track(flow, node), len(flow.shape(node))
    pads = numbers(node, "pads") or numbers(node, "paddings")
    content = flow.content(node, 1)
    if pads is None and content is not None:
        pads = tuple(int(each) for each in content[0].reshape(-1))
    if pads is None:
        raise CoupledError("pads by amounts that are not constant")
    axes = axes_of(flow, node, 3)
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    if track.axis not in axes:
        return track
    where = axes.index(track.axis)
    before, behind = pads[where], pads[where + len(axes)]
    if not before and not behind:
        return track
    mode = node.attributes.get("mode")
    fill = _pad_value(flow, node)
    if (mode is not None and str(mode.value) != "constant") or min(before, behind) < 0 or fill is None:
        raise CoupledError("pads the sequence with its own frames, or with values that are not constant")
    if (track.outer, track.inner) != (1, 1):
        raise CoupledError("pads an axis in which time is folded")
    changed = list(pads)
    changed[where] = changed[where + len(axes)] = 0
    name = "pads" if "pads" in node.attributes else "paddings"
    if name in node.attributes:
        flow.edits.append(SetAttribute(node, name, tuple(changed)))
    else:
        flow.edits.append(Replaced(node, 1, np.array(changed, np.int64)))
    later = track.with_(frames=track.frames + before + behind, tail=track.tail + before + behind)
    return _in_front(flow, node, 0, later, before, fill) if before else later


def _pad_value(flow: Flow, node: ir.Node) -> float | None:
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        content = flow.content(node, 2)
        return None if content is None else float(content[0].reshape(-1)[0])
    attribute = node.attributes.get("value")
    return 0.0 if attribute is None else float(attribute.value)


BOUNDS: dict[str, Rule] = {
    "Concat": _concat,
    "Gather": _gather,
    "Pad": _pad,
    "Slice": _slice,
}
