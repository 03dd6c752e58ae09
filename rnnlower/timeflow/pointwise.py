"""Operators that treat each frame separately, unless they work along the time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from rnnlower.graph.einsum import einsum_terms
from rnnlower.graph.evaluation import Array
from rnnlower.graph.operator_kinds import axes_along, reduced_axes
from rnnlower.graph.walk import operand
from rnnlower.timeflow.edits import ReplaceInput
from rnnlower.timeflow.flow import Flow, Outcome, Rule
from rnnlower.timeflow.positions import accept_constant, refuse_varying
from rnnlower.timeflow.tracks import CoupledError, Track, misaligned_error, opset_remedy
from rnnlower.timeflow.windowed_attention import compare

_FIRST_WITH_AXIS_AS_INPUT = 20
"""The first DFT whose axis is an input."""
_FIRST_WITH_MODES, _SIZES = 11, 3
_REPEATING = {
    ("asymmetric", "floor"),
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("pytorch_half_pixel", "round_prefer_floor"),
}
"""Transformations and roundings by which a whole factor repeats each element."""
_SUMS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare")
_REDUCTIONS = {
    **dict.fromkeys(_SUMS, "sums"),
    "ReduceMax": "takes the largest",
    "ReduceMean": "averages",
    "ReduceMin": "takes the smallest",
    "ReduceProd": "multiplies",
}


def elementwise(flow: Flow, node: ir.Node) -> Outcome:
    """Handle broadcasting operators: all operands have their frames on one axis, and are equally late."""
    if "axis" in node.attributes and node.op_type in ("Add", "Sub", "Mul", "Div", "Pow"):
        raise CoupledError("broadcasts by an attribute", opset_remedy())
    return align_operands(flow, node, range(len(node.inputs)), len(flow.result_shape(node)))


def align_operands(flow: Flow, node: ir.Node, indices: Sequence[int], rank: int) -> Track:
    """Return the common track of operands whose shapes are aligned at their ends, on the axes of a result."""
    tracks: dict[int, Track] = {}
    for index in indices:
        own = flow.track(node, index)
        if own is not None:
            tracks[index] = own.at(rank - len(flow.shape(node, index)) + own.axis)
    if not tracks:
        raise CoupledError("computes with the number of time steps, which a stream does not have")
    track = combine_tracks(flow, node, tracks)
    for index in indices:
        if index not in tracks and node.inputs[index] is not None:
            accept_constant(flow, node, index, track.axis - rank, track)
    return track


def combine_tracks(flow: Flow, node: ir.Node, tracks: Mapping[int, Track]) -> Track:
    """Return the track of a result of all these inputs, which are delayed to the same lag."""
    if len({(track.outer, track.inner) for track in tracks.values()}) > 1:
        tracks = {index: track.unfolded for index, track in tracks.items()}
    track = next(iter(tracks.values()))
    for other in tracks.values():
        if not track.is_aligned_with(other):
            raise misaligned_error(flow.sample)
        if other.tail != track.tail and max(other.frames, track.frames) > 1:
            raise CoupledError("combines values of different lengths")
    lag = max(0, *(other.lag for other in tracks.values()))
    for index, each in tracks.items():
        # The track may be on the axes of the result, of which an operand lacks the first ones.
        flow.delay_to(node, index, lag, each.at(flow.required_track(node, index).axis))
    return track.with_(lag=lag, fill=0.0)


def _along_axes(axes: Sequence[int], flow: Flow, node: ir.Node, what: str, keeps: bool = True) -> Track:
    """Handle an operator that works along these axes; they are removed unless it keeps them."""
    rank = len(flow.shape(node))
    along = {axis % rank for axis in axes}
    if any(map(flow.varies, node.inputs[1:])):
        raise CoupledError("has a parameter that follows from the stream")
    track = flow.delay_to(node)
    if track.axis in along:
        raise CoupledError(f"{what} over time: a stream has no end")
    return track if keeps else track.at(track.axis - sum(axis < track.axis for axis in along))


def _from_axis(first: int, what: str, flow: Flow, node: ir.Node) -> Outcome:
    """Handle an operator that works along all axes from this one on."""
    return _along_axes(range(first, len(flow.shape(node))), flow, node, what)


def _along(what: str, flow: Flow, node: ir.Node) -> Outcome:
    """Handle an operator that works along the axis in its attribute."""
    axes = axes_along(node, len(flow.shape(node)), flow.opset)
    return _along_axes(axes, flow, node, what, bool(node.attributes.get_int("keepdims", 1)))


def _normalize(flow: Flow, node: ir.Node) -> Outcome:
    """Handle a normalization along the last axes; its scale and bias may differ from step to step."""
    track = _along("normalizes", flow, node)
    for index in range(1, len(node.inputs)):
        if isinstance(track, Track) and node.inputs[index] is not None:
            accept_constant(flow, node, index, track.axis - len(flow.shape(node)), track)
    return track


def _reduce(flow: Flow, node: ir.Node) -> Outcome:
    axes = reduced_axes(node, len(flow.shape(node)), flow.axes(node))
    keeps = bool(node.attributes.get_int("keepdims", 1))
    return _along_axes(axes, flow, node, _REDUCTIONS[node.op_type], keeps)


def _one_hot(flow: Flow, node: ir.Node) -> Outcome:
    """Handle OneHot, which inserts an axis of classes."""
    axis = node.attributes.get_int("axis", -1) % len(flow.result_shape(node))
    track = _along_axes([], flow, node, "counts classes")
    return track.at(track.axis + (track.axis >= axis))


def batch_norm(flow: Flow, node: ir.Node) -> Outcome:
    """Handle BatchNormalization with the statistics of the training: one number per channel, on axis 1."""
    if node.attributes.get_int("training_mode", 0) or len(node.outputs) > 1:
        raise CoupledError("normalizes by the statistics of its input", "export the model for inference")
    return _along_axes([1], flow, node, "has parameters that differ from step to step:")


def _quantize(flow: Flow, node: ir.Node) -> Outcome:
    scale = flow.shape(node, 1)
    axes = [node.attributes.get_int("axis", 1)] if scale and scale != (1,) else []
    track = _along_axes(axes, flow, node, "has parameters that differ from step to step:")
    if isinstance(track, Track) and len(scale) > 1:
        # Numbers of blocks: each step has its own.
        for index in range(1, len(node.inputs)):
            accept_constant(flow, node, index, track.axis - len(scale), track)
    return track


def matmul(flow: Flow, node: ir.Node) -> Outcome:
    """Handle products of matrices: time is a row of the first, a column of the second, or an axis of both."""
    tracks = [flow.track(node, index) for index in (0, 1)]
    ranks = [len(flow.shape(node, index)) for index in (0, 1)]
    rank, a = max(ranks), tracks[0]
    if 1 in ranks:
        if a is None or ranks[1] != 1 or ranks[0] == 1 or a.axis == ranks[0] - 1:
            raise CoupledError("sums over time, or takes products of vectors")
        if tracks[1] is not None:
            raise CoupledError("sums over time: a stream has no end")
        refuse_varying(flow, node.inputs[1], a)
        return flow.delay_to(node)
    places = [None if track is None else track.axis - own for track, own in zip(tracks, ranks, strict=True)]
    if places[0] == -1 or places[1] == -2:
        raise CoupledError("sums over time: a stream has no end")
    if None not in places:
        if -2 in places or -1 in places:
            return compare(flow, node)
        return align_operands(flow, node, (0, 1), rank)
    index, other = (0, 1) if a is not None else (1, 0)
    track = flow.required_track(node, index)
    refuse_varying(flow, node.inputs[other], track)
    place = track.axis - ranks[index]
    if place < -2 and ranks[other] >= -place and flow.shape(node, other)[place] != 1:
        raise CoupledError("multiplies each step by a different matrix: a stream has no positions")
    return flow.delay_to(node, index).at(rank + place)


def gemm(flow: Flow, node: ir.Node) -> Outcome:
    """Handle Gemm: time is a row of the result (from A) or a column (from B); C may have it, too."""
    tracks = [flow.track(node, index) for index in range(3)]
    if tracks[0] is not None and tracks[1] is not None:
        raise CoupledError("compares steps with each other, or sums over them")
    index = 0 if tracks[0] is not None else 1
    track, bias = tracks[index], tracks[2]
    if track is None:
        raise CoupledError("adds a value over time to a product without time")
    if track.axis != node.attributes.get_int(("transA", "transB")[index], 0) ^ index:
        raise CoupledError("sums over time: a stream has no end")
    refuse_varying(flow, node.inputs[1 - index], track)
    placed = track.at(index)
    if bias is not None:
        return combine_tracks(
            flow, node, {index: placed, 2: bias.at(bias.axis + 2 - len(flow.shape(node, 2)))}
        )
    if operand(node, 2) is not None:
        accept_constant(flow, node, 2, index - 2, placed)
    return flow.delay_to(node, index).at(index)


def einsum(flow: Flow, node: ir.Node) -> Outcome:
    """Handle Einsum: time is the same letter in all operands over time, and in the result."""
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    ranks = [len(flow.shape(node, index)) for index in range(len(node.inputs))]
    terms, right = einsum_terms(equation, ranks)
    if not terms:
        raise CoupledError(f"has the equation {equation!r}, which is not supported")
    letters, tracks = set(), {}
    for index, term in enumerate(terms):
        track = flow.track(node, index)
        if track is not None:
            letters.add(term[track.axis])
            tracks[index] = track
    for index, term in enumerate(terms):
        if index not in tracks and (flow.varies(node.inputs[index]) or letters & {*term}):
            raise CoupledError("combines the steps with values that differ from step to step, or come later")
    letter = next(iter(letters))
    if len(letters) > 1 or letter not in right or any(term.count(letter) > 1 for term in terms):
        raise CoupledError("sums over time, or compares steps with each other")
    place = right.index(letter)
    return combine_tracks(flow, node, {index: track.at(place) for index, track in tracks.items()})


def _dft(flow: Flow, node: ir.Node) -> Outcome:
    if flow.opset < _FIRST_WITH_AXIS_AS_INPUT:
        axis = node.attributes.get_int("axis", 1)
    else:
        given, _ = flow.ints(node, "axis", 2) or ([-2], [])
        axis = given[0]
    return _along_axes([axis], flow, node, "transforms")


def _dynamic_quantize(flow: Flow, node: ir.Node) -> Outcome:
    raise CoupledError("chooses its scale by the largest value of all steps")


def _resized_axes(flow: Flow, node: ir.Node) -> Array:
    """Return the axes to which the scales and sizes of a Resize belong."""
    rank = len(flow.shape(node))
    return np.array(node.attributes.get_ints("axes") or range(rank)) % rank


def _resize(flow: Flow, node: ir.Node) -> Outcome:
    track = flow.required_track(node)
    if node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise CoupledError("resizes a region (tf_crop_and_resize)", "cut it out with a Slice first")
    size, result = flow.shape(node)[track.axis], flow.result_shape(node)[track.axis]
    axes = _resized_axes(flow, node)
    place = next(iter(np.flatnonzero(axes == track.axis).tolist()), len(flow.shape(node)))
    for value in filter(flow.depends_on_length, node.inputs[1:]):
        whole, chunk = flow.content(value), flow.chunk_content(value)
        if whole is None or chunk is None or np.flatnonzero(whole != chunk).tolist() != [place]:
            raise CoupledError("takes sizes of another axis than time from the number of time steps")
        if result == size and chunk[place] != track.chunk_size:
            raise CoupledError("takes its sizes from the length of the sequence")
    index = 1 if node.op_type == "Upsample" or flow.opset < _FIRST_WITH_MODES else 2
    scales = flow.content(operand(node, index))
    if scales is not None and scales[place : place + 1].tolist() not in ([], [result / size]):
        raise CoupledError("interpolates between frames", "the mode nearest repeats frames")
    if result != size:
        return _repeat_frames(flow, node, track, result)
    return flow.delay_to(node)


def _repeat_frames(flow: Flow, node: ir.Node, track: Track, size: int) -> Outcome:
    """Handle a Resize that repeats each frame."""
    factor = size // track.size
    mode, opset = node.attributes.get_string("mode", "nearest"), flow.opset
    where = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounds = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    floors = node.op_type == "Upsample" or opset < _FIRST_WITH_MODES or (where, rounds) in _REPEATING
    if mode != "nearest" or not floors or track.is_folded or factor * track.size != size:
        raise CoupledError("interpolates between frames", "the mode nearest repeats frames")
    if len(node.inputs) > _SIZES and node.inputs[_SIZES] is not None:
        given, sizes = node.inputs[_SIZES], flow.chunk_content(node.inputs[_SIZES])
        if sizes is None or (
            given is not None and given.producer() is not None and not flow.depends_on_length(given)
        ):
            raise CoupledError("takes its sizes from an unsupported computation")
        wanted = np.array(sizes)
        wanted[_resized_axes(flow, node) == track.axis] = track.chunk * factor
        if not np.array_equal(wanted, sizes):
            flow.edits.append(ReplaceInput(node, _SIZES, wanted))
    track = flow.delay_to(node)
    return track.resampled(factor).with_(lag=track.lag * factor)


ALONG: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), partial(_along, "searches")),
    "BatchNormalization": batch_norm,
    "DFT": _dft,
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantize),
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Einsum": einsum,
    "Gemm": gemm,
    "GlobalAveragePool": partial(_from_axis, 2, "averages"),
    "GlobalMaxPool": partial(_from_axis, 2, "takes the largest"),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), partial(_from_axis, 1, "normalizes")),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "LpNormalization", "Softmax"), partial(_along, "normalizes")),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalize),
    "LRN": lambda flow, node: _along_axes([1], flow, node, "normalizes"),
    **dict.fromkeys(("MatMul", "MatMulInteger"), matmul),
    "OneHot": _one_hot,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "TopK": partial(_along, "sorts"),
}
