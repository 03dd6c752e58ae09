"""The activation functions of the recurrent operators as primitive ops.

A new activation is one row in `ACTIVATIONS` and one row of parameters in `recurrent.py`.
Source: the operators' texts (LSTM, GRU, RNN; all versions list the same functions).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import onnx_ir as ir

from rnnlower.emitter import Emitter
from rnnlower.recurrent import Activation, Semantics

__all__ = ["ACTIVATIONS", "ActivationRow", "emit_activation"]

Emit = Callable[[Emitter, ir.Value, float, float, Semantics], ir.Value]


@dataclasses.dataclass(frozen=True)
class ActivationRow:
    """How one activation is emitted.

    Attributes:
        emit: ``(emitter, x, alpha, beta, semantics) -> value``.
        bounded: Whether its values stay within a few units whatever x is.
        since: The first opset that has all the ops.
    """

    emit: Emit
    bounded: bool = False
    since: int = 6


def emit_activation(e: Emitter, activation: Activation, x: ir.Value, semantics: Semantics) -> ir.Value:
    """``activation(x)``, of the shape of x."""
    alpha = 0.0 if activation.alpha is None else activation.alpha
    beta = 0.0 if activation.beta is None else activation.beta
    return ACTIVATIONS[activation.name].emit(e, x, alpha, beta, semantics)


def _unary(op_type: str) -> Emit:
    def emit(e: Emitter, x: ir.Value, _alpha: float, _beta: float, _semantics: Semantics) -> ir.Value:
        return e.op(op_type, x)

    return emit


def _has_kernel(e: Emitter) -> bool:
    """onnxruntime has float64 kernels for arithmetic, Exp, Log, Tanh, Sigmoid and Relu, not for the rest."""
    return e.dtype != ir.DataType.DOUBLE


def _affine(e: Emitter, x: ir.Value, alpha: float, beta: float, _semantics: Semantics) -> ir.Value:
    return e.op("Add", e.op("Mul", x, e.scalar(alpha)), e.scalar(beta))


def _scaled_tanh(e: Emitter, x: ir.Value, alpha: float, beta: float, _semantics: Semantics) -> ir.Value:
    return e.op("Mul", e.op("Tanh", e.op("Mul", x, e.scalar(beta))), e.scalar(alpha))


def _hard_sigmoid(e: Emitter, x: ir.Value, alpha: float, beta: float, semantics: Semantics) -> ir.Value:
    if _has_kernel(e):
        return e.op("HardSigmoid", x, alpha=alpha, beta=beta)
    return e.clip(_affine(e, x, alpha, beta, semantics), 0.0, 1.0)


def _leaky_relu(e: Emitter, x: ir.Value, alpha: float, _beta: float, _semantics: Semantics) -> ir.Value:
    if _has_kernel(e):
        return e.op("LeakyRelu", x, alpha=alpha)
    negative = e.op("Neg", e.op("Relu", e.op("Neg", x)))
    return e.op("Add", e.op("Relu", x), e.op("Mul", negative, e.scalar(alpha)))


def _elu(e: Emitter, x: ir.Value, alpha: float, _beta: float, _semantics: Semantics) -> ir.Value:
    if _has_kernel(e):
        return e.op("Elu", x, alpha=alpha)
    negative = e.op("Neg", e.op("Relu", e.op("Neg", x)))
    falling = e.op("Mul", e.op("Sub", e.op("Exp", negative), e.scalar(1.0)), e.scalar(alpha))
    return e.op("Add", e.op("Relu", x), falling)


def _softsign(e: Emitter, x: ir.Value, _alpha: float, _beta: float, _semantics: Semantics) -> ir.Value:
    if _has_kernel(e):
        return e.op("Softsign", x)
    return e.op("Div", x, e.op("Add", e.op("Abs", x), e.scalar(1.0)))


def _softplus(e: Emitter, x: ir.Value, _alpha: float, _beta: float, semantics: Semantics) -> ir.Value:
    if semantics == "ort":
        return _overflowing_softplus(e, x)
    if _has_kernel(e):
        return e.op("Softplus", x)
    magnitude = e.op("Exp", e.op("Neg", e.op("Abs", x)))
    return e.op("Add", e.op("Relu", x), e.op("Log", e.op("Add", magnitude, e.scalar(1.0))))


def _overflowing_softplus(e: Emitter, x: ir.Value) -> ir.Value:
    """``log(1 + exp(x))``, infinite where exp overflows in float32, as in onnxruntime's recurrent kernels."""
    if e.dtype == ir.DataType.FLOAT16:
        wide = e.with_dtype(ir.DataType.FLOAT)
        return e.cast(_overflowing_softplus(wide, e.cast(x, ir.DataType.FLOAT)), e.dtype)
    return e.op("Log", e.op("Add", e.op("Exp", x), e.scalar(1.0)))


def _thresholded_relu(e: Emitter, x: ir.Value, alpha: float, _beta: float, semantics: Semantics) -> ir.Value:
    threshold = e.scalar(alpha)
    if semantics == "ort":
        return e.where(e.op("Greater", x, threshold), x, e.scalar(0.0))
    return e.where(e.op("Less", x, threshold), e.scalar(0.0), x)


ACTIVATIONS: Mapping[str, ActivationRow] = {
    "Affine": ActivationRow(_affine),
    "Elu": ActivationRow(_elu),
    "HardSigmoid": ActivationRow(_hard_sigmoid, bounded=True),
    "LeakyRelu": ActivationRow(_leaky_relu),
    "Relu": ActivationRow(_unary("Relu")),
    "ScaledTanh": ActivationRow(_scaled_tanh),
    "Sigmoid": ActivationRow(_unary("Sigmoid"), bounded=True),
    "Softplus": ActivationRow(_softplus),
    "Softsign": ActivationRow(_softsign, bounded=True),
    "Tanh": ActivationRow(_unary("Tanh"), bounded=True),
    "ThresholdedRelu": ActivationRow(_thresholded_relu, since=9),
}
