"""Sizes that are known as an expression, at many lengths at once."""

from __future__ import annotations

import ast
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array


class _Fractions(NamedTuple):
    """Integers over a common denominator, which is positive."""

    numerators: Array
    denominator: int

    def over(self, denominator: int) -> Array:
        """Return the numerators over a multiple of the denominator."""
        return self.numerators * (denominator // self.denominator)

    def floor(self) -> Array:
        """Return the largest integers that are not above."""
        return self.numerators // self.denominator


class _NotEvaluatedError(Exception):
    """An expression has a part that is not evaluated."""


def size_table(size: ir.SymbolicDim, symbol: str, most: int) -> list[int] | None:
    """Return a size at each length from 0 to the most, or ``None`` if it does not follow from it alone.

    `onnx_ir.SymbolicDim.evaluate` takes milliseconds for each length, of which a waveform has many.
    """
    if size.free_symbols() != {symbol} or size.value is None:
        return None
    try:
        found = _evaluate(ast.parse(str(size.value), mode="eval").body, symbol, np.arange(most + 1))
    except _NotEvaluatedError:
        return None
    is_whole = found.denominator == 1 or not (found.numerators % found.denominator).any()
    return np.broadcast_to(found.floor(), most + 1).tolist() if is_whole else None


def _evaluate(part: ast.expr, symbol: str, lengths: Array) -> _Fractions:
    match part:
        case ast.Constant(value=int(number)):
            return _Fractions(np.array(number), 1)
        case ast.Name(id=name) if name == symbol:
            return _Fractions(lengths, 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _evaluate(operand, symbol, lengths)
            return _Fractions(-value.numerators, value.denominator)
        case ast.BinOp(left=left, op=operator, right=right):
            return _combine(operator, *(_evaluate(each, symbol, lengths) for each in (left, right)))
        case ast.Call(func=ast.Name(id=name), args=operands):
            return _call(name, [_evaluate(each, symbol, lengths) for each in operands])
    raise _NotEvaluatedError


def _combine(operator: ast.operator, one: _Fractions, other: _Fractions) -> _Fractions:
    both = int(np.lcm(one.denominator, other.denominator))
    match operator:
        case ast.Add():
            return _Fractions(one.over(both) + other.over(both), both)
        case ast.Sub():
            return _Fractions(one.over(both) - other.over(both), both)
        case ast.Mult():
            return _Fractions(one.numerators * other.numerators, one.denominator * other.denominator)
        case ast.Div() if other.numerators.ndim == 0 and other.numerators > 0:
            return _Fractions(one.numerators * other.denominator, one.denominator * int(other.numerators))
    raise _NotEvaluatedError


def _call(name: str, operands: list[_Fractions]) -> _Fractions:
    match name, operands:
        case "floor", [value]:
            return _Fractions(value.floor(), 1)
        case "Mod", [value, divisor] if value.denominator == divisor.denominator == 1:
            return _Fractions(value.numerators % divisor.numerators, 1)
        case (("Max" | "Min"), [first, *others]):
            both = int(np.lcm.reduce([each.denominator for each in operands]))
            choose = np.maximum if name == "Max" else np.minimum
            found = first.over(both)
            for each in others:
                found = choose(found, each.over(both))
            return _Fractions(found, both)
    raise _NotEvaluatedError
