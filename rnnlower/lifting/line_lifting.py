"""The replacement of a straight line of cells by one node."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import State
from rnnlower.graph.names import NameSource
from rnnlower.graph.operator_kinds import RESHAPING, VIEWS
from rnnlower.graph.rewiring import remove_orphans, replace_value
from rnnlower.graph.rollback import rollback_on_failure
from rnnlower.graph.walk import LocatedNode, ancestors, is_read, look_through, producer_of
from rnnlower.lifting.affine_forms import Atoms, NotLiftableError
from rnnlower.lifting.cell_search import (
    FoundCell,
    StepCondition,
    is_reversed,
    mask_lengths,
    require_rows,
    tagged_shape,
)
from rnnlower.lifting.emission import EmittedNode, emit_cell, emit_result, emit_state
from rnnlower.lifting.frames import Series
from rnnlower.lifting.hoisting import make_input_part
from rnnlower.lifting.lifted_nodes import Lifted, LiftedNode
from rnnlower.lifting.line_steps import Line, LineStep, find_origin
from rnnlower.lifting.results import Result, require_mask, require_steps
from rnnlower.lifting.row_masks import (
    FIRST_SKIPPING_OPSET,
    Lengths,
    compared_length,
    lengths_from_mask,
    zeroing_mask,
)
from rnnlower.lifting.symbolic_evaluation import Evaluator
from rnnlower.lowering.emitter import Emitters
from rnnlower.recurrent.node import Semantics


class LineLifter:
    """A rewriter of a straight line."""

    def __init__(
        self,
        facts: Facts,
        names: NameSource,
        semantics: Semantics,
        located: LocatedNode,
        graph: ir.Graph,
        line: Line,
        *,
        has_gaps: bool = False,
    ) -> None:
        self._facts, self._semantics, self._located = facts, semantics, located
        self._has_gaps = has_gaps
        self._graph, self._line = graph, line
        dtype = facts.dtype(line.steps[-1].new[0])
        assert dtype is not None
        self._emitters = Emitters(facts.model, names=names)
        self._e = self._emitters.at(located.name, dtype)

    def lift(self) -> Lifted:
        """Replace the line by a node.

        Raises:
            NotLiftableError: Something else reads values of its steps; nothing has changed.
        """
        with rollback_on_failure(self._facts.model):
            return self._lift()

    def _lift(self) -> Lifted:
        e, graph, located = self._e, self._graph, self._located
        if self._has_gaps:
            self._mask_last_step()
        steps = self._line.steps
        own = {value: value.name for step in steps for value in (*step.new, *step.unmasked)}
        for value in own:
            self._read_after_views(value)
        found = self._find_cell(own)
        name = _common_prefix([step.new[0] for step in steps]) or located.name
        emitted = emit_cell(e, self._facts, found, {}, name)
        self._insert()
        self._replace_results(found, emitted, own)
        graph.extend(e.nodes)
        remove_orphans(self._emitters.constants.values())
        remove_orphans(out for node in e.everything if node.graph is not None for out in node.outputs)
        graph.sort()
        return Lifted(emitted, LiftedNode(located.name, located.path, "line"))

    def _find_cell(self, own: Collection[ir.Value]) -> FoundCell:
        """Return the cell of the steps with the sequences that they read; `own` are the steps' results."""
        facts, line, steps = self._facts, self._line, self._line.steps
        masks = [step.mask for step in steps]
        has_masks = any(mask is not None for mask in masks)
        is_longer = has_masks and all(mask is None or facts.constant(mask) is not None for mask in masks)
        parts, lengths = [], set() if is_longer else {len(steps)}
        for place, W in line.cell.W.items():
            leaves = [step.leaves[place] for step in steps]
            series, tags = self._make_series(leaves, is_longer=is_longer)
            if not ancestors(series.outer).isdisjoint(own):
                raise NotLiftableError("the inputs of its steps depend on their results")
            parts.append(make_input_part(facts, series, tags, W, None))
            start, end = series.window or (0, (facts.shape(series.outer) or ())[series.axis] or 0)
            lengths.add(end - start)
        if len(lengths) > 1:
            raise NotLiftableError("its inputs have different numbers of steps")
        zero = self._e.constant(np.zeros((1, line.cell.hidden_size), self._e.dtype.numpy()))
        last = steps[-1].new
        states = [
            State(zero if start is None else start, value, value, value)
            for start, value in zip(line.starts, last, strict=True)
        ]
        evaluator = Evaluator(facts, Atoms(), {})
        reverse, (length,) = is_reversed(parts), lengths
        found = FoundCell(
            line.cell, parts, states, line.tags, line.shape, last[0], evaluator, reverse, length
        )
        if self._has_gaps:
            return dataclasses.replace(found, taken=self._taken(masks))
        return dataclasses.replace(found, lengths=self._lengths(masks, found)) if has_masks else found

    def _mask_last_step(self) -> None:
        """Give the last step the mask of its zeros: what keeps its state is gone if nothing reads it."""
        *steps, last = self._line.steps
        if last.mask is None:
            h = last.new[0]
            masks = (zeroing_mask(self._facts, node, h) for node, _ in h.uses())
            last = dataclasses.replace(last, mask=next(filter(None, masks), None))
            self._line = dataclasses.replace(self._line, steps=[*steps, last])

    def _read_after_views(self, value: ir.Value) -> None:
        """Let what reads a state before its views, as the next step does not, read it after them."""
        node = value.producer()
        while node is not None and node.op_type in RESHAPING and not node.domain:
            before = node.inputs[0]
            dims = self._facts.dims(before)
            if before is None or dims is None or before.is_graph_output():
                return
            readers = [use for use in before.uses() if use.node is not node]
            sizes = [dim if isinstance(dim, int) else -1 for dim in dims]
            if readers and 0 not in sizes and sizes.count(-1) < 2:
                view = self._e.reshape(value, sizes)
                for reader, index in readers:
                    reader.replace_input_with(index, view)
                self._insert()
            node = before.producer()

    def _lengths(self, masks: Sequence[ir.Value | None], found: FoundCell) -> Lengths:
        """Return the lengths of the rows from the conditions of the steps."""
        constants = [
            np.ones((1, 1), np.bool_) if mask is None else self._facts.constant(mask) for mask in masks
        ]
        time = "R" if found.reverse else "T"
        state_tags = ("B" if "B" in found.tags else "", "")
        if all(constant is not None and constant.ndim == 2 for constant in constants):
            stacked = self._e.constant(np.stack(np.broadcast_arrays(*constants)))  # type: ignore[arg-type]
            return lengths_from_mask(self._facts, stacked, (time, *state_tags), len(masks))
        given = [mask for mask in masks if mask is not None]
        if len(given) < len(masks):
            raise NotLiftableError("the rows that keep their state are not those that have ended")
        compared = [compared_length(self._facts, mask) for mask in given]
        lengths = compared[0] and compared[0][1]
        if lengths is not None and compared == [(number, lengths) for number in range(len(given))]:
            dims = (*(self._facts.dims(lengths) or ()), 1)
            if not found.reverse and all(self._facts.dims(mask) == dims for mask in given):
                require_rows(("B",) if dims[0] != 1 else (), found.tags)
                return lengths
        rows = [look_through(mask, RESHAPING) for mask in given]
        dims = self._facts.dims(rows[0]) or ()
        if all(self._facts.dims(mask) == (*dims, 1) for mask in given):
            # Elements of a mask by time and row were made columns.
            series, tags = self._make_series(rows, ("" if dims == (1,) else "B",))
        else:
            series, tags = self._make_series(given)
        return mask_lengths(self._facts, found, series, tags)

    def _taken(self, masks: Sequence[ir.Value | None]) -> StepCondition:
        """Return the condition by which rows take steps, from those of the steps."""
        given = [mask for mask in masks if mask is not None and self._facts.constant(mask) is None]
        if len(given) < len(masks) or self._facts.opset < FIRST_SKIPPING_OPSET:
            raise NotLiftableError("no row skips a step")
        series, tags = self._make_series(given)
        if (*tags, "") == self._line.tags:
            # Elements of a mask by time and row were cut as columns.
            series = dataclasses.replace(series, outer=self._e.unsqueeze(series.outer, 2, []))
            tags = self._line.tags
            self._insert()
        is_by_row = tags == self._line.tags and (self._facts.dims(given[0]) or ())[-1:] == (1,)
        if not is_by_row or series.window is not None:
            raise NotLiftableError("the rows that keep their state are not those that have ended")
        return StepCondition(series, is_going=True)

    def _make_series(
        self, leaves: Sequence[ir.Value], tags: tuple[str, ...] | None = None, *, is_longer: bool = False
    ) -> tuple[Series, tuple[str, ...]]:
        """Return the series whose elements are these values; stack them if there is none.

        With `is_longer` it keeps all steps of the tensor they come from, even those that no row has.
        """
        tags = tagged_shape(self._facts, leaves[0])[0] if tags is None else tags
        origins = [find_origin(self._facts, leaf) for leaf in leaves]
        (first, *_), places = origins, [None if each is None else each.start for each in origins]
        count = len(leaves)
        for reverse in (False, True):
            if first is None:
                break
            start = places[-1 if reverse else 0] or 0
            ends = [start + first.size * number for number in range(count)]
            distinct = {dataclasses.replace(each, start=0) for each in origins if each is not None}
            if len(distinct) > 1 or places != (ends[::-1] if reverse else ends):
                continue
            whole, axis, dims = first.whole, first.axis, self._facts.dims(first.whole)
            assert dims is not None
            size, window = dims[axis], None
            if is_longer and start == 0 and isinstance(size, int):
                count = size // first.size
            elif (start, first.size * count) != (0, size):
                window = start // first.size, start // first.size + count
            if first.size > 1:
                if axis or len(dims) != 2 or not isinstance(size, int) or not isinstance(dims[1], int):
                    break
                if size % first.size or start % first.size:
                    break
                whole = self._e.reshape(whole, [-1, first.size, dims[1]])
            elif first.keeps_axis:
                tags = (*tags[:axis], *tags[axis + 1 :])
            self._insert()
            return Series(leaves[0], whole, axis, reverse, window=window), tags
        joined = self._e.concat([self._e.unsqueeze(leaf, 0, []) for leaf in leaves], 0)
        self._insert()
        return Series(leaves[0], joined, 0, False), tags

    def _insert(self) -> None:
        """Move the emitted nodes into the graph, so that facts about them are known."""
        self._graph.extend(self._e.nodes)
        self._e.nodes.clear()

    def _replace_results(
        self, found: FoundCell, emitted: EmittedNode, names: dict[ir.Value, str | None]
    ) -> None:
        """Replace the results of the steps, which had these names, by those of the node."""
        e, steps = self._e, self._line.steps
        hidden = [step.new[0] for step in steps]
        zeroed = [*filter(None, map(self._find_zeroed, steps))]
        for result in list(self._find_stacked(found, hidden)):
            if found.lengths is not None:
                require_mask(self._facts, result, found)
            self._replace(emitted, result.value, emit_result(e, found, result, emitted))
        if len(zeroed) == len(steps):
            for result in list(self._find_stacked(found, zeroed)):
                zeros = dataclasses.replace(result, is_zeroed=True)
                self._replace(emitted, result.value, emit_result(e, found, zeros, emitted))
        require_steps(self._facts, found, self._semantics)
        for index, (value, last) in enumerate(zip(steps[-1].new, emitted.last, strict=True)):
            if is_read(value):
                if any(step.mask is not None and step.new[index] is step.unmasked[index] for step in steps):
                    raise NotLiftableError("the states of a row do not end at the same time")
                self._replace(emitted, value, emit_state(e, found, last))
        for number, step in reversed([*enumerate(steps)]):
            h = step.new[0]
            if step is not steps[-1] and is_read(h):
                if found.lengths is not None:
                    raise NotLiftableError(f"{h.name!r} is read past the ends of rows")
                time = len(steps) - 1 - number if found.reverse else number
                element = e.op("Gather", emitted.Y, e.constant(np.array(time, np.int64)), axis=0)
                self._replace(emitted, h, emit_state(e, found, element))
            remove_orphans((*step.new, *step.unmasked))
        for value, name in reversed(names.items()):
            producer = value.producer()
            if producer is not None and producer.graph is not None:
                raise NotLiftableError(f"{name!r} is read, but no cell returns it")

    def _replace(self, emitted: EmittedNode, value: ir.Value, new: ir.Value) -> None:
        """Replace a result of the steps by an emitted value."""
        replace_value(emitted.node, value, new, is_new=True)
        self._insert()
        remove_orphans([value])

    def _find_zeroed(self, step: LineStep) -> ir.Value | None:
        """Return H of a step with zeros for the rows that have ended, as the operators return it."""
        found = (
            node.outputs[0]
            for h in (step.new[0], step.unmasked[0])
            for node, _ in h.uses()
            if step.mask is not None and zeroing_mask(self._facts, node, h) is step.mask
        )
        return next(found, None)

    def _find_stacked(self, found: FoundCell, hidden: Sequence[ir.Value]) -> Iterator[Result]:
        """Yield the values in which H of all steps is stacked."""
        atoms = Atoms()
        given = atoms.variables(self._line.shape, self._line.tags)
        evaluator = Evaluator(self._facts, atoms, dict.fromkeys(hidden, given))
        pending, seen = [hidden[0]], set[ir.Value]()
        while pending:
            for node, _ in pending.pop().uses():
                (out, *_) = node.outputs
                join = producer_of(out, "Concat")
                if producer_of(out, *VIEWS) is not None or (join is not None and out not in seen):
                    seen.add(out)
                    pending.append(out)
                result = None if join is None else self._read_stack(join, found, hidden, evaluator)
                if result is not None:
                    yield result

    def _read_stack(
        self, join: ir.Node, found: FoundCell, hidden: Sequence[ir.Value], evaluator: Evaluator
    ) -> Result | None:
        """Return what a Concat is if it stacks H of all steps."""
        line, inner, parts = self._line, [look_through(h) for h in hidden], _flatten_concat(join)
        if len(parts) != found.steps:
            return None
        # Steps after the end of all rows do not matter if a mask hides them, else they are zero.
        rest, parts = parts[len(hidden) :], parts[: len(hidden)]
        if hidden[0] is not line.steps[0].new[0] and not all(map(self._facts.is_zero, rest)):
            return None
        joined = [look_through(part) for part in parts]
        orders = [inner, inner[::-1]] if not rest else [inner[::-1] if found.reverse else inner]
        if joined not in orders:
            return None
        forms = [evaluator.form(part) for part in parts]
        axis = join.attributes.get_int("axis", 0) % len(forms[0].tags)
        if any(form.tags != forms[0].tags or form.shape != forms[0].shape for form in forms):
            return None
        tags, dims = list(forms[0].tags), self._facts.dims(parts[0]) or ()
        features = max(at for at, tag in enumerate(tags) if not tag and forms[0].shape[at] == line.shape[-1])
        is_first = all(dim == 1 for dim in dims[:axis])
        if axis == features or (tags[axis] and not is_first):
            return None
        tags[axis] = "T" + tags[axis]
        reverse = joined[0] is not inner[0]
        return Result(join.outputs[0], 0, tuple(tags), forms[0].shape, reverse)


def _flatten_concat(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a Concat, with nested Concats flattened."""
    found: list[ir.Value] = []
    for value in node.inputs:
        assert value is not None
        inner = producer_of(value, "Concat")
        is_same = inner is not None and inner.attributes == node.attributes
        found += _flatten_concat(inner) if inner is not None and is_same else [value]
    return found


def _common_prefix(values: Sequence[ir.Value]) -> str:
    names = [producer.name or "" for value in values if (producer := value.producer()) is not None]
    columns = enumerate(zip(*names, strict=False))
    shared = next((number for number, letters in columns if len({*letters}) > 1), 0)
    return names[0][:shared].rpartition("/")[0]
