"""Operators that move axes or change shapes: where the frames go, even folded into another axis."""

from __future__ import annotations

import math

import onnx_ir as ir

from rnnlower.graph.operator_kinds import source_axes
from rnnlower.graph.symbols import reshaped
from rnnlower.graph.walk import operand
from rnnlower.timeflow.flow import LATEST, Flow, Outcome, Rule
from rnnlower.timeflow.positions import fill_track, number_steps
from rnnlower.timeflow.tracks import CoupledError, Track, length_remedy, shapes_remedy

_AXES_AS_INPUT = 13
"""The first Squeeze whose axes are an input."""


def moved_track(flow: Flow, node: ir.Node) -> Track:
    """Return the track of the moved value; the other inputs only control the operator."""
    track = flow.track(node)
    if track is None:
        raise CoupledError("takes sizes or positions from the number of time steps in an unsupported way")
    if any(map(flow.is_streamed, node.inputs[1:])):
        raise CoupledError("moves values to positions that follow from the stream")
    return track


def _move_axes(flow: Flow, node: ir.Node) -> Outcome:
    """Handle a Transpose, Squeeze or Unsqueeze."""
    track, shape, given = moved_track(flow, node), flow.shape(node), flow.ints(node, "axes", 1)
    sources = source_axes(node, shape, given and given[0])
    if track.axis not in sources:
        return _only_frame(flow, track)
    if node.op_type == "Squeeze" and given is None:
        removed = [axis for axis in range(len(shape)) if axis not in sources]
        flow.set_ints(node, "axes", 1 if flow.opset >= _AXES_AS_INPUT else None, removed)
    return track.at(sources.index(track.axis))


def _only_frame(flow: Flow, track: Track) -> Outcome:
    """Return the outcome for a frame without an axis of its own: it must be the last one of the stream."""
    if track.tail + track.lag:
        raise CoupledError(f"picks the only step after {flow.shifts()}")
    return LATEST


def _tile(flow: Flow, node: ir.Node) -> Outcome:
    track, (repeats, of_chunk) = moved_track(flow, node), _sizes(flow, node, "repeats")
    if repeats[track.axis] != 1 or repeats != of_chunk:
        raise CoupledError("repeats the sequence")
    return track


def _split(flow: Flow, node: ir.Node) -> Outcome:
    track = moved_track(flow, node)
    if node.attributes.get_int("axis", 0) % len(flow.shape(node)) == track.axis:
        raise CoupledError("cuts the sequence into parts")
    flow.require_same_ints(node, "split", 1)
    return track


