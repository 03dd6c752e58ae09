"""Loops and Scans over time: their loop-carried values are states of the stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH, LoopSignature, iteration_numbers
from rnnlower.graph.walk import captured_values, look_through_identities, walk
from rnnlower.timeflow.edits import ReplaceInput
from rnnlower.timeflow.flow import LATEST, Flow, Outcome, Rule
from rnnlower.timeflow.positions import cut_to_chunk, refuse_latest
from rnnlower.timeflow.recurrence import delay_all_by_chunks, hold_state, refuse_shifted
from rnnlower.timeflow.tracks import CoupledError, Track


def _scan(flow: Flow, node: ir.Node) -> list[Outcome]:
    """Handle a Scan whose inputs have their frames on the scanned axes."""
    if flow.opset < FIRST_SCAN_WITHOUT_BATCH:
        raise CoupledError("is of a version that scans each row of a batch")
    scan = LoopSignature(node)
    carried = scan.count
    _refuse_captured(flow, node, ())
    if any(scan.input_backward) or any(scan.output_backward):
        raise CoupledError("begins with the last step, which a stream never reaches")
    tracks: dict[int, Track] = {}
    for place, axis in enumerate(scan.input_axes, carried):
        track, rank = flow.track(node, place), len(flow.shape(node, place))
        if track is not None and (track.axis != axis % rank or track.is_folded):
            raise CoupledError("runs over another axis than time")
        if track is not None:
            tracks[place] = track
    track, calls = delay_all_by_chunks(flow, {(node, index): each for index, each in tracks.items()})
    for place, axis in enumerate(scan.input_axes, carried):
        if place not in tracks:
            refuse_latest(flow, node.inputs[place], track)
            cut_to_chunk(flow, node, place, axis % len(flow.shape(node, place)), track)
    _carry(flow, node, scan, track, calls)
    shapes = [flow.shape_of(out) for out in node.outputs[carried:]]
    if None in shapes:
        raise CoupledError("has a result of unknown shape")
    over = [track.at(axis % len(shape or ())) for axis, shape in zip(scan.output_axes, shapes, strict=False)]
    return [*[LATEST] * carried, *over]


def _loop(flow: Flow, node: ir.Node) -> list[Outcome]:
    """Handle a Loop that gathers one step of each sequence per iteration, by the iteration number."""
    loop = LoopSignature(node)
    body, carried = loop.body, loop.count
    trips, chunk_trips = flow.content(node.inputs[0]), flow.chunk_content(node.inputs[0])
    condition = flow.content(node.inputs[1])
    if trips is None or chunk_trips is None:
        raise CoupledError("has an unsupported number of iterations")
    if node.inputs[1] is not None and (condition is None or not condition.all()):
        raise CoupledError("has a condition that is not known")
    after = flow.whole.constant(body.outputs[0])
    if look_through_identities(body.outputs[0]) is not body.inputs[1] and (after is None or not after.all()):
        raise CoupledError("ends by a condition that it computes")
    readers = _readers(flow, body)
    tracks = {(reader, 0): flow.required_track(reader) for reader in readers}
    frames = {track.frames for track in tracks.values()}
    counts = [
        [its.frames] == count for each in tracks.values() for its, count in flow.lengths(node.inputs[0], each)
    ]
    if len(frames) != 1 or not all(counts):
        raise CoupledError("does not take one step of each sequence in each iteration")
    _refuse_captured(flow, node, readers)
    track, calls = delay_all_by_chunks(flow, tracks)
    if int(chunk_trips.reshape(-1)[0]) != track.chunk:
        flow.edits.append(ReplaceInput(node, 0, np.array(track.chunk, np.int64).reshape(trips.shape)))
    _carry(flow, node, loop, track, calls)
    for out in node.outputs[carried:]:
        dims = flow.whole.dims(out)
        if dims is not None:
            flow.whole.assume(out, (track.frames, *dims[1:]))
    return [*[LATEST] * carried, *[track.at(0)] * (len(node.outputs) - carried)]


def _readers(flow: Flow, body: ir.Graph) -> list[ir.Node]:
    """Return the Gathers that take a step of a sequence by the iteration number."""
    numbers = iteration_numbers(body)
    uses = [use for value in numbers for use in value.uses() if use.node.outputs[0] not in numbers]
    error = CoupledError("computes with the number of the iteration: a stream has no positions")
    for node, place in uses:
        track, axis = flow.track(node), node.attributes.get_int("axis", 0)
        takes = node.op_type == "Gather" and place == 1 and track is not None and not track.is_folded
        if not takes or track is None or axis % len(flow.shape(node)) != track.axis:
            raise error
    if any(value.is_graph_output() for value in numbers):
        raise error
    return list(dict.fromkeys(node for node, _ in uses))


def _refuse_captured(flow: Flow, node: ir.Node, readers: Sequence[ir.Node]) -> None:
    """Refuse a body that reads values over time other than step by step."""
    if any(each in flow.latest for each in captured_values(node)):
        raise CoupledError("combines every step with the last one")
    body = node.attributes["body"].as_graph()
    read = [
        value
        for inner, _ in walk(body)
        for index, value in enumerate(inner.inputs)
        if value is not None and (inner not in readers or index)
    ]
    over_time = next(filter(flow.is_over_time, (*read, *body.outputs)), None)
    if over_time is not None:
        raise CoupledError(f"has a body that reads {over_time.name!r}, which is over time")


def _carry(flow: Flow, node: ir.Node, loop: LoopSignature, track: Track, calls: int) -> None:
    """Carry the states of a body from chunk to chunk."""
    refuse_shifted(flow, node.outputs[: loop.count], track)
    if not all(state.is_invariant for state in loop.states):
        flow.recurrent.append(node)
    for number, state in enumerate(loop.states):
        name, place = state.before.name or f"state_{number}", loop.first_input + number
        if state.is_invariant:
            continue
        shape, dims = flow.shape(node, place), flow.whole.dims(state.after)
        grows = 0 in shape or dims not in (None, flow.whole.dims(state.before))
        if flow.depends_on_length(state.start) or grows:
            raise CoupledError(f"has a state {name!r} that grows with the number of steps")
        named, dtype = tuple(map(flow.sample.named, shape)), flow.dtype(state.start)
        hold_state(flow, node, (place, number, f"initial {name}", name), named, dtype, calls)


LOOPS: dict[str, Rule] = {"Loop": _loop, "Scan": _scan}
