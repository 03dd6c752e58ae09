"""The judge of every numeric test: LSTM, GRU and RNN of any version, written from the ONNX spec.

One time step and one batch row at a time, in float64, rounded to the output type at the very end. Slow on
purpose, and without a line in common with the lowering. Where the text and onnxruntime part, ``semantics``
decides:

=====================================  ===================================  ==============================
topic                                  ``"spec"``                           ``"ort"``
=====================================  ===================================  ==============================
LSTM: clip before ``h(Ct)``            applied, as to every activation      not applied
ThresholdedRelu at ``x == alpha``      ``x``                                0
default alpha/beta                     the operators' own: ThresholdedRelu  ThresholdedRelu 0, Affine 0/0,
                                       1, Affine 1/0; ScaledTanh has none,  ScaledTanh 0/0
                                       so leaving one out is an error
a row of length 0, and every row when  the initial states                   zeros, even when initial
``seq_length`` is 0: Y_h and Y_c                                            states are given
case of activation names               matters                              matters for RNN only
clip == 0                              clips to 0                           RNN: clips to 0; LSTM, GRU:
                                                                            an error
clip < 0                               an error                             RNN: no clip; LSTM, GRU: an
                                                                            error
=====================================  ===================================  ==============================

For ``seq_length == 0`` onnxruntime's RNN and LSTM kernels were asked, and answer as in the table; its GRU
kernel aborts, and is read alike. In both semantics Softplus does not overflow, ``input_forget`` means
``f = 1 - i``, and Y past the end of a row is 0. ``hidden_size`` may be absent: R tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx

Semantics = Literal["ort", "spec"]
Array = np.ndarray
Activation = Callable[[Array], Array]

_VERSIONS = {"LSTM": (1, 7, 14, 22), "GRU": (1, 3, 7, 14, 22), "RNN": (1, 7, 14, 22)}
_GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "i"}
_PEEPHOLES = "iof"
_DEFAULT_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_INPUTS = {
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "RNN": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
}
_OUTPUTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}


def schema_version(op_type: str, opset: int) -> int:
    """Return the version of ``op_type``'s schema that a model of ``opset`` uses."""
    return max(version for version in _VERSIONS[op_type] if version <= opset)


def evaluate(
    op_type: str,
    version: int,
    attributes: Mapping[str, Any],
    inputs: Mapping[str, Array | None],
    *,
    semantics: Semantics = "ort",
) -> dict[str, Array]:
    """Compute one recurrent operator.

    Args:
        op_type: ``"LSTM"``, ``"GRU"`` or ``"RNN"``.
        version: the schema's version (``schema_version`` finds it from an opset).
        attributes: those that are given; numbers are taken as the 32-bit floats ONNX stores.
        inputs: by the schema's names (``X``, ``W``, ``R``, ``B``, ``sequence_lens``, ...); an optional one
            that is absent or None was not given.
        semantics: whose answer is wanted where the text and onnxruntime part.

    Returns:
        ``Y``, ``Y_h`` and, for LSTM, ``Y_c``, in X's dtype and in the layout asked for.

    Raises:
        ValueError: the node is illegal: an attribute the version does not know, a shape, a length outside
            ``[0, seq_length]``, a wrong number of activations, ...
    """
    node = _Node(op_type, version, dict(attributes), semantics)
    given = {name: value for name, value in inputs.items() if value is not None}
    if unknown := set(given) - set(_INPUTS[op_type]):
        raise ValueError(f"{op_type} has no input {sorted(unknown)}")
    dtype = given["X"].dtype
    lens = given.pop("sequence_lens", None)
    values = {name: np.asarray(value).astype(np.float64) for name, value in given.items()}
    if node.batch_first:
        values["X"] = values["X"].transpose(1, 0, 2)
        for name in {"initial_h", "initial_c"} & set(values):
            values[name] = values[name].transpose(1, 0, 2)
    with np.errstate(all="ignore"):
        results = _run(node, values, lens)
        if node.batch_first:
            results["Y"] = results["Y"].transpose(2, 0, 1, 3)
            for name in set(results) - {"Y"}:
                results[name] = results[name].transpose(1, 0, 2)
        return {name: np.ascontiguousarray(value).astype(dtype) for name, value in results.items()}


