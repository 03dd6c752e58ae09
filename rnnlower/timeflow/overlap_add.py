"""Overlapping frames: gathered from a stream by indices, and added up."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.timeflow.convolutions import Window, apply_window
from rnnlower.timeflow.edits import OverlapAdd, ReplaceInput
from rnnlower.timeflow.flow import Flow, Outcome, Rule
from rnnlower.timeflow.tracks import CoupledError, Track


def match_frame_gather(flow: Flow, node: ir.Node, axis: int) -> Track | None:
    """Return the track of the frames that a Gather takes by constant indices; ``None`` if it takes none.

    Indices that are the same for each frame but for a step make windows over the samples.
    """
    track, places = flow.required_track(node).unfolded, flow.known_content(node.inputs[1])
    is_fixed = flow.has_dynamic_length and not flow.is_over_time(node.inputs[1])
    if places is None or places.ndim != 2 or axis != track.axis or track.is_folded or is_fixed:
        return None
    # A matrix of one step and one dilation is that of frames either way: those of samples nearby.
    for over in (0, 1) if np.ptp(places[0]) <= np.ptp(places[:, 0]) else (1, 0):
        frames = places if over == 0 else places.T
        count, kernel = frames.shape
        hop = int(frames[1, 0] - frames[0, 0]) if count > 1 else kernel
        dilation = int(frames[0, 1] - frames[0, 0]) if kernel > 1 else 1
        pattern = hop * np.arange(count)[:, None] + dilation * np.arange(kernel)
        if hop < 1 or dilation < 1 or not np.array_equal(frames, pattern):
            continue
        window = Window(kernel, dilation, hop, 0, 0)
        # Samples at the end that no frame takes.
        window = dataclasses.replace(window, right=min((count - 1) * hop + window.span - track.size, 0))
        found = apply_window(flow, node, window, track, 0.0)
        if found.frames != count:
            return None
        of_chunk = pattern[: found.chunk].astype(places.dtype)
        flow.edits.append(ReplaceInput(node, 1, of_chunk if over == 0 else of_chunk.T))
        return found.at(axis + over)
    return None


def _scatter(flow: Flow, node: ir.Node) -> Outcome:
    """Handle frames that are added to zeros at constant indices, each one hop after the previous one."""
    adds, places = (
        node.attributes.get_string("reduction", "none") == "add",
        flow.known_content(node.inputs[1]),
    )
    if not adds or not flow.whole.is_zero(node.inputs[0]) or places is None:
        raise CoupledError("writes to positions of the sequence other than by adding frames to zeros")
    track, axis = flow.required_track(node, 2), 0
    if node.op_type == "ScatterElements":
        axis = node.attributes.get_int("axis", 0) % places.ndim
        rows = np.moveaxis(places, axis, 0).reshape(places.shape[axis], -1)
        if (rows != rows[:, :1]).any():
            raise CoupledError("writes to different positions in each row")
        places = rows[:, 0]
    elif places.shape[-1] == 1:
        places = places[..., 0]
    is_folded = places.ndim == 1
    if track.axis != axis or track.outer != 1 or places.ndim > 2 or is_folded == (track.inner == 1):
        raise CoupledError("adds frames that do not lie one after the other")
    frames = places.reshape(track.frames, -1)
    (count, kernel), hop = frames.shape, int(frames[1, 0] - frames[0, 0]) if len(frames) > 1 else 0
    if hop < 1 or not np.array_equal(frames, hop * np.arange(count)[:, None] + np.arange(kernel)):
        raise CoupledError("adds frames that do not begin at equal distances from the start")
    before, size = -(-kernel // hop) - 1, flow.result_shape(node)[axis]
    track, calls = (
        flow.fill_before_start(node, 2, track) if before and track.lag > 0 else (flow.delay_to(node, 2), 0)
    )
    if before:
        flow.cache(node, 2, track, before, 0.0, more=before, calls=calls)
    named = [flow.sample.named(dim) for dim in flow.shape(node, 2)]
    sizes = tuple(dim if isinstance(dim, int) else None for dim in named)
    flow.edits.append(OverlapAdd(node, 2, axis, track.chunk, kernel, hop, is_folded, sizes))
    return track.with_(inner=1, lag=track.lag * hop).resampled(hop, size - count * hop).at(axis)


def _fold(flow: Flow, node: ir.Node) -> Outcome:
    """Handle Col2Im, which adds blocks of an image of one row.

    A chunk is preceded by the blocks that reach into it. The part that they alone make is cut off at the
    front, and the part to which following blocks will add at the end.
    """
    track, block = flow.required_track(node), flow.ints(node, "block_shape", 2)
    image, count = flow.known_content(node.inputs[1]), len(flow.shape(node, 2)) and flow.shape(node, 2)[0]
    assert block is not None
    kernel = block[0]
    ones, pads = [1] * count, list(node.attributes.get_ints("pads", [0] * (2 * count)))
    hops = node.attributes.get_ints("strides", ones)
    is_plain = {*kernel[:-1], *hops[:-1], *node.attributes.get_ints("dilations", ones)} <= {1}
    if track.axis != 2 or track.is_folded or image is None or not is_plain or image[:-1].max(initial=1) != 1:
        raise CoupledError("adds blocks of an image of several rows", "blocks of one row are frames")
    span, hop = kernel[-1], hops[-1]
    if span < hop or any(pads[:-1][: count - 1]) or any(pads[count:-1]):
        raise CoupledError("adds blocks that leave gaps, or are cut off on other axes")
    before, left = -(-span // hop) - 1, pads[count - 1]
    track, calls = (
        flow.fill_before_start(node, 0, track) if before and track.lag > 0 else (flow.delay_to(node), 0)
    )
    if before:
        flow.cache(node, 0, track, before, 0.0, more=before, calls=calls)
    pads[count - 1], pads[-1] = before * hop, span - hop
    flow.set_ints(node, "pads", None, pads)
    flow.edits.append(ReplaceInput(node, 1, np.array([*image[:-1], track.chunk * hop], image.dtype)))
    lag = track.lag * hop + left
    return track.resampled(hop, int(image[-1]) - track.frames * hop).with_(axis=1 + count, lag=lag, fill=0.0)


OVERLAP_ADD: dict[str, Rule] = {"Col2Im": _fold, "ScatterElements": _scatter, "ScatterND": _scatter}
