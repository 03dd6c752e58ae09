"""Masks of the valid elements of a padded model, and their counts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.padding.sizes import ROWS, Axes, Fold, NoRuleError, OpenSizeError, Size

_LONGEST_CONSTANT = 1024
"""The number of elements above which numbers that a formula gives are computed, as those of a waveform."""
_FIRST_WITH_RANGE = 11


def emit_min(emitter: Emitter, one: ir.Value, other: ir.Value) -> ir.Value:
    """Emit the minimum of positions, for which old opsets have no Min."""
    return emitter.op("Where", emitter.op("Less", one, other, since=9), one, other)


def emit_max(emitter: Emitter, one: ir.Value, other: ir.Value) -> ir.Value:
    """Emit the maximum of positions."""
    return emitter.op("Where", emitter.op("Less", one, other, since=9), other, one)


def emit_numbers(emitter: Emitter, count: int) -> ir.Value:
    """Emit the int64 numbers from 0 on, ``[count]``, without a long constant."""
    if count <= _LONGEST_CONSTANT or emitter.opset < _FIRST_WITH_RANGE:
        return emitter.constant(np.arange(count, dtype=np.int64))
    first, end, step = (emitter.constant(np.array(each, np.int64)) for each in (0, count, 1))
    return emitter.op("Range", first, end, step)


def _emit_size(emitter: Emitter, size: Size, length: ir.Value) -> ir.Value:
    """Emit a size from the length: of a table, or for long sequences by a formula that gives the same."""
    formula = None
    if len(size.table) > _LONGEST_CONSTANT:
        with contextlib.suppress(NoRuleError):
            formula = size.formula()
    if formula is None:
        return emitter.op("Gather", emitter.constant(np.array(size.table, np.int64)), length, axis=0)
    number = length
    for op_type, operand, neutral in (
        ("Mul", formula.factor, 1),
        ("Add", formula.offset, 0),
        ("Div", formula.divisor, 1),
        ("Mul", formula.outer, 1),
        ("Add", formula.rest, 0),
    ):
        number = number if operand == neutral else emitter.op(op_type, number, emitter.integers(operand))
    return emit_max(emitter, number, emitter.integers(0))


class MaskEmitter:
    """An emitter of masks and counts of the valid elements, which are made once for the whole model.

    Args:
        start: The node before which they are emitted, in the order in which they depend on each other.
        given: For each symbol, the input of the padded model that says how much is valid.
        rows: The size of the axis of rows, if each row has a length of its own.
        by_mask: Whether these inputs are masks instead of lengths.
    """

    def __init__(
        self,
        emitters: Emitters,
        start: ir.Node,
        given: Mapping[str, ir.Value],
        rows: Size | None,
        *,
        by_mask: bool,
    ) -> None:
        self.given, self.by_mask = given, by_mask
        self._emitters, self._start, self._rows = emitters, start, rows
        self._shared: dict[tuple[object, ...], ir.Value] = {}

    def mask(
        self, size: Size, axis: int, axes: Axes, rank: int, offset_from_end: int | None = None
    ) -> ir.Value:
        """Return which elements of an axis are valid, in a form that broadcasts with a value of these axes.

        Args:
            size: The size of the axis.
            axis: Its place.
            offset_from_end: Return instead the mask of the one element at this offset from the valid end.
        """
        place, repeats = self._rows_in(axes)
        key = ("mask", size, rank - axis, place is not None and rank - place, repeats, offset_from_end)
        if key not in self._shared:
            emitter = self._emitters.at(f"valid_{size.symbol}", ir.DataType.FLOAT)
            valid, dims = self._mask(emitter, size, offset_from_end), [1] * rank
            if repeats > 1:
                valid = emitter.op(
                    "Expand", emitter.reshape(valid, [-1, 1, size.full]), emitter.integers(1, repeats, 1)
                )
                valid = emitter.reshape(valid, [-1, size.full])
            if place is not None:
                dims[place] = -1
                valid = emitter.transpose(valid, [1, 0]) if place > axis else valid
            dims[axis] = size.full
            first = axis if place is None else min(axis, place)
            self._shared[key] = emitter.reshape(valid, dims[first:])
            emitter.insert_before(self._start)
        return self._shared[key]

    def _mask(self, emitter: Emitter, size: Size, offset_from_end: int | None) -> ir.Value:
        if self.by_mask and offset_from_end is None and (size.is_length or size.full <= _LONGEST_CONSTANT):
            size.refuse_rows()
            places = np.array(size.first_valid_lengths(), np.int64) - 1
            steps = self.given[size.symbol]
            if not size.is_length:
                steps = emitter.op("Gather", steps, emitter.constant(places), axis=1)
            return emitter.op("Greater", steps, emitter.constant(np.array(0.5, np.float32)), since=9)
        numbers, count = emit_numbers(emitter, size.full), self.count(size)
        if self._rows is not None:
            count = emitter.reshape(count, [-1, 1])
        if offset_from_end is None:
            return emitter.op("Less", numbers, count, since=9)
        place = emitter.op("Add", count, emitter.integers(offset_from_end))
        return emitter.op("Equal", numbers, place, since=7)

    def _rows_in(self, axes: Axes) -> tuple[int | None, int]:
        """Return the axis of rows, and how many elements each has there; none if all have one length."""
        if self._rows is None:
            return None, 1
        found = [axis for axis, size in axes.items() if size.symbol == ROWS]
        if len(found) != 1 or isinstance(axes[found[0]], Fold):
            raise OpenSizeError(
                "combines steps where rows are not one axis, while each has a length of its own"
            )
        return found[0], axes[found[0]].full // self._rows.full

    def count(self, size: Size, dtype: ir.DataType | None = None) -> ir.Value:
        """Return the number of valid elements, ``[1]`` or ``[rows]``: int64, or of the given type."""
        size.refuse_rows()
        key = ("count", size, dtype)
        if key not in self._shared:
            emitter = self._emitters.at(f"count_{size.symbol}", ir.DataType.FLOAT)
            if dtype is not None:
                made = emitter.cast(self.count(size), dtype)
            else:
                made = self.given[size.symbol]
                if self.by_mask:
                    made = emitter.with_axes("ReduceSum", made, [1], keepdims=0)
                    made = emitter.cast(made, ir.DataType.INT64)
                if not size.is_length:
                    made = _emit_size(emitter, size, made)
            self._shared[key] = made
            emitter.insert_before(self._start)
        return self._shared[key]

    def per_row(self, emitter: Emitter, number: ir.Value, axes: Axes, rank: int) -> ir.Value:
        """Reshape numbers, one per row, to the axis of rows."""
        place, repeats = self._rows_in(axes)
        assert place is not None
        if repeats > 1:
            number = emitter.op("Expand", emitter.reshape(number, [-1, 1]), emitter.integers(1, repeats))
        elif place == rank - 1:
            return number
        return emitter.reshape(number, [-1, *[1] * (rank - place - 1)])

    def mean(
        self, emitter: Emitter, filled: ir.Value, where: Sequence[int], axes: Axes, rank: int
    ) -> ir.Value:
        """Emit the mean over axes of a value whose padding is zero there; the axes have size 1 then.

        A sum is divided by the number, so that the mean of a single step is that step.
        """
        over = {axis: axes[axis] for axis in where if axis in axes}
        left = {axis: size for axis, size in axes.items() if axis not in over}
        if others := [axis for axis in where if axis not in over]:
            filled = emitter.with_axes("ReduceMean", filled, others, since=18, keepdims=1)
        result = emitter.with_axes("ReduceSum", filled, [*over], keepdims=1)
        for size in over.values():
            number = self.count(size, emitter.dtype)
            if self._rows is None:
                number = emitter.squeeze(number, 0, [])
            else:
                number = self.per_row(emitter, number, left, rank)
            result = emitter.op("Div", result, number)
        result.dtype = emitter.dtype
        return result

    def last_steps(
        self, emitter: Emitter, value: ir.Value, axis: int, axes: Axes, offsets: range, rank: int
    ) -> ir.Value:
        """Gather the steps at these offsets from the valid end along an axis of a value."""
        size = axes[axis]
        if self._rows is None:
            steps = emitter.constant(np.array(offsets, np.int64))
            return emitter.op("Gather", value, emitter.op("Add", self.count(size), steps), axis=axis)
        # ReduceSum picks one element per row; it does not support bool.
        is_bool, picked = emitter.dtype == ir.DataType.BOOL, []
        number = emitter.cast(value, ir.DataType.INT32) if is_bool else value
        zero = emitter.constant(np.array(0, np.int32)) if is_bool else emitter.scalar(0)
        for offset in offsets:
            mask = self.mask(size, axis, axes, rank, offset)
            one = emitter.op("Where", mask, number, zero, since=9)
            picked.append(emitter.with_axes("ReduceSum", one, [axis], keepdims=1))
        found = emitter.concat(picked, axis)
        return emitter.cast(found, ir.DataType.BOOL) if is_bool else found

    def steps_from(
        self, emitter: Emitter, value: ir.Value, axis: int, axes: Axes, begin: Size, steps: range, rank: int
    ) -> ir.Value:
        """Gather the steps at these offsets from where a part of a value begins on an axis."""
        full, places = axes[axis].full, emitter.constant(np.array(steps, np.int64))
        if self._rows is None:
            places = emitter.op("Add", places, self.count(begin))
            if max(begin.table) + steps[-1] >= full:
                places = emit_min(emitter, places, emitter.integers(full - 1))
            return emitter.op("Gather", value, places, axis=axis)
        # Reversed, the part is where each row begins.
        counts = begin.with_table(min(steps[-1] + 1, full - each) for each in begin.table)
        turned = self.reversed(emitter, value, axis, axes, begin + counts, rank)
        first = emitter.slice(turned, [0], [steps[-1] + 1], [axis])
        part = self.reversed(emitter, first, axis, axes, counts, rank)
        return part if steps.step == 1 else emitter.op("Gather", part, places, axis=axis)

    def reversed(
        self, emitter: Emitter, value: ir.Value, axis: int, axes: Axes, count: Size, rank: int
    ) -> ir.Value:
        """Reverse the first steps of each row, as many as the count says."""
        rows = next((place for place, each in axes.items() if each.symbol == ROWS), None)
        if axes[axis].symbol == ROWS or rows is None or axes[rows] != self._rows:
            raise NoRuleError(
                "reverses or moves steps where rows are not one axis, while each has a length of its own"
            )
        order = [rows, axis, *(place for place in range(rank) if place not in (rows, axis))]
        is_sorted = order == [*range(rank)]
        moved = value if is_sorted else emitter.transpose(value, order)
        turned = emitter.op("ReverseSequence", moved, self.count(count), since=10, batch_axis=0, time_axis=1)
        return (
            turned if is_sorted else emitter.transpose(turned, [order.index(place) for place in range(rank)])
        )
