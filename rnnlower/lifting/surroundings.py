"""The surroundings of a frame: where the steps' results are read, and how long the rows are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.lifting.analysis import Found, is_hidden
from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.evaluation import Evaluator
from rnnlower.lifting.forms import Form
from rnnlower.lifting.frames import Frame, Series, root

_VIEWS = ("Identity", "Reshape", "Slice")


@dataclasses.dataclass(frozen=True)
class Result:
    """A value that holds H of all steps.

    Attributes:
        value: The value.
        cell: The position of the cell.
        tags: Its axes: ``T`` for time, ``B`` for rows, ``TB`` for both.
        shape: Its shape, with 1 for axes that have a tag.
        reverse: Whether the last time step comes first.
    """

    value: ir.Value
    cell: int
    tags: tuple[str, ...]
    shape: tuple[int, ...]
    reverse: bool


def find_results(facts: Facts, frame: Frame, found: Sequence[Found]) -> list[Result]:
    """Return the values that hold H of all steps, some of which are finished behind the frame.

    Raises:
        NotLiftableError: Something else that the steps compute is read.
    """
    results: list[Result] = []
    pending: dict[int, list[tuple[Series, Form]]] = {}
    for series in frame.made:
        if not _is_read(series.outer):
            continue
        value = root(series.inner)
        number = next(
            (n for n, each in enumerate(found) if value in (each.hidden, root(each.states[0].after))), None
        )
        if number is not None:
            pending.setdefault(number, []).append((series, found[number].hidden_form))
            continue
        number, form = _form_of(series, found)
        pending.setdefault(number, []).append((series, form))
    for number, parts in pending.items():
        results += _finished(facts, number, found[number], parts)
    for result in results:
        if found[result.cell].mask is not None:
            _require_mask(facts, result.value, found[result.cell])
    return results


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _form_of(series: Series, found: Sequence[Found]) -> tuple[int, Form]:
    reasons = []
    for number, each in enumerate(found):
        try:
            return number, each.evaluator.form(series.inner)
        except NotLiftableError as error:
            reasons.append(str(error))
    raise NotLiftableError(f"{series.outer.name!r} is read, which no cell returns: {reasons[0]}")


def _finished(facts: Facts, cell: int, found: Found, parts: Sequence[tuple[Series, Form]]) -> list[Result]:
    """Return the values that are H once operators behind the frame have finished it for all steps."""
    known: dict[ir.Value, Form] = {}
    if len({series.reverse for series, _ in parts}) != 1:
        raise NotLiftableError("the results of the steps are in different orders")
    for series, form in parts:
        axis = series.axis
        tags = (*form.tags[:axis], "T", *form.tags[axis:])
        known[series.outer] = form.moved(lambda array, at=axis: np.expand_dims(array, at), tags)  # type: ignore[misc]
    evaluator = Evaluator(facts, found.evaluator.atoms, known)
    pending = [series.outer for series, _ in parts]
    seen: set[ir.Value] = set()
    results = []
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        form = evaluator.form(value)
        if is_hidden(found, form):
            further = _view_of(evaluator, found, value)
            if further is not None:
                pending.append(further)
                continue
            tags = tuple("T" if tag == "R" else tag for tag in form.tags)
            results.append(Result(value, cell, tags, form.shape, parts[0][0].reverse != ("R" in form.tags)))
            continue
        if value.is_graph_output():
            raise NotLiftableError(f"{value.name!r} is an output, which no cell returns")
        for node, _ in value.uses():
            if node.graph is not value.graph and value not in known:
                raise NotLiftableError(f"{value.name!r} is read, which no cell returns")
            try:
                evaluator.form(node.outputs[0])
            except NotLiftableError as error:
                raise NotLiftableError(f"{value.name!r} is read, which no cell returns: {error}") from None
            pending += node.outputs
    return results


def _view_of(evaluator: Evaluator, found: Found, value: ir.Value) -> ir.Value | None:
    """Return what the only reader of H makes of it, if that is H in another layout or order."""
    readers = [node for node, _ in value.uses()]
    if len(readers) != 1 or value.is_graph_output() or readers[0].op_type not in _VIEWS:
        return None
    try:
        form = evaluator.form(readers[0].outputs[0])
    except NotLiftableError:
        return None
    return readers[0].outputs[0] if is_hidden(found, form) else None


def _require_mask(facts: Facts, value: ir.Value, found: Found) -> None:
    """Refuse readers of H that see it behind the end of a row, where an operator returns zeros."""
    assert found.mask is not None
    for node, _ in value.uses():
        rest = facts.constant(node.inputs[2]) if node.op_type == "Where" else None
        is_chosen = node.inputs[1] is value and _is_equal(facts, node.inputs[0], found.mask.outer)
        if rest is None or rest.any() or not is_chosen:
            raise NotLiftableError(f"{value.name!r} is read behind the ends of rows")
    if value.is_graph_output():
        raise NotLiftableError(f"{value.name!r} is read behind the ends of rows")


def _is_equal(facts: Facts, first: ir.Value | None, second: ir.Value) -> bool:
    one, other = facts.constant(first), facts.constant(second)
    return first is second or (one is not None and other is not None and np.array_equal(one, other))


def lengths_of(facts: Facts, mask: Series) -> ir.Value | np.ndarray:
    """Return the lengths of the rows from the series that says which rows have not ended.

    Raises:
        NotLiftableError: The series may be something else.
    """
    constant = facts.constant(mask.outer)
    if constant is not None:
        steps = np.moveaxis(constant.astype(bool), mask.axis, 0).reshape(constant.shape[mask.axis], -1)
        lengths: np.ndarray = steps.sum(axis=0)
        if (steps == (np.arange(len(steps))[:, np.newaxis] < lengths)).all():
            return lengths.astype(np.int32)
    value: ir.Value | None = mask.outer
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type == "Less":
            numbers, given = producer.inputs
            type_, shape = facts.type(given), facts.shape(given)
            if type_ is None or type_.dtype != ir.DataType.INT32 or shape is None or len(shape) != 1:
                break
            if given is not None and _counts(facts, numbers) and mask.axis == 0:
                return given
            break
        if producer.op_type not in ("Identity", "Unsqueeze"):
            break
        value = producer.inputs[0]
    raise NotLiftableError("the rows that keep their state are not those that have ended")


def _counts(facts: Facts, value: ir.Value | None) -> bool:
    """Return whether a value is 0, 1, 2, ... along its first axis."""
    constant = facts.constant(value)
    if constant is not None:
        return (
            constant.ndim == 2
            and constant.shape[1] == 1
            and (constant[:, 0] == np.arange(len(constant))).all()
        )
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type == "Range":
            start, step = facts.constant(producer.inputs[0]), facts.constant(producer.inputs[2])
            return start is not None and step is not None and not start.any() and bool((step == 1).all())
        if producer.op_type not in ("Cast", "Identity", "Unsqueeze"):
            return False
        value = producer.inputs[0]
    return False
