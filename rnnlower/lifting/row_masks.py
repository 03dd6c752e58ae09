"""Masks: conditions by time step and row that are true for rows that have not ended, or take the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Dims
from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import RESHAPING, VIEWS
from rnnlower.graph.symbols import SIZE_TYPES
from rnnlower.graph.walk import look_through, producer_of
from rnnlower.lifting.affine_forms import Atoms, NotLiftableError
from rnnlower.lifting.frames import LAYOUT, counts_along
from rnnlower.lifting.symbolic_evaluation import Evaluator
from rnnlower.lowering.emitter import Emitter

Lengths = ir.Value | np.ndarray
_MOVING_MASKS = {*RESHAPING, "Expand", "Gather", "Identity", "Slice"}
"""Operators that move elements of any type."""
SKIPPING_OPERATORS = ("CumSum", "GatherElements", "ScatterElements")
"""Operators that put the steps in order if rows skip some."""
FIRST_SKIPPING_OPSET = 11
"""The first version of ONNX that has these."""


def are_equal_lengths(facts: Facts, first: Lengths | None, second: Lengths | None) -> bool:
    """Return whether lengths are equal."""
    one, other = (each if isinstance(each, np.ndarray) else facts.constant(each) for each in (first, second))
    return first is second or (one is not None and other is not None and np.array_equal(one, other))


def match_where(value: ir.Value) -> tuple[ir.Value | None, ir.Value, ir.Value | None]:
    """Return the condition, the new state and the old one of a Where; only the value if it is none."""
    node = producer_of(value, "Where")
    if node is None or node.inputs[1] is None:
        return None, value, None
    return node.inputs[0], node.inputs[1], node.inputs[2]


def zeroing_mask(facts: Facts, node: ir.Node, value: ir.Value, *, is_going: bool = True) -> ir.Value | None:
    """Return the condition of a Where that keeps a value or returns zeros, or the mask that multiplies it.

    Unless `is_going`, the condition holds for zeros.
    """
    if node.op_type == "Mul" and not node.domain and is_going:
        first, second = node.inputs
        mask = second if first is value else first
        return mask if truth_of_mask(facts, mask) is not None else None
    condition, *chosen = match_where(node.outputs[0])
    kept, rest = chosen if is_going else chosen[::-1]
    return condition if kept is value and facts.is_zero(rest) and _is_inside(facts, rest, value) else None


def _is_inside(facts: Facts, small: ir.Value | None, large: ir.Value) -> bool:
    """Return whether a value can be broadcast to the shape of another one."""
    dims, whole = facts.dims(small), facts.dims(large)
    if dims is None or whole is None or len(dims) > len(whole):
        return False
    pairs = zip(dims[::-1], whole[::-1], strict=False)
    return all(size == 1 or (size is not None and size == other) for size, other in pairs)


def truth_of_mask(facts: Facts, mask: ir.Value | None) -> ir.Value | None:
    """Return the condition that was cast to numbers, which then were moved to a mask."""
    node = None if mask is None else mask.producer()
    if node is None or node.domain or not node.inputs:
        return None
    source = node.inputs[0]
    if node.op_type == "Cast":
        return source if facts.dtype(source) == ir.DataType.BOOL else None
    return truth_of_mask(facts, source) if node.op_type in _MOVING_MASKS else None


def lengths_from_mask(
    facts: Facts, mask: ir.Value, tags: Sequence[str], steps: int | None, direction: int | None = None
) -> Lengths:
    """Return the lengths of the rows for which a mask is true.

    Args:
        tags: Its axes: ``T`` for time, ``R`` for time from the end, ``B`` for rows, ``TB`` for both.
        steps: The number of steps, if it is known.
        direction: The index on an axis with the tag ``D``.

    Raises:
        NotLiftableError: The steps for which it is true may not be the first ones.
    """
    constant = facts.constant(mask)
    lengths = (
        _computed_lengths(facts, mask, tags, direction)
        if constant is None
        else _constant_lengths(constant.astype(bool), tags, steps, direction)
    )
    if lengths is None:
        raise NotLiftableError("the rows that keep their state are not those that have ended")
    return lengths


def _constant_lengths(
    mask: np.ndarray, tags: Sequence[str], steps: int | None, direction: int | None
) -> np.ndarray | None:
    if mask.ndim != len(tags):
        return None
    if "D" in tags and mask.shape[tags.index("D")] > 1:
        mask = np.take(mask, [direction or 0], tags.index("D"))
    sizes = zip(mask.shape, tags, strict=True)
    if "TB" in tags:
        by_time = None if steps is None or mask.size % steps else mask.reshape(steps, -1)
    else:
        time = tags.index("R" if "R" in tags else "T")
        by_time = np.moveaxis(mask, time, 0).reshape(mask.shape[time], -1)
    # Rows have elements of their own, and features do not.
    if by_time is None or any((size == 1) == (tag == "B") for size, tag in sizes if tag in ("", "B")):
        return None
    if "R" in tags:
        by_time = by_time[::-1]
    lengths: np.ndarray = by_time.sum(axis=0)
    is_prefix = (by_time == (np.arange(len(by_time))[:, np.newaxis] < lengths)).all()
    return lengths.astype(np.int32) if is_prefix else None


def _computed_lengths(
    facts: Facts, mask: ir.Value, tags: Sequence[str], direction: int | None
) -> ir.Value | None:
    found = _find_comparison(facts, mask)
    if found is None:
        return None
    compared, lengths, time = found
    dims = facts.dims(compared)
    if dims is None or len(dims) != 2:
        return None
    atoms, is_row = Atoms(), dims[1 - time] == 1
    given = atoms.variables((1, 1), tuple("T" if axis == time else "B"[is_row:] for axis in (0, 1)))
    try:
        form = Evaluator(facts, atoms, {compared: given}, direction=direction).form(mask)
    except NotLiftableError:
        return None
    if "D" in tags and form.shape[tags.index("D")] > 1:
        form = form.take(tags.index("D"), slice(direction, (direction or 0) + 1))
    wanted = tuple("" if tag == "D" or (tag == "B" and is_row) else tag for tag in tags)
    if is_row:
        wanted = tuple({"TB": "T", "RB": "R"}.get(tag, tag) for tag in wanted)
    is_same = (
        form.shape == given.shape[:1] * len(wanted)
        and (form.simplify().ids == given.ids.reshape(-1)[0]).all()
    )
    return lengths if is_same and form.tags == wanted else None


def match_lengths(facts: Facts, mask: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Return what ``number < limit`` compares, and the lengths ``[B]`` that the limit is a view of."""
    node = producer_of(mask, "Less", "Greater")
    number, limit = (None, None) if node is None else node.inputs[:: -1 if node.op_type == "Greater" else 1]
    if number is None or limit is None:
        return None
    lengths = look_through(limit, VIEWS - {"Cast"})
    is_vector = len(facts.dims(lengths) or ()) == 1 and facts.dtype(lengths) in SIZE_TYPES
    return (number, limit, lengths) if is_vector else None


