"""Convolutions and pooling: windows over time keep the frames that the next chunk still needs."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.streaming.edits import SetAttribute
from rnnlower.streaming.facts import CoupledError, Track, number, numbers, text
from rnnlower.streaming.flow import Flow, Outcome, Rule


@dataclasses.dataclass(frozen=True)
class _Window:
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


def _conv(flow: Flow, node: ir.Node) -> Outcome:
    weights = [flow.fact(value) for value in node.inputs[1:]]
    if any(fact.streams or fact.is_sized for fact in weights):
        raise CoupledError("has weights that follow from the stream")
    return _windowed(flow, node, numbers(node, "kernel_shape") or flow.shape(node, 1)[2:], 0.0)


def _pool(flow: Flow, node: ir.Node) -> Outcome:
    kernel = numbers(node, "kernel_shape") or ()
    if len(node.outputs) > 1 and node.outputs[1].uses():
        raise CoupledError("returns the positions of the largest values in the sequence")
    lowest = float(
        np.finfo(np.float16 if flow.dtype(node.outputs[0]) == ir.DataType.FLOAT16 else np.float32).min
    )
    outcome = _windowed(flow, node, kernel, lowest if node.op_type == "MaxPool" else 0.0)
    return [outcome, None] if len(node.outputs) > 1 else outcome  # type: ignore[return-value]


def _windowed(flow: Flow, node: ir.Node, kernel: tuple[int, ...], pad: float) -> Outcome:
    track = flow.track(node)
    if track is None:
        raise CoupledError("takes its sizes from the number of time steps in a way that is not followed")
    if track.axis == 0:
        return flow.settle(node, 0).with_(fill=0.0)
    if track.axis == 1:
        raise CoupledError("sums over time: its channels are the steps")
    window = _over_time(flow, node, kernel, track)
    if window.is_pointwise:
        return flow.settle(node, 0).with_(fill=0.0)
    if (track.outer, track.inner) != (1, 1):
        raise CoupledError("has windows over an axis in which time is folded")
    if node.op_type == "AveragePool" and not number(node, "count_include_pad", 0) and window.left:
        raise CoupledError("averages fewer frames at the start of the sequence: its pads do not count")
    return _cached(flow, node, window, track, pad)


def _over_time(flow: Flow, node: ir.Node, kernel: tuple[int, ...], track: Track) -> _Window:
    place, count = track.axis - 2, len(kernel)
    strides = numbers(node, "strides") or (1,) * count
    dilations = numbers(node, "dilations") or (1,) * count
    auto = text(node, "auto_pad", "NOTSET")
    pads = numbers(node, "pads") or (0,) * (2 * count)
    if auto != "NOTSET":
        pads = (0,) * (2 * count)
    window = _Window(kernel[place], dilations[place], strides[place], pads[place], pads[place + count])
    if auto.startswith("SAME") and (window.span, window.stride) != (1, 1):
        raise CoupledError(
            f"pads the end of the sequence (auto_pad={auto}), so that it looks ahead",
            "a causal one only pads the start",
        )
    return window


def _cached(flow: Flow, node: ir.Node, window: _Window, track: Track, pad: float) -> Outcome:
    span, stride, left = window.span, window.stride, window.left
    flow.require_multiple(node, track, stride, f"moves by {stride} frames")
    calls = 0
    if left and track.lag > 0:
        track, calls = flow.wait(node, 0)
    lag = track.lag
    later = max(0, -((left + stride - span - lag) // stride), -((left - lag) // stride))
    kept = left + later * stride - lag
    if later * stride > max(lag, 0):
        flow.ahead[node] = later * stride - max(lag, 0)
    if kept:
        start: float | np.ndarray = pad
        if lag < 0 and track.fill != pad:
            start = _mixed(flow, node, track, pad, kept)
        flow.cache(node, 0, track, kept, track.chunk - stride + span, start, calls)
    if left or window.right:
        count = len(numbers(node, "pads") or ()) // 2
        pads = list(numbers(node, "pads") or ())
        pads[track.axis - 2] = pads[track.axis - 2 + count] = 0
        flow.edits.append(SetAttribute(node, "pads", tuple(pads)))
    frames = flow.result(node)[track.axis]
    tail = (track.tail + left + window.right - span) // stride + 1
    return track.with_(frames=frames, chunk=max(track.chunk // stride, 1), lag=later, tail=tail, fill=0.0)


def _mixed(flow: Flow, node: ir.Node, track: Track, pad: float, kept: int) -> np.ndarray:
    """Return the pads of the window, and the model's values before the stream."""
    rank = len(flow.shape(node))
    column = np.full(kept, pad, np.float32)
    column[kept + track.lag :] = track.fill
    shape = [1] * rank
    shape[track.axis] = kept
    return column.reshape(shape)


def _transposed(flow: Flow, node: ir.Node) -> Outcome:
    """Handle a ConvTranspose that does nothing over time."""
    track = flow.track(node)
    if track is None or any(flow.fact(value).streams for value in node.inputs[1:]):
        raise CoupledError("has weights that follow from the stream")
    if track.axis == 0:
        return flow.settle(node, 0).with_(fill=0.0)
    if track.axis == 1:
        raise CoupledError("sums over time: its channels are the steps")
    kernel = numbers(node, "kernel_shape") or flow.shape(node, 1)[2:]
    window = _over_time(flow, node, kernel, track)
    if not window.is_pointwise or flow.result(node)[track.axis] != track.size:
        raise CoupledError("spreads a frame over several: overlaps of a ConvTranspose are not followed")
    return flow.settle(node, 0).with_(fill=0.0)


WINDOWS: dict[str, Rule] = {
    "AveragePool": _pool,
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "LpPool": _pool,
    "MaxPool": _pool,
}
