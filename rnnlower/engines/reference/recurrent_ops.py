"""LSTM, GRU and RNN of every version as operators for ``onnx.reference.ReferenceEvaluator``.

Written from the ONNX spec (LSTM-1, 7, 14, 22; GRU-1, 3, 7, 14, 22; RNN-1, 7, 14, 22). Where the
spec is silent, and with ``semantics="ort"`` also where onnxruntime's kernels depart from it, they follow
those kernels:

==========================  ======================================  =====================================
topic                       ``"ort"``                               ``"spec"``
==========================  ======================================  =====================================
LSTM: clip before h(C)      no                                      yes
row with sequence_lens = 0  final states are 0                      final states are the initial states
ThresholdedRelu             default alpha 0; 0 at x == alpha        default alpha 1; x at x == alpha
Affine                      defaults 0, 0                           defaults 1, 0
ScaledTanh                  defaults 0, 0                           none: refused without alpha and beta
Softplus                    infinite where exp(x) overflows         does not overflow
activation names            LSTM, GRU: case does not matter         as written in the spec
clip = 0                    RNN clips to 0; LSTM, GRU: refused      clips to 0
clip < 0                    RNN: no clip; LSTM, GRU: refused        refused
==========================  ======================================  =====================================

An empty sequence (T = 0) counts as ``sequence_lens = 0``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from onnx import NodeProto
from onnx.defs import get_schema
from onnx.reference.op_run import OpRun

from rnnlower.engines.reference.activation_functions import Array, Elementwise, Semantics, resolve_activations
from rnnlower.errors import InvalidModelError, UnsupportedModelError

Step = Callable[[Array, Sequence[Array]], list[Array]]


class _Direction(NamedTuple):
    """The weights, activations and attributes of one direction of a node."""

    W: Array
    R: Array
    bias: Array
    peepholes: Array
    activations: Sequence[Elementwise]
    clip: Elementwise
    attributes: dict[str, Any]


class _Recurrent(OpRun):  # type: ignore[misc,unused-ignore]
    """The common part of the three operators: attributes, layout, directions, time and masks."""

    semantics: ClassVar[Semantics] = "ort"
    precise: ClassVar[bool] = True
    marks_unset: ClassVar[bool] = False
    inexact: ClassVar[Callable[..., Array] | None] = None
    gates: ClassVar[int]
    default_activations: ClassVar[tuple[str, ...]]
    state_count: ClassVar[int] = 1
    ignore_case: ClassVar[bool] = True

    def __init__(self, onnx_node: NodeProto, run_params: dict[str, Any], schema: Any = None) -> None:
        self.where = f"{onnx_node.op_type} node {onnx_node.name or ', '.join(onnx_node.output)!r}"
        self.version: int = run_params["opsets"].get("", 1)
        # DynamicQuantizeLSTM has those of LSTM-7.
        foreign = onnx_node.op_type == "DynamicQuantizeLSTM"
        schema_key = ("LSTM", 7) if foreign else (onnx_node.op_type, self.version)
        known = get_schema(*schema_key).attributes
        for attribute in onnx_node.attribute:
            if attribute.name not in known:
                raise UnsupportedModelError(
                    f"{self.where}: at opset {self.version} it has no attribute {attribute.name!r}"
                )
        super().__init__(onnx_node, run_params, schema)

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        # The evaluator stores results by name, and "" must keep meaning "no value".
        names = self.onnx_node.output
        return tuple(value if name else None for name, value in zip(names, res, strict=False))

    def _run(
        self, X: Array, W: Array, R: Array, *optional: Array | None, **attributes: Any
    ) -> tuple[Any, ...]:
        B, sequence_lens, initial_h, initial_c, P = (*optional, None, None, None, None, None)[:5]
        layout = attributes.get("layout") or 0
        if layout not in (0, 1):
            raise UnsupportedModelError(f"{self.where}: layout must be 0 or 1, not {layout}")
        states = [initial_h, initial_c][: self.state_count]
        if layout:
            X = np.swapaxes(X, 0, 1)
            states = [None if s is None else np.swapaxes(s, 0, 1) for s in states]
        initial_states = dict(zip(("initial_h", "initial_c"), states, strict=False))
        self._check_shapes(X, {"W": W, "R": R, "B": B, "P": P, **initial_states}, attributes)
        dtype = X.dtype
        compute = np.dtype(np.float64 if dtype.itemsize >= (4 if self.precise else 8) else np.float32)
        lengths = self._lengths(sequence_lens, X.shape[0], X.shape[1])
        X, W, R = (a.astype(compute) for a in (X, W, R))
        directions = self._directions(attributes.get("direction"))
        activations = self._activations(attributes, len(directions), dtype)
        clip = self._clip(attributes.get("clip"))
        ys, finals = [], []
        for d, reverse in enumerate(directions):
            bias = np.zeros(2 * W.shape[1], compute) if B is None else B[d].astype(compute)
            peepholes = np.zeros(3 * R.shape[2], compute) if P is None else P[d].astype(compute)
            initial = [
                np.zeros((X.shape[1], R.shape[2]), compute) if s is None else s[d].astype(compute)
                for s in states
            ]
            step = self._step(_Direction(W[d], R[d], bias, peepholes, activations[d], clip, attributes))
            y, final = self._unroll(step, X, lengths, initial, reverse)
            ys.append(y)
            finals.append(final)
        outputs = [np.stack(ys, axis=1), *(np.stack(group) for group in zip(*finals, strict=True))]
        if self.marks_unset and not len(X):
            outputs[2:] = [np.full_like(state, np.nan) for state in outputs[2:]]
        if layout:
            outputs = [np.transpose(outputs[0], (2, 0, 1, 3)), *(np.swapaxes(s, 0, 1) for s in outputs[1:])]
        with np.errstate(over="ignore"):
            return tuple(np.ascontiguousarray(o.astype(dtype)) for o in outputs)

    def _step(self, direction: _Direction) -> Step:
        """Return one direction's step: ``(x [batch, input], states [batch, hidden]) -> states``, h first."""
        raise NotImplementedError

    def _unroll(
        self, step: Step, X: Array, lengths: Array, states: list[Array], reverse: bool
    ) -> tuple[Array, list[Array]]:
        seq_length = X.shape[0]
        Y = np.zeros((*X.shape[:2], states[0].shape[1]), X.dtype)
        shortest = min(lengths, default=0)
        # A reversed row starts at its own last element: until then its mask keeps the state.
        for t in range(seq_length - 1, -1, -1) if reverse else range(seq_length):
            new = step(X[t], states)
            if t < shortest:
                states = new
                Y[t] = states[0]
                continue
            active = (t < lengths)[:, np.newaxis]
            states = [np.where(active, n, s) for n, s in zip(new, states, strict=True)]
            Y[t] = np.where(active, states[0], 0)
        if self.semantics == "ort":
            states = [np.where((lengths == 0)[:, np.newaxis], 0, s) for s in states]
        return Y, states

    def _lengths(self, sequence_lens: Array | None, seq_length: int, batch_size: int) -> Array:
        if sequence_lens is None:
            return np.full(batch_size, seq_length)
        if sequence_lens.shape != (batch_size,):
            raise InvalidModelError(
                f"{self.where}: sequence_lens has shape {sequence_lens.shape}, not ({batch_size},)"
            )
        if np.any(sequence_lens < 0) or np.any(sequence_lens > seq_length):
            raise ValueError(f"{self.where}: sequence_lens {sequence_lens.tolist()} outside 0..{seq_length}")
        return sequence_lens

    def _directions(self, direction: str | None) -> list[bool]:
        """Return whether each direction runs backwards. GRU-1's schema misspells its default "foward"."""
        known = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        if direction is None or (direction == "foward" and self.op_type == "GRU" and self.version < 3):
            return [False]
        if direction not in known:
            raise UnsupportedModelError(f"{self.where}: unknown direction {direction!r}")
        return known[direction]

    def _activations(
        self, attributes: dict[str, Any], num_directions: int, dtype: np.dtype[Any]
    ) -> list[list[Elementwise]]:
        per_direction = len(self.default_activations)
        names = attributes.get("activations") or list(self.default_activations) * num_directions
        # The default of RNN's schema has two names, whatever the direction.
        if self.op_type == "RNN" and num_directions == 1 and len(names) == 2:
            names = names[:1]
        if len(names) != per_direction * num_directions:
            raise InvalidModelError(
                f"{self.where}: {len(names)} activations given, {per_direction * num_directions} needed"
            )
        resolved = resolve_activations(
            names,
            attributes.get("activation_alpha") or (),
            attributes.get("activation_beta") or (),
            semantics=self.semantics,
            ignore_case=self.ignore_case and self.semantics == "ort",
            where=self.where,
            dtype=dtype,
            inexact=self.inexact,
        )
        return [resolved[d * per_direction : (d + 1) * per_direction] for d in range(num_directions)]

    def _clip(self, threshold: float | None) -> Elementwise:
        if threshold is None:
            return lambda x: x
        bound = float(threshold)
        ort = self.semantics == "ort"
        if ort and self.op_type == "RNN" and bound < 0:
            return lambda x: x
        if not (bound > 0 or (bound == 0 and not (ort and self.op_type != "RNN"))):
            raise UnsupportedModelError(f"{self.where}: clip must be positive, not {bound}")
        return lambda x: np.clip(x, -bound, bound)

    def _check_shapes(self, X: Array, given: Mapping[str, Array | None], attributes: dict[str, Any]) -> None:
        R = given["R"]
        assert R is not None
        if X.ndim != 3 or R.ndim != 3:
            raise InvalidModelError(f"{self.where}: X and R must have rank 3, not {X.ndim} and {R.ndim}")
        hidden, directions = R.shape[2], len(self._directions(attributes.get("direction")))
        if attributes.get("hidden_size") not in (None, hidden):
            raise InvalidModelError(
                f"{self.where}: hidden_size is {attributes['hidden_size']}, but R has shape {R.shape}"
            )
        state = (directions, X.shape[1], hidden)
        wanted = {
            "W": (directions, self.gates * hidden, X.shape[2]),
            "R": (directions, self.gates * hidden, hidden),
            "B": (directions, 2 * self.gates * hidden),
            "P": (directions, 3 * hidden),
            "initial_h": state,
            "initial_c": state,
        }
        for name, value in given.items():
            if value is not None and value.shape != wanted[name]:
                raise InvalidModelError(f"{self.where}: {name} has shape {value.shape}, not {wanted[name]}")


