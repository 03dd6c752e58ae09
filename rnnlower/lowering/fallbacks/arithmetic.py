"""Arithmetic and activations expressed by other operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from rnnlower.lowering.emitter import Emitter

Result = ir.Value | Sequence[ir.Value] | None
"""What a form computes; ``None`` if it does not hold for these inputs."""

Fallback = Callable[..., Result]
"""A function from an `Emitter` and the inputs and attributes of an operator to its outputs."""


def _clip(
    e: Emitter, x: ir.Value, low: ir.Value | None = None, high: ir.Value | None = None, **bounds: float
) -> ir.Value | None:
    """The bounds are attributes below opset 11."""
    if not bounds.keys() <= {"min", "max"}:
        return None
    low, high = (
        e.scalar(bounds[name]) if name in bounds else given for name, given in (("min", low), ("max", high))
    )
    above = x if low is None else e.op("Max", x, low, since=8)
    return above if high is None else e.op("Min", above, high, since=8)


def _elu(e: Emitter, x: ir.Value, *, alpha: float) -> ir.Value:
    negative = e.op("Neg", e.op("Relu", e.op("Neg", x)))
    falling = e.op("Mul", e.op("Sub", e.op("Exp", negative), e.scalar(1.0)), e.scalar(alpha))
    return e.op("Add", e.op("Relu", x), falling)


def _gelu(e: Emitter, x: ir.Value, *, approximate: str = "none") -> ir.Value:
    half = e.op("Mul", x, e.scalar(0.5))
    if approximate == "none":
        inner = e.op("Erf", e.op("Mul", x, e.scalar(math.sqrt(0.5))), since=9)
    else:
        cube = e.op("Mul", e.op("Mul", x, x), x)
        sum_ = e.op("Add", x, e.op("Mul", cube, e.scalar(0.044715)))
        inner = e.op("Tanh", e.op("Mul", sum_, e.scalar(math.sqrt(2 / math.pi))))
    return e.op("Mul", half, e.op("Add", inner, e.scalar(1.0)))


def _gemm(
    e: Emitter,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> ir.Value:
    a, b = (e.transpose_once(x) if turned else x for x, turned in ((a, transA), (b, transB)))
    product = emit_scaled(e, e.op("MatMul", a, b), alpha)
    return product if c is None or not beta else e.op("Add", product, emit_scaled(e, c, beta))


def _matmul(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """Multiply a vector as a matrix of one row or column, which the product loses again."""
    left, right = e.shape(a), e.shape(b)
    if left is None or right is None or 1 not in (len(left), len(right)):
        return None
    a = _with_axis(e, a, 0) if len(left) == 1 else a
    b = _with_axis(e, b, 1) if len(right) == 1 else b
    rank = max(2, len(left), len(right))
    lost = [axis for axis, each in ((rank - 2, left), (rank - 1, right)) if len(each) == 1]
    return e.with_axes("Squeeze", e.ops("MatMul", a, b, outputs=1)[0], lost)


def _with_axis(e: Emitter, vector: ir.Value, axis: int) -> ir.Value:
    known = e.content(vector)
    return (
        e.with_axes("Unsqueeze", vector, [axis]) if known is None else e.constant(np.expand_dims(known, axis))
    )


def _leaky_relu(e: Emitter, x: ir.Value, *, alpha: float) -> ir.Value:
    negative = e.op("Neg", e.op("Relu", e.op("Neg", x)))
    return e.op("Add", e.op("Relu", x), e.op("Mul", negative, e.scalar(alpha)))


def _lp_normalization(e: Emitter, x: ir.Value, *, axis: int = -1, p: int = 2) -> ir.Value | None:
    """Zeros, whose norm is 0, stay zeros."""
    if e.opset < 11:
        # Equal does not take floats yet.
        return None
    norm = e.with_axes(f"ReduceL{p}", x, [axis], since=18, keepdims=1)
    is_zero = e.op("Equal", norm, e.scalar(0.0))
    return e.op("Div", x, e.op("Where", is_zero, e.scalar(1.0), norm))


def _neg(e: Emitter, x: ir.Value) -> ir.Value | None:
    return e.op("Mul", x, e.scalar(-1.0)) if e.dtype.is_signed() else None


def _prelu(e: Emitter, x: ir.Value, slope: ir.Value) -> ir.Value:
    """Return relu(x) - slope * relu(-x), where no difference of infinities arises."""
    return e.op("Sub", e.op("Relu", x), e.op("Mul", slope, e.op("Relu", e.op("Neg", x))))


def _sigmoid(e: Emitter, x: ir.Value) -> ir.Value:
    half = e.scalar(0.5)
    return e.op("Add", e.op("Mul", e.op("Tanh", e.op("Mul", x, half)), half), half)


def _softplus(e: Emitter, x: ir.Value) -> ir.Value:
    magnitude = e.op("Exp", e.op("Neg", e.op("Abs", x)))
    return e.op("Add", e.op("Relu", x), e.op("Log", e.op("Add", magnitude, e.scalar(1.0))))


def _tanh(e: Emitter, x: ir.Value) -> ir.Value:
    two = e.scalar(2.0)
    return e.op("Sub", e.op("Mul", e.op("Sigmoid", e.op("Mul", x, two)), two), e.scalar(1.0))


def emit_scaled(e: Emitter, x: ir.Value, factor: float) -> ir.Value:
    """Return the product with a number, which constants are multiplied by beforehand."""
    if factor == 1:
        return x
    known = e.content(x)
    return e.op("Mul", x, e.scalar(factor)) if known is None else e.constant(known * known.dtype.type(factor))


def gelu(e: Emitter, x: ir.Value, approximate: str = "none") -> ir.Value:
    """Emit a Gelu, or at an opset without it what it consists of."""
    if e.opset < 20:
        return _gelu(e, x, approximate=approximate)
    return e.op("Gelu", x, approximate=approximate)


def _identity(e: Emitter, x: ir.Value) -> ir.Value | None:
    return None if e.dtype == ir.DataType.STRING else e.op("Mul", x, e.scalar(1.0))


def _sub(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """By a product, not by Neg: a compiler for ST's STM32N6 computes 1 + Neg(x) wrong."""
    negative = _neg(e, b)
    return None if negative is None else e.op("Add", negative, a)