def evaluate_node(
    node: onnx.NodeProto, opset: int, values: Mapping[str, Array], *, semantics: Semantics = "ort"
) -> dict[str, Array]:
    """Compute ``node`` of a model of ``opset`` on ``values``, both by the graph's names."""
    attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    inputs = {
        formal: values[name] for formal, name in zip(_INPUTS[node.op_type], node.input, strict=False) if name
    }
    version = schema_version(node.op_type, opset)
    results = evaluate(node.op_type, version, attributes, inputs, semantics=semantics)
    return {
        name: results[formal]
        for formal, name in zip(_OUTPUTS[node.op_type], node.output, strict=False)
        if name
    }


class _Node:
    """The attributes of a node, checked against its version, with the defaults filled in."""

    def __init__(self, op_type: str, version: int, attributes: dict[str, Any], semantics: Semantics) -> None:
        if version not in _VERSIONS[op_type]:
            raise ValueError(f"{op_type} has no version {version}")
        if semantics not in ("ort", "spec"):
            raise ValueError(f"unknown semantics {semantics!r}")
        if unknown := set(attributes) - _attribute_names(op_type, version):
            raise ValueError(f"{op_type}-{version} has no attribute {sorted(unknown)}")
        self.op_type, self.semantics = op_type, semantics
        self.hidden_size: int | None = attributes.get("hidden_size")
        self.directions = _directions(op_type, version, attributes)
        self.batch_first = _flag(attributes, "layout")
        self.input_forget = _flag(attributes, "input_forget")
        self.linear_before_reset = _flag(attributes, "linear_before_reset")
        self.clip = _clip_threshold(op_type, attributes, semantics)
        self.activations = _activations(op_type, len(self.directions), attributes, semantics)

    def clipped(self, activation: Activation) -> Activation:
        """Return ``activation`` behind the cell clip of attribute ``clip``."""
        threshold = self.clip
        if threshold is None:
            return activation
        return lambda x: activation(np.clip(x, -threshold, threshold))


def _attribute_names(op_type: str, version: int) -> set[str]:
    names = {"activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size"}
    if version < 7:
        names.add("output_sequence")
    if version >= 14:
        names.add("layout")
    if op_type == "LSTM":
        names.add("input_forget")
    if op_type == "GRU" and version >= 3:
        names.add("linear_before_reset")
    return names


def _flag(attributes: Mapping[str, Any], name: str) -> bool:
    return attributes.get(name, 0) != 0


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _directions(op_type: str, version: int, attributes: Mapping[str, Any]) -> list[str]:
    """Return whether each direction runs backwards. GRU-1's schema misspells its default "foward"."""
    direction = _text(attributes.get("direction", "forward"))
    if direction == "foward" and (op_type, version) == ("GRU", 1):
        direction = "forward"
    if direction == "bidirectional":
        return ["forward", "reverse"]
    if direction not in ("forward", "reverse"):
        raise ValueError(f"unknown direction {direction!r}")
    return [direction]


def _clip_threshold(op_type: str, attributes: Mapping[str, Any], semantics: Semantics) -> float | None:
    if "clip" not in attributes:
        return None
    clip = float(np.float32(attributes["clip"]))
    if semantics == "ort" and op_type == "RNN" and clip < 0:
        return None
    if clip < 0 or (semantics == "ort" and op_type != "RNN" and clip == 0):
        raise ValueError(f"clip must be positive, not {clip}")
    return clip


def _hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.minimum(np.maximum(alpha * x + beta, 0.0), 1.0)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "Relu": lambda x: np.maximum(x, 0.0),
    "Tanh": np.tanh,
    "Sigmoid": lambda x: np.exp(-np.logaddexp(0.0, -x)),
    "Affine": lambda x, alpha, beta: alpha * x + beta,
    "LeakyRelu": lambda x, alpha: np.where(x >= 0, x, alpha * x),
    "ThresholdedRelu": lambda x, alpha: np.where(x >= alpha, x, 0.0),
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "HardSigmoid": _hard_sigmoid,
    "Elu": lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0.0))),
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "Softplus": lambda x: np.logaddexp(0.0, x),
}
_TAKES_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
_TAKES_BETA = ("Affine", "ScaledTanh", "HardSigmoid")
_OPERATOR_ALPHA = {"Affine": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "HardSigmoid": 0.2, "Elu": 1.0}
_OPERATOR_BETA = {"Affine": 0.0, "HardSigmoid": 0.5}
_DEFAULT_ALPHA = {
    "spec": _OPERATOR_ALPHA,
    "ort": _OPERATOR_ALPHA | {"Affine": 0.0, "ThresholdedRelu": 0.0, "ScaledTanh": 0.0},
}
_DEFAULT_BETA = {"spec": _OPERATOR_BETA, "ort": _OPERATOR_BETA | {"ScaledTanh": 0.0}}


