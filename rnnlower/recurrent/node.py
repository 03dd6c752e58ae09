"""LSTM, GRU and RNN nodes of every version, with all defaults resolved.

All code after `parsing.py` works on `ResolvedNode` and never reads an attribute again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from rnnlower.errors import InvalidModelError, OptionError, UnsupportedModelError
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.walk import Located
from rnnlower.recurrent.operators import (
    ATTRIBUTE_TYPES,
    DIRECTIONS,
    ORT_PARAMETERS,
    RECURRENT_OPS,
    SIGNATURES,
    SPEC_PARAMETERS,
    Cell,
)

Semantics = Literal["ort", "spec"]

KEEPS_INITIAL = "rnnlower.keeps_initial"
"""Key in the `meta` of nodes that stand for a Loop or Scan: without steps, the last state is the initial one.

True if something may read this state where there are no steps.
"""


def check_semantics(semantics: str) -> None:
    """Refuse semantics that do not exist.

    Raises:
        OptionError: The value is neither ``ort`` nor ``spec``.
    """
    if semantics not in ("ort", "spec"):
        raise OptionError(f"the semantics are {semantics!r}; they must be 'ort' or 'spec'")


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation function with its parameters; ``None`` where the function takes none."""

    name: str
    alpha: float | None = None
    beta: float | None = None


