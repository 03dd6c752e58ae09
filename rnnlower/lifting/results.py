"""The results of a frame: the values that hold H of all steps, and their readers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import SHAPE_READERS
from rnnlower.graph.walk import is_read, look_through_identities
from rnnlower.lifting.affine_forms import AffineForm, NotLiftableError
from rnnlower.lifting.cell_search import FoundCell, is_hidden_state
from rnnlower.lifting.frames import Frame, Series, is_axis_size, positive_value
from rnnlower.lifting.row_masks import (
    Lengths,
    are_equal_lengths,
    lengths_from_mask,
    match_where,
    zeroing_mask,
)
from rnnlower.lifting.symbolic_evaluation import Evaluator
from rnnlower.recurrent.node import Semantics

_VIEWS_OF_STEPS = ("Identity", "Reshape", "ReverseSequence", "Slice", "Transpose")


@dataclasses.dataclass(frozen=True)
class Result:
    """A value that holds H of all steps.

    Attributes:
        cell: The position of the cell.
        tags: Its axes: ``T`` for time, ``B`` for rows, ``TB`` for both.
        shape: Its shape, with 1 for axes that have a tag.
        reverse: Whether the last time step comes first.
        is_zeroed: Whether it holds zeros instead at the steps that a row does not take.
    """

    value: ir.Value
    cell: int
    tags: tuple[str, ...]
    shape: tuple[int, ...]
    reverse: bool
    is_zeroed: bool = False


Rest = list[tuple[Series, NotLiftableError]]
"""What the steps write and no cell returns, with the reason."""


def find_results(facts: Facts, frame: Frame, found: Sequence[FoundCell]) -> tuple[list[Result], Rest]:
    """Return the values that hold H of all steps, and the rest; operators after the frame may complete H.

    Raises:
        NotLiftableError: A value past the ends of rows is read.
    """
    results: list[Result] = []
    rest: Rest = []
    pending: dict[tuple[int, bool], list[tuple[Series, AffineForm]]] = {}
    for series in frame.outputs:
        if not is_read(series.outer):
            continue
        before = _before_zeroing(facts, series, found)
        try:
            for number, form in _forms_by_cell(before, found):
                if before is series:
                    _require_kept(series, found[number])
                pending.setdefault((number, before is not series), []).append((before, form))
        except NotLiftableError as error:
            rest.append((series, error))
    for (number, is_zeroed), parts in pending.items():
        try:
            traced = _trace_results(facts, number, found[number], parts)
        except NotLiftableError as error:
            rest += [(series, error) for series, _ in parts]
            continue
        results += (dataclasses.replace(result, is_zeroed=is_zeroed) for result in traced)
        for result in traced if found[number].lengths is not None and not is_zeroed else ():
            require_mask(facts, result, found[number])
    return results, rest


def _before_zeroing(facts: Facts, series: Series, found: Sequence[FoundCell]) -> Series:
    """Return the series without the Where that zeroes H of the rows that have ended."""
    node = look_through_identities(series.inner).producer()
    for each in found:
        if node is None or (each.lengths is None and each.taken is None):
            continue
        after = look_through_identities(each.states[0].after)
        is_going = each.taken is None or each.taken.is_going
        for kept in {each.states[0].after, after, each.hidden}.intersection(node.inputs):
            condition = zeroing_mask(facts, node, kept, is_going=is_going)
            if condition is not None and condition is match_where(after)[0]:
                return dataclasses.replace(series, inner=kept)
    return series


def _require_kept(series: Series, found: FoundCell) -> None:
    """Refuse a series of another value than H as the next step reads it, if rows skip steps."""
    value, after = look_through_identities(series.inner), look_through_identities(found.states[0].after)
    if found.taken is not None and value is not after:
        raise NotLiftableError(f"{series.outer.name!r} is read at steps that rows skip")


def _forms_by_cell(series: Series, found: Sequence[FoundCell]) -> Iterator[tuple[int, AffineForm]]:
    """Yield the forms of a series by the first cell that computes it, and by that cell's other direction."""
    value, reasons = look_through_identities(series.inner), []
    wanted = [
        number
        for number, each in enumerate(found)
        if value in (each.hidden, look_through_identities(each.states[0].after))
    ]
    first: FoundCell | None = None
    for number in wanted or range(len(found)):
        each = found[number]
        if first is not None and each.states[0] is not first.states[0]:
            continue
        try:
            yield number, each.hidden_form if wanted else each.evaluator.form(series.inner)
            first = each
        except NotLiftableError as error:
            reasons.append(str(error))
    if first is None:
        raise NotLiftableError(f"{series.outer.name!r} is read, but no cell returns it: {reasons[0]}")