def _activations(
    op_type: str, num_directions: int, attributes: Mapping[str, Any], semantics: Semantics
) -> list[list[Activation]]:
    """Return per direction the functions f (RNN), f and g (GRU) or f, g and h (LSTM).

    Only a function that takes a parameter consumes an entry of ``activation_alpha`` or ``activation_beta``,
    in the order of ``activations``; past the end of a short list the defaults hold, extras are ignored.
    """
    per_direction = len(_DEFAULT_ACTIVATIONS[op_type])
    count = num_directions * per_direction
    names = [
        _text(name) for name in attributes.get("activations", _DEFAULT_ACTIVATIONS[op_type] * num_directions)
    ]
    if op_type == "RNN" and len(names) == 2:
        # The schema's own default is ["Tanh", "Tanh"], whatever the direction.
        names = names[:count]
    if len(names) != count:
        raise ValueError(f"{op_type} needs {count} activations, not {len(names)}")
    alphas = list(attributes.get("activation_alpha", []))
    betas = list(attributes.get("activation_beta", []))
    functions = [_activation(op_type, name, alphas, betas, semantics) for name in names]
    return [functions[start : start + per_direction] for start in range(0, count, per_direction)]


def _activation(
    op_type: str, name: str, alphas: list[float], betas: list[float], semantics: Semantics
) -> Activation:
    """Return the function ``name`` with its parameters taken from the front of ``alphas`` and ``betas``."""
    if semantics == "ort" and op_type != "RNN":
        name = {known.lower(): known for known in _FUNCTIONS}.get(name.lower(), name)
    if name not in _FUNCTIONS:
        raise ValueError(f"unknown activation {name!r}")
    parameters = []
    for takes, values, defaults in (
        (_TAKES_ALPHA, alphas, _DEFAULT_ALPHA[semantics]),
        (_TAKES_BETA, betas, _DEFAULT_BETA[semantics]),
    ):
        if name not in takes:
            continue
        if not values and name not in defaults:
            raise ValueError(f"{name} has no default parameters: give activation_alpha and activation_beta")
        parameters.append(float(np.float32(values.pop(0) if values else defaults[name])))
    if name == "ThresholdedRelu" and semantics == "ort":
        return lambda x: np.where(x > parameters[0], x, 0.0)
    return lambda x: _FUNCTIONS[name](x, *parameters)


@dataclass(frozen=True)
class _Weights:
    """One direction by gate: W [hidden, input], R [hidden, hidden], Wb, Rb and P [hidden]."""

    W: dict[str, Array]
    R: dict[str, Array]
    Wb: dict[str, Array]
    Rb: dict[str, Array]
    P: dict[str, Array]

    def product(self, gate: str, x: Array, h: Array) -> Array:
        """Return ``Xt*(Wg^T) + Ht-1*(Rg^T) + Wbg + Rbg``."""
        return self.W[gate] @ x + self.R[gate] @ h + self.Wb[gate] + self.Rb[gate]


def _weights(op_type: str, values: Mapping[str, Array], direction: int, hidden_size: int) -> _Weights:
    gates = _GATES[op_type]
    zeros = np.zeros(2 * len(gates) * hidden_size)
    Wb, Rb = np.split(values["B"][direction] if "B" in values else zeros, 2)
    P = values["P"][direction] if "P" in values else zeros[: 3 * hidden_size]

    def by_gate(rows: Array, names: str) -> dict[str, Array]:
        return {gate: rows[k * hidden_size : (k + 1) * hidden_size] for k, gate in enumerate(names)}

    W, R = values["W"][direction], values["R"][direction]
    return _Weights(
        W=by_gate(W, gates),
        R=by_gate(R, gates),
        Wb=by_gate(Wb, gates),
        Rb=by_gate(Rb, gates),
        P=by_gate(P, _PEEPHOLES),
    )


