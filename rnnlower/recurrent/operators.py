"""The signatures of LSTM, GRU and RNN, all versions, as tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

__all__ = [
    "ATTRIBUTE_TYPES",
    "DIRECTIONS",
    "FLOAT_TYPES",
    "INPUT_NAMES",
    "ORT_PARAMETERS",
    "OUTPUT_NAMES",
    "RECURRENT_OPS",
    "SHARED_ATTRIBUTES",
    "SPEC_PARAMETERS",
    "Cell",
    "Parameters",
]

FLOAT_TYPES = (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


@dataclasses.dataclass(frozen=True)
class Cell:
    """What distinguishes the three operators from each other.

    Attributes:
        versions: The versions of the operator, as `onnx.defs` numbers them.
        gates: The gates in the order in which W, R and B stack them.
        activations: The default activation functions, one for each of f, g, h that the cell has.
        attributes: Attributes beyond the shared ones, with the first and last version that has them.
    """

    versions: tuple[int, ...]
    gates: str
    activations: tuple[str, ...]
    attributes: Mapping[str, tuple[int, int]]


_ALWAYS = (1, 1 << 30)
SHARED_ATTRIBUTES: Mapping[str, tuple[int, int]] = {
    "activation_alpha": _ALWAYS,
    "activation_beta": _ALWAYS,
    "activations": _ALWAYS,
    "clip": _ALWAYS,
    "direction": _ALWAYS,
    "hidden_size": _ALWAYS,
    "layout": (14, _ALWAYS[1]),
    "output_sequence": (1, 6),
}

RECURRENT_OPS: Mapping[str, Cell] = {
    "LSTM": Cell((1, 7, 14, 22), "iofc", ("Sigmoid", "Tanh", "Tanh"), {"input_forget": _ALWAYS}),
    "GRU": Cell((1, 3, 7, 14, 22), "zrh", ("Sigmoid", "Tanh"), {"linear_before_reset": (3, _ALWAYS[1])}),
    "RNN": Cell((1, 7, 14, 22), "i", ("Tanh",), {}),
}

ATTRIBUTE_TYPES: Mapping[str, ir.AttributeType] = {
    "activation_alpha": ir.AttributeType.FLOATS,
    "activation_beta": ir.AttributeType.FLOATS,
    "activations": ir.AttributeType.STRINGS,
    "clip": ir.AttributeType.FLOAT,
    "direction": ir.AttributeType.STRING,
    "hidden_size": ir.AttributeType.INT,
    "input_forget": ir.AttributeType.INT,
    "layout": ir.AttributeType.INT,
    "linear_before_reset": ir.AttributeType.INT,
    "output_sequence": ir.AttributeType.INT,
}

INPUT_NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
OUTPUT_NAMES = ("Y", "Y_h", "Y_c")
DIRECTIONS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Defaults of alpha and beta; ``None``: the function does not take it."""

    alpha: float | None = None
    beta: float | None = None


# The text says "the default values are the same as of corresponding ONNX operators". onnxruntime follows it
# except where ORT_PARAMETERS says otherwise.
SPEC_PARAMETERS: Mapping[str, Parameters] = {
    "Affine": Parameters(1.0, 0.0),
    "Elu": Parameters(1.0),
    "HardSigmoid": Parameters(0.2, 0.5),
    "LeakyRelu": Parameters(0.01),
    "Relu": Parameters(),
    "ScaledTanh": Parameters(float("nan"), float("nan")),
    "Sigmoid": Parameters(),
    "Softplus": Parameters(),
    "Softsign": Parameters(),
    "Tanh": Parameters(),
    "ThresholdedRelu": Parameters(1.0),
}
ORT_PARAMETERS: Mapping[str, Parameters] = {
    **SPEC_PARAMETERS,
    "Affine": Parameters(0.0, 0.0),
    "ScaledTanh": Parameters(0.0, 0.0),
    "ThresholdedRelu": Parameters(0.0),
}