def _reshaped_track(flow: Flow, node: ir.Node) -> Outcome:
    """Return the position of the frames after a change of shape."""
    track, before, after = moved_track(flow, node), flow.shape(node), flow.result_shape(node)
    if math.prod(before) != math.prod(after):
        raise CoupledError(
            "has a shape that an exporter wrote for one length of the sequence", length_remedy()
        )
    # A short example of another axis may leave no frames there.
    before, after = (tuple(size or 1 for size in sizes) for sizes in (before, after))
    ahead = math.prod(before[: track.axis]) * track.outer
    places = []
    passed = 1
    for axis, size in enumerate(after):
        if passed and ahead % passed == 0:
            outer = ahead // passed
            if size % (outer * track.frames) == 0 and size:
                places.append(track.with_(axis=axis, outer=outer, inner=size // (outer * track.frames)))
        passed *= size
    # A single step fits any axis: one of its own is the most likely. A Transpose that moves an axis of size 1
    # may be exported as a Reshape: to the first axis, where a recurrent node has time, and back.
    alone = [axis for axis, size in enumerate(after) if size == 1]
    if flow.sample.steps == track.frames == len(alone) == 1 and {*alone} <= {0, *flow.sample.axes.values()}:
        places.append(track.with_(axis=alone[0], outer=1, inner=1))
    if places:
        return min(places, key=lambda place: (place.outer != 1) + (place.inner != 1))
    if track.frames == 1:
        return _only_frame(flow, track)
    return _split_into_frames(flow, node, track, ahead, after)


def _split_into_frames(
    flow: Flow, node: ir.Node, track: Track, ahead: int, after: tuple[int, ...]
) -> Outcome:
    """Handle frames of several samples each: the time axis is split into two."""
    track, passed = track.unfolded, 1
    for axis, size in enumerate(after):
        if passed == ahead and size > 1 and track.frames % size == 0:
            length = track.frames // size
            flow.require_multiple(node, track, length, f"cuts the time axis into frames of {length}")
            # A frame must not begin in one chunk and end in another.
            track = flow.delay_to(node, 0, -(-max(track.lag, 0) // length) * length, track)
            return track.resampled(stride=length).with_(axis=axis, outer=1, lag=track.lag // length)
        passed *= size
    raise CoupledError("mixes the time axis with others, so that no axis has the steps in order")


def _reshape(flow: Flow, node: ir.Node) -> Outcome:
    outcome = _reshaped_track(flow, node)
    if isinstance(outcome, Track):
        _fit_target_to_chunk(flow, node, outcome)
    return outcome


def _fit_target_to_chunk(flow: Flow, node: ir.Node, track: Track) -> None:
    """Make a target shape that contains the length of the sequence fit a chunk."""
    wanted = list(flow.result_shape(node))
    wanted[track.axis] = track.chunk_size
    before = list(flow.shape(node))
    before[flow.required_track(node).axis] = flow.required_track(node).chunk_size
    exact = bool(node.attributes.get_int("allowzero", 0))
    whole, chunk = _sizes(flow, node, "shape")
    if track.axis < len(whole) and whole[track.axis] == track.size == chunk[track.axis] != track.chunk_size:
        if flow.depends_on_length(operand(node, 1)):
            raise CoupledError("takes its shape from an unsupported computation")
        chunk[track.axis] = track.chunk_size
        for axis in filter(lambda axis: flow.is_dynamic(chunk[axis]), range(len(chunk))):
            if not exact and before[axis : axis + 1] == chunk[axis : axis + 1]:
                chunk[axis] = 0
            elif -1 not in chunk:
                chunk[axis] = -1
            else:
                raise CoupledError("takes its shape from an unsupported computation", shapes_remedy())
        flow.set_ints(node, "shape", 1, chunk)
    if [*reshaped(chunk, before, zero_copies=not exact)] != wanted:
        raise CoupledError("has a shape for the length of the sequence that fits no chunk")


def _sizes(flow: Flow, node: ir.Node, name: str, index: int = 1) -> tuple[list[int], list[int]]:
    """Return the sizes that a node is given for the whole sequence, and for a chunk."""
    sizes = flow.ints(node, name, index)
    assert sizes is not None
    return sizes


def _expand(flow: Flow, node: ir.Node) -> Outcome:
    if flow.is_streamed(node.inputs[1]):
        raise CoupledError("takes its shape from values of the stream")
    whole, chunk = _sizes(flow, node, "shape")
    rank, track = len(flow.result_shape(node)), flow.track(node)
    if track is None:
        if node.inputs[0] in flow.latest:
            raise CoupledError("passes the last step (a final state, or the last frame) to every step")
        return fill_track(flow, rank, whole, chunk)
    pairs = zip(reversed(whole), reversed(flow.shape(node)), strict=False)
    if any(1 not in pair and len({*pair}) == 2 for pair in pairs):
        raise CoupledError("repeats one row only, and the batch is dynamic", shapes_remedy())
    placed = track.at(track.axis + rank - len(flow.shape(node)))
    index = placed.axis - (rank - len(whole))
    flow.require_same_ints(node, "shape", 1, index)
    if index >= 0 and chunk[index] not in (1, placed.chunk_size):
        if chunk[index] != placed.size or flow.depends_on_length(node.inputs[1]):
            raise CoupledError("takes its shape from an unsupported computation")
        whole[index] = 1
        given = [*[1] * (len(whole) - len(flow.shape(node))), *flow.shape(node)][-len(whole) :]
        for axis in filter(lambda axis: flow.is_dynamic(whole[axis]), range(len(whole))):
            if given[axis] != whole[axis]:
                raise CoupledError("takes its shape from an unsupported computation", shapes_remedy())
            whole[axis] = 1
        flow.set_ints(node, "shape", 1, whole)
    return placed


RESHAPING: dict[str, Rule] = {
    "ConstantOfShape": lambda flow, node: fill_track(
        flow, len(flow.result_shape(node)), *_sizes(flow, node, "shape", 0)
    ),
    "Expand": _expand,
    "Flatten": _reshaped_track,
    "Range": number_steps,
    "Reshape": _reshape,
    "Split": _split,
    **dict.fromkeys(("Squeeze", "Transpose", "Unsqueeze"), _move_axes),
    "Tile": _tile,
}
