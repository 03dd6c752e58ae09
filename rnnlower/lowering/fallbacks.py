"""Operators expressed by other operators, for runtimes that lack them.

A row computes the operator's value with other operators, which may have fallbacks of their own. The functions
take the inputs and attributes of the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.lowering.emitter import Emitter

__all__ = ["FALLBACKS"]


def _abs(e: Emitter, x: ir.Value) -> ir.Value:
    return e.op("Add", e.op("Relu", x), e.op("Relu", e.op("Neg", x)))


def _div(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    return e.op("Mul", a, e.op("Reciprocal", b))


def _elu(e: Emitter, x: ir.Value, *, alpha: float) -> ir.Value:
    negative = e.op("Neg", e.op("Relu", e.op("Neg", x)))
    falling = e.op("Mul", e.op("Sub", e.op("Exp", negative), e.scalar(1.0)), e.scalar(alpha))
    return e.op("Add", e.op("Relu", x), falling)


def _hard_sigmoid(e: Emitter, x: ir.Value, *, alpha: float, beta: float) -> ir.Value:
    return e.clip(e.op("Add", e.op("Mul", x, e.scalar(alpha)), e.scalar(beta)), 0.0, 1.0)


def _identity(e: Emitter, x: ir.Value) -> ir.Value:
    return e.op("Mul", x, e.scalar(1.0))


def _leaky_relu(e: Emitter, x: ir.Value, *, alpha: float) -> ir.Value:
    negative = e.op("Neg", e.op("Relu", e.op("Neg", x)))
    return e.op("Add", e.op("Relu", x), e.op("Mul", negative, e.scalar(alpha)))


def _less(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    return e.ops("Greater", b, a, outputs=1, since=9)[0]


def _greater(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    return e.ops("Less", b, a, outputs=1, since=9)[0]


def _neg(e: Emitter, x: ir.Value) -> ir.Value:
    return e.op("Mul", x, e.scalar(-1.0))


def _relu(e: Emitter, x: ir.Value) -> ir.Value:
    return e.op("Max", x, e.scalar(0.0), since=8)


def _sigmoid(e: Emitter, x: ir.Value) -> ir.Value:
    half = e.scalar(0.5)
    return e.op("Add", e.op("Mul", e.op("Tanh", e.op("Mul", x, half)), half), half)


def _softplus(e: Emitter, x: ir.Value) -> ir.Value:
    magnitude = e.op("Exp", e.op("Neg", e.op("Abs", x)))
    return e.op("Add", e.op("Relu", x), e.op("Log", e.op("Add", magnitude, e.scalar(1.0))))


def _softsign(e: Emitter, x: ir.Value) -> ir.Value:
    return e.op("Div", x, e.op("Add", e.op("Abs", x), e.scalar(1.0)))


def _tanh(e: Emitter, x: ir.Value) -> ir.Value:
    if not e.has("Sigmoid"):
        # Each is the other's fallback: if both are missing, the error names Tanh.
        return e.ops("Tanh", x, outputs=1)[0]
    two = e.scalar(2.0)
    return e.op("Sub", e.op("Mul", e.op("Sigmoid", e.op("Mul", x, two)), two), e.scalar(1.0))


FALLBACKS: Mapping[str, Callable[..., ir.Value]] = {
    "Abs": _abs,
    "Div": _div,
    "Elu": _elu,
    "Greater": _greater,
    "HardSigmoid": _hard_sigmoid,
    "Identity": _identity,
    "LeakyRelu": _leaky_relu,
    "Less": _less,
    "Neg": _neg,
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Tanh": _tanh,
}