def compared_length(facts: Facts, mask: ir.Value) -> tuple[int, ir.Value] | None:
    """Return the number of the step and the lengths of a mask ``number < lengths``, ``[B, 1]``."""
    found = match_lengths(facts, look_through(mask, RESHAPING))
    constant = None if found is None else facts.constant(found[0])
    return (int(constant.item()), found[2]) if found and constant is not None and constant.size == 1 else None


def is_mask_of_rows(facts: Facts, mask: ir.Value, going: ir.Value, tags: Sequence[str]) -> bool:
    """Return whether a mask of a step has the elements of a condition by row, in the layout of a state."""
    dims = facts.dims(going) or ()
    rows = [axis for axis, size in enumerate(dims) if size != 1]
    atoms = Atoms()
    given = atoms.variables((1,) * len(dims), tuple("B" if axis in rows else "" for axis in range(len(dims))))
    try:
        form = Evaluator(facts, atoms, {going: given}).form(mask)
    except NotLiftableError:
        return False
    is_same = form.constant.size == 1 and (form.simplify().ids == given.ids.reshape(-1)[0]).all()
    return len(rows) < 2 and is_same and form.tags == tuple(tags)


def _find_comparison(facts: Facts, mask: ir.Value) -> tuple[ir.Value, ir.Value, int] | None:
    """Return the comparison ``t < length`` from which a mask is computed, the lengths, and the axis of time.

    The comparison is ``[T, B]`` or ``[B, T]``.
    """
    pending, seen = [mask], set[ir.Value]()
    while pending:
        value = pending.pop()
        producer = value.producer()
        if value in seen or producer is None or producer.domain:
            continue
        seen.add(value)
        if producer.op_type in ("Less", "Greater"):
            found = match_lengths(facts, value)
            if found is None:
                return None
            numbers, limit, lengths = found
            dims = facts.dims(lengths) or ()
            # The lengths are on the other axis.
            shapes: dict[int, Sequence[Dims]] = {0: [dims, (1, *dims)], 1: [(*dims, 1)]}
            times = [time for time, fitting in shapes.items() if facts.dims(limit) in fitting]
            time = next((time for time in times if _counts_steps(facts, numbers, time)), None)
            return None if time is None else (value, lengths, time)
        if producer.op_type not in (*LAYOUT, "ReverseSequence"):
            return None
        pending += [each for each in producer.inputs[: None if producer.op_type == "Concat" else 1] if each]
    return None


