"""Positions in a stream: a Range over its steps, and constants that vary over the steps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array
from rnnlower.graph.walk import operand, required_input
from rnnlower.timeflow.edits import ContinuePositions, ReplaceInput
from rnnlower.timeflow.flow import Flow, Outcome
from rnnlower.timeflow.tracks import CoupledError, Sample, Track, facts_about, shapes_remedy
from rnnlower.wording import time_axis


def fill_track(flow: Flow, rank: int, whole: list[int], chunk: list[int]) -> Outcome:
    """Return the track of a value that follows from its shape: of the sequence, and of a chunk."""
    differ = [axis for axis, (a, b) in enumerate(zip(whole, chunk, strict=True)) if a != b]
    steps = flow.sample.steps
    if len(differ) != 1 or whole[differ[0]] * flow.sample.chunk != chunk[differ[0]] * steps:
        return CoupledError("takes its shape from the number of time steps in an unsupported way")
    # A value that is the same at every step may be folded either way.
    size = whole[differ[0]]
    frames = math.gcd(size, steps)
    axis = differ[0] + rank - len(whole)
    return Track(axis, flow.sample, outer=size // frames).resampled(stride=steps // frames)


def number_steps(flow: Flow, node: ir.Node) -> Outcome:
    """Handle a Range over the steps: a chunk continues it."""
    bounds = [(flow.content(value), flow.chunk_content(value)) for value in node.inputs]
    if any(array is None or not array.size for pair in bounds for array in pair):
        raise CoupledError("takes its limits from an unsupported computation")
    first, limit, step = (
        [float(array.reshape(-1)[0]) for array in pair if array is not None] for pair in bounds
    )
    if first[0] != first[1] or step[0] != step[1] or not step[0]:
        return CoupledError("numbers the steps from a start that depends on how many there are")
    whole, chunk = (max(math.ceil((end - first[0]) / step[0]), 0) for end in limit)
    track = fill_track(flow, 1, [whole], [chunk])
    if isinstance(track, Track):
        if step[0] != round(step[0]) or first[0] != round(first[0]):
            raise CoupledError("numbers the steps with fractions")
        # Each element is a frame.
        track = track.resampled(track.outer).with_(outer=1)
        dtype = flow.dtype(node.outputs[0])
        flow.edits.append(ContinuePositions(node, 0, 0, track.chunk, step=round(step[0]), dtype=dtype))
    return track


def slice_table(flow: Flow, node: ir.Node) -> Outcome:
    """Handle a Slice that takes as many rows of a table of positions as there are steps."""
    table, axes = node.inputs[0], flow.axes(node, 3)
    starts, ends = (flow.ints(node, name, index) for index, name in enumerate(("starts", "ends"), 1))
    steps = flow.ints(node, "steps", 4)
    is_table = table is not None and not flow.is_streamed(table) and not any((steps or ((1,),))[0][1:])
    if not is_table or starts is None or ends is None:
        raise CoupledError("takes a part of a value that depends on the number of time steps")
    axes = list(range(len(starts[0]))) if axes is None else axes
    differ = [place for place, (a, b) in enumerate(zip(*ends, strict=True)) if a != b]
    if starts[0] != starts[1] or len(differ) != 1 or starts[0][differ[0]] or (steps and {*steps[0]} != {1}):
        return CoupledError("takes a part of a constant that depends on the number of time steps")
    (place,), shape = differ, list(flow.shape(node))
    axis = axes[place]
    whole, chunk = ends[0][place], ends[1][place]
    track = fill_track(flow, 1, [whole], [chunk])
    if not isinstance(track, Track):
        return track
    track = track.resampled(track.outer).with_(outer=1, axis=axis)
    result = [*(flow.shape_of(node.outputs[0]) or shape)]
    result[axis] = whole
    flow.whole.assume(node.outputs[0], tuple(result))
    vector = operand(node, 2)
    count = None if vector is None else (vector, place)
    flow.limit_positions(shape[axis], track)
    flow.edits.append(ContinuePositions(node, 0, axis, track.chunk, table, count=count))
    return track


def refuse_latest(flow: Flow, value: ir.Value | None, track: Track) -> None:
    """Refuse an operand that follows from the end of the stream."""
    is_before_the_end = track.tail + track.lag < 0 and flow.sample.steps > flow.sample.chunk
    if value in flow.latest and (track.frames > 1 or is_before_the_end):
        raise CoupledError(
            "combines every step with the last one (a final state, or the last frame), which comes later"
        )


def refuse_varying(flow: Flow, value: ir.Value | None, track: Track) -> None:
    """Refuse an operand that follows from the end of the stream, or from the number of its steps."""
    refuse_latest(flow, value, track)
    if flow.is_over_time(value):
        raise CoupledError("computes with the number of time steps, which a stream does not have")


def accept_constant(flow: Flow, node: ir.Node, index: int, axis: int, track: Track) -> None:
    """Accept an operand without frames, if its part for each chunk is known; ``axis`` counts from the end."""
    value = node.inputs[index]
    shape = flow.shape(node, index)
    if len(shape) >= -axis and shape[axis] != 1:
        refuse_latest(flow, value, track)
        cut_to_chunk(flow, node, index, len(shape) + axis, track, broadcasts=True)
    else:
        refuse_varying(flow, value, track)


def content_at(flow: Flow, value: ir.Value, sample: Sample) -> Array | None:
    """Return the content of a value that follows from sizes, for a sequence of another length."""
    facts = facts_about(flow.model, sample)
    for each, its in flow.tracks.items():
        # Not every operator has its shapes inferred.
        shape = None if flow.follows_from_size(each) else flow.shape_of(each)
        if shape is not None:
            size = its.with_(sample=sample).size
            facts.assume(each, (*shape[: its.axis], size, *shape[its.axis + 1 :]))
    return facts.constant(value)


def cut_to_chunk(
    flow: Flow, node: ir.Node, index: int, axis: int, track: Track, *, broadcasts: bool = False
) -> None:
    """Cut a constant as long as the sequence to chunks; an operator that broadcasts takes one row for all."""
    value = required_input(node, index)
    name = f"{value.name!r}"
    array, is_by_size = flow.known_content(value), value in flow.pending or flow.depends_on_length(value)
    if array is None:
        if value in flow.pending:
            raise flow.pending[value]
        if value.is_graph_input():
            raise CoupledError(
                f"combines every step with one of input {name}",
                f"if that is a stream as well, name it, too ({time_axis(str(value.name), axis)})",
            )
        raise CoupledError(f"combines the steps with {name}, which may differ from step to step")
    if array.shape[axis] != track.size:
        raise CoupledError(f"combines the only step with each element of {name}")
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    frames = array.reshape(*before, track.outer, track.frames, track.inner, *after)
    if is_by_size and flow.has_dynamic_length:
        _refuse_of_length(flow, value, array, axis, track)
    first = frames.take([0], axis + 1)
    if np.array_equal(frames, np.repeat(first, track.frames, axis + 1)):
        cut = np.repeat(first, track.chunk, axis + 1).reshape(*before, track.chunk_size, *after)
        if not is_by_size:
            cut = _row_for_all(flow, node, index, cut, axis, broadcasts)
            flow.edits.append(ReplaceInput(node, index, cut))
        elif (part := flow.part.constant(value)) is None or not np.array_equal(part, cut):
            raise CoupledError(f"combines each step with {name}, which depends on the number of steps")
        return
    if track.outer != 1:
        raise CoupledError(
            f"combines each step with a different part of {value.name!r}, where time is folded after another "
            "axis"
        )
    rows, holds = _rows_at_positions(flow, value, np.moveaxis(frames, axis + 1, 0), track)
    table = np.moveaxis(rows, 0, axis + 1).reshape(*before, len(rows) * track.inner, *after)
    table = _row_for_all(flow, node, index, table, axis, broadcasts)
    if holds == 0:
        flow.edits.append(ReplaceInput(node, index, table))
        return
    # A row is an element of the axis.
    holds = None if holds is None else holds * track.inner
    flow.edits.append(ContinuePositions(node, index, axis, track.chunk_size, table, holds))


def _refuse_of_length(flow: Flow, value: ir.Value, array: Array, axis: int, track: Track) -> None:
    """Refuse a value whose first half is another one for a sequence of twice, or half, as many steps."""
    steps, chunk = flow.sample.steps, flow.sample.chunk
    samples = (dataclasses.replace(flow.sample, steps=n) for n in (2 * steps, steps // chunk // 2 * chunk))
    found = ((content_at(flow, value, sample), track.with_(sample=sample)) for sample in samples)
    # That of a long sequence may be too large.
    other, its = next((pair for pair in found if pair[0] is not None), (None, track))
    if other is not None and other.shape[axis] == its.size:
        first, second = (
            np.moveaxis(each, axis, 0).reshape(one.outer, one.frames, -1)
            for each, one in ((array, track), (other, its))
        )
        half = min(track.frames, its.frames) // 2
        if np.array_equal(first[:, :half], second[:, :half]):
            return
    raise CoupledError(f"combines each step with {value.name!r}, which depends on the number of steps")


def _row_for_all(flow: Flow, node: ir.Node, index: int, array: Array, time: int, broadcasts: bool) -> Array:
    """Return a constant operand with one row for all of a dynamic batch, if another operand has the rows."""
    others = [flow.shape(node, place) for place in range(len(node.inputs)) if place != index]
    for axis in range(-array.ndim, 0):
        size, is_dynamic = array.shape[axis], flow.is_dynamic(array.shape[axis])
        has_rows = any(len(shape) >= -axis and shape[axis] == size for shape in others)
        if is_dynamic and (axis + array.ndim == time or not broadcasts or not has_rows):
            name = f"{node.inputs[index].name!r}"  # type: ignore[union-attr]
            raise CoupledError(f"reads {name}, which has a dynamic batch of its own", shapes_remedy())
    what = "combines the steps with a value that differs"
    flow.refuse_of_batch(operand(node, index), what)  # type: ignore[arg-type]
    return flow.collapse_batch(array, what, time)


def _rows_at_positions(flow: Flow, value: ir.Value, frames: Array, track: Track) -> tuple[Array, int | None]:
    """Return the rows for each position, and the first position from which all chunks have the same."""
    calls = -(-flow.sample.steps // flow.sample.chunk)
    places = np.arange(calls * track.chunk) - max(track.lag, 0)
    rows = frames.take(places.clip(0, track.frames - 1), 0)
    chunks = rows.reshape(calls, -1)
    differ = np.flatnonzero((chunks != chunks[-1]).any(1))
    first = int(differ[-1]) + 1 if differ.size else 0
    if first <= calls // 2 and first + 1 < calls:
        return rows[: (first + 1) * track.chunk], first * track.chunk
    if value in flow.pending or flow.depends_on_length(value):
        raise CoupledError(
            f"combines each step with a different part of {value.name!r}, which depends on the number of "
            "steps"
        )
    flow.limit_positions(max(track.frames, track.chunk), track)
    return rows, None
