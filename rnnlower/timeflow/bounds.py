"""Slice, Gather, Concat and Pad: operators that select steps, or change where a sequence begins and ends."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.graph.walk import operand
from rnnlower.timeflow.convolutions import match_frame_gather
from rnnlower.timeflow.edits import BypassNode, ReplaceInput, Start
from rnnlower.timeflow.flow import LATEST, Flow, Outcome, Rule
from rnnlower.timeflow.pointwise import combine_tracks
from rnnlower.timeflow.positions import cut_to_chunk, refuse_latest, refuse_varying, slice_table
from rnnlower.timeflow.reshaping import moved_track
from rnnlower.timeflow.tracks import CoupledError, Track, misaligned_error, shapes_remedy
from rnnlower.wording import counted

_END = np.iinfo(np.int64).max
_NO_END = np.iinfo(np.int32).max
_FROM_THE_END = 11
"""The first Gather that takes negative indices."""


def _slice(flow: Flow, node: ir.Node) -> Outcome:
    if flow.track(node) is None:
        return slice_table(flow, node)
    track = moved_track(flow, node).unfolded
    bounds = [flow.ints(node, name, index) for index, name in enumerate(("starts", "ends"), 1)]
    (starts, chunk_starts), (ends, chunk_ends) = (each or ([], []) for each in bounds)
    axes = flow.axes(node, 3) or list(range(len(starts)))
    where = axes.index(track.axis) if track.axis in axes else None
    for index, name in enumerate(("starts", "ends"), 1):
        flow.require_same_ints(node, name, index, where)
    if where is None:
        return moved_track(flow, node)
    steps = flow.ints(node, "steps", 4)
    step = 1 if steps is None else steps[0][where]
    if step < 0:
        raise CoupledError("reverses time")
    start, end, _ = slice(starts[where], ends[where]).indices(track.size)
    if flow.has_dynamic_length and track.size <= ends[where] == chunk_ends[where] < _NO_END:
        flow.limit_positions(ends[where] // track.inner, track)
    if step > 1:
        if not start == starts[where] == chunk_starts[where] < step or end < track.size:
            raise CoupledError("leaves out steps")
        _set_bounds(flow, node, where, (starts, start), (ends, _END))
        return _every(flow, node, track, start, step)
    is_fixed = 0 <= ends[where] == chunk_ends[where] < track.size
    if is_fixed and flow.has_dynamic_length and flow.sample.steps != flow.sample.chunk:
        return _first_steps(flow, node, track, where, starts, ends)
    _require_growth(flow, node, track, where, chunk_ends)
    is_last = start == track.size - track.inner and end == track.size
    # Counted from the end, the only step of a model of one step is the last one, too.
    is_last = is_last and (track.frames > 1 if start else starts[where] < 0)
    if is_last and not (starts[where] == chunk_starts[where] > 0 and flow.has_dynamic_length):
        _last_only(flow, track, track.frames - 1)
        _set_bounds(flow, node, where, (starts, -1), (ends, _END))
        return LATEST
    if starts[where] < 0 or starts[where] != chunk_starts[where]:
        raise CoupledError("takes the last steps of the sequence")
    if start % track.inner or end % track.inner or track.outer != 1:
        raise CoupledError("cuts an axis in which time is folded")
    if start or end != track.size:
        _set_bounds(flow, node, where, (starts, 0), (ends, _END))
    frames = (end - start) // track.inner
    return _skip_frames(flow, node, track.resampled(more=frames - track.frames), start // track.inner)


def _first_steps(
    flow: Flow, node: ir.Node, track: Track, where: int, starts: list[int], ends: list[int]
) -> Outcome:
    """Handle a part at the beginning of the sequence, of which only the shape may be read."""
    if not _gives_shape_alone(node.outputs[0]) or starts[where] < 0 or ends[where] > track.chunk_size:
        remedy = shapes_remedy() if _is_only_measured(node.outputs[0]) else ""
        raise CoupledError("takes the first steps of the sequence", remedy)
    # A chunk has as many steps; if more than one, its last ones, for they say how long it must be.
    if ends[where] * flow.sample.chunk > track.chunk_size:
        count = ends[where] - starts[where]
        _set_bounds(flow, node, where, (starts, track.chunk_size - count), (ends, _END))
    return LATEST


def _require_growth(flow: Flow, node: ir.Node, track: Track, where: int, chunk_ends: list[int]) -> None:
    """Refuse an end that changes with the length, but not by as many steps."""
    for its, ends in flow.lengths(operand(node, 2), track):
        more = ends[where] - chunk_ends[where] - its.rate * (its.sample.steps - flow.sample.chunk)
        is_cut = slice(ends[where]).indices(its.size)[1] < its.size or chunk_ends[where] < track.chunk_size
        if ends[where] != chunk_ends[where] and is_cut and abs(more) >= 1:
            raise CoupledError("takes a part of the sequence that grows with it, but not by as many steps")


def _every(flow: Flow, node: ir.Node, track: Track, start: int, step: int) -> Track:
    """Handle every second frame, or every third, and so on: those of a chunk are in the same places."""
    track.require_unfolded("cuts")
    flow.require_multiple(node, track, step, f"moves by {step} frames")
    track = flow.delay_to(node, 0, -(-max(track.lag, 0) // step) * step, track)
    return track.resampled(more=step - 1 - start, stride=step).with_(lag=track.lag // step)


def _skip_frames(flow: Flow, node: ir.Node, later: Track, skipped: int) -> Track:
    """Handle a sequence without its first frames: what remains comes late."""
    lag = later.lag + skipped
    if min(skipped, lag) > 0:
        flow.ahead[node] = min(skipped, lag)
    return later.with_(lag=lag)


def _set_bounds(
    flow: Flow, node: ir.Node, where: int, starts: tuple[list[int], int], ends: tuple[list[int], int]
) -> None:
    for index, (name, (bounds, new)) in enumerate((("starts", starts), ("ends", ends)), 1):
        changed = [new if place == where else bound for place, bound in enumerate(bounds)]
        flow.set_ints(node, name, index, changed)


def _gather(flow: Flow, node: ir.Node) -> Outcome:
    axis, width = node.attributes.get_int("axis", 0) % len(flow.shape(node)), len(flow.shape(node, 1))
    track = flow.track(node)
    framed = match_frame_gather(flow, node, axis) if track is not None and axis == track.axis else None
    if framed is not None:
        return framed
    if flow.track(node, 1) is not None:
        if flow.varies(node.inputs[0]):
            raise CoupledError("looks up values of the stream at positions of the stream")
        positions, numbers = flow.delay_to(node, 1), flow.known_content(node.inputs[1])
        if numbers is not None and np.array_equal(numbers.reshape(-1), np.arange(numbers.size)):
            flow.limit_positions(flow.shape(node)[axis], positions)
        return positions.at(axis + positions.axis)
    track = moved_track(flow, node)
    if node.inputs[1] in flow.pending:
        raise flow.pending[node.inputs[1]]
    if axis != track.axis:
        refuse_varying(flow, node.inputs[1], track)
        return track.at(track.axis + (width - 1 if axis < track.axis else 0))
    place = flow.content(node.inputs[1])
    if place is None or place.size != 1:
        raise CoupledError("picks steps of the sequence")
    if _gives_shape_alone(node.outputs[0]):
        # Every step has that shape, the first of a chunk, too.
        flow.edits.append(ReplaceInput(node, 1, np.zeros_like(place)))
        return LATEST
    if place.reshape(-1)[0] >= 0 and flow.is_fixed(node.inputs[1]):
        raise CoupledError("picks a step of the sequence that is not the last one")
    for its, number in flow.lengths(node.inputs[1], track):
        _last_only(flow, its, number[0] % its.size)
    last = -1 if flow.opset >= _FROM_THE_END else track.chunk - 1
    flow.edits.append(ReplaceInput(node, 1, np.full(place.shape, last, place.dtype)))
    return LATEST


def _gives_shape_alone(value: ir.Value) -> bool:
    readers = {(node.domain, node.op_type) for node in value.consumers()}
    return readers == {("", "Shape")} and not value.is_graph_output()


def _last_only(flow: Flow, track: Track, place: int) -> None:
    if place != track.frames - 1 or track.is_folded:
        raise CoupledError("picks a step of the sequence that is not the last one")
    if track.tail + track.lag:
        raise CoupledError(f"picks the last step after {flow.shifts()}")


def _concat(flow: Flow, node: ir.Node) -> Outcome:
    axis = node.attributes.get_int("axis", 1) % len(flow.result_shape(node))
    tracks = {index: flow.tracks[value] for index, value in enumerate(node.inputs) if value in flow.tracks}
    if not tracks:
        raise CoupledError("computes with the number of time steps, which a stream does not have")
    track = next(iter(tracks.values()))
    if any(other.axis == axis for other in tracks.values()):
        return _concat_constants(flow, node, axis, tracks)
    if any(not track.is_aligned_with(other) or other.tail != track.tail for other in tracks.values()):
        raise misaligned_error(flow.sample)
    if len(tracks) == len(node.inputs) and len({(other.lag, other.fill) for other in tracks.values()}) == 1:
        return track
    track = combine_tracks(flow, node, tracks)
    for index, value in enumerate(node.inputs):
        refuse_latest(flow, value, track)
        if not flow.is_streamed(value):
            cut_to_chunk(flow, node, index, track.axis, track)
    return track


def _concat_constants(flow: Flow, node: ir.Node, axis: int, tracks: Mapping[int, Track]) -> Outcome:
    """Handle constant frames before or after the stream."""
    if len(tracks) > 1:
        raise CoupledError("concatenates sequences over time")
    ((index, track),) = ((index, track.unfolded) for index, track in tracks.items())
    others = [None if flow.depends_on_length(value) else flow.content(value) for value in node.inputs]
    if any(content is None for place, content in enumerate(others) if place != index):
        raise CoupledError("puts frames before or after the stream that are not constant")
    track.require_unfolded("joins")
    fronts = [content for content in others[:index] if content is not None]
    front = sum(content.shape[axis] for content in fronts)
    back = sum(content.shape[axis] for content in others[index + 1 :] if content is not None)
    if back:
        track.require_end()
    later = track.resampled(more=front + back)
    if front:
        start = np.concatenate(fronts, axis)
        same = np.unique(start).size == 1
        later = _prepend_frames(
            flow, node, index, later, front, float(start.reshape(-1)[0]) if same else start
        )
    flow.edits.append(BypassNode(node, index))
    return later


def _prepend_frames(flow: Flow, node: ir.Node, index: int, later: Track, frames: int, front: Start) -> Track:
    """Handle frames before the stream: they become its initial state, not frames of its own.

    Where the stream is late, they take the place of what leaves it before the first frame.
    """
    track = flow.required_track(node, index).unfolded
    if not isinstance(front, np.ndarray) and not track.is_folded:
        if track.lag > 0:
            flow.blank_frames(node, index, track, front)
        if track.lag >= 0 or track.fill == front:
            return later.with_(lag=later.lag - frames, fill=front)
    track, calls = flow.delay_by_chunks(node, index, track)
    if isinstance(front, np.ndarray):
        front = flow.collapse_batch(front, "puts frames before the stream that differ", later.axis)
    flow.cache(node, index, track, frames, front, calls=calls)
    return later.with_(lag=track.lag, fill=0.0)


def _pad(flow: Flow, node: ir.Node) -> Outcome:
    moved, rank = moved_track(flow, node), len(flow.shape(node))
    name = "pads" if "pads" in node.attributes else "paddings"
    pads, _ = flow.ints(node, name, 1) or ([], [])
    axes = flow.axes(node, 3)
    axes = list(range(rank)) if axes is None else axes
    where = axes.index(moved.axis) if moved.axis in axes else None
    flow.require_same_ints(node, name, 1, None if where is None else where + len(axes))
    refuse_varying(flow, operand(node, 2), moved)
    before, after = (0, 0) if where is None else (pads[where], pads[where + len(axes)])
    for _, numbers in flow.lengths(operand(node, 1), moved):
        if where is not None and abs(numbers[where + len(axes)] - after) >= flow.sample.steps:
            raise CoupledError("pads the end of the sequence by a number that changes with its length")
    mode, fill = node.attributes.get_string("mode", "constant"), _pad_value(flow, node)
    if before <= 0 and moved.lag < 0 and mode == "constant" and moved.fill not in (fill, "edge", "reflect"):
        # What is joined to the frames before the stream is not what they are.
        moved = flow.delay_to(node)
    if where is None or not (before or after):
        return moved
    track = moved.unfolded
    if mode == "wrap" or fill is None:
        raise CoupledError("pads the sequence with its last frames, or with values that are not constant")
    track.require_unfolded("pads")
    pads[where] = pads[where + len(axes)] = 0
    flow.set_ints(node, name, 1, pads)
    if after > 0:
        track.require_end()
    later = track.resampled(more=before + after)
    if before < 0:
        return _skip_frames(flow, node, later, -before)
    if mode != "constant" and before:
        needed = before + 1 if mode == "reflect" else 1
        flow.require_frames(node, track, needed, f"reflects {counted(before, 'frame')} at the start")
        track, calls = flow.delay_by_chunks(node, 0, track)
        if not calls:
            return later.with_(lag=-before, fill=mode)
        flow.cache(node, 0, track.with_(fill=mode), before, 0.0, calls=calls, repeated=before)
        return later.with_(lag=track.lag, fill=0.0)
    return _prepend_frames(flow, node, 0, later, before, fill) if before else later


def _pad_value(flow: Flow, node: ir.Node) -> float | None:
    value = operand(node, 2)
    if value is None:
        return node.attributes.get_float("value", 0.0)
    content = flow.content(value)
    return None if content is None or flow.depends_on_length(value) else float(content.reshape(-1)[0])


def _is_only_measured(value: ir.Value) -> bool:
    """Return whether only the shape of what becomes of a value is read, as Keras's layers with masks do."""
    values = [value]
    for each in values:
        readers = [use.node for use in each.uses() if use.node.op_type not in ("Shape", "Size")]
        values += [out for reader in readers for out in reader.outputs if out not in values]
    return not any(each.is_graph_output() for each in values)


def _reverse(flow: Flow, node: ir.Node) -> Outcome:
    track = flow.track(node)
    is_time = track is not None and track.axis == node.attributes.get_int("time_axis", 0)
    raise CoupledError("reverses time" if is_time else "reverses another axis than time")


BOUNDS: dict[str, Rule] = {
    "Concat": _concat,
    "Gather": _gather,
    "Pad": _pad,
    "ReverseSequence": _reverse,
    "Slice": _slice,
}
