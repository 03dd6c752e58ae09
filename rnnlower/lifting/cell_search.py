"""The search for cells in the step of a frame."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import reached, root, sources
from rnnlower.lifting.affine_forms import Atoms, Block, Form, NotLiftableError
from rnnlower.lifting.equations import Cell, Step
from rnnlower.lifting.frames import Frame, Series, State, steps_of
from rnnlower.lifting.gru_equations import match_gru, match_rnn
from rnnlower.lifting.hoisting import Part, part_of
from rnnlower.lifting.lstm_equations import match_lstm
from rnnlower.lifting.row_masks import Lengths, choice_of, lengths_of
from rnnlower.lifting.symbolic_evaluation import Evaluator
from rnnlower.recurrent.node import Semantics
from rnnlower.recurrent.operators import FLOAT_TYPES

_Source = tuple[Series, tuple[str, ...]] | int
"""A series and the axes of its elements, or the position of the cell whose H is read."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A cell that was found in a step.

    Attributes:
        cell: The cell.
        parts: Its inputs, with their weights.
        states: H, and C of an LSTM.
        tags: The axes of H in a step.
        shape: Its shape, with 1 for rows.
        hidden: H(t) in the step.
        evaluator: Knows the forms of the step.
        reverse: Whether the last time step comes first.
        steps: The number of steps, if it is known.
        lengths: How many steps each row has, unless all have as many.
        direction: The part of the axis of directions that it computes.
    """

    cell: Cell
    parts: Sequence[Part]
    states: Sequence[State]
    tags: tuple[str, ...]
    shape: tuple[int, ...]
    hidden: ir.Value
    evaluator: Evaluator
    reverse: bool
    steps: int | None = None
    lengths: Lengths | None = None
    direction: int | None = None

    @property
    def hidden_form(self) -> Form:
        """The form of H(t)."""
        return self.evaluator.form(self.hidden)


def find_cells(facts: Facts, frame: Frame, semantics: Semantics) -> list[Found]:
    """Return the cells that make up a step; those that others read come first.

    Raises:
        NotLiftableError: Some of the step is not part of a cell.
    """
    if not frame.states:
        raise NotLiftableError("it carries no state")
    found: list[Found] = []
    for group in _groups(frame):
        directions = (0, 1) if _has_directions(facts, group) else (None,)
        found += [_find(facts, frame, group, found, semantics, direction) for direction in directions]
    return found


def _has_directions(facts: Facts, group: Sequence[State]) -> bool:
    """Return whether states have two directions in front, which products with two matrices keep apart."""
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


def _groups(frame: Frame) -> list[list[State]]:
    """Return the states that depend on each other, in the order of computation."""
    by_input = {state.before: state for state in frame.states}
    direct = {
        state.before: {by_input[v] for v in sources(state.after) if v in by_input} for state in frame.states
    }
    reach = {
        state.before: reached(direct[state.before], lambda other: direct[other.before])
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


def row_tags(
    facts: Facts, value: ir.Value, direction: int | None = None, single: int | None = None
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the tags of a state or an element of a series, and its shape with 1 for rows.

    Args:
        facts: The facts about the model.
        value: The value.
        direction: The part of an axis of two directions.
        single: An axis of one element.

    Raises:
        NotLiftableError: More than one axis besides that of the features has several elements.
    """
    dims = facts.dims(value)
    if dims is None or not dims or not isinstance(dims[-1], int):
        raise NotLiftableError(f"the number of features of {value.name!r} is not known")
    if direction is not None and dims[:2] == (2, 1) and len(dims) == 3:
        return ("D", "", ""), (1, 1, dims[-1])
    rows = [axis for axis, dim in enumerate(dims[:-1]) if dim != 1 and axis != single]
    if len(rows) > 1:
        raise NotLiftableError(f"{value.name!r} has more than one axis of rows")
    tags = tuple("B" if axis in rows else "" for axis in range(len(dims)))
    return tags, (*(1 for _ in dims[:-1]), dims[-1])


def _find(
    facts: Facts,
    frame: Frame,
    group: Sequence[State],
    before: Sequence[Found],
    semantics: Semantics,
    direction: int | None,
) -> Found:
    if len(group) > 2:
        raise NotLiftableError("more than two states depend on each other")
    atoms = Atoms()
    states = {}
    for state in group:
        tags, shape = row_tags(facts, state.before, direction)
        states[state.before] = atoms.variables(shape, tags)
    known, sources = _inputs(facts, frame, before, atoms, direction)
    evaluator = Evaluator(facts, atoms, states | known, frame.aliases, direction=direction, is_step=True)
    results, mask = _unmasked(facts, frame, group)
    new = [evaluator.form(result) for result in results]
    blocks = [atoms.block(int(form.ids.flat[0])) for form in states.values()]
    cell, order = _match(atoms, blocks, [form.flatten() for form in new], semantics)
    parts = []
    for start, W in cell.W.items():
        source = sources[start]
        if isinstance(source, int):
            other = before[source]
            parts.append(Part(source, 0, other.tags, W, np.zeros(len(W)), other.reverse))
        else:
            parts.append(part_of(facts, *source, W, direction))
    first = states[group[order[0]].before]
    found = Found(
        cell=cell,
        parts=parts,
        states=[group[number] for number in order],
        tags=first.tags,
        shape=first.shape,
        hidden=results[order[0]],
        evaluator=evaluator,
        reverse=order_of(parts),
        steps=steps_of(facts, frame),
        direction=direction,
    )
    return found if mask is None else dataclasses.replace(found, lengths=_lengths(facts, found, mask))


