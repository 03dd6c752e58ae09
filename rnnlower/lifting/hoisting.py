"""Products of the input with its weights that are computed before the steps, for all of them at once."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.evaluation import Dim, Evaluator
from rnnlower.lifting.forms import Atoms, Floats, Form
from rnnlower.lifting.frames import Series

_LAYOUT = frozenset(
    (
        "Add",
        "Concat",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Sub",
        "Sum",
        "Transpose",
        "Unsqueeze",
    )
)


@dataclasses.dataclass(frozen=True)
class Hoisted:
    """A series that is a product of another one.

    Attributes:
        base: The other series, with the axes T, B and the features, or without B.
        has_rows: Whether it has the axis B.
        matrix: The weights, ``[features, size of the series' elements]``.
        bias: The bias.
    """

    base: ir.Value
    has_rows: bool
    matrix: Floats
    bias: Floats


def is_selection(weights: Floats) -> bool:
    """Return whether each input of W goes to at most one gate as it is: the product may come before."""
    used = weights != 0
    return bool((used.sum(axis=0) <= 1).all() and (used.sum(axis=1) <= 1).all())


def hoisted(facts: Facts, series: Series, tags: tuple[str, ...]) -> Hoisted | None:
    """Return the product that a series is, or ``None`` if it is none."""
    dims = facts.dims(series.outer)
    base = _base(facts, series.outer)
    if dims is None or base is None:
        return None
    sizes = (
        dims[series.axis],
        *(dim for dim, tag in zip(_without(dims, series.axis), tags, strict=True) if tag),
    )
    base, base_tags = _as_series(facts, base, sizes)
    shape = facts.dims(base)
    if base_tags is None or shape is None or not isinstance(shape[-1], int):
        return None
    size = shape[-1]
    atoms = Atoms()
    given = atoms.given(base, [1] * (len(base_tags) - 1) + [size], base_tags)
    try:
        form = Evaluator(facts, atoms, {base: given}).form(series.outer)
    except NotLiftableError:
        return None
    wanted = (*tags[: series.axis], "T", *tags[series.axis :])
    if form.tags != wanted:
        return None
    return _taken_apart(form, base, len(base_tags) == 3, size)


def _without(dims: tuple[Dim, ...], axis: int) -> tuple[Dim, ...]:
    return (*dims[:axis], *dims[axis + 1 :])


def _base(facts: Facts, value: ir.Value) -> ir.Value | None:
    """Return what is multiplied with constant weights to give a value."""
    pending, bases = [value], set()
    while pending:
        producer = pending.pop().producer()
        if producer is None or producer.domain:
            return None
        if producer.op_type in ("Gemm", "MatMul") and facts.constant(producer.inputs[1]) is not None:
            bases.add(producer.inputs[0])
        elif producer.op_type in _LAYOUT:
            data = (
                producer.inputs[:1]
                if producer.op_type not in ("Add", "Concat", "Sub", "Sum")
                else producer.inputs
            )
            pending += [each for each in data if each is not None and facts.constant(each) is None]
        else:
            return None
    return bases.pop() if len(bases) == 1 else None


def _as_series(
    facts: Facts, base: ir.Value, sizes: tuple[Dim, ...]
) -> tuple[ir.Value, tuple[str, ...] | None]:
    """Return a value of a product's operand with its axes of time and rows, and these axes."""
    names = ("T", "B")[: len(sizes)]
    value = base
    while True:
        dims = facts.dims(value)
        if dims is not None and dims[:-1] == sizes:
            return value, (*names, "")
        producer = value.producer()
        if (
            producer is None
            or producer.op_type not in ("Reshape", "Squeeze", "Identity")
            or producer.inputs[0] is None
        ):
            break
        if (
            facts.shape(producer.inputs[0]) is None
            or (facts.shape(producer.inputs[0]) or (None,))[-1] != (facts.shape(base) or (None,))[-1]
        ):
            break
        value = producer.inputs[0]
    return base, None


def _taken_apart(form: Form, base: ir.Value, has_rows: bool, size: int) -> Hoisted | None:
    vector = form.flat().merged()
    matrix = np.zeros((size, vector.constant.size))
    for row, coefs in zip(np.broadcast_to(vector.ids, vector.coefs.shape), vector.coefs, strict=True):
        np.add.at(matrix, (row[coefs != 0], np.flatnonzero(coefs)), coefs[coefs != 0])
    return Hoisted(base, has_rows, matrix, vector.constant)
