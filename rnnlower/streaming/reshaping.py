"""Reshape, Expand and similar operators: the frames' positions, even if a shape folds them into an axis."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from rnnlower.streaming.edits import Replaced, SetAttribute
from rnnlower.streaming.facts import CoupledError, Track, number, numbers
from rnnlower.streaming.flow import LATEST, Flow, Outcome, Rule
from rnnlower.streaming.moved import moved_track


def _reshaped(flow: Flow, node: ir.Node) -> Outcome:
    """Return the position of the frames after a change of shape."""
    track, before, after = moved_track(flow, node), flow.shape(node), flow.result(node)
    ahead = math.prod(before[: track.axis]) * track.outer
    places = []
    passed = 1
    for axis, size in enumerate(after):
        if passed and ahead % passed == 0:
            outer = ahead // passed
            if size % (outer * track.frames) == 0 and size:
                places.append(track.at(axis).with_(outer=outer, inner=size // (outer * track.frames)))
        passed *= size
    # One step fits everywhere: an axis of its own is the most likely.
    if places:
        return min(places, key=lambda place: (place.outer != 1) + (place.inner != 1))
    if track.frames == 1:
        return LATEST
    return _framed(flow, node, track, ahead, after)


def _framed(flow: Flow, node: ir.Node, track: Track, ahead: int, after: tuple[int, ...]) -> Outcome:
    """Handle frames of several samples each: the time axis is split into two."""
    passed = 1
    for axis, size in enumerate(after):
        if passed == ahead and size > 1 and track.frames % size == 0 and track.inner == 1:
            length = track.frames // size
            if track.tail or track.lag:
                raise CoupledError("cuts the time axis into frames after a node that shifts it")
            flow.require_multiple(node, track, length, f"cuts the time axis into frames of {length}")
            return track.at(axis).with_(frames=size, chunk=max(track.chunk // length, 1), outer=1)
        passed *= size
    raise CoupledError("mixes the time axis with others, so that no axis has the steps in order")


def _reshape(flow: Flow, node: ir.Node) -> Outcome:
    outcome = _reshaped(flow, node)
    if isinstance(outcome, Track):
        _fit_target(flow, node, outcome, "shape")
    return outcome


def _fit_target(flow: Flow, node: ir.Node, track: Track, name: str) -> None:
    """Make a target shape that contains the length of the sequence fit a chunk."""
    wanted = list(flow.result(node))
    wanted[track.axis] = track.chunk_size
    given = numbers(node, name)
    content = flow.content(node, 1) if len(node.inputs) > 1 else None
    if given is None and content is None:
        raise CoupledError("takes its shape from a computation that is not followed")
    whole = list(given) if given is not None else [int(size) for size in content[0].reshape(-1)]  # type: ignore[index]
    chunk = list(given) if given is not None else [int(size) for size in content[1].reshape(-1)]  # type: ignore[index]
    if track.axis < len(whole) and whole[track.axis] == track.size == chunk[track.axis] != track.chunk_size:
        if flow.fact(node.inputs[1] if len(node.inputs) > 1 else None).is_sized:
            raise CoupledError("takes its shape from a computation that is not followed")
        whole[track.axis] = track.chunk_size
        if given is not None:
            flow.edits.append(SetAttribute(node, name, tuple(whole)))
        else:
            flow.edits.append(Replaced(node, 1, np.array(whole, np.int64)))
        chunk = whole
    before = flow.fact(node.inputs[0]).chunk_shape
    assert before is not None
    if _resolve(chunk, before, bool(number(node, "allowzero", 0))) != wanted:
        raise CoupledError("has a shape for the length of the sequence that fits no chunk")


def _resolve(target: list[int], before: tuple[int, ...], exact: bool) -> list[int]:
    sizes = [
        before[axis] if size == 0 and not exact and axis < len(before) else size
        for axis, size in enumerate(target)
    ]
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        sizes[sizes.index(-1)] = math.prod(before) // known if known else 0
    return sizes


def _expand(flow: Flow, node: ir.Node) -> Outcome:
    content = flow.content(node, 1)
    if content is None:
        raise CoupledError("takes its shape from a computation that is not followed")
    after = flow.result(node)
    track = flow.track(node)
    if flow.fact(node.inputs[1]).streams:
        raise CoupledError("takes its shape from values of the stream")
    whole, chunk = (list(map(int, each.reshape(-1))) for each in content)
    if track is None:
        return _filled(flow, node, whole, chunk)
    placed = track.at(track.axis + len(after) - len(flow.shape(node)))
    index = placed.axis - (len(after) - len(whole))
    if index >= 0 and chunk[index] not in (1, placed.chunk_size):
        if chunk[index] != placed.size or flow.fact(node.inputs[1]).is_sized:
            raise CoupledError("takes its shape from a computation that is not followed")
        whole[index] = 1
        flow.edits.append(Replaced(node, 1, np.array(whole, np.int64)))
    return placed


def _constant_of_shape(flow: Flow, node: ir.Node) -> Outcome:
    content = flow.content(node, 0)
    if content is None:
        raise CoupledError("takes its shape from a computation that is not followed")
    whole, chunk = (list(map(int, each.reshape(-1))) for each in content)
    return _filled(flow, node, whole, chunk)


def _filled(flow: Flow, node: ir.Node, whole: list[int], chunk: list[int]) -> Outcome:
    """Handle a value that is the same at every step: as long as the sequence, and as a chunk."""
    if node.op_type == "Expand" and flow.fact(node.inputs[0]).latest:
        raise CoupledError("hands the last step (a final state, or the last frame) to every step")
    differ = [axis for axis, (a, b) in enumerate(zip(whole, chunk, strict=True)) if a != b]
    steps, size = flow.sample.steps, flow.sample.chunk
    rank = len(flow.result(node))
    if len(differ) != 1:
        raise CoupledError("takes its shape from the number of time steps in a way that is not followed")
    axis = differ[0]
    if whole[axis] * size != chunk[axis] * steps:
        raise CoupledError("takes its shape from the number of time steps in a way that is not followed")
    # A value that is the same at every step may be folded either way.
    frames, own = _rate(whole[axis], chunk[axis], steps, size)
    return Track(axis + rank - len(whole), frames, own, outer=whole[axis] // frames)


def _rate(whole: int, chunk: int, steps: int, size: int) -> tuple[int, int]:
    if whole % steps == 0 and chunk % size == 0:
        return steps, size
    return whole, chunk


RESHAPING: dict[str, Rule] = {
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Flatten": _reshaped,
    "Reshape": _reshape,
}
