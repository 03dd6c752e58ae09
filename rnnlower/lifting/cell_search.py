"""The search for cells in the step of a frame."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import State
from rnnlower.graph.walk import ancestors, reachable
from rnnlower.lifting.affine_forms import AffineForm, Atoms, Block, NotLiftableError
from rnnlower.lifting.equations import CellParameters, StepEquations
from rnnlower.lifting.frames import Frame, Series, count_steps, skip_casts
from rnnlower.lifting.gru_equations import match_gru, match_rnn
from rnnlower.lifting.hoisting import InputPart, make_input_part
from rnnlower.lifting.lstm_equations import match_lstm
from rnnlower.lifting.other_cells import refuse_other_cells
from rnnlower.lifting.row_masks import (
    FIRST_SKIPPING_OPSET,
    Lengths,
    are_equal_lengths,
    is_mask_of_rows,
    lengths_from_mask,
    match_where,
)
from rnnlower.lifting.symbolic_evaluation import Evaluator
from rnnlower.recurrent.node import Semantics
from rnnlower.recurrent.operators import FLOAT_TYPES

_Source = tuple[Series, tuple[str, ...]] | int
"""A series and the axes of its elements, or the position of the cell whose H is read."""


@dataclasses.dataclass(frozen=True)
class StepCondition:
    """The condition by which rows take steps.

    Attributes:
        mask: The conditions of all steps, or one that a step computes; of a cell, the lengths it compares.
        is_going: Whether it holds for rows that take the step, or else for those that keep their state.
    """

    mask: Series | ir.Value
    is_going: bool


@dataclasses.dataclass(frozen=True)
class FoundCell:
    """A cell that was found in a step.

    Attributes:
        parts: Its inputs, with their weights.
        states: H, and C of an LSTM.
        tags: The axes of H in a step.
        shape: Its shape, with 1 for rows.
        hidden: H(t) in the step.
        reverse: Whether the last time step comes first.
        steps: The number of steps, if it is known.
        lengths: The number of steps of each row, unless all rows have all steps.
        taken: By what rows take steps, if they may take one after one that they skip.
        direction: Its index on the axis of directions, if there is one.
    """

    cell: CellParameters
    parts: Sequence[InputPart]
    states: Sequence[State]
    tags: tuple[str, ...]
    shape: tuple[int, ...]
    hidden: ir.Value
    evaluator: Evaluator
    reverse: bool
    steps: int | None = None
    lengths: Lengths | None = None
    taken: StepCondition | None = None
    direction: int | None = None

    @property
    def hidden_form(self) -> AffineForm:
        """The form of H(t)."""
        return self.evaluator.form(self.hidden)


def find_cells(facts: Facts, frame: Frame, semantics: Semantics) -> list[FoundCell]:
    """Return the cells of a step; a cell comes after those whose H it reads.

    Raises:
        NotLiftableError: A part of the step is not part of a cell.
    """
    if not frame.states:
        raise NotLiftableError("it carries no state")
    found: list[FoundCell] = []
    for group in _group_states(frame):
        directions = (0, 1) if _has_two_directions(facts, group) else (None,)
        for direction in directions:
            found.append(_find_cell(facts, frame, group, found, semantics, direction))
    return found


def _has_two_directions(facts: Facts, group: Sequence[State]) -> bool:
    """Return whether the first axis of the states holds two directions, with a matrix each."""
    body = group[0].before.graph
    dims = [facts.dims(state.before) for state in group]
    return (
        body is not None
        and all(each is not None and each[:2] == (2, 1) and len(each) == 3 for each in dims)
        and any(
            node.op_type == "MatMul"
            and (weights := facts.constant(node.inputs[1])) is not None
            and weights.ndim == 3
            for node in body
        )
    )


def _group_states(frame: Frame) -> list[list[State]]:
    """Group the states that depend on each other; the groups are in the order of computation."""
    by_input = {state.before: state for state in frame.states}
    direct = {
        state.before: {by_input[v] for v in ancestors(state.after) if v in by_input} for state in frame.states
    }
    reach = {
        state.before: reachable(direct[state.before], lambda other: direct[other.before])
        for state in frame.states
    }
    groups: list[list[State]] = []
    for state in frame.states:
        mutual = [
            other
            for other in frame.states
            if other is state or (other in reach[state.before] and state in reach[other.before])
        ]
        if not any(state in group for group in groups):
            groups.append(mutual)
    return sorted(groups, key=lambda group: len(reach[group[0].before]))


def tagged_shape(
    facts: Facts, value: ir.Value, direction: int | None = None, unit_axis: int | None = None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the tags of a state or an element of a series, and its shape with 1 for rows.

    Args:
        direction: The index of the direction, if an axis holds two.
        unit_axis: An axis of size 1 that does not count as rows.

    Raises:
        NotLiftableError: More than one axis besides that of the features has several elements.
    """
    dims = facts.dims(value)
    if dims is None or not dims or not isinstance(dims[-1], int):
        raise NotLiftableError(f"the number of features of {value.name!r} is not known")
    if direction is not None and dims[:2] == (2, 1) and len(dims) == 3:
        return ("D", "", ""), (1, 1, dims[-1])
    rows = [axis for axis, dim in enumerate(dims[:-1]) if dim != 1 and axis != unit_axis]
    if len(rows) > 1:
        raise NotLiftableError(f"{value.name!r} has more than one axis of rows")
    tags = tuple("B" if axis in rows else "" for axis in range(len(dims)))
    return tags, (*(1 for _ in dims[:-1]), dims[-1])