def _split_gates(values: Array, count: int) -> list[Array]:
    # np.split takes as long as the rest of a step.
    return [*values.reshape(len(values), count, values.shape[1] // count).swapaxes(0, 1)]


class LSTM(_Recurrent):
    """LSTM of versions 1, 7, 14 and 22: gates ``i o f c``, peepholes ``i o f``."""

    gates = 4
    default_activations = ("Sigmoid", "Tanh", "Tanh")
    state_count = 2

    def _step(self, direction: _Direction) -> Step:
        W, R, bias, peepholes, (f, g, h), clip, attributes = direction
        input_bias, recurrent_bias = np.split(bias, 2)
        P_i, P_o, P_f = np.split(peepholes, 3)
        coupled = bool(attributes.get("input_forget"))
        clip_cell = clip if self.semantics == "spec" else lambda x: x

        def step(x: Array, states: Sequence[Array]) -> list[Array]:
            H, C = states
            i, o, forget, c = _split_gates(x @ W.T + H @ R.T + input_bias + recurrent_bias, 4)
            i = f(clip(i + P_i * C))
            forget = 1 - i if coupled else f(clip(forget + P_f * C))
            C = forget * C + i * g(clip(c))
            o = f(clip(o + P_o * C))
            return [o * h(clip_cell(C)), C]

        return step


class GRU(_Recurrent):
    """GRU of versions 1, 3, 7, 14 and 22: gates ``z r h``."""

    gates = 3
    default_activations = ("Sigmoid", "Tanh")

    def _step(self, direction: _Direction) -> Step:
        W, R, bias, _, (f, g), clip, attributes = direction
        R_z, R_r, R_h = np.split(R, 3)
        input_bias, recurrent_bias = np.split(bias, 2)
        Rb_z, Rb_r, Rb_h = np.split(recurrent_bias, 3)
        linear_before_reset = bool(attributes.get("linear_before_reset"))

        def step(x: Array, states: Sequence[Array]) -> list[Array]:
            (H,) = states
            x_z, x_r, x_h = _split_gates(x @ W.T + input_bias, 3)
            z = f(clip(x_z + H @ R_z.T + Rb_z))
            r = f(clip(x_r + H @ R_r.T + Rb_r))
            recurrent = r * (H @ R_h.T + Rb_h) if linear_before_reset else (r * H) @ R_h.T + Rb_h
            return [(1 - z) * g(clip(x_h + recurrent)) + z * H]

        return step


class RNN(_Recurrent):
    """RNN of versions 1, 7, 14 and 22."""

    gates = 1
    default_activations = ("Tanh",)
    ignore_case = False

    def _step(self, direction: _Direction) -> Step:
        W, R, bias, _, (f,), clip, _ = direction
        input_bias, recurrent_bias = np.split(bias, 2)

        def step(x: Array, states: Sequence[Array]) -> list[Array]:
            (H,) = states
            return [f(clip(x @ W.T + H @ R.T + input_bias + recurrent_bias))]

        return step


def recurrent_ops(
    semantics: Semantics = "ort",
    *,
    precise: bool = True,
    inexact: Elementwise | None = None,
    marks_unset: bool = False,
) -> list[type[OpRun]]:
    """Return the three operators for ``ReferenceEvaluator(model, new_ops=recurrent_ops())``.

    With ``precise=False`` float32 data is computed in float32, as in runtimes, and not in float64;
    ``inexact`` is applied to what Sigmoid and Tanh give. With ``marks_unset``, the Y_c of an LSTM over no
    steps is NaN: onnxruntime's kernel leaves it unset.

    That evaluator does not pass ``new_ops`` on to model-local functions;
    :class:`rnnlower.engines.reference.Evaluator` does.
    """
    settings = {
        "semantics": semantics,
        "precise": precise,
        "marks_unset": marks_unset,
        "inexact": None if inexact is None else staticmethod(inexact),
    }
    return [type(base.__name__, (base,), settings) for base in (LSTM, GRU, RNN)]


OMITTED = "<omitted output"
"""The prefix of the evaluator's names for omitted outputs."""

_LSTM_OPTIONAL_INPUTS = 5
"""The inputs of LSTM after R."""


class DynamicQuantizeLSTM(LSTM):
    """DynamicQuantizeLSTM-1; W and R are ``[num_directions, input_size or hidden_size, 4 * hidden_size]``.

    A product of integers times both scales is the product of the values that they represent: X, H, W and R
    are rounded to 8 bits, and LSTM computes with the rounded values. X is rounded once for all steps, H in
    each step, all rows of a batch together, as onnxruntime's kernel does with one thread.
    """

    def _run(
        self, X: Array, W: Array, R: Array, *optional: Array | None, **attributes: Any
    ) -> tuple[Any, ...]:
        weights = [
            _dequantize(values, *optional[first : first + 2])
            for values, first in ((W, _LSTM_OPTIONAL_INPUTS), (R, _LSTM_OPTIONAL_INPUTS + 2))
        ]
        lengths = self._lengths(optional[1], X.shape[0], X.shape[1])
        longest = lengths.max(initial=0)
        rounded = X.astype(np.float64)
        rounded[:longest] = _round_to_8_bits(X[:longest])
        outputs = super()._run(rounded, *weights, *optional[:_LSTM_OPTIONAL_INPUTS], **attributes)
        return tuple(None if value is None else value.astype(np.float32) for value in outputs)

    def _unroll(
        self, step: Step, X: Array, lengths: Array, states: list[Array], reverse: bool
    ) -> tuple[Array, list[Array]]:
        Y = np.zeros((*X.shape[:2], states[0].shape[1]), X.dtype)
        rows = np.arange(X.shape[1])
        has_sequence = not self.onnx_node.output[0].startswith(OMITTED)
        seen = states[0]
        for t in range(lengths.max(initial=0)):
            active = t < lengths
            # Each row starts at the end of its own sequence.
            position = np.where(active, lengths - 1 - t, t) if reverse else np.full_like(rows, t)
            new = step(X[position, rows], [_round_to_8_bits(seen), *states[1:]])
            states = [np.where(active[:, np.newaxis], n, s) for n, s in zip(new, states, strict=True)]
            Y[position[active], rows[active]] = states[0][active]
            # The kernel reads H from Y, which is 0 in rows that have ended, or else from Y_h.
            seen = np.where(active[:, np.newaxis], states[0], 0) if has_sequence else states[0]
        return Y, [np.where((lengths == 0)[:, np.newaxis], 0, s) for s in states]


def _dequantize(values: Array, scale: Array | None, zero_point: Array | None) -> Array:
    """Return the dequantized weights in the layout of LSTM: ``[num_directions, rows, columns]``."""
    assert scale is not None
    assert zero_point is not None
    per_column = (-1, 1, scale.shape[1] if scale.ndim > 1 else 1)
    center = zero_point.reshape(len(values), -1)[:, :1, np.newaxis].astype(np.float64)
    return np.swapaxes((values - center) * scale.reshape(per_column), 1, 2)


def _round_to_8_bits(values: Array) -> Array:
    """Return the values after rounding to 8 bits in a range that contains 0."""
    narrow = values.astype(np.float32)
    low, high = np.float32(narrow.min(initial=0)), np.float32(narrow.max(initial=0))
    scale = np.float32((high - low) / np.float32(255)) if high > low else np.float32(1)
    zero_point = np.rint(np.clip(-low / scale, 0, 255))
    steps = np.clip(np.rint(narrow / scale) + zero_point, 0, 255) - zero_point
    return np.asarray(steps.astype(np.float64) * np.float64(scale))
