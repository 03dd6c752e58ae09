"""Einsum: parsing of its equation, and the operators that replace it."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any, Protocol

import onnx_ir as ir

_ELLIPSIS = "..."

_Pair = tuple[ir.Value, str]
"""A value, and the index of each of its axes."""


class EinsumWriter(Protocol):
    """A writer of the operators that replace an Einsum."""

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value: ...

    def with_axes(
        self, op_type: str, value: ir.Value, axes: Sequence[int], since: int = 13, **attributes: Any
    ) -> ir.Value: ...


def einsum_terms(equation: str, ranks: Sequence[int | None] = ()) -> tuple[list[str], str]:
    """Return the indices of each operand and of the result, with a letter for each axis of an ellipsis.

    No operands if the ranks do not give an ellipsis one number of axes, or if the result lacks it.
    """
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        once = sorted(each for each in {*left} - {*",."} if left.count(each) == 1)
        result = _ELLIPSIS * (_ELLIPSIS in left) + "".join(once)
    if "." not in equation:
        return terms, result
    counts = {
        None if rank is None else rank - len(term) + len(_ELLIPSIS)
        for term, rank in zip(terms, ranks, strict=False)
        if _ELLIPSIS in term
    }
    count = counts.pop() if len(counts) == 1 else None
    if count is None or _ELLIPSIS not in result:
        return [], ""
    spelled = "".join(letter for letter in string.ascii_letters if letter not in equation)[:count]
    return [term.replace(_ELLIPSIS, spelled) for term in terms], result.replace(_ELLIPSIS, spelled)


def product_terms(node: ir.Node, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the indices of each operand and of the result of an Einsum, or of a product of matrices."""
    if node.op_type == "Einsum":
        return einsum_terms(node.attributes.get_string("equation", ""), ranks)
    # A vector is a row on the left, and a column on the right.
    rows, columns = ("" if rank == 1 else letter for rank, letter in zip(ranks, "RC", strict=True))
    batch = string.ascii_lowercase[: max(2, *ranks) - 2]
    terms = []
    for rank, term, name in zip(ranks, (f"{rows}S", f"S{columns}"), ("transA", "transB"), strict=True):
        own = batch[len(batch) - max(rank - 2, 0) :]
        terms.append(own + (term[::-1] if node.attributes.get_int(name, 0) else term))
    return terms, batch + rows + columns


def write_einsum(
    writer: EinsumWriter, equation: str, operands: Sequence[ir.Value], ranks: Sequence[int | None]
) -> ir.Value | None:
    """Emit ops that compute an Einsum: MatMul for two operands with one common index that is summed.

    ``None`` for an equation with an ellipsis of unknown rank, or with an index twice in one operand.
    """
    terms, result = einsum_terms(equation, ranks)
    if any(len(set(term)) != len(term) for term in (*terms, result)) or len(terms) != len(operands):
        return None
    others = [set(result).union(*terms[:k], *terms[k + 1 :]) for k in range(len(terms))]
    pairs = [
        _sum_unshared(writer, value, term, set(term) - other)
        for value, term, other in zip(operands, terms, others, strict=True)
    ]
    found = _emit_matmul(writer, pairs, result) if len(pairs) == 2 else None
    value, labels = found or _emit_product(writer, pairs, result)
    return _transpose_to(writer, value, labels, result)


def _sum_unshared(writer: EinsumWriter, value: ir.Value, term: str, lonely: set[str]) -> _Pair:
    """Sum over the indices that only this operand has."""
    if not lonely:
        return value, term
    axes = [axis for axis, label in enumerate(term) if label in lonely]
    left = "".join(label for label in term if label not in lonely)
    return writer.with_axes("ReduceSum", value, axes, keepdims=0), left


def _emit_matmul(writer: EinsumWriter, pairs: list[_Pair], result: str) -> _Pair | None:
    (a, first), (b, second) = pairs
    batch = "".join(label for label in result if label in first and label in second)
    summed = "".join(label for label in first if label in second and label not in result)
    rows = "".join(label for label in first if label not in second)
    columns = "".join(label for label in second if label not in first)
    if len(summed) != 1 or len(rows) > 1 or len(columns) > 1:
        return None
    a = _transpose_to(writer, a, first, batch + rows + summed)
    b = _transpose_to(writer, b, second, batch + summed + columns)
    here = len(batch)
    if not rows:
        a = writer.with_axes("Unsqueeze", a, [here])
    if not columns:
        b = writer.with_axes("Unsqueeze", b, [here + 1])
    product = writer.op("MatMul", a, b)
    dropped = [axis for axis, label in ((here, rows), (here + 1, columns)) if not label]
    product = writer.with_axes("Squeeze", product, dropped) if dropped else product
    return product, batch + rows + columns


def _emit_product(writer: EinsumWriter, pairs: list[_Pair], result: str) -> _Pair:
    summed = sorted({label for _, term in pairs for label in term} - set(result))
    labels = result + "".join(summed)
    aligned = []
    for value, term in pairs:
        ordered = _transpose_to(writer, value, term, "".join(label for label in labels if label in term))
        missing = [axis for axis, label in enumerate(labels) if label not in term]
        aligned.append(writer.with_axes("Unsqueeze", ordered, missing) if missing else ordered)
    total = aligned[0]
    for value in aligned[1:]:
        total = writer.op("Mul", total, value)
    if summed:
        axes = [*range(len(result), len(labels))]
        total = writer.with_axes("ReduceSum", total, axes, keepdims=0)
    return total, result


def _transpose_to(writer: EinsumWriter, value: ir.Value, labels: str, wanted: str) -> ir.Value:
    if labels == wanted:
        return value
    return writer.op("Transpose", value, perm=[labels.index(label) for label in wanted])