def as_vector(form: AffineForm) -> AffineForm:
    """Return a new state as a vector.

    Raises:
        NotLiftableError: Its rows are features, or are on two axes.
    """
    if any(form.tags[-1:]) or form.tags.count("B") > 1:
        raise NotLiftableError("a step makes features of rows")
    return form.flatten()


def require_rows(tags: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a value that is the same for all rows if another one has rows, and the reverse."""
    if ("B" in tags) != ("B" in wanted):
        raise NotLiftableError("a step combines values with rows and without")


def _find_cell(
    facts: Facts,
    frame: Frame,
    group: Sequence[State],
    before: Sequence[FoundCell],
    semantics: Semantics,
    direction: int | None,
) -> FoundCell:
    if len(group) > 2:
        raise NotLiftableError("more than two states depend on each other")
    atoms = Atoms()
    states = {}
    for state in group:
        tags, shape = tagged_shape(facts, state.before, direction)
        states[state.before] = atoms.variables(shape, tags)
    known, sources = _input_forms(facts, frame, before, atoms, direction)
    evaluator = Evaluator(facts, atoms, states | known, frame.aliases, direction=direction, is_step=True)
    results, condition = _remove_masks(facts, frame, group)
    new = [evaluator.form(result) for result in results]
    if any(len(form.tags) != len(states[state.before].tags) for form, state in zip(new, group, strict=True)):
        raise NotLiftableError("a step changes the number of axes of its state")
    blocks = [atoms.block(int(form.ids.flat[0])) for form in states.values()]
    cell, order = _match_in_any_order(atoms, blocks, [as_vector(form) for form in new], semantics)
    parts = []
    for start, W in cell.W.items():
        source = sources[start]
        if isinstance(source, int):
            other = before[source]
            parts.append(InputPart(source, 0, other.tags, W, np.zeros(len(W)), other.reverse))
        else:
            parts.append(make_input_part(facts, *source, W, direction))
    first = states[group[order[0]].before]
    found = FoundCell(
        cell=cell,
        parts=parts,
        states=[group[number] for number in order],
        tags=first.tags,
        shape=first.shape,
        hidden=results[order[0]],
        evaluator=evaluator,
        reverse=is_reversed(parts),
        steps=count_steps(facts, frame),
        direction=direction,
    )
    if frame.has_gaps and (condition is None or direction is not None or facts.opset < FIRST_SKIPPING_OPSET):
        raise NotLiftableError("no row skips a step")
    if condition is not None:
        found = _with_condition(facts, frame, found, condition)
    for below in (before[part.value] for part in parts if isinstance(part.value, int)):
        if below.lengths is not None and not are_equal_lengths(facts, below.lengths, found.lengths):
            raise NotLiftableError("a cell reads the state of another past the ends of rows")
        if below.taken not in (None, found.taken):
            raise NotLiftableError("a cell reads the state of another at steps that rows skip")
    return found


def _with_condition(facts: Facts, frame: Frame, found: FoundCell, condition: StepCondition) -> FoundCell:
    """Return a cell with its rows' lengths, or with the condition by which they take steps."""
    mask = condition.mask
    if isinstance(mask, ir.Value):
        lengths = _compared_lengths(facts, frame, found, mask)
        if frame.has_gaps:
            return dataclasses.replace(found, taken=StepCondition(lengths, is_going=True))
        return dataclasses.replace(found, lengths=lengths)
    tags, _ = tagged_shape(facts, mask.inner, found.direction, mask.axis if mask.keeps_axis else None)
    if not frame.has_gaps and condition.is_going:
        return dataclasses.replace(found, lengths=mask_lengths(facts, found, mask, without_time(mask, tags)))
    dims = facts.dims(mask.inner) or ()
    is_by_row = tags == found.tags and dims[-1:] == (1,) and facts.dtype(mask.inner) == ir.DataType.BOOL
    if not frame.has_gaps or not is_by_row or mask.window is not None:
        raise NotLiftableError("the rows that keep their state are not those that have ended")
    return dataclasses.replace(found, taken=condition)


def without_time(series: Series, tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes of a step's element of a series, without that of time if it keeps it."""
    return (*tags[: series.axis], *tags[series.axis + series.keeps_axis :])


def _input_forms(
    facts: Facts, frame: Frame, before: Sequence[FoundCell], atoms: Atoms, direction: int | None
) -> tuple[dict[ir.Value, AffineForm], dict[int, _Source]]:
    """Return the forms of a step's inputs, and the source of each by its first atom."""
    known, sources = {}, dict[int, _Source]()
    for series in frame.inputs:
        if facts.dtype(series.inner) not in FLOAT_TYPES:
            continue
        tags, shape = tagged_shape(facts, series.inner, direction, series.axis if series.keeps_axis else None)
        form = known[series.inner] = atoms.variables(shape, tags)
        sources[int(form.ids.flat[0])] = series, without_time(series, tags)
    for number, other in enumerate(before):
        if other.direction is None:
            form = atoms.variables(other.shape, other.tags)
            known |= {skip_casts(facts, other.states[0].after): form, other.hidden: form}
            sources[int(form.ids.flat[0])] = number
    return known, sources


def _match_in_any_order(
    atoms: Atoms, states: Sequence[Block], new: Sequence[AffineForm], semantics: Semantics
) -> tuple[CellParameters, tuple[int, ...]]:
    """Return the cell that computes these new states, and their order, H first."""
    if len({block.size for block in states} | {form.constant.size for form in new}) != 1:
        raise NotLiftableError("the states have different sizes")
    reasons = []
    for order in itertools.permutations(range(len(states))):
        try:
            return match_cell(atoms, [states[k] for k in order], [new[k] for k in order], semantics), order
        except NotLiftableError as error:
            reasons.append(str(error))
    raise NotLiftableError(reasons[0])


def match_cell(
    atoms: Atoms, states: Sequence[Block], new: Sequence[AffineForm], semantics: Semantics
) -> CellParameters:
    """Return the cell that computes these new states, H first.

    Raises:
        NotLiftableError: There is none.
    """
    step, reasons = StepEquations(atoms, states, new, semantics), []
    lstms = [
        partial(match_lstm, which_input=i, which_output=o) for i, o in itertools.product((0, -1), repeat=2)
    ]
    for match in lstms if len(states) == 2 else (match_gru, match_rnn):
        try:
            return match(step)
        except NotLiftableError as error:
            reasons.append(str(error))
    refuse_other_cells(step)
    is_gated = any(len(key) > 1 for key in step.polynomial(0, 0))
    raise NotLiftableError(reasons[0 if is_gated else -1])


def is_reversed(parts: Sequence[InputPart]) -> bool:
    """Return whether the last time step comes first."""
    orders = {part.reverse for part in parts}
    if len(orders) > 1:
        raise NotLiftableError("a step reads one input forward and another one backward")
    if not orders:
        raise NotLiftableError("the step reads no input")
    return orders.pop()


def _compared_lengths(facts: Facts, frame: Frame, found: FoundCell, mask: ir.Value) -> ir.Value:
    """Return the lengths that a step compares with its number."""
    for going, lengths in frame.going.items():
        if is_mask_of_rows(facts, mask, going, found.tags):
            return lengths
    raise NotLiftableError("the rows that keep their state are not those that have ended")


def mask_lengths(facts: Facts, found: FoundCell, mask: Series, tags: tuple[str, ...]) -> Lengths:
    """Return the lengths of rows from the series of their conditions; `tags` are those of its elements."""
    if mask.window is not None:
        raise NotLiftableError("the rows that keep their state are selected by a part of a series")
    require_rows(tags, found.tags)
    time = "T" if mask.reverse == found.reverse else "R"
    return lengths_from_mask(
        facts, mask.outer, (*tags[: mask.axis], time, *tags[mask.axis :]), found.steps, found.direction
    )


def _remove_masks(
    facts: Facts, frame: Frame, group: Sequence[State]
) -> tuple[list[ir.Value], StepCondition | None]:
    """Return the new states without the Where that keeps old ones, and its condition."""
    results: list[ir.Value] = []
    found: set[StepCondition | None] = set()
    for state in group:
        result = skip_casts(facts, state.after)
        chosen: StepCondition | None = None
        condition, new, old = match_where(result)
        if state.before in (new, old) and condition is not None:
            is_going = old is state.before
            series = next((each for each in frame.inputs if each.inner is condition), None)
            if series is None and not (frame.going and is_going):
                raise NotLiftableError("the rows that keep their state are not selected by a series")
            chosen = StepCondition(series or condition, is_going)
            result = skip_casts(facts, new if is_going or old is None else old)
        found.add(chosen)
        results.append(result)
    if len(found) > 1:
        raise NotLiftableError("the states of a row do not end at the same time")
    chosen = found.pop()
    mask = None if chosen is None else chosen.mask
    everywhere = facts.constant(mask.outer if isinstance(mask, Series) else mask)
    is_unmasked = everywhere is not None and chosen is not None and chosen.is_going and everywhere.all()
    return results, None if is_unmasked else chosen


def is_hidden_state(found: FoundCell, form: AffineForm) -> bool:
    """Return whether a form is H(t), with an axis of its units."""
    mine, other = found.hidden_form.flatten().simplify(), form.flatten().simplify()
    if mine.constant.shape != other.constant.shape or found.cell.hidden_size not in form.shape:
        return False
    if mine.ids.shape == other.ids.shape and (mine.ids == other.ids).all():
        return np.array_equal(mine.coefs, other.coefs) and np.array_equal(mine.constant, other.constant)
    atoms = found.evaluator.atoms
    return all(atoms.polynomial(mine, j) == atoms.polynomial(other, j) for j in range(mine.constant.size))
