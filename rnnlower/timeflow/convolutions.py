"""Convolutions, pooling, frames of samples and their sums: windows cache what the next chunk needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rnnlower.graph.walk import is_read
from rnnlower.timeflow.edits import OverlapAdd, ReplaceInput
from rnnlower.timeflow.flow import Flow, Outcome, Rule
from rnnlower.timeflow.tracks import CoupledError, Track


@dataclasses.dataclass(frozen=True)
class Window:
    """A window over time: its frames, their distance, its step, and the pads around it."""

    kernel: int
    dilation: int
    stride: int
    left: int
    right: int

    @property
    def span(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def is_pointwise(self) -> bool:
        return (self.span, self.stride, self.left, self.right) == (1, 1, 0, 0)


def make_window(node: ir.Node, kernel: Sequence[int], place: int) -> Window:
    """Return the windows along a spatial axis that the attributes give, except for auto_pad."""
    count = len(kernel)
    strides = node.attributes.get_ints("strides") or (1,) * count
    dilations = node.attributes.get_ints("dilations") or (1,) * count
    pads = node.attributes.get_ints("pads") or (0,) * (2 * count)
    return Window(kernel[place], dilations[place], strides[place], pads[place], pads[place + count])


def _fill_before_start(
    flow: Flow, node: ir.Node, index: int, track: Track, fill: float = 0.0
) -> tuple[Track, int]:
    """Put only the fill before the first frame of an input, or delay the input by whole chunks.

    Return its track, and the number of calls that are waited for.
    """
    if track.lag % track.chunk == 0 or track.is_folded:
        return flow.delay_by_chunks(node, index, track)
    flow.blank_frames(node, index, track, fill)
    return track, 0


def _conv(flow: Flow, node: ir.Node) -> Outcome:
    if any(map(flow.varies, node.inputs[1:])):
        raise CoupledError("has weights that follow from the stream")
    return _apply_node_window(flow, node, 0.0)


def _pool(flow: Flow, node: ir.Node) -> list[Outcome]:
    if any(map(is_read, node.outputs[1:])):
        raise CoupledError("returns the positions of the largest values in the sequence")
    dtype = flow.dtype(node.outputs[0])
    limits = np.iinfo if dtype.is_integer() else ml_dtypes.finfo
    return [
        _apply_node_window(flow, node, float(limits(dtype.numpy()).min) if node.op_type == "MaxPool" else 0.0)
    ]


def _apply_node_window(flow: Flow, node: ir.Node, pad: float) -> Outcome:
    track = _over_frames(flow, node)
    window = _time_window(flow, node, track)
    if window.is_pointwise:
        return flow.delay_to(node)
    track = track.unfolded
    track.require_unfolded("has windows over")
    if node.op_type == "AveragePool" and not node.attributes.get_int("count_include_pad", 0) and window.left:
        raise CoupledError("averages fewer frames at the start of the sequence: its pads do not count")
    if window.left or window.right:
        pads = list(node.attributes.get_ints("pads", ()))
        place = track.axis - 2
        pads[place] = pads[place + len(pads) // 2] = 0
        flow.set_ints(node, "pads", None, pads)
    return apply_window(flow, node, window, track, pad)


def _stft(flow: Flow, node: ir.Node) -> Outcome:
    """Handle an STFT: its frames are windows over the samples."""
    track = flow.required_track(node).unfolded
    if any(map(flow.varies, node.inputs[1:])):
        raise CoupledError("has a parameter that follows from the stream")
    hop, _ = flow.ints(node, "frame_step", 1) or ([], [])
    length, _ = flow.ints(node, "frame_length", 3) or ([math.prod(flow.shape(node, 2))], [])
    if track.axis != 1 or track.is_folded:
        raise CoupledError("takes frames of an axis that is not the time axis")
    return apply_window(flow, node, Window(length[0], 1, hop[0], 0, 0), track, 0.0)


def _over_frames(flow: Flow, node: ir.Node) -> Track:
    track = flow.required_track(node)
    if track.axis == 1 and not node.op_type.endswith("Pool"):
        raise CoupledError("sums over time: its channels are the steps")
    return track


def _time_window(flow: Flow, node: ir.Node, track: Track) -> Window:
    """Return the windows over time; samples are windows of one frame."""
    place = track.axis - 2
    if place < 0:
        return Window(1, 1, 1, 0, 0)
    kernel = node.attributes.get_ints("kernel_shape") or flow.shape(node, 1)[2:]
    window, auto = make_window(node, kernel, place), node.attributes.get_string("auto_pad", "NOTSET")
    if auto != "NOTSET":
        window = dataclasses.replace(window, left=0, right=0)
    if auto.startswith("SAME") and (window.span, window.stride) != (1, 1):
        raise CoupledError(
            f"pads the end of the sequence (auto_pad={auto}), so that it looks ahead",
            "a causal one only pads the start",
        )
    return window


def apply_window(flow: Flow, node: ir.Node, window: Window, track: Track, pad: float) -> Track:
    span, stride, left = window.span, window.stride, window.left
    flow.require_multiple(node, track, stride, f"moves by {stride} frames")
    if window.right:
        track.require_end()
    calls = 0
    if left and track.lag > 0:
        track, calls = _fill_before_start(flow, node, 0, track, pad)
    lag = track.lag
    later = max(0, -((left + stride - span - lag) // stride), -((left - lag) // stride))
    kept = left + later * stride - lag
    if later * stride > max(lag, 0):
        flow.ahead[node] = later * stride - max(lag, 0)
    if kept:
        start: float | np.ndarray = pad
        if lag < 0 and not isinstance(track.fill, str) and track.fill != pad:
            start = _initial_values(flow, node, track, pad, kept)
        flow.cache(node, 0, track, kept, start, more=span - stride, calls=calls, repeated=-min(lag, 0))
    more = window.right - span + stride
    if node.attributes.get_int("ceil_mode", 0):
        # The last window may end after the sequence, but does not begin there.
        more = min(more, 0) + stride - 1
    return track.resampled(more=left + more, stride=stride).with_(lag=later, fill=0.0)


def _initial_values(flow: Flow, node: ir.Node, track: Track, pad: float, kept: int) -> np.ndarray:
    """Return the pads of the window, and the model's values before the stream."""
    rank = len(flow.shape(node))
    column = np.full(kept, pad, np.float32)
    column[kept + track.lag :] = track.fill
    shape = [1] * rank
    shape[track.axis] = kept
    return column.reshape(shape)


