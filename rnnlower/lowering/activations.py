"""The activation functions of the recurrent operators as primitive ops.

A new activation is one row in `ACTIVATIONS` and one row of parameters in `operators.py`.
Source: the ONNX spec of LSTM, GRU and RNN; all versions list the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from rnnlower.errors import MissingOperatorError
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.masks import condition_type, emit_where
from rnnlower.recurrent.node import Activation, Semantics

Emit = Callable[[Emitter, ir.Value, float, float, Semantics], ir.Value]
"""``(emitter, x, alpha, beta, semantics) -> value``."""


def emit_activation(e: Emitter, activation: Activation, x: ir.Value, semantics: Semantics) -> ir.Value:
    """Emit ``activation(x)``, of the shape of x."""
    alpha = 0.0 if activation.alpha is None else activation.alpha
    beta = 0.0 if activation.beta is None else activation.beta
    try:
        return ACTIVATIONS[activation.name](e, x, alpha, beta, semantics)
    except MissingOperatorError as error:
        raise error.needed_by("attribute activations") from None


def _unary(op_type: str) -> Emit:
    return lambda e, x, *_: e.op(op_type, x)


def _emit_softplus(e: Emitter, x: ir.Value, alpha: float, beta: float, semantics: Semantics) -> ir.Value:
    """Emit a Softplus; in onnxruntime's kernels it is infinite where exp overflows in float32."""
    if semantics == "spec":
        return e.op("Softplus", x)
    if e.dtype == ir.DataType.FLOAT16:
        wide = e.with_dtype(ir.DataType.FLOAT)
        return e.cast(_emit_softplus(wide, e.cast(x, ir.DataType.FLOAT), alpha, beta, semantics), e.dtype)
    return e.op("Log", e.op("Add", e.op("Exp", x), e.scalar(1.0)))


def _emit_thresholded_relu(
    e: Emitter, x: ir.Value, alpha: float, _beta: float, semantics: Semantics
) -> ir.Value:
    if alpha == 0 and condition_type(e) != ir.DataType.BOOL:
        return e.op("Relu", x)
    threshold = e.scalar(alpha)
    if semantics == "ort":
        return emit_where(e, e.op("Greater", x, threshold), x, e.scalar(0.0))
    return emit_where(e, e.op("Less", x, threshold), e.scalar(0.0), x)


ACTIVATIONS: Mapping[str, Emit] = {
    "Affine": lambda e, x, alpha, beta, _: e.op("Add", e.op("Mul", x, e.scalar(alpha)), e.scalar(beta)),
    "Elu": lambda e, x, alpha, *_: e.op("Elu", x, alpha=alpha),
    "HardSigmoid": lambda e, x, alpha, beta, _: e.op("HardSigmoid", x, alpha=alpha, beta=beta),
    "LeakyRelu": lambda e, x, alpha, *_: e.op("LeakyRelu", x, alpha=alpha),
    "Relu": _unary("Relu"),
    "ScaledTanh": lambda e, x, alpha, beta, _: e.op(
        "Mul", e.op("Tanh", e.op("Mul", x, e.scalar(beta))), e.scalar(alpha)
    ),
    "Sigmoid": _unary("Sigmoid"),
    "Softplus": _emit_softplus,
    "Softsign": _unary("Softsign"),
    "Tanh": _unary("Tanh"),
    "ThresholdedRelu": _emit_thresholded_relu,
}
"""The emission of each function."""

BOUNDED = ("HardSigmoid", "Sigmoid", "Softsign", "Tanh")
"""The functions whose values stay within a few units for every x."""