@dataclasses.dataclass(frozen=True)
class ResolvedNode:
    """A recurrent node as the ONNX spec describes it, with all defaults filled in.

    Shapes: X ``[seq_length, batch_size, input_size]``, W ``[num_directions, gates * hidden_size,
    input_size]``, R ``[num_directions, gates * hidden_size, hidden_size]``, B ``[num_directions, 2 * gates *
    hidden_size]``, states ``[num_directions, batch_size, hidden_size]``, P ``[num_directions, 3 *
    hidden_size]``. With ``layout == 1`` X and the states have the batch first.

    Attributes:
        node: The node in the graph.
        op_type: The cell: ``LSTM``, ``GRU`` or ``RNN``, whatever the operator's name.
        version: The operator's version that the model's opset selects.
        direction: ``forward``, ``reverse`` or ``bidirectional``.
        hidden_size: Number of units, from the attribute or else from the shape of R or W.
        input_size: Features of X, or ``None`` if no shape is known.
        seq_length: Static number of time steps, or ``None``.
        batch_size: Static batch size, or ``None``.
        dtype: The type of X, or ``None`` if the model does not declare it.
        activations: For each direction the functions f, g, h (as many as the cell has).
        clip: Threshold of the cell clip, or ``None``.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
        input_forget: LSTM's coupled gates, ``f = 1 - i``.
        linear_before_reset: GRU's second form.
        layout: 0 or 1.
    """

    node: ir.Node
    op_type: str
    version: int
    direction: str
    hidden_size: int
    input_size: int | None
    seq_length: int | None
    batch_size: int | None
    dtype: ir.DataType | None
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None
    semantics: Semantics
    input_forget: bool
    linear_before_reset: bool
    layout: int
    inputs: Mapping[str, ir.Value]
    outputs: Mapping[str, ir.Value]

    @property
    def cell(self) -> Cell:
        return RECURRENT_OPS[self.op_type]

    @property
    def keeps_initial(self) -> bool:
        """True if the last state of a row without steps is the initial one, and not onnxruntime's 0."""
        return self.semantics == "spec" or KEEPS_INITIAL in self.node.meta

    @property
    def is_quantized(self) -> bool:
        """True if W and R hold integers, transposed: ``[num_directions, columns, gates * hidden_size]``."""
        return "W_scale" in self.inputs

    @property
    def reversed_directions(self) -> tuple[bool, ...]:
        """For each direction, whether it runs from the end to the start."""
        return DIRECTIONS[self.direction]

    @property
    def num_directions(self) -> int:
        return len(self.reversed_directions)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The inputs that hold the initial states."""
        return ("initial_h", "initial_c") if self.op_type == "LSTM" else ("initial_h",)

    def initial_state(self, name: str) -> ir.Value | None:
        """Return an initial state, or ``None`` where it is absent or a constant of zeros."""
        value = self.inputs.get(name)
        if value is None:
            return None
        tensor = constant_of(value)
        is_zero = tensor is not None and not np.any(tensor.numpy())
        return None if is_zero else value

    def used(self, output: str) -> bool:
        """Return whether anything reads the output."""
        value = self.outputs.get(output)
        return value is not None and (bool(value.uses()) or value.is_graph_output())


class AttributeReader:
    """A reader of the attributes of one node; all errors name the node."""

    def __init__(self, located: Located, semantics: Semantics, lenient: bool) -> None:
        self.node = located.node
        self.lenient = lenient
        self.located = located
        self.signature = SIGNATURES[self.node.domain, self.node.op_type]
        self.op_type = self.signature.cell
        self.cell = RECURRENT_OPS[self.op_type]
        self.version = max(v for v in self.signature.versions if v <= located.opset)
        self.semantics = semantics

    def invalid(self, what: str, remedy: str = "") -> InvalidModelError:
        return InvalidModelError(what, node=self.located, remedy=remedy)

    def unsupported(self, what: str, remedy: str = "") -> UnsupportedModelError:
        return UnsupportedModelError(what, node=self.located, remedy=remedy)

    def check_attributes(self) -> None:
        known = self.signature.attributes
        own = sorted(name for name, (first, last) in known.items() if first <= self.version <= last)
        for name, attribute in self.node.attributes.items():
            if name not in known:
                raise self.invalid(
                    f"unknown attribute {name!r}; {self.node.op_type}-{self.version} has {', '.join(own)}"
                )
            first, last = known[name]
            if not first <= self.version <= last:
                raise self.invalid(
                    f"attribute {name!r} does not exist in {self.node.op_type}-{self.version}",
                    "remove it or change the model's opset",
                )
            if attribute.is_ref() and self.lenient:
                continue
            if attribute.is_ref():
                raise self.unsupported(
                    f"attribute {name!r} refers to the function attribute {attribute.ref_attr_name!r}, "
                    "which no call of the function sets",
                    "set it or give it a default",
                )
            if attribute.type != ATTRIBUTE_TYPES[name]:
                raise self.invalid(
                    f"attribute {name!r} has type {attribute.type.name}; "
                    f"it must be {ATTRIBUTE_TYPES[name].name}"
                )

    def value(self, name: str) -> Any:
        attribute = self.node.attributes.get(name)
        return None if attribute is None or attribute.is_ref() else attribute.value

    def integer(self, name: str, default: int) -> int:
        value = self.value(name)
        return default if value is None else int(value)

    def direction(self) -> str:
        # The schema of GRU-1 misspells its default as "foward". No other value is corrected.
        direction = self.value("direction") or "forward"
        if self.op_type == "GRU" and self.version < 3 and direction == "foward":
            direction = "forward"
        if direction not in DIRECTIONS:
            raise self.invalid(
                f"attribute direction is {direction!r}; it must be one of {', '.join(DIRECTIONS)}"
            )
        return str(direction)

    def clip(self) -> float | None:
        clip = self.value("clip")
        if clip is None:
            return None
        # onnxruntime's RNN kernel takes a threshold of 0, its LSTM and GRU kernels do not.
        lowest_is_zero = self.op_type == "RNN"
        if not (clip > 0 or (lowest_is_zero and clip == 0)):
            raise self.unsupported(
                f"attribute clip is {clip}; a threshold must be positive",
                "remove the attribute to clip nothing",
            )
        return float(clip)

    def activations(self, num_directions: int) -> tuple[tuple[Activation, ...], ...]:
        names = self._activation_names(num_directions)
        table = ORT_PARAMETERS if self.semantics == "ort" else SPEC_PARAMETERS
        alphas = iter(self.value("activation_alpha") or ())
        betas = iter(self.value("activation_beta") or ())
        activations = []
        for given in names:
            name = self._known_activation(given)
            parameters = table[name]
            activation = Activation(
                name,
                None if parameters.alpha is None else _float32(next(alphas, parameters.alpha)),
                None if parameters.beta is None else _float32(next(betas, parameters.beta)),
            )
            if activation.alpha != activation.alpha or activation.beta != activation.beta:
                raise self.unsupported(
                    f"activation {name} has no default alpha and beta in the ONNX spec",
                    "set activation_alpha and activation_beta",
                )
            activations.append(activation)
        count = len(self.cell.activations)
        return tuple(tuple(activations[d * count : (d + 1) * count]) for d in range(num_directions))

    def _activation_names(self, num_directions: int) -> Sequence[str]:
        names: Sequence[str] | None = self.value("activations")
        if names is None:
            return self.cell.activations * num_directions
        expected = len(self.cell.activations) * num_directions
        if self.op_type == "RNN" and num_directions == 1 and len(names) == 2:
            return names[:1]  # The schema's own default has two entries, whatever the direction.
        if len(names) != expected:
            raise self.invalid(f"attribute activations has {len(names)} entries; it must have {expected}")
        return names

    def _known_activation(self, given: str) -> str:
        ignore_case = self.semantics == "ort" and self.op_type != "RNN"
        for name in SPEC_PARAMETERS:
            if given == name or (ignore_case and given.lower() == name.lower()):
                return name
        raise self.unsupported(f"unknown activation {given!r}; known are {', '.join(SPEC_PARAMETERS)}")


def _float32(number: float) -> float:
    """Return the number in the precision of an attribute."""
    return float(np.float32(number))