def _conv_transpose(flow: Flow, node: ir.Node) -> Outcome:
    """Handle a ConvTranspose, which turns each frame into several that overlap those of earlier frames.

    A chunk is preceded by the frames that reach into it. The part that they alone make is cut off at the
    front, and the part to which following frames will add at the end.
    """
    if any(map(flow.varies, node.inputs[1:])):
        raise CoupledError("has weights that follow from the stream")
    track, place = _over_frames(flow, node), flow.required_track(node).axis - 2
    window = _time_window(flow, node, track)
    if place < 0 or (window.is_pointwise and flow.result_shape(node)[track.axis] == track.size):
        return flow.delay_to(node)
    track = track.unfolded
    track.require_unfolded("spreads a frame over several on")
    if "output_shape" in node.attributes:
        raise CoupledError("has an output_shape, which does not apply to a chunk", "give pads instead")
    span, stride = window.span, window.stride
    before, calls = max(-(-span // stride) - 1, 0), 0
    if before and track.lag > 0:
        track, calls = _fill_before_start(flow, node, 0, track)
    elif track.lag > 0 or track.fill != 0.0 or track.lag * stride + window.left < 0:
        # Zeros in front add nothing, if the frames that they make are cut off.
        track = flow.delay_to(node, track=track)
    if before:
        flow.cache(node, 0, track, before, 0.0, more=before, calls=calls)
    rest = track.axis - 2 + len(flow.shape(node)) - 2
    pads = list(node.attributes.get_ints("pads", (0,) * (2 * (len(flow.shape(node)) - 2))))
    pads[place], pads[rest] = before * stride, max(span - stride, 0)
    padding = list(node.attributes.get_ints("output_padding", (0,) * (len(pads) // 2)))
    more = span - stride - window.left - window.right + padding[place]
    padding[place] = max(stride - span, 0)
    flow.set_ints(node, "pads", None, pads)
    flow.set_ints(node, "output_padding", None, padding)
    return track.resampled(stride, more).with_(lag=track.lag * stride + window.left, fill=0.0)


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
    adds = node.attributes.get_string("reduction", "none") == "add"
    places = flow.known_content(node.inputs[1])
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
        _fill_before_start(flow, node, 2, track) if before and track.lag > 0 else (flow.delay_to(node, 2), 0)
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
        _fill_before_start(flow, node, 0, track) if before and track.lag > 0 else (flow.delay_to(node), 0)
    )
    if before:
        flow.cache(node, 0, track, before, 0.0, more=before, calls=calls)
    pads[count - 1], pads[-1] = before * hop, span - hop
    flow.set_ints(node, "pads", None, pads)
    flow.edits.append(ReplaceInput(node, 1, np.array([*image[:-1], track.chunk * hop], image.dtype)))
    lag = track.lag * hop + left
    return track.resampled(hop, int(image[-1]) - track.frames * hop).with_(axis=1 + count, lag=lag, fill=0.0)


WINDOWS: dict[str, Rule] = {
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    "Col2Im": _fold,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "STFT": _stft,
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scatter),
}
