"""Random recurrent models: their configuration, their inputs, and the oracle's outputs.

``random_config(rng)`` serves large sweeps, ``configs()`` is the hypothesis strategy. Both walk the same
choices (``config_choices``). ``config_models`` turns a ``Config`` into a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from hypothesis import strategies as st

from support import config_models
from support.config_choices import draw_config
from support.config_inputs import dequantized
from support.config_models import CONDITIONS, ITERATIONS, STACKED
from support.installed import newest_opset, rnn_is_sound
from support.oracle import Semantics, evaluate, schema_version

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUTS = {
    "LSTM": ("W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    "GRU": ("W", "R", "B", "sequence_lens", "initial_h"),
    "RNN": ("W", "R", "B", "sequence_lens", "initial_h"),
}
OUTPUTS = {"LSTM": ("Y", "Y_h", "Y_c"), "GRU": ("Y", "Y_h"), "RNN": ("Y", "Y_h")}
DTYPES: dict[str, Any] = {
    "float16": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "bfloat16": ml_dtypes.bfloat16,
}


@dataclass(frozen=True)
class Config:
    """One LSTM, GRU or RNN node and the model around it.

    The attributes are None where the node does not have them. ``W`` to ``P`` say how an input comes:

    - ``initializer``; ``initializer_input``: one that is a graph input too, and may be overridden;
    - ``constant``: a Constant node; ``computed``: Unsqueeze <- Concat <- Slice of constants; ``dequantized``:
      DequantizeLinear; ``expanded`` (states): Expand to X's batch size;
    - ``input``: a graph input; ``same`` (``initial_c``): the tensor of ``initial_h``;
    - ``empty``: ``""``; ``omitted``: not in the list, or ``""`` where a later input is given.

    ``Y`` to ``Y_c`` say where an output goes:

    - ``graph``: it is an output of the (sub)graph; ``consumed``: by a node whose result is one; ``both``;
    - ``unused``: named only; ``empty``: ``""``; ``omitted``: not in the list, or ``""`` before a named one.

    ``x_dims`` says what X declares: ``static``, ``batch`` or ``time`` (that one symbolic), ``symbolic``
    (both), ``unknown`` (all three), ``negative`` (``dim_value`` -1) or ``unknown_rank``.

    ``place`` is ``main``, ``if``, ``if_in_if``, ``loop``, ``if_in_loop``, ``scan`` or ``function``. With
    ``captured`` the weights and states live outside of it. In a Loop or Scan, a given ``initial_h`` is the
    carried state and Y_h, if named, its next value. A function refers to its attributes, with ``all_refs``
    to absent ones too.
    """

    op_type: str = "LSTM"
    opset: int = 14
    ir_version: int = 8
    dtype: str = "float32"
    seq_length: int = 3
    batch_size: int = 2
    input_size: int = 3
    hidden_size: int = 4
    hidden_size_given: bool = True
    direction: str | None = None
    activations: tuple[str, ...] | None = None
    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    clip: float | None = None
    input_forget: int | None = None
    linear_before_reset: int | None = None
    layout: int | None = None
    output_sequence: int | None = None
    W: str = "initializer"
    R: str = "initializer"
    B: str = "initializer"
    sequence_lens: str = "omitted"
    initial_h: str = "omitted"
    initial_c: str = "omitted"
    P: str = "omitted"
    Y: str = "graph"
    Y_h: str = "omitted"
    Y_c: str = "omitted"
    x_dims: str = "static"
    place: str = "main"
    captured: bool = True
    all_refs: bool = False
    x_scale: float = 1.0
    weight_scale: float = 0.5
    seed: int = 0

    def __str__(self) -> str:
        """Return the fields that differ from the defaults, as the call that makes this config."""
        changed = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Config({', '.join(f'{name}={getattr(self, name)!r}' for name in changed)})"

    @property
    def version(self) -> int:
        """The version of the operator's schema."""
        return schema_version(self.op_type, self.opset)

    @property
    def num_directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that the node has."""
        names = ("direction", "clip", "input_forget", "linear_before_reset", "layout", "output_sequence")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        for name in ("activations", "activation_alpha", "activation_beta"):
            if getattr(self, name) is not None:
                given[name] = list(getattr(self, name))
        if self.hidden_size_given:
            given["hidden_size"] = self.hidden_size
        return given

    @property
    def provisions(self) -> dict[str, str]:
        """The source of each input that is present, except X."""
        given = {name: getattr(self, name) for name in INPUTS[self.op_type]}
        return {name: how for name, how in given.items() if how not in ("empty", "omitted")}

    @property
    def results(self) -> dict[str, tuple[str, int]]:
        """The graph's outputs: of which output of the node each one is, and with which sign."""
        results: dict[str, tuple[str, int]] = {}
        for name in OUTPUTS[self.op_type]:
            if getattr(self, name) in ("graph", "both"):
                results[name] = (name, 1)
            if getattr(self, name) in ("consumed", "both"):
                results[f"{name}_consumed"] = (name, -1 if self.consumer == "Neg" else 1)
        return results

    @property
    def consumer(self) -> str:
        """The operator that reads a ``consumed`` output: plain where runtimes lack arithmetic."""
        return "Identity" if self.opset < 7 or self.dtype == "bfloat16" else "Neg"

    @property
    def carries_state(self) -> bool:
        """Does a Loop or Scan carry ``initial_h`` from one iteration to the next?"""
        carries = self.place in ("loop", "scan") and "initial_h" in self.provisions
        return carries and self.Y_h not in ("empty", "omitted")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input or output of the node."""
        D, G, H = self.num_directions, GATES[self.op_type], self.hidden_size
        time, batch = self.seq_length, self.batch_size
        if name in ("initial_h", "initial_c", "Y_h", "Y_c"):
            return (batch, D, H) if self.layout else (D, batch, H)
        return {
            "X": (batch, time, self.input_size) if self.layout else (time, batch, self.input_size),
            "W": (D, G * H, self.input_size),
            "R": (D, G * H, H),
            "B": (D, 2 * G * H),
            "P": (D, 3 * H),
            "sequence_lens": (batch,),
            "Y": (batch, time, D, H) if self.layout else (time, D, batch, H),
        }[name]

    def build(self) -> onnx.ModelProto:
        """Return the model."""
        return config_models.build(self)

    def constants(self) -> dict[str, np.ndarray]:
        """Return the values the model holds itself: the node's inputs that are no mere graph inputs."""
        rng = np.random.default_rng(self.seed)
        values = {}
        for name, how in self.provisions.items():
            if how not in ("input", "same"):
                values[name] = self._random(name, rng)
            if how == "dequantized":
                values[name] = dequantized(values[name])
        return values

    def _random(self, name: str, rng: np.random.Generator) -> np.ndarray:
        if name == "sequence_lens":
            return (rng.random(self.batch_size) * (self.seq_length + 1)).astype(np.int32)
        shape = self.shape(name)
        if name == "X" and self.place == "scan":
            shape = (ITERATIONS, *shape)
        if self.provisions.get(name) == "expanded":
            shape = (1, *shape[1:]) if self.layout else (shape[0], 1, shape[2])
        scales = {"X": self.x_scale, "W": self.weight_scale, "B": self.weight_scale}
        # Large recurrent weights make a chaotic system, in which no two summation orders agree.
        scale = scales.get(name, min(0.5, self.weight_scale))
        # Uniform, by plain arithmetic: NumPy may change the bits of its normal distribution.
        return (scale * np.sqrt(12.0) * (rng.random(shape) - 0.5)).astype(DTYPES[self.dtype])

    def make_inputs(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return random values for the graph's inputs; sometimes for initializers that are inputs, too."""
        feeds = {"X": self._random("X", rng)}
        if self.x_dims == "unknown_rank":
            feeds = {"X": feeds["X"].reshape(-1), "X_shape": np.array(feeds["X"].shape, np.int64)}
        for name, how in self.provisions.items():
            overridden = how == "initializer_input" and self.ir_version >= 4 and rng.random() < 0.5
            if how == "input" or overridden:
                feeds[name] = self._random(name, rng)
        for name in CONDITIONS.get(self.place, ()):
            feeds[name] = np.array(rng.random() < 0.85)
        return feeds

    def expected(
        self, inputs: Mapping[str, np.ndarray], semantics: Semantics = "ort"
    ) -> dict[str, np.ndarray]:
        """Return the expected graph outputs for ``inputs``, from the oracle."""
        values = self.constants() | {name: inputs[name] for name in self.provisions if name in inputs}
        for name in ("initial_h", "initial_c"):
            if self.provisions.get(name) == "expanded":
                values[name] = np.broadcast_to(values[name], self.shape(name))
        if self.provisions.get("initial_c") == "same":
            values["initial_c"] = values["initial_h"]
        X = inputs["X"]
        if self.x_dims == "unknown_rank":
            X = X.reshape(inputs["X_shape"])
        taken = all(inputs[name] for name in CONDITIONS.get(self.place, ()))
        if self.place not in STACKED:
            return self._signed(self._evaluate(X, values, semantics), taken)
        steps = []
        for k in range(ITERATIONS):
            steps.append(self._evaluate(X[k] if self.place == "scan" else X, values, semantics))
            if self.carries_state:
                values["initial_h"] = steps[-1]["Y_h"]
                if self.provisions.get("initial_c") == "same":
                    values["initial_c"] = values["initial_h"]
        return self._signed({name: np.stack([step[name] for step in steps]) for name in steps[0]}, taken)

    def _evaluate(
        self, X: np.ndarray, values: Mapping[str, np.ndarray], semantics: Semantics
    ) -> dict[str, np.ndarray]:
        return evaluate(self.op_type, self.version, self.attributes, {"X": X, **values}, semantics=semantics)

    def _signed(self, outputs: Mapping[str, np.ndarray], taken: bool) -> dict[str, np.ndarray]:
        """Return the graph's results; the branch that is not taken gives zeros."""
        return {
            result: sign * outputs[name] if taken else np.zeros_like(outputs[name])
            for result, (name, sign) in self.results.items()
        }


def is_native(config: Config) -> bool:
    """Return can onnxruntime's own kernel run the config's node, in this process?"""
    sizes = config.seq_length and config.batch_size and config.hidden_size_given
    known = bool(sizes) and config.dtype in ("float16", "float32") and not config.layout
    if config.op_type == "RNN":
        has_lengths = "sequence_lens" in config.provisions
        known = known and rnn_is_sound(config.direction, config.activations, has_lengths)
    return known and 7 <= config.opset <= newest_opset()


def random_config(rng: np.random.Generator) -> Config:
    """Return a random config; the same state of ``rng`` gives the same one."""
    return Config(**draw_config(lambda options: options[int(rng.integers(len(options)))]))


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Return the hypothesis strategy of configs."""
    return Config(**draw_config(lambda options: draw(st.sampled_from(options))))
