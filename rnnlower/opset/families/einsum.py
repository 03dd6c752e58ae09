"""Einsum, which is new in 12, as a MatMul if it is one, and else as a product and a sum."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.opset.step import Row, Step


def einsum_down(step: Step) -> None:
    """Two operands with one common index that is summed become a MatMul; anything else Mul and ReduceSum."""
    operands = [value for value in step.node.inputs if value is not None]
    terms, result = _terms(step, str(step.attr("equation")), len(operands))
    step.opset = 11
    others = [set(result).union(*terms[:k], *terms[k + 1 :]) for k in range(len(terms))]
    pairs = [
        _sum(step, value, term, set(term) - other)
        for value, term, other in zip(operands, terms, others, strict=True)
    ]
    if len(pairs) == 2 and (found := _matmul(step, pairs, result)) is not None:
        value, labels = found
    else:
        value, labels = _product(step, pairs, result)
    step.replace(_ordered(step, value, labels, result))


def _terms(step: Step, equation: str, count: int) -> tuple[list[str], str]:
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    letters = "".join(terms)
    if not arrow:
        result = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
    if (
        "." in equation
        or any(len(set(term)) != len(term) for term in (*terms, result))
        or len(terms) != count
    ):
        step.refuse(f"equation {equation!r}: an ellipsis, or an index twice in one operand, is not supported")
    return terms, result


def _sum(step: Step, value: ir.Value, term: str, lonely: set[str]) -> tuple[ir.Value, str]:
    """Sum over the indices that only this operand has."""
    if not lonely:
        return value, term
    axes = [axis for axis, label in enumerate(term) if label in lonely]
    left = "".join(label for label in term if label not in lonely)
    return step.emit("ReduceSum", value, axes=axes, keepdims=0), left


def _matmul(step: Step, pairs: list[tuple[ir.Value, str]], result: str) -> tuple[ir.Value, str] | None:
    (a, first), (b, second) = pairs
    batch = "".join(label for label in result if label in first and label in second)
    summed = "".join(label for label in first if label in second and label not in result)
    rows = "".join(label for label in first if label not in second)
    columns = "".join(label for label in second if label not in first)
    if len(summed) != 1 or len(rows) > 1 or len(columns) > 1:
        return None
    a = _ordered(step, a, first, batch + rows + summed)
    b = _ordered(step, b, second, batch + summed + columns)
    here = len(batch)
    if not rows:
        a = step.unsqueeze(a, [here])
    if not columns:
        b = step.unsqueeze(b, [here + 1])
    product = step.emit("MatMul", a, b)
    dropped = [axis for axis, label in ((here, rows), (here + 1, columns)) if not label]
    return (step.squeeze(product, dropped) if dropped else product), batch + rows + columns


def _product(step: Step, pairs: list[tuple[ir.Value, str]], result: str) -> tuple[ir.Value, str]:
    summed = sorted({label for _, term in pairs for label in term} - set(result))
    labels = result + "".join(summed)
    aligned = []
    for value, term in pairs:
        ordered = _ordered(step, value, term, "".join(label for label in labels if label in term))
        missing = [axis for axis, label in enumerate(labels) if label not in term]
        aligned.append(step.unsqueeze(ordered, missing) if missing else ordered)
    total = aligned[0]
    for value in aligned[1:]:
        total = step.emit("Mul", total, value)
    if summed:
        total = step.emit("ReduceSum", total, axes=list(range(len(result), len(labels))), keepdims=0)
    return total, result


def _ordered(step: Step, value: ir.Value, labels: str, wanted: str) -> ir.Value:
    if labels == wanted:
        return value
    return step.emit("Transpose", value, perm=[labels.index(label) for label in wanted])


ROWS = (Row("Einsum", 0, 12, "new in 12; MatMul, or Mul and ReduceSum, do the same", down=einsum_down),)