def _for_floats_only(form: Fallback) -> Fallback:
    """Return a form that integers do not have."""

    @functools.wraps(form)
    def restricted(e: Emitter, *inputs: ir.Value | None, **attributes: Any) -> Result:
        return form(e, *inputs, **attributes) if e.dtype.is_floating_point() else None

    return restricted


ARITHMETIC: Mapping[str, Sequence[Fallback]] = {
    "Abs": [_for_floats_only(lambda e, x: e.op("Add", e.op("Relu", x), e.op("Relu", e.op("Neg", x))))],
    "Clip": [_clip],
    "Div": [_for_floats_only(lambda e, a, b: e.op("Mul", a, e.op("Reciprocal", b)))],
    "Elu": [_elu],
    # Of booleans, which some runtimes do not compare.
    "Equal": [
        lambda e, a, b: e.op("Not", e.op("Xor", a, b, since=7)) if e.dtype == ir.DataType.BOOL else None
    ],
    "Gelu": [_gelu],
    "Gemm": [_gemm],
    "Greater": [lambda e, a, b: e.op("Less", b, a, since=9)],
    "HardSigmoid": [
        lambda e, x, *, alpha, beta: e.clip(
            e.op("Add", e.op("Mul", x, e.scalar(alpha)), e.scalar(beta)), 0.0, 1.0
        )
    ],
    "Identity": [_identity],
    "LeakyRelu": [_leaky_relu],
    "Less": [lambda e, a, b: e.op("Greater", b, a, since=9)],
    "LpNormalization": [_lp_normalization],
    "MatMul": [_matmul],
    "Neg": [_neg],
    "PRelu": [_prelu],
    "Reciprocal": [lambda e, x: e.op("Div", e.scalar(1.0), x)],
    "Relu": [lambda e, x: e.op("Max", x, e.scalar(0.0), since=8)],
    "Sigmoid": [_sigmoid],
    "Softplus": [_softplus],
    "Softsign": [lambda e, x: e.op("Div", x, e.op("Add", e.op("Abs", x), e.scalar(1.0)))],
    "Sub": [_sub],
    "Sum": [lambda e, *addends: functools.reduce(lambda a, b: e.op("Add", a, b), addends)],
    "Tanh": [_tanh],
}
