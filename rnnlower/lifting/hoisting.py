"""Products of the input with its weights that were hoisted out of the steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Dim
from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import VIEWS
from rnnlower.graph.walk import producer_of
from rnnlower.lifting.affine_forms import Atoms, Floats, NotLiftableError
from rnnlower.lifting.frames import LAYOUT, Series
from rnnlower.lifting.symbolic_evaluation import Evaluator

_SUMS = frozenset(("Add", "Concat", "Sub", "Sum"))
_MAX_GATES = 4


@dataclasses.dataclass(frozen=True)
class InputPart:
    """A part of a cell's input, with its weights.

    Attributes:
        value: The tensor with one element per step, or the index of another cell, if it is its H.
        axis: The axis of time.
        tags: The axes of an element: ``B`` for rows, ``D`` for the directions.
        W: The weights, ``[gates * hidden_size, features]``.
        bias: The summand of the bias.
        reverse: Whether the last time step comes first.
        direction: The index on the axis of directions.
        window: The start and end of the steps that are read, unless all are read.
    """

    value: ir.Value | int
    axis: int
    tags: tuple[str, ...]
    W: Floats
    bias: Floats
    reverse: bool
    direction: int | None = None
    window: tuple[int, int] | None = None


def make_input_part(
    facts: Facts, series: Series, tags: tuple[str, ...], W: Floats, direction: int | None
) -> InputPart:
    """Make a part of X from a series; a hoisted product becomes part of the weights."""
    product = _unhoist(facts, series, tags, W, direction) if _is_selection(W) else None
    if product is not None:
        return product
    outer, reverse = (series.outer, series.reverse) if series.window else _skip_reversals(facts, series)
    return InputPart(outer, series.axis, tags, W, np.zeros(len(W)), reverse, direction, series.window)


def _skip_reversals(facts: Facts, series: Series) -> tuple[ir.Value, bool]:
    """Return the series before operators that reverse time, and whether the last step comes first."""
    value, reverse = series.outer, series.reverse
    while (producer := producer_of(value, "ReverseSequence", "Slice")) is not None:
        (whole, *_), dims = producer.inputs, facts.dims(value)
        if whole is None or dims is None or facts.dims(whole) != dims:
            break
        atoms, tags = Atoms(), ["B"] * len(dims)
        tags[series.axis] = "T"
        try:
            form = Evaluator(facts, atoms, {whole: atoms.variables([1] * len(dims), tags)}).form(value)
        except NotLiftableError:
            break
        value, reverse = whole, reverse != ("R" in form.tags)
    return value, reverse


def _is_selection(weights: Floats) -> bool:
    """Return whether each unit of a gate reads at most one input, as after a hoisted product."""
    used = weights != 0
    return bool((used.sum(axis=0) <= _MAX_GATES).all() and (used.sum(axis=1) <= 1).all())


def _unhoist(
    facts: Facts, series: Series, tags: tuple[str, ...], W: Floats, direction: int | None
) -> InputPart | None:
    """Return the operand of a hoisted product, with the combined weights; ``None`` if there is none."""
    dims = facts.dims(series.outer)
    base = _find_operand(facts, series.outer)
    if dims is None or base is None:
        return None
    others = (*dims[: series.axis], *dims[series.axis + 1 :])
    rows = [dim for dim, tag in zip(others, tags, strict=True) if tag == "B"]
    found = _view_with_time(facts, base, (dims[series.axis], *rows))
    if found is None:
        return None
    base, base_tags = found
    size = (facts.dims(base) or ())[-1]
    if not isinstance(size, int):
        return None
    atoms = Atoms()
    given = atoms.variables([*(1 for _ in base_tags), size], (*base_tags, ""))
    try:
        form = Evaluator(facts, atoms, {base: given}, direction=direction).form(series.outer)
    except NotLiftableError:
        return None
    if "D" in tags:
        axis = tags.index("D") + (series.axis <= tags.index("D"))
        form = form.take(axis, slice(direction, (direction or 0) + 1))
        tags = tuple("" if tag == "D" else tag for tag in tags)
    if form.tags not in [(*tags[: series.axis], time, *tags[series.axis :]) for time in "TR"]:
        return None
    if series.window is not None and "R" in form.tags:
        return None
    vector = form.flatten().simplify()
    matrix = np.zeros((size, vector.constant.size))
    first = int(given.ids.flat[0])
    for row, coefs in zip(np.broadcast_to(vector.ids, vector.coefs.shape), vector.coefs, strict=True):
        np.add.at(matrix, (row[coefs != 0] - first, np.flatnonzero(coefs)), coefs[coefs != 0])
    reverse = series.reverse != ("R" in form.tags)
    return InputPart(
        base, 0, (*base_tags[1:], ""), W @ matrix.T, W @ vector.constant, reverse, window=series.window
    )


def _find_operand(facts: Facts, value: ir.Value) -> ir.Value | None:
    """Return the value whose products with constant weights make up a value."""
    pending, bases = [value], set()
    while pending:
        producer = pending.pop().producer()
        if producer is None or producer.domain:
            return None
        if producer.op_type in ("Gemm", "MatMul") and facts.constant(producer.inputs[1]) is not None:
            bases.add(producer.inputs[0])
        elif producer.op_type in LAYOUT | _SUMS | {"Gather", "ReverseSequence", "Split"}:
            data = producer.inputs if producer.op_type in _SUMS else producer.inputs[:1]
            pending += [each for each in data if each is not None and facts.constant(each) is None]
        else:
            return None
    return bases.pop() if len(bases) == 1 else None


def _view_with_time(
    facts: Facts, base: ir.Value, sizes: tuple[Dim, ...]
) -> tuple[ir.Value, tuple[str, ...]] | None:
    """Return a view of a product's operand that has axes of time and rows, and these axes."""
    wanted = {sizes: ("T", "B")[: len(sizes)]}
    if len(sizes) == 1:
        # The batch has one row.
        wanted |= {(*sizes, 1): ("T", "")}
    found = None
    features = (facts.dims(base) or (None,))[-1]
    value: ir.Value | None = base
    while value is not None and (dims := facts.dims(value)) is not None and dims and dims[-1] == features:
        if dims[:-1] in wanted:
            found = value, wanted[dims[:-1]]
        producer = producer_of(value, *VIEWS)
        value = None if producer is None else producer.inputs[0]
    return found
