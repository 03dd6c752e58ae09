"""LSTM as SONNX's informal specification writes it: block matrices, and directions by reverting the sequence.

Independent of ``oracle``: written from the other text, a time step with all rows at once. What the text
leaves to be understood: Y joins the directions along their own axis (the text says seq_length, but gives Y's
shape), and every row is seq_length long (the equations know no sequence_lens).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Array = np.ndarray
Function = Callable[[Array], Array]

_FUNCTIONS: dict[str, Function] = {
    "Relu": lambda x: np.where(x > 0, x, 0.0),
    "Sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "Tanh": np.tanh,
}


def lstm(
    inputs: Mapping[str, Array],
    *,
    activations: Sequence[str],
    direction: str = "forward",
    clip: float | None = None,
    input_forget: int = 0,
) -> Array:
    """Return Y ``[seq_length, num_directions, batch_size, hidden_size]`` in float64; every input is given."""
    values = {name: np.asarray(value, np.float64) for name, value in inputs.items()}
    lanes = []
    for index, reverse in enumerate(
        {"bidirectional": [False, True]}.get(direction, [direction == "reverse"])
    ):
        own = {name: value[index] for name, value in values.items() if name not in ("X", "sequence_lens")}
        functions = [_clipped(_FUNCTIONS[name], clip) for name in activations[3 * index : 3 * index + 3]]
        X = values["X"][::-1] if reverse else values["X"]
        Y = _forward(X, own, functions, input_forget)
        lanes.append(Y[::-1] if reverse else Y)
    return np.stack(lanes, axis=1)


def _clipped(function: Function, clip: float | None) -> Function:
    return function if clip is None else lambda x: function(np.clip(x, -clip, clip))


def _forward(X: Array, own: Mapping[str, Array], acts: Sequence[Function], input_forget: int) -> Array:
    act1, act2, act3 = acts
    size = own["R"].shape[-1]
    zero = np.zeros((size, size))
    P_i, P_o, P_f = (np.diag(vector) for vector in np.split(own["P"], 3))
    # Rows i, o, f, g; columns x_t, h_t-1, c_t, c_t-1.
    peepholes = np.block([[zero, P_i], [P_o, zero], [zero, P_f], [zero, zero]])
    matrix = np.hstack([own["W"], own["R"], peepholes])
    bias = own["B"][: 4 * size] + own["B"][4 * size :]
    h, c = own["initial_h"], own["initial_c"]
    Y = []
    for x in X:
        # c_t is not there yet when i, f and g are computed, and their columns for it are 0.
        i, _, f, g = np.split(np.hstack([x, h, np.zeros_like(c), c]) @ matrix.T + bias, 4, axis=1)
        forget = 1 - act1(i) if input_forget else act1(f)
        new_c = forget * c + act1(i) * act2(g)
        o = np.split(np.hstack([x, h, new_c, c]) @ matrix.T + bias, 4, axis=1)[1]
        h, c = act1(o) * act3(new_c), new_c
        Y.append(h)
    return np.array(Y)