def _lstm_step(
    node: _Node, weights: _Weights, functions: Sequence[Activation], x: Array, state: Sequence[Array]
) -> list[Array]:
    """Return LSTM, all versions: Ht and Ct of one row."""
    H, C = state
    P = weights.P
    f, g = node.clipped(functions[0]), node.clipped(functions[1])
    h = functions[2] if node.semantics == "ort" else node.clipped(functions[2])
    it = f(weights.product("i", x, H) + P["i"] * C)
    ft = 1.0 - it if node.input_forget else f(weights.product("f", x, H) + P["f"] * C)
    ct = g(weights.product("c", x, H))
    Ct = ft * C + it * ct
    ot = f(weights.product("o", x, H) + P["o"] * Ct)
    return [ot * h(Ct), Ct]


def _gru_step(
    node: _Node, weights: _Weights, functions: Sequence[Activation], x: Array, state: Sequence[Array]
) -> list[Array]:
    """Return GRU, all versions: Ht of one row."""
    (H,) = state
    f, g = (node.clipped(function) for function in functions)
    zt = f(weights.product("z", x, H))
    rt = f(weights.product("r", x, H))
    if node.linear_before_reset:
        ht = g(weights.W["h"] @ x + rt * (weights.R["h"] @ H + weights.Rb["h"]) + weights.Wb["h"])
    else:
        ht = g(weights.W["h"] @ x + weights.R["h"] @ (rt * H) + weights.Rb["h"] + weights.Wb["h"])
    return [(1.0 - zt) * ht + zt * H]


def _rnn_step(
    node: _Node, weights: _Weights, functions: Sequence[Activation], x: Array, state: Sequence[Array]
) -> list[Array]:
    """Return RNN, all versions: Ht of one row."""
    (H,) = state
    return [node.clipped(functions[0])(weights.product("i", x, H))]


_STEPS = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}


def _run(node: _Node, values: Mapping[str, Array], lens: Array | None) -> dict[str, Array]:
    """Return all directions, rows and steps, on time-major ``values``."""
    seq_length, batch_size, _ = values["X"].shape
    num_directions, hidden_size = len(node.directions), values["R"].shape[-1]
    _check_shapes(node, values, lens)
    state_names = ("h", "c") if node.op_type == "LSTM" else ("h",)
    Y = np.zeros((seq_length, num_directions, batch_size, hidden_size))
    final = {name: np.zeros((num_directions, batch_size, hidden_size)) for name in state_names}
    for direction, walks in enumerate(node.directions):
        weights = _weights(node.op_type, values, direction, hidden_size)
        for row in range(batch_size):
            length = seq_length if lens is None else int(lens[row])
            state = [_initial(values, name, direction, row, hidden_size) for name in state_names]
            if length == 0 and node.semantics == "ort":
                state = [np.zeros(hidden_size) for _ in state]
            for t in range(length) if walks == "forward" else reversed(range(length)):
                x = values["X"][t, row]
                state = _STEPS[node.op_type](node, weights, node.activations[direction], x, state)
                Y[t, direction, row] = state[0]
            for name, value in zip(state_names, state, strict=True):
                final[name][direction, row] = value
    return {"Y": Y} | {f"Y_{name}": value for name, value in final.items()}


def _initial(values: Mapping[str, Array], name: str, direction: int, row: int, hidden_size: int) -> Array:
    initial = values.get(f"initial_{name}")
    return np.zeros(hidden_size) if initial is None else initial[direction, row]


def _check_shapes(node: _Node, values: Mapping[str, Array], lens: Array | None) -> None:
    seq_length, batch_size, input_size = values["X"].shape
    directions, hidden, gates = len(node.directions), values["R"].shape[-1], len(_GATES[node.op_type])
    if node.hidden_size not in (None, hidden):
        raise ValueError(f"hidden_size is {node.hidden_size}, but R has {hidden} columns")
    expected = {
        "W": (directions, gates * hidden, input_size),
        "R": (directions, gates * hidden, hidden),
        "B": (directions, 2 * gates * hidden),
        "P": (directions, 3 * hidden),
        "initial_h": (directions, batch_size, hidden),
        "initial_c": (directions, batch_size, hidden),
    }
    for name in set(values) & set(expected):
        if values[name].shape != expected[name]:
            raise ValueError(f"{name} is {values[name].shape}, not {expected[name]}")
    if lens is None:
        return
    if lens.shape != (batch_size,):
        raise ValueError(f"sequence_lens is {lens.shape}, not {(batch_size,)}")
    if np.any(lens < 0) or np.any(lens > seq_length):
        raise ValueError(f"sequence_lens {lens.tolist()} leaves [0, {seq_length}]")
