"""The frame of a Loop: the elements that its steps read and write, by its counters."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Dim
from rnnlower.graph.facts import Facts, trip_count
from rnnlower.graph.loop_signature import LoopSignature, State
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.symbols import SIZE_TYPES
from rnnlower.graph.walk import is_read, look_through_identities, operand, producer_of
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.element_writes import read_write
from rnnlower.lifting.frames import Frame, Series, counts_along, find_states, is_axis_size, same_number
from rnnlower.lifting.loop_counters import MANY, Counters, Index
from rnnlower.lifting.row_masks import match_lengths


def loop_frame(facts: Facts, node: ir.Node, owner: ir.Node | None) -> Frame:
    """Return the frame of a Loop; `owner` is the node in whose subgraph it lies.

    Raises:
        NotLiftableError: Its steps do not go through the elements of a series, one by one.
    """
    return _LoopReader(facts, node).frame()


def iterations(facts: Facts, node: ir.Node) -> tuple[ir.Value | int | None, list[ir.Value]]:
    """Return the number of iterations of a Loop, and its states that are the number of the iteration.

    The number is ``None`` if the Loop may end earlier or later, or if only its body knows it.
    """
    try:
        return _LoopReader(facts, node).iterations()
    except NotLiftableError:
        return None, []


def step_slices(facts: Facts, node: ir.Node) -> list[tuple[ir.Node, Series, int, bool]]:
    """Return the Slices in a Loop's body that take the element of an iteration.

    The tensors may be computed in the body. With each come the place of the position in its starts, and
    whether it takes the position itself.
    """
    try:
        return [*_LoopReader(facts, node).step_slices()]
    except NotLiftableError:
        return []


class _LoopReader:
    def __init__(self, facts: Facts, node: ir.Node) -> None:
        self._facts, self._node = facts, node
        self._loop = loop = LoopSignature(node)
        self._body = body = loop.body
        self._states, self._aliases, self._unchanged = find_states(loop, node.outputs[: loop.count])
        self._counters = Counters(facts, body, self._states, self._aliases)
        self._steps, self._limits = trip_count(facts, node), dict[Dim, ir.Value]()
        self._size = self._limit() if self._steps is None else None

    def frame(self) -> Frame:
        """Return the frame."""
        inputs = [each for node in self._body if _is_content_read(node) for each in self._read_series(node)]
        stacked = self._node.outputs[self._loop.count :]
        if len(stacked) != len(self._loop.stacked):
            raise NotLiftableError("its node and its body have different numbers of inputs or outputs")
        written = zip(self._loop.stacked, stacked, strict=True)
        outputs = [Series(inner, outer, 0, False) for inner, outer in written]
        rest = []
        for state in self._states:
            filled = list(self._filled_series(state))
            outputs += filled
            if state.before in self._counters.known:
                if is_read(state.end):
                    raise NotLiftableError(f"the counter {state.end.name!r} is read after the Loop")
            elif not filled:
                rest.append(state)
        return Frame(
            self._node,
            inputs,
            rest,
            outputs,
            self._aliases,
            self._unchanged,
            dict(self._going_rows(inputs)),
        )

    def iterations(self) -> tuple[ir.Value | int | None, list[ir.Value]]:
        """Return the number of iterations, and the states that are the number of the iteration."""
        count = self._node.inputs[0] if self._steps is None else self._steps
        if self._steps is None and self._is_endless():
            # Without a condition in front, the first iteration always runs.
            first = operand(self._node, 1)
            is_asked = first is not None and any(True for _ in self._conditions(first))
            is_whole = self._size not in self._counters.own and self._facts.dtype(self._size) in SIZE_TYPES
            count = self._size if is_asked and is_whole else None
        return count, [state for state, index in self._counters.known.items() if index == Index(1, 0)]

    def step_slices(self) -> Iterator[tuple[ir.Node, Series, int, bool]]:
        """Yield the Slices that take the element of an iteration."""
        for node in self._body:
            with contextlib.suppress(NotLiftableError):
                cut = self._moving_cut(node) if node.op_type == "Slice" and not node.domain else None
                for series in self._read_series(node, computed=True) if cut is not None else ():
                    is_same = self._facts.dtype(node.inputs[1]) == self._facts.dtype(series.outer)
                    is_line = len(self._facts.dims(series.outer) or ()) == 1
                    is_position = (
                        is_same and is_line and counts_along(self._facts, series.outer, 0, self._aliases)
                    )
                    yield node, series, cut[1] if cut else 0, is_position

    def _going_rows(self, inputs: Sequence[Series]) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Yield comparisons of the number of steps before with the lengths of rows, and the lengths."""
        for node in self._body if all(not each.reverse and each.window is None for each in inputs) else ():
            found = match_lengths(self._facts, node.outputs[0])
            if found is None or found[2] in self._counters.own:
                continue
            number, _, lengths = found
            if self._counters.index(number) == Index(1, 0):
                yield node.outputs[0], lengths

    def _limit(self) -> ir.Value | None:
        """Return the number of iterations as a value; refuse a Loop that may end earlier or later."""
        first = operand(self._node, 1)
        starts = set() if first is None else {*self._conditions(first)}
        conditions = {*self._conditions(self._body.outputs[0])}
        count = self._node.inputs[0]
        limits = {limit for index, limit in conditions if index == Index(1, 1)}
        limits |= set() if count is None or self._is_endless() else {self._same_limit(count)}
        # A comparison of the iteration itself with the limit holds longer.
        known = {(Index(*moves), limit) for moves in ((1, 1), (1, 0)) for limit in limits}
        begins = {(Index(0, 0), limit) for limit in limits}
        if len(limits) != 1 or not conditions <= known or not starts <= begins:
            raise NotLiftableError("its number of iterations is not known")
        return limits.pop()

    def _is_endless(self) -> bool:
        """Return whether the trip count is missing, or above every number of steps."""
        most = self._facts.constant(self._node.inputs[0])
        return self._node.inputs[0] is None or (
            most is not None and bool((most > np.iinfo(np.int32).max).any())
        )

    def _conditions(self, value: ir.Value | None) -> Iterator[tuple[Index, ir.Value]]:
        """Yield the limits of counters, which must all be larger; true conditions need none."""
        value = None if value is None else look_through_identities(value)
        constant = self._facts.constant(value)
        if value is self._body.inputs[1] or (constant is not None and constant.all()):
            return
        both = producer_of(value, "And")
        if both is not None:
            yield from {each for given in both.inputs for each in self._conditions(given)}
            return
        compared = self._counters.compare(value)
        if compared is None or compared.value is None:
            raise NotLiftableError("its number of iterations is not known")
        yield dataclasses.replace(compared, value=None), self._same_limit(compared.value)

    def _same_limit(self, value: ir.Value) -> ir.Value:
        """Return the first limit that is the same size, inside the body or outside."""
        value = same_number(value)
        sizes = self._facts.sizes(value)
        if sizes is None or sizes.size != 1 or sizes.flat[0] is None:
            return value
        return self._limits.setdefault(sizes.flat[0], value)

    def _read_series(self, reader: ir.Node, *, computed: bool = False) -> Iterator[Series]:
        """Yield the series of which an operator reads the element of a step."""
        if reader.domain or reader.op_type not in ("Gather", "Slice"):
            return
        if len(reader.inputs) < 2 or reader.inputs[0] is None:
            return
        whole, place = self._skip_whole_slices(reader.inputs[0]), reader.inputs[1]
        axis, keeps_axis, index = reader.attributes.get_int("axis", 0), True, None
        if reader.op_type == "Gather":
            shape, index = self._facts.dims(place), self._counters.index(place)
            if index is not None and index.slope and (shape is None or len(shape) > 1):
                raise NotLiftableError("a step reads several elements of a series")
            keeps_axis = shape is not None and len(shape) == 1
        elif (cut := self._moving_cut(reader)) is not None:
            axis, _, index = cut
        # A tensor that the body computes is no series.
        if index is not None and index.slope and (computed or whole not in self._counters.own):
            ends = reader.op_type == "Gather"
            yield self._make_series(reader.outputs[0], whole, axis, index, keeps_axis, fails_past_end=ends)

    def _moving_cut(self, reader: ir.Node) -> tuple[int, int, Index] | None:
        """Return the axis on which a Slice takes the element of a step, its place in the starts, the index.

        One that takes more or less than an element is refused.
        """
        whole, starts, ends, axes, strides = (*reader.inputs, *[None] * 4)[:5]
        begins, limits = self._counters.indices(starts), self._counters.indices(ends)
        if not any(begin is not None and begin.slope for begin in begins):
            return None
        along = self._facts.constant(axes)
        by = np.ones(len(begins), int) if strides is None else self._facts.constant(strides)
        if along is None or by is None or len({len(begins), len(limits), along.size, by.size}) > 1:
            raise NotLiftableError("a step reads several elements of a series")
        cuts = zip(along.tolist(), range(len(begins)), begins, limits, by.tolist(), strict=True)
        parts = [cut for cut in cuts if not self._takes_all(whole, cut[0], *cut[2:])]
        if len(parts) != 1 or not _takes_one(*parts[0][2:]):
            raise NotLiftableError("a step reads several elements of a series")
        ((axis, place, begin, *_),) = parts
        return None if begin is None else (axis, place, begin)

    def _takes_all(
        self, whole: ir.Value | None, axis: int, begin: Index | None, end: Index | None, stride: int
    ) -> bool:
        """Return whether a Slice takes all elements of an axis."""
        dims = self._facts.dims(whole)
        if (begin, stride) != (Index(0, 0), 1) or end is None or end.slope or dims is None:
            return False
        if end.value is None:
            return end.offset >= MANY or end.offset == dims[axis]
        return end.offset == 0 and is_axis_size(self._facts, end.value, whole, axis)

    def _skip_whole_slices(self, value: ir.Value) -> ir.Value:
        """Return the value before Slices of the body that keep all of it."""
        while (producer := value.producer()) is not None and producer in self._body:
            cuts = axis_slices(producer, self._facts.constant)
            if cuts is None or producer.inputs[0] is None or not all(cut.is_whole() for cut in cuts):
                break
            value = producer.inputs[0]
        return self._aliases.get(value, value)

    def _make_series(
        self,
        inner: ir.Value,
        outer: ir.Value,
        axis: int,
        index: Index,
        keeps_axis: bool,
        fails_past_end: bool,
    ) -> Series:
        dims = self._facts.dims(outer)
        if dims is None:
            raise NotLiftableError(f"the rank of {outer.name!r} is not known")
        axis %= len(dims)
        size, steps = dims[axis], self._steps
        series = Series(inner, outer, axis, index.slope < 0, keeps_axis)
        offset = index.offset
        if offset < 0 and index.value is None and isinstance(size, int):
            offset += size
        if steps is not None and index.value is None and abs(index.slope) == 1 and (offset >= 0):
            start = offset if index.slope > 0 else offset - steps + 1
            if start >= 0 and (start + steps <= size if isinstance(size, int) else fails_past_end):
                is_whole = (start, steps) == (0, size)
                return series if is_whole else dataclasses.replace(series, window=(start, start + steps))
        is_first = index == Index(1, 0)
        is_last = index == Index(-1, -1) or (
            index.slope == -1
            and index.offset in (-1, 0)
            and is_axis_size(self._facts, index.value, outer, axis, less=1 + index.offset)
        )
        fits = steps == size if steps is not None else is_axis_size(self._facts, self._size, outer, axis)
        if not fits or not (is_first or is_last):
            raise NotLiftableError(
                f"the steps do not read every element of {outer.name!r}, one after another"
            )
        return series

    def _filled_series(self, state: State) -> Iterator[Series]:
        """Yield the tensors that the steps fill by updates of a state, element by element."""
        writer = look_through_identities(state.after).producer()
        if writer is None or writer.domain or state.before not in writer.inputs:
            return
        if writer.op_type == "Concat" and len(writer.inputs) == 2:
            yield from self._appended_series(state, writer)
        if writer.inputs[0] is not state.before:
            return
        if writer.op_type in ("ScatterElements", "ScatterND"):
            write = read_write(self._facts, writer, self._aliases)
            index = self._counters.index(write.place) if write and isinstance(write.place, ir.Value) else None
            if write is None or index is None:
                raise NotLiftableError("a step writes to positions that are not known")
            written = self._make_series(
                write.update, state.start, write.axis, index, write.keeps_axis, fails_past_end=True
            )
            if written.window is not None:
                raise NotLiftableError("the steps do not write every element of a tensor")
            yield dataclasses.replace(written, outer=state.end)

    def _appended_series(self, state: State, writer: ir.Node) -> Iterator[Series]:
        """Yield an empty tensor to which each step appends an element, at its end or at its start."""
        place = writer.inputs.index(state.before)
        element, dims = writer.inputs[1 - place], self._facts.dims(state.start)
        given = self._facts.dims(element)
        if element is None or dims is None or given is None:
            return
        axis = writer.attributes.get_int("axis", 0) % len(dims)
        if (dims[axis], given[axis]) == (0, 1):
            yield Series(element, state.end, axis, place == 1, keeps_axis=True)


def _takes_one(begin: Index | None, end: Index | None, stride: int) -> bool:
    """Return whether a Slice takes the element that its start counts."""
    if begin is None or end is None:
        return False
    if stride >= MANY:
        return end.value is None and end.slope == 0 and end.offset >= MANY
    # x[-1:0] is empty.
    at_last = begin.value is None and (begin.offset == -1 or begin.slope > 0 > begin.offset)
    return stride == 1 and not at_last and end == dataclasses.replace(begin, offset=begin.offset + 1)


def _is_content_read(node: ir.Node) -> bool:
    """Return whether more of a node's outputs is read than their shapes."""
    return any(
        out.is_graph_output() or any(user.op_type != "Shape" for user, _ in out.uses())
        for out in node.outputs
    )