def _inputs(
    facts: Facts, frame: Frame, before: Sequence[Found], atoms: Atoms, direction: int | None
) -> tuple[dict[ir.Value, Form], dict[int, _Source]]:
    """Return the forms of what a step reads besides its states, and the source of each by its first atom."""
    known, sources = {}, dict[int, _Source]()
    for series in frame.given:
        if facts.dtype(series.inner) not in FLOAT_TYPES:
            continue
        tags, shape = row_tags(facts, series.inner, direction, series.axis if series.is_kept else None)
        form = known[series.inner] = atoms.variables(shape, tags)
        if series.is_kept:
            tags = (*tags[: series.axis], *tags[series.axis + 1 :])
        sources[int(form.ids.flat[0])] = series, tags
    for number, other in enumerate(before):
        if other.direction is None:
            form = atoms.variables(other.shape, other.tags)
            known |= {_bare(facts, other.states[0].after): form, other.hidden: form}
            sources[int(form.ids.flat[0])] = number
    return known, sources


def _match(
    atoms: Atoms, states: Sequence[Block], new: Sequence[Form], semantics: Semantics
) -> tuple[Cell, tuple[int, ...]]:
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


def match_cell(atoms: Atoms, states: Sequence[Block], new: Sequence[Form], semantics: Semantics) -> Cell:
    """Return the cell that computes these new states, H first.

    Raises:
        NotLiftableError: There is none.
    """
    step, reasons = Step(atoms, states, new, semantics), []
    lstms = [
        partial(match_lstm, which_input=i, which_output=o) for i, o in itertools.product((0, -1), repeat=2)
    ]
    for match in lstms if len(states) == 2 else (match_gru, match_rnn):
        try:
            return match(step)
        except NotLiftableError as error:
            reasons.append(str(error))
    raise NotLiftableError(reasons[0])


def order_of(parts: Sequence[Part]) -> bool:
    """Return whether the last time step comes first."""
    orders = {part.reverse for part in parts}
    if len(orders) > 1:
        raise NotLiftableError("a step reads one input forward and another one backward")
    if not orders:
        raise NotLiftableError("the step reads no input")
    return orders.pop()


def _lengths(facts: Facts, found: Found, mask: Series) -> Lengths:
    if mask.window is not None:
        raise NotLiftableError("the rows that keep their state are chosen by a part of a series")
    tags, _ = row_tags(facts, mask.inner, found.direction, mask.axis if mask.is_kept else None)
    tags = tags[: mask.axis] + tags[mask.axis + 1 :] if mask.is_kept else tags
    time = "T" if mask.reverse == found.reverse else "R"
    return lengths_of(
        facts, mask.outer, (*tags[: mask.axis], time, *tags[mask.axis :]), found.steps, found.direction
    )


def _unmasked(facts: Facts, frame: Frame, group: Sequence[State]) -> tuple[list[ir.Value], Series | None]:
    """Return the new states without the choice between them and the old ones, and the series that chooses."""
    results, masks = [], set()
    for state in group:
        result, mask = _bare(facts, state.after), None
        condition, new, old = choice_of(result)
        if old is state.before:
            mask = next((each for each in frame.given if each.inner is condition), None)
            if mask is None:
                raise NotLiftableError("the rows that keep their state are not chosen by a series")
            result = _bare(facts, new)
        masks.add(mask)
        results.append(result)
    if len(masks) > 1:
        raise NotLiftableError("the states of a row do not end at the same time")
    mask = masks.pop()
    everywhere = None if mask is None else facts.constant(mask.outer)
    return results, None if everywhere is not None and everywhere.all() else mask


def _bare(facts: Facts, value: ir.Value) -> ir.Value:
    """Return the value that Identity nodes and Casts to the type that it has pass on."""
    value = root(value)
    node = value.producer()
    source = None if node is None or node.domain or node.op_type != "Cast" else node.inputs[0]
    if source is None or facts.dtype(source) is None or facts.dtype(source) != facts.dtype(value):
        return value
    return _bare(facts, source)


def is_hidden(found: Found, form: Form) -> bool:
    """Return whether a form is H(t)."""
    mine, other = found.hidden_form.flatten().simplify(), form.flatten().simplify()
    if mine.constant.shape != other.constant.shape:
        return False
    if mine.ids.shape == other.ids.shape and (mine.ids == other.ids).all():
        return np.array_equal(mine.coefs, other.coefs) and np.array_equal(mine.constant, other.constant)
    atoms = found.evaluator.atoms
    return all(atoms.polynomial(mine, j) == atoms.polynomial(other, j) for j in range(mine.constant.size))
