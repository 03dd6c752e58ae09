"""Attention over a window of the past: keys and values that a mask leaves visible are a state."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array, evaluate
from rnnlower.graph.operator_kinds import axes_along
from rnnlower.timeflow.edits import ContinuePositions, ReplaceInput
from rnnlower.timeflow.flow import Flow, Outcome, Rule
from rnnlower.timeflow.positions import content_at
from rnnlower.timeflow.recurrence import delay_all_by_chunks
from rnnlower.timeflow.tracks import CoupledError, Sample, Scores, Track

_EXAMPLE = 1024
"""The least number of frames for which a mask of a dynamic length is computed."""
_MAX_FRAMES = 8192
"""The largest number of such frames: a mask has their square."""
_HIDDEN = -1e8
"""The largest number that a mask puts in the place of a score, or adds to it."""
_COMPARES = "compares steps with each other, as attention does"


def compare(flow: Flow, node: ir.Node) -> Scores:
    """Return the products of queries, which are rows, and keys, which are columns."""
    queries, keys = flow.required_track(node, 0), flow.required_track(node, 1)
    rank = len(flow.result_shape(node))
    if (queries.axis, keys.axis) != (len(flow.shape(node)) - 2, len(flow.shape(node, 1)) - 1):
        raise CoupledError(_COMPARES)
    if queries.is_folded or keys.is_folded:
        raise CoupledError("compares steps with each other where time is folded with another axis")
    queries, calls = delay_all_by_chunks(flow, {(node, 0): queries, (node, 1): keys})
    return Scores(queries.at(rank - 2), keys.with_(lag=queries.lag, fill=0.0), node, calls)


def _elementwise(flow: Flow, node: ir.Node) -> Outcome:
    """Handle scores with numbers, or with a mask; after a softmax, numbers alone."""
    scores = _common_scores(flow, node)
    numbers: list[Array | None] = []
    for index, value in enumerate(node.inputs):
        content = None
        if value in flow.scores:
            content = flow.scores[value].outside
        elif value is not None:
            content = flow.content(value)
            if content is not None and content.size == 1 and flow.depends_on_length(value):
                raise CoupledError("computes with the number of time steps, which a stream does not have")
            shape = flow.shape_of(value)
            if not flow.follows_from_size(value) or shape is None or {*shape[-2:]} - {1}:
                content = None
                scores = _apply_mask(flow, node, index, scores)
                content = scores.masks[-1][2]
        numbers.append(content)
    if scores.outside is None:
        _require_hidden(flow, node, numbers)
        return scores
    results = evaluate(node, numbers, flow.opset) if all(each is not None for each in numbers) else None
    if results is None or results[0].size != 1:
        raise CoupledError("computes with the weights of an attention in an unsupported way")
    return dataclasses.replace(scores, outside=results[0])


def _require_hidden(flow: Flow, node: ir.Node, numbers: Sequence[Array | None]) -> None:
    """Refuse a node that shows what an earlier mask hides."""
    before = _common_scores(flow, node)
    if before.visible is None or before.visible.all():
        return
    hidden = [
        np.array([_HIDDEN], flow.dtype(value).numpy()) if value in flow.scores else number
        for value, number in zip(node.inputs, numbers, strict=True)
    ]
    results = None if any(each is None for each in hidden) else evaluate(node, hidden, flow.opset)
    if results is None or not (results[0] <= _HIDDEN / 1000).all():
        raise CoupledError("computes with scores that a mask hides, so that they may count")


def _common_scores(flow: Flow, node: ir.Node) -> Scores:
    first, *others = [flow.scores[value] for value in node.inputs if value in flow.scores]
    if any(each.product is not first.product or each.visible is not first.visible for each in others):
        raise CoupledError("combines the scores of different attentions")
    return first


def _apply_mask(flow: Flow, node: ir.Node, index: int, scores: Scores) -> Scores:
    """Return the scores with an operand applied as their mask."""
    value = node.inputs[index]
    assert value is not None
    if not flow.follows_from_size(value):
        raise CoupledError(f"combines scores with {value.name!r}, which follows from values of the stream")
    mask = _content(flow, value, scores.track)
    hides = np.zeros(mask.shape, bool)
    if node.op_type == "Add":
        hides = mask <= _HIDDEN
    elif node.op_type == "Where" and index == 0:
        is_else = node.inputs[2] in flow.scores
        other = flow.content(node.inputs[1 if is_else else 2])
        if other is not None and (other <= _HIDDEN).all():
            hides = mask if is_else else ~mask
    visible = np.logical_not(np.all(hides.reshape(-1, *hides.shape[-2:]), axis=0))
    if scores.visible is not None:
        visible = np.logical_and(visible, scores.visible)
    fill = mask[hides].reshape(-1)[:1] if hides.any() else mask.reshape(-1)[:1]
    return dataclasses.replace(scores, visible=visible, masks=(*scores.masks, (node, index, mask, fill)))


def _content(flow: Flow, value: ir.Value, track: Track) -> Array:
    """Return a mask, steps by steps, for an example: it must not depend on the number of steps."""
    if not flow.has_dynamic_length:
        examples = [flow.whole.constant(value)]
    else:
        frames = max(_EXAMPLE, 4 * track.chunk)
        if frames > _MAX_FRAMES:
            raise CoupledError(
                f"has a mask, which is too large to be examined for chunks of {track.chunk} steps",
                "choose a shorter chunk",
            )
        examples = [_example(flow, value, track, each) for each in (frames, frames // 2)]
    if any(each is None or each.ndim < 2 for each in examples):
        raise CoupledError("takes its mask from an unsupported computation")
    squares = []
    for each in examples:
        assert each is not None
        size = max(each.shape[-2:])
        squares.append(np.broadcast_to(each, (*each.shape[:-2], size, size)))
    mask, part = squares[0], squares[-1]
    size = part.shape[-1]
    if not np.array_equal(mask[..., :size, :size], part):
        raise CoupledError("takes its mask from the number of time steps, which a stream does not have")
    return mask


def _example(flow: Flow, value: ir.Value, track: Track, frames: int) -> Array | None:
    chunk, sizes = flow.sample.chunk, flow.sample.sizes
    steps = -(-int(frames / track.rate) // chunk) * chunk
    return content_at(flow, value, Sample(flow.sample.axes, steps, chunk, sizes))


def _softmax(flow: Flow, node: ir.Node) -> Outcome:
    """Handle a softmax over the keys that the masks leave, which must lie in a window of the past."""
    scores = _common_scores(flow, node)
    if scores.outside is not None:
        raise CoupledError("computes with the weights of an attention in an unsupported way")
    rank = scores.track.axis + 2
    if axes_along(node, rank, flow.opset) != range(rank - 1, rank):
        raise CoupledError("normalizes over the queries, not over the keys")
    visible = scores.visible
    if visible is None:
        raise CoupledError(
            "attends to all steps: no mask limits how far back",
            "export the model with a mask that limits each step to a window of past steps",
        )
    rows, columns = np.nonzero(visible)
    if not visible.any(1).all() or (columns > rows).any():
        raise CoupledError(
            "has a mask that lets steps attend to later steps, which a stream does not have yet"
        )
    window = int((rows - columns).max()) + 1
    if 2 * window > len(visible):
        raise CoupledError(
            "has a mask that lets all steps attend to the first step, and a stream never ends",
            "export the model with a mask of a window",
        )
    return dataclasses.replace(scores, outside=np.zeros(1, np.float32), window=window)


def _weighted_sum(flow: Flow, node: ir.Node) -> Outcome:
    """Handle the product of weights and values: those of the window before a chunk precede it."""
    given, values = node.inputs[0], flow.track(node, 1)
    scores = None if given is None else flow.scores.get(given)
    if scores is None or values is None or values.axis != len(flow.shape(node, 1)) - 2:
        raise CoupledError(_COMPARES)
    if scores.outside is None or scores.outside.any():
        raise CoupledError("sums over all steps: its weights are not masked")
    track = scores.track
    if values.lag > track.lag or values.is_folded or values.chunk != track.chunk:
        raise CoupledError("sums values that are later than the keys, or run at another rate")
    values = flow.delay_to(node, 1, track.lag, values)
    before = scores.window - 1
    for each, reader in ((scores.keys, scores.product), (values, node)):
        if before:
            flow.cache(reader, 1, each, before, 0.0, more=before, calls=scores.calls)
    for mask in scores.masks:
        _cut_mask_to_chunk(flow, scores, *mask)
    return track


def _cut_mask_to_chunk(
    flow: Flow, scores: Scores, node: ir.Node, index: int, mask: Array, fill: Array
) -> None:
    """Replace a mask by the part for each chunk; the first chunks see no step before the first."""
    chunk, before = scores.track.chunk, scores.window - 1
    padded = np.concatenate([np.broadcast_to(fill, (*mask.shape[:-1], before)), mask], -1)
    parts = [
        padded[..., first : first + chunk, first : first + before + chunk]
        for first in range(0, mask.shape[-1] - chunk + 1, chunk)
    ]
    changes = [not np.array_equal(part, parts[-1]) for part in parts]
    settled = next(place for place in range(len(parts)) if not any(changes[place:]))
    moves = np.array_equal(mask[..., 1:, 1:], mask[..., :-1, :-1]) and before <= chunk * (len(parts) - 1)
    if not moves and 2 * settled >= len(parts):
        if flow.has_dynamic_length:
            raise CoupledError("has a mask that differs from chunk to chunk")
        flow.limit_positions(mask.shape[-1], scores.track)
    late = [parts[0]] * scores.calls
    table = np.concatenate([*late, *parts[: settled + 1]], -2)
    table = flow.collapse_batch(table, "has a mask that differs", table.ndim - 2) if table.ndim > 3 else table
    if settled + scores.calls == 0:
        flow.edits.append(ReplaceInput(node, index, table))
        return
    holds = (settled + scores.calls) * chunk
    flow.edits.append(ContinuePositions(node, index, table.ndim - 2, chunk, table, holds))


_ELEMENTWISE = "Add Cast Div Dropout Identity IsNaN Max Min Mul Neg Not Sub Tanh Where"

SCORES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    "MatMul": _weighted_sum,
    "Softmax": _softmax,
}
"""The rule of each operator that takes scores."""
