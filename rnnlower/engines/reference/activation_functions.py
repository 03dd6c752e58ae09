"""The activation functions of LSTM, GRU and RNN on NumPy arrays, with their default parameters.

Add an activation by adding a row to :data:`ACTIVATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rnnlower.errors import UnsupportedModelError

Array = NDArray[Any]
Semantics = Literal["ort", "spec"]
Elementwise = Callable[[Array], Array]


def _sigmoid(x: Array, alpha: float, beta: float) -> Array:
    # tanh instead of exp, because exp(-x) overflows for large negative x.
    return np.asarray(0.5 * (np.tanh(0.5 * x) + 1))


def _softplus(x: Array, alpha: float, beta: float) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


@dataclass(frozen=True)
class Activation:
    """One activation function.

    ``ort`` and ``spec`` hold the default ``(alpha, beta)`` under each semantics; ``None`` in place of a value
    means that there is no default. ``takes`` names the parameters that consume a list entry.
    """

    function: Callable[[Array, float, float], Array]
    takes: str = ""
    ort: tuple[float | None, float | None] = (None, None)
    spec: tuple[float | None, float | None] = (None, None)


ACTIVATIONS: dict[str, Activation] = {
    "Relu": Activation(lambda x, a, b: np.maximum(x, 0)),
    "Tanh": Activation(lambda x, a, b: np.tanh(x)),
    "Sigmoid": Activation(_sigmoid),
    "Affine": Activation(lambda x, a, b: a * x + b, "ab", (0.0, 0.0), (1.0, 0.0)),
    "LeakyRelu": Activation(lambda x, a, b: np.where(x >= 0, x, a * x), "a", (0.01, None), (0.01, None)),
    "ThresholdedRelu": Activation(lambda x, a, b: np.where(x > a, x, 0), "a", (0.0, None), (1.0, None)),
    "ScaledTanh": Activation(lambda x, a, b: a * np.tanh(b * x), "ab", (0.0, 0.0), (None, None)),
    "HardSigmoid": Activation(lambda x, a, b: np.clip(a * x + b, 0, 1), "ab", (0.2, 0.5), (0.2, 0.5)),
    "Elu": Activation(
        lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))), "a", (1.0, None), (1.0, None)
    ),
    "Softsign": Activation(lambda x, a, b: x / (1 + np.abs(x))),
    "Softplus": Activation(_softplus),
}


def is_approximated(op_type: str) -> bool:
    """Return whether some runtimes compute a function by rational functions or tables."""
    return op_type in ("Sigmoid", "Tanh", "ScaledTanh")


def _overflowing_softplus(dtype: np.dtype[Any]) -> Callable[[Array, float, float], Array]:
    """Return Softplus as kernels compute it for data of a type: ``log(1 + exp(x))``, in float32 or wider."""
    largest = np.log(np.finfo(np.float64 if dtype == np.float64 else np.float32).max)
    return lambda x, alpha, beta: np.where(x > largest, np.inf, _softplus(x, alpha, beta))


def _spec_thresholded_relu(x: Array, alpha: float, beta: float) -> Array:
    return np.where(x >= alpha, x, 0)


def _canonical_name(name: str, ignore_case: bool, where: str) -> str:
    for known in ACTIVATIONS:
        if name == known or (ignore_case and name.lower() == known.lower()):
            return known
    raise UnsupportedModelError(f"{where}: unknown activation {name!r}; known are {', '.join(ACTIVATIONS)}")


def _parameter(
    letter: str, kind: Activation, entries: list[float], semantics: Semantics, where: str
) -> float:
    """Return the next list entry if ``kind`` takes this parameter, else its default, in float32 precision."""
    if letter not in kind.takes:
        return 0.0
    if entries:
        return float(np.float32(entries.pop(0)))
    default = getattr(kind, semantics)["ab".index(letter)]
    if default is None:
        attribute = {"a": "activation_alpha", "b": "activation_beta"}[letter]
        raise UnsupportedModelError(f"{where}: this activation has no default {attribute}; give one")
    return float(np.float32(default))


def _bind(
    function: Callable[[Array, float, float], Array], alpha: float, beta: float, inexact: Elementwise | None
) -> Elementwise:
    def bound(x: Array) -> Array:
        result = function(x, alpha, beta).astype(x.dtype, copy=False)
        return result if inexact is None else inexact(result)

    return bound


def resolve_activations(
    names: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
    *,
    semantics: Semantics,
    ignore_case: bool,
    where: str,
    dtype: np.dtype[Any],
    inexact: Elementwise | None,
) -> list[Elementwise]:
    """Return the functions of ``names`` with their parameters bound, for data of a type.

    ``alphas`` and ``betas`` are consumed in order, only by functions that take the parameter; entries
    left over are ignored. ``where`` names the node in error messages; ``inexact`` is applied to the results
    of functions that some runtimes compute inexactly.

    Raises:
        UnsupportedModelError: A name is unknown, or a parameter without a default is missing.
    """
    alpha_entries, beta_entries = list(alphas), list(betas)
    resolved = []
    for name in names:
        known = _canonical_name(name, ignore_case, where)
        kind = ACTIVATIONS[known]
        place = f"{where}: activation {known}"
        alpha = _parameter("a", kind, alpha_entries, semantics, place)
        beta = _parameter("b", kind, beta_entries, semantics, place)
        function = kind.function
        if known == "ThresholdedRelu" and semantics == "spec":
            function = _spec_thresholded_relu
        if known == "Softplus" and semantics == "ort":
            function = _overflowing_softplus(dtype)
        resolved.append(_bind(function, alpha, beta, inexact if is_approximated(known) else None))
    return resolved