def _counts_steps(facts: Facts, numbers: ir.Value, time: int) -> bool:
    """Return whether a value is 0, 1, 2, ... along the first of two axes, or along the last one."""
    dims = facts.dims(numbers) or ()
    axis = len(dims) - 2 + time
    others = (*dims[: max(axis, 0)], *dims[axis + 1 :])
    return axis >= 0 and all(size == 1 for size in others) and counts_along(facts, numbers, axis, {})


@dataclasses.dataclass(frozen=True)
class TakenSteps:
    """The steps that rows take: these come first, and each step that is skipped repeats the last result.

    ONNX has lengths, but no operator skips a step in the middle.

    Attributes:
        taken: Whether a row takes a step, ``[T, B, 1]``.
        counts: How many it has taken then, int32 ``[T, B, 1]``.
        lengths: How many it takes, int32 ``[B]``.
        places: The places of the steps once those that a row takes stand first, ``[T, B, 1]``.
    """

    taken: ir.Value
    counts: ir.Value
    lengths: ir.Value
    places: ir.Value

    @classmethod
    def emit(cls, e: Emitter, taken: ir.Value) -> TakenSteps:
        """Emit the steps that rows take, from whether they do."""
        time = e.constant(np.array(0, np.int32))
        ones, rest = (e.cast(each, ir.DataType.INT32) for each in (taken, e.op("Not", taken)))
        before, skipped = (e.op("CumSum", each, time, exclusive=1) for each in (ones, rest))
        total = e.with_axes("ReduceSum", ones, [0])
        places = e.op("Where", taken, before, e.op("Add", total, skipped))
        return cls(taken, e.op("Add", before, ones), e.reshape(total, [-1]), places)

    def compact(self, e: Emitter, X: ir.Value) -> ir.Value:
        """Emit the steps of ``[T, B, I]`` that rows take, then those that they skip."""
        return e.op("ScatterElements", X, e.op("Expand", self.places, e.op("Shape", X)), X, axis=0)

    def repeat(self, e: Emitter, Y: ir.Value, start: ir.Value) -> ir.Value:
        """Emit for all steps what the last one that a row has taken returns; at first, ``[1, B, H]``."""
        counts = e.op("Expand", self.counts, e.op("Shape", Y))
        return e.op("GatherElements", e.concat([start, Y], 0), counts, axis=0)

    def keep(self, e: Emitter, last: ir.Value, start: ir.Value | None) -> ir.Value:
        """Emit the final state ``[B, H]`` of rows that take a step, and of others a start ``[1, B, H]``."""
        if start is None:
            return last
        has_steps = e.op("Greater", e.reshape(self.lengths, [-1, 1]), e.constant(np.array(0, np.int32)))
        return e.op("Where", has_steps, last, e.squeeze(start, 0, []))