def _trace_results(
    facts: Facts, cell: int, found: FoundCell, parts: Sequence[tuple[Series, AffineForm]]
) -> list[Result]:
    """Follow the readers of outputs until the values are H of all steps; return these."""
    known: dict[ir.Value, AffineForm] = {}
    if len({series.reverse for series, _ in parts}) != 1:
        raise NotLiftableError("the results of the steps are in different orders")
    for series, form in parts:
        axis = series.axis
        tags = (*form.tags[:axis], "T", *form.tags[axis + series.keeps_axis :])
        if not series.keeps_axis:
            form = form.rearrange(lambda array, at=axis: np.expand_dims(array, at), tags)  # type: ignore[misc]
        known[series.outer] = dataclasses.replace(form, tags=tags)
    evaluator = Evaluator(facts, found.evaluator.atoms, known, direction=found.direction, steps=found.steps)
    pending = [series.outer for series, _ in parts]
    seen: set[ir.Value] = set()
    results = []
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        form = evaluator.form(value)
        if is_hidden_state(found, form):
            further = _find_view(evaluator, found, value)
            if further is not None:
                pending.append(further)
                if len(value.uses()) == 1:
                    continue
            tags = tuple("T" if tag == "R" else tag for tag in form.tags)
            results.append(Result(value, cell, tags, form.shape, parts[0][0].reverse != ("R" in form.tags)))
            continue
        if value.is_graph_output():
            raise NotLiftableError(f"{value.name!r} is an output, but no cell returns it")
        for node, _ in value.uses():
            if node.graph is not value.graph and value not in known:
                raise NotLiftableError(f"{value.name!r} is read, but no cell returns it")
            try:
                evaluator.form(node.outputs[0])
            except NotLiftableError as error:
                raise NotLiftableError(f"{value.name!r} is read, but no cell returns it: {error}") from None
            pending += node.outputs
    return results


def _find_view(evaluator: Evaluator, found: FoundCell, value: ir.Value) -> ir.Value | None:
    """Return the output of the only reader of H's content, if it is H in another layout or order."""
    readers = [node for node, _ in value.uses() if node.op_type not in SHAPE_READERS]
    if len(readers) != 1 or value.is_graph_output() or readers[0].op_type not in _VIEWS_OF_STEPS:
        return None
    try:
        form = evaluator.form(readers[0].outputs[0])
    except NotLiftableError:
        return None
    return readers[0].outputs[0] if is_hidden_state(found, form) else None


def require_mask(facts: Facts, result: Result, found: FoundCell) -> None:
    """Refuse readers of H past the end of a row, where the recurrent operators return zeros."""
    value = result.value
    is_turned = result.reverse != found.reverse
    tags = tuple("R" + tag[1:] if is_turned and tag.startswith("T") else tag for tag in result.tags)
    for node, _ in value.uses():
        condition = zeroing_mask(facts, node, value)
        if condition is None:
            break
        lengths = lengths_from_mask(facts, condition, tags, found.steps, found.direction)
        if not are_equal_lengths(facts, lengths, found.lengths):
            break
    else:
        if not value.is_graph_output():
            return
    raise NotLiftableError(f"{value.name!r} is read past the ends of rows")


def require_steps(facts: Facts, found: FoundCell, semantics: Semantics) -> None:
    """Refuse final states of rows without steps, for which onnxruntime's operators return zeros.

    Raises:
        NotLiftableError: A row may have no steps, and its nonzero state is read.
    """
    if semantics == "spec" or (found.lengths is None and found.steps != 0):
        return
    if isinstance(found.lengths, np.ndarray) and found.lengths.all():
        return
    for value in unguarded_states(facts, found):
        raise NotLiftableError(f"{value.name!r} is read for rows that may have no steps")


def unguarded_states(facts: Facts, found: FoundCell, given: Sequence[Series] = ()) -> Iterator[ir.Value]:
    """Yield the final states that readers see for rows without steps, unless they start with zeros.

    Args:
        given: Tensors with one element per step, if all rows have all steps.
    """
    for state in found.states:
        if facts.is_zero(state.start):
            continue
        for node, _ in state.end.uses():
            condition = zeroing_mask(facts, node, state.end)
            if condition is None or not _tests_nonempty(facts, condition, found.lengths, given):
                yield state.end
        if state.end.is_graph_output():
            yield state.end


def _tests_nonempty(
    facts: Facts, condition: ir.Value | None, lengths: Lengths | None, given: Sequence[Series]
) -> bool:
    """Return whether a condition tests that the lengths are larger than 0."""
    if isinstance(lengths, np.ndarray):
        constant = facts.constant(condition)
        return constant is not None and np.array_equal(constant.reshape(-1) != 0, lengths > 0)
    value = positive_value(facts, condition)
    return value is not None and (
        value is lengths or any(is_axis_size(facts, value, each.outer, each.axis) for each in given)
    )
