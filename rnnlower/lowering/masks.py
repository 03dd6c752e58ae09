"""Masks of the steps within each row's sequence, and selection by conditions, known beforehand or not."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import MissingOperatorError
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.walk import ancestors
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.timeseries import Axes, TimeSeries
from rnnlower.recurrent.node import ResolvedNode


@dataclasses.dataclass(frozen=True)
class Mask:
    """The mask of the steps within each row's sequence.

    Attributes:
        within: ``t < sequence_lens``, one column, in the order in which the lanes take the steps.
        nonempty: ``sequence_lens > 0``, ``[batch, 1]``.
    """

    within: TimeSeries
    nonempty: ir.Value


def emit_length_mask(e: Emitter, node: ResolvedNode, axes: Axes) -> Mask | None:
    """Emit the mask of a node with sequence_lens.

    Raises:
        MissingOperatorError: The lengths come at run time, and the operators that compare them are missing.
    """
    lens = node.inputs.get("sequence_lens")
    if lens is None:
        return None
    tensor = constant_of(lens)
    if tensor is not None and isinstance(axes.time, int):
        return _constant_mask(e, axes, axes.time, tensor.numpy())
    zero = e.constant(np.array(0, np.int32))
    try:
        steps = e.unsqueeze(e.arange(axes.time), 1, [axes.time, 1])
        within = e.unsqueeze(emit_less(e, steps, lens), 2, [axes.time, axes.batch, 1])
        nonempty = e.unsqueeze(emit_less(e, zero, lens), 1, [axes.batch, 1])
    except MissingOperatorError as error:
        names = [str(value.name) for value in ancestors(lens) if value.is_graph_input()]
        option = wording.sets(names[0] if len(names) == 1 else "INPUT")
        raise error.needed_by("input sequence_lens", f"make sequence_lens a constant ({option})") from None
    for count in axes.lead:
        within = e.reshape(e.concat([within] * count, axis=1), [axes.time, *axes.value(1)])
    series = TimeSeries(e, axes, 1, stacked=within, dtype=condition_type(e))
    return Mask(reverse_second_direction(e, series) if axes.lead else series, nonempty)


def _constant_mask(e: Emitter, axes: Axes, time: int, lens: np.ndarray) -> Mask:
    within = np.arange(time)[:, np.newaxis, np.newaxis] < lens[:, np.newaxis]
    if axes.lead:
        within = np.stack([within, within[::-1]], axis=1)
    dtype = condition_type(e)
    series = TimeSeries(e, axes, 1, known=within.astype(dtype.numpy()), dtype=dtype)
    return Mask(series, e.constant((lens[:, np.newaxis] > 0).astype(dtype.numpy())))


def reverse_second_direction(e: Emitter, series: TimeSeries) -> TimeSeries:
    """Emit a series with both directions in front of its rows, the second direction's steps from the end.

    ReverseSequence reverses the first `length` steps: 1 leaves the first direction unchanged. onnxruntime up
    to 1.23 does not copy a row of length 0, and none takes a length above the number of steps, so that the
    length is 0 where there are no steps: the size of what a Slice takes of them.
    """
    stacked, time = series.stacked(), series.axes.time
    one = min(1, time) if isinstance(time, int) else e.dim(e.slice(stacked, [0], [1], [0]), 0)
    lengths = e.size_vector([one, time])
    value = e.op("ReverseSequence", stacked, lengths, time_axis=0, batch_axis=1, since=10)
    return TimeSeries(e, series.axes, series.width, stacked=value, dtype=series.dtype)


def condition_type(e: Emitter) -> ir.DataType:
    """Return the type of conditions: bool, or the compute type (0 and 1) if bool has no operators."""
    has_bool = e.has("Where") and (e.has("Less") or e.has("Greater"))
    return ir.DataType.BOOL if has_bool else e.dtype


def emit_less(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    """Emit ``a < b`` of integers as a condition."""
    if condition_type(e) == ir.DataType.BOOL:
        return e.op("Less", a, b, since=9)
    wide = e.with_dtype(ir.DataType.FLOAT)
    difference = wide.op("Sub", *(e.cast(value, wide.dtype) for value in (b, a)))
    condition = wide.clip(difference, 0.0, 1.0)
    return condition if e.dtype == wide.dtype else e.cast(condition, e.dtype)


def is_always_false(condition: ir.Value) -> bool:
    """Return whether a condition is known to be false everywhere."""
    known = _constant_condition(condition)
    return known is not None and not known.any()


def emit_where(e: Emitter, condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    """Emit rows of one matrix where the condition holds and of the other where it does not."""
    known = _constant_condition(condition)
    if known is not None and known.all():
        return then
    if known is not None and not known.any():
        return otherwise
    if condition_type(e) == ir.DataType.BOOL:
        return e.op("Where", condition, then, otherwise, since=9)
    if known is not None:
        return _select_constant_rows(e, known[:, 0], then, otherwise)
    opposite = e.op("Sub", e.scalar(1.0), condition)
    return e.op("Add", _emit_mask_product(e, then, condition), _emit_mask_product(e, otherwise, opposite))


def emit_where_else_zero(e: Emitter, condition: ir.Value, then: ir.Value) -> ir.Value:
    """Emit the value where the condition holds, and 0 where it does not."""
    known = _constant_condition(condition)
    if known is not None and known.all():
        return then
    if condition_type(e) == ir.DataType.BOOL:
        return e.op("Where", condition, then, e.scalar(0.0), since=9)
    return _emit_mask_product(e, then, condition)


def _constant_condition(condition: ir.Value) -> np.ndarray | None:
    tensor = constant_of(condition)
    return None if tensor is None else tensor.numpy().astype(bool)


def _emit_mask_product(e: Emitter, value: ir.Value, condition: ir.Value) -> ir.Value:
    e.notes[
        f"{e.dialect.name} has no Where, so values are multiplied by 0 and 1 instead: "
        "NaN or infinity past the end of a sequence reaches the results"
    ] = None
    return e.op("Mul", value, condition)


def _select_constant_rows(e: Emitter, condition: np.ndarray, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    """Emit the rows of one matrix or the other, in as few slices as possible."""
    bounds = [0, *(np.flatnonzero(np.diff(condition)) + 1).tolist(), len(condition)]
    pieces = [
        e.slice(then if condition[start] else otherwise, [start], [end], [0])
        for start, end in itertools.pairwise(bounds)
    ]
    return e.concat(pieces, 0)
