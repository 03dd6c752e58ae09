"""A recurrent node of any version with all defaults resolved.

The lowering works on `ResolvedNode` alone, and reads no attribute of the node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import numpy as np
import onnx_ir as ir

from rnnlower.errors import OptionError
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.walk import is_read
from rnnlower.recurrent.operators import DIRECTIONS, RECURRENT_OPS, Cell

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
        return value is not None and is_read(value)
