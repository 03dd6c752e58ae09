"""Operators that treat each frame separately, unless the time axis is one of those they work along."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.streaming.edits import Replaced
from rnnlower.streaming.facts import CoupledError, Fact, Track, newer_opset, number, numbers, text
from rnnlower.streaming.flow import Flow, Outcome, Rule
from rnnlower.wording import time_axis

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh Dropout Elu Erf "
    "Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not QuickGelu "
    "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh "
    "ThresholdedRelu"
)
_NARY = (
    "Add And BitwiseAnd BitwiseOr BitwiseXor BitShift Div Equal Greater GreaterOrEqual Less LessOrEqual Max "
    "Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor"
)


def elementwise(flow: Flow, node: ir.Node) -> Outcome:
    """Handle broadcasting operators: all operands have their frames on one axis, and are equally late."""
    if "axis" in node.attributes and node.op_type in ("Add", "Sub", "Mul", "Div", "Pow"):
        raise CoupledError("broadcasts by an attribute", newer_opset())
    return aligned(flow, node, range(len(node.inputs)), len(flow.result(node)))


def aligned(flow: Flow, node: ir.Node, indices: Sequence[int], rank: int) -> Track:
    """Return the common track of operands whose shapes are aligned at their ends, on the axes of a result."""
    tracks: dict[int, Track] = {}
    for index in indices:
        fact = flow.fact(node.inputs[index])
        if fact.track is not None:
            offset = rank - len(flow.shape(node, index))
            tracks[index] = fact.track.at(offset + fact.track.axis)
    if not tracks:
        raise CoupledError("computes with the number of time steps, which a stream does not have")
    track = next(iter(tracks.values()))
    for other in tracks.values():
        if (other.axis, other.outer, other.inner, other.chunk) != (
            track.axis,
            track.outer,
            track.inner,
            track.chunk,
        ):
            raise CoupledError("combines values whose time lies on different axes, or runs at another rate")
        if other.tail != track.tail and other.frames > 1 and track.frames > 1:
            raise CoupledError("combines values of different lengths")
    for index in indices:
        if index not in tracks and node.inputs[index] is not None:
            _accept(flow, node, index, track.axis - rank, track)
    lag = max(0, *(other.lag for other in tracks.values()))
    for index in tracks:
        flow.settle(node, index, lag)
    return track.with_(lag=lag, fill=0.0)


def _accept(flow: Flow, node: ir.Node, index: int, axis: int, track: Track) -> None:
    """Accept an operand without frames, if it is the same for all frames; ``axis`` counts from the end."""
    fact = flow.fact(node.inputs[index])
    if fact.latest and track.frames > 1:
        raise CoupledError(
            "combines every step with the last one (a final state, or the last frame), which comes later"
        )
    if fact.is_sized:
        raise CoupledError("computes with the number of time steps, which a stream does not have")
    shape = flow.shape(node, index)
    if len(shape) < -axis or shape[axis] == 1:
        return
    flow.edits.append(Replaced(node, index, per_chunk(flow, node, index, len(shape) + axis, track)))


def per_chunk(flow: Flow, node: ir.Node, index: int, axis: int, track: Track) -> np.ndarray:
    """Cut a constant as long as the sequence to a chunk: it must be the same at every step."""
    value = node.inputs[index]
    assert value is not None
    content = flow.fact(value).content
    if content is None:
        name = f"{value.name!r}"
        if not flow.is_constant(value) and value.is_graph_input():
            raise CoupledError(
                f"combines every step with one of input {name}",
                f"if that is a stream as well, name it, too ({time_axis(str(value.name), axis)})",
            )
        raise CoupledError(f"combines the steps with {name}, which may differ from step to step")
    array = content[0]
    frames = array.reshape(
        *array.shape[:axis], track.outer, track.frames, track.inner, *array.shape[axis + 1 :]
    )
    if not np.array_equal(frames, np.repeat(frames.take([0], axis + 1), track.frames, axis + 1)):
        raise CoupledError(
            f"combines each step with another part of {value.name!r}: a stream has no positions"
        )
    cut = frames.take(range(track.chunk), axis + 1)
    return cut.reshape(*array.shape[:axis], track.chunk_size, *array.shape[axis + 1 :])


def _along(axes: Sequence[int], flow: Flow, node: ir.Node, what: str, keeps: bool = True) -> Outcome:
    """Handle an operator that works along these axes; they are removed unless it keeps them."""
    rank = len(flow.shape(node))
    along = {axis % rank for axis in axes}
    _only_first(flow, node)
    track = flow.settle(node, 0)
    if track.axis in along:
        raise CoupledError(f"{what} over time: a stream has no end")
    gone = 0 if keeps else sum(axis < track.axis for axis in along)
    return track.at(track.axis - gone).with_(fill=0.0)


def _only_first(flow: Flow, node: ir.Node) -> None:
    for index in range(1, len(node.inputs)):
        if flow.fact(node.inputs[index]).streams:
            raise CoupledError("has a parameter that follows from the stream")
    if flow.track(node) is None:
        raise CoupledError("computes with the number of time steps, which a stream does not have")


def _softmax(flow: Flow, node: ir.Node) -> Outcome:
    if flow.opset >= 13:
        return _along([number(node, "axis", -1)], flow, node, "normalizes")
    rank = len(flow.shape(node))
    return _along(range(number(node, "axis", 1) % rank, rank), flow, node, "normalizes")


def _one_axis(default: int, what: str) -> Rule:
    return lambda flow, node: _along([number(node, "axis", default)], flow, node, what)


def _layer_norm(flow: Flow, node: ir.Node) -> Outcome:
    rank = len(flow.shape(node))
    return _along(range(number(node, "axis", -1) % rank, rank), flow, node, "normalizes")


def _from_axis(first: int, what: str) -> Rule:
    def rule(flow: Flow, node: ir.Node) -> Outcome:
        return _along(range(first, len(flow.shape(node))), flow, node, what)

    return rule


def _reduce(flow: Flow, node: ir.Node) -> Outcome:
    axes = numbers(node, "axes")
    content = flow.content(node, 1) if len(node.inputs) > 1 else None
    if axes is None and content is not None:
        axes = tuple(int(axis) for axis in content[0].reshape(-1))
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        raise CoupledError("reduces over axes that are not constant")
    if not axes and number(node, "noop_with_empty_axes", 0):
        return _along([], flow, node, "reduces")
    axes = axes or tuple(range(len(flow.shape(node))))
    return _along(axes, flow, node, _REDUCTIONS[node.op_type], bool(number(node, "keepdims", 1)))


def _arg(flow: Flow, node: ir.Node) -> Outcome:
    axes = [number(node, "axis", 0)]
    return _along(axes, flow, node, "searches", bool(number(node, "keepdims", 1)))


def batch_norm(flow: Flow, node: ir.Node) -> Outcome:
    """Handle BatchNormalization with the statistics of the training: numbers for each channel, on axis 1."""
    if number(node, "training_mode", 0):
        raise CoupledError("normalizes by the statistics of its input", "export the model for inference")
    return _along([1], flow, node, "has parameters that differ from step to step:")


def _quantize(flow: Flow, node: ir.Node) -> Outcome:
    scale = flow.shape(node, 1)
    axes = [number(node, "axis", 1)] if scale and scale != (1,) else []
    return _along(axes, flow, node, "has parameters that differ from step to step:")


def matmul(flow: Flow, node: ir.Node) -> Outcome:
    """Handle products of matrices: time is a row of the first, a column of the second, or an axis of both."""
    a, b = (flow.fact(value) for value in node.inputs[:2])
    rank_a, rank_b = len(flow.shape(node, 0)), len(flow.shape(node, 1))
    rank = max(rank_a, rank_b)
    if 1 in (rank_a, rank_b):
        if a.track is None or rank_b != 1 or rank_a == 1 or a.track.axis == rank_a - 1:
            raise CoupledError("sums over time, or takes products of vectors")
        return flow.settle(node, 0).with_(fill=0.0)
    for track, own, summed in ((a.track, rank_a, -1), (b.track, rank_b, -2)):
        if track is not None and track.axis == own + summed:
            raise CoupledError("sums over time: a stream has no end")
    if a.track is not None and b.track is not None:
        if a.track.axis == rank_a - 2 or b.track.axis == rank_b - 1:
            raise CoupledError("compares steps with each other, as attention does")
        return aligned(flow, node, (0, 1), rank)
    index, other = (0, 1) if a.track is not None else (1, 0)
    track = flow.track(node, index)
    if track is None:
        raise CoupledError("computes with the number of time steps, which a stream does not have")
    fact, own = flow.fact(node.inputs[other]), len(flow.shape(node, index))
    if fact.latest and track.frames > 1:
        raise CoupledError("combines every step with the last one (a final state, or the last frame)")
    place = track.axis - own
    if place < -2 and len(flow.shape(node, other)) >= -place and flow.shape(node, other)[place] != 1:
        raise CoupledError("multiplies each step by another matrix: a stream has no positions")
    return flow.settle(node, index).at(rank + place).with_(fill=0.0)


def gemm(flow: Flow, node: ir.Node) -> Outcome:
    """Handle Gemm: time is a row of the result (from A) or a column (from B); C may have it, too."""
    facts = [flow.fact(value) for value in node.inputs]
    trans = [bool(number(node, "transA", 0)), bool(number(node, "transB", 0))]
    if facts[0].track is not None and facts[1].track is not None:
        raise CoupledError("compares steps with each other, or sums over them")
    index = 0 if facts[0].track is not None else 1
    track = facts[index].track
    if track is None:
        raise CoupledError("adds a value over time to a product without time")
    if track.axis != (1 if trans[index] else 0) ^ index:
        raise CoupledError("sums over time: a stream has no end")
    other = facts[1 - index]
    if other.latest and track.frames > 1:
        raise CoupledError("combines every step with the last one (a final state, or the last frame)")
    placed = track.at(index)
    if len(facts) > 2 and node.inputs[2] is not None:
        if facts[2].track is not None:
            return _with_bias(flow, node, index, placed, facts[2])
        _accept(flow, node, 2, index - 2, placed)
    return flow.settle(node, index).at(index).with_(fill=0.0)


def _with_bias(flow: Flow, node: ir.Node, index: int, placed: Track, bias: Fact) -> Outcome:
    own = bias.track
    assert own is not None
    same = (own.outer, own.inner, own.chunk, own.tail) == (
        placed.outer,
        placed.inner,
        placed.chunk,
        placed.tail,
    )
    if own.axis + 2 - len(flow.shape(node, 2)) != index or not same:
        raise CoupledError("combines values whose time lies on different axes")
    lag = max(0, own.lag, placed.lag)
    flow.settle(node, index, lag)
    flow.settle(node, 2, lag)
    return placed.with_(lag=lag, fill=0.0)


def einsum(flow: Flow, node: ir.Node) -> Outcome:
    """Handle Einsum: time is the same letter in all operands over time, and in the result."""
    equation = text(node, "equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if not arrow or "." in equation:
        raise CoupledError(f"has the equation {equation!r}, which is not followed")
    letters, tracks = set(), {}
    for index, term in enumerate(terms):
        track = flow.track(node, index)
        if track is not None:
            letters.add(term[track.axis])
            tracks[index] = track
    for index, term in enumerate(terms):
        fact = flow.fact(node.inputs[index])
        if index not in tracks and (fact.latest or letters & {*term}):
            raise CoupledError("combines the steps with values that differ from step to step, or come later")
    letter = next(iter(letters))
    if len(letters) > 1 or letter not in right or any(term.count(letter) > 1 for term in terms):
        raise CoupledError("sums over time, or compares steps with each other")
    kinds = {(t.outer, t.inner, t.chunk, t.tail) for t in tracks.values()}
    if len(kinds) > 1:
        raise CoupledError("combines values whose time lies on different axes")
    lag = max(0, *(track.lag for track in tracks.values()))
    for index in tracks:
        flow.settle(node, index, lag)
    return next(iter(tracks.values())).at(right.index(letter)).with_(lag=lag, fill=0.0)


def _dynamic_quantize(flow: Flow, node: ir.Node) -> Outcome:
    raise CoupledError("chooses its scale by the largest value of all steps")


def _resize(flow: Flow, node: ir.Node) -> Outcome:
    track = flow.track(node)
    if track is None:
        raise CoupledError("computes with the number of time steps, which a stream does not have")
    if flow.result(node)[track.axis] != flow.shape(node)[track.axis]:
        raise CoupledError("changes the length of the time axis")
    for index in range(1, len(node.inputs)):
        if flow.fact(node.inputs[index]).is_sized:
            content = flow.fact(node.inputs[index]).content
            assert content is not None
            if content[1].size <= track.axis or content[1][track.axis] != track.chunk_size:
                raise CoupledError("takes its sizes from the length of the sequence")
    return flow.settle(node, 0).with_(fill=0.0)


_REDUCTIONS = {
    "ReduceL1": "sums",
    "ReduceL2": "sums",
    "ReduceLogSum": "sums",
    "ReduceLogSumExp": "sums",
    "ReduceMax": "takes the largest",
    "ReduceMean": "averages",
    "ReduceMin": "takes the smallest",
    "ReduceProd": "multiplies",
    "ReduceSum": "sums",
    "ReduceSumSquare": "sums",
}

POINTWISE: dict[str, Rule] = dict.fromkeys(f"{_UNARY} {_NARY}".split(), elementwise)
ALONG: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    "ArgMax": _arg,
    "ArgMin": _arg,
    "BatchNormalization": batch_norm,
    "DequantizeLinear": _quantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Einsum": einsum,
    "Gemm": gemm,
    "GlobalAveragePool": _from_axis(2, "averages"),
    "GlobalMaxPool": _from_axis(2, "takes the largest"),
    "GroupNormalization": _from_axis(1, "normalizes"),
    "Hardmax": _softmax,
    "InstanceNormalization": _from_axis(1, "normalizes"),
    "LayerNormalization": _layer_norm,
    "LogSoftmax": _softmax,
    "LpNormalization": _one_axis(-1, "normalizes"),
    "LRN": _one_axis(1, "normalizes"),
    "MatMul": matmul,
    "MatMulInteger": matmul,
    "QuantizeLinear": _quantize,
    "RMSNormalization": _layer_norm,
    "Resize": _resize,
    "Softmax": _softmax,
    "TopK": _one_axis(-1, "sorts"),
    "Upsample": _resize,
}
