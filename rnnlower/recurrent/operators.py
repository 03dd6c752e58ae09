"""Tables of the signatures of LSTM, GRU and RNN, all versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

FLOAT_TYPES = (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


@dataclasses.dataclass(frozen=True)
class Cell:
    """The properties in which the three operators differ.

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
SHARED_ATTRIBUTES: Mapping[str, tuple[int, int]] = {
    **{name: _ALWAYS for name in ATTRIBUTE_TYPES if name not in ("input_forget", "linear_before_reset")},
    "layout": (14, _ALWAYS[1]),
    "output_sequence": (1, 6),
}

_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
MOST_INPUTS = len(_INPUTS)
"""The number of inputs of LSTM."""

_QUANTIZATION = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")
INPUT_NAMES = (*_INPUTS, *_QUANTIZATION)
WEIGHT_INPUTS = (1, 2, 3, 7)
"""The positions of W, R, B and P."""
STATE_INPUTS = (5, 6)
"""The positions of initial_h and initial_c."""
OUTPUT_NAMES = ("Y", "Y_h", "Y_c")
DIRECTIONS: Mapping[str, tuple[bool, ...]] = {
    "forward": (False,),
    "reverse": (True,),
    "bidirectional": (False, True),
}


@dataclasses.dataclass(frozen=True)
class Signature:
    """The signature of an operator that contains a cell.

    Attributes:
        cell: The key of its cell in `RECURRENT_OPS`.
        versions: The operator's versions in its domain.
        inputs: The names of the inputs in their order.
        attributes: The attributes, with the first and last version that has them.
        required: The inputs that must be present.
        transposed: Whether W is ``[num_directions, input_size, gates * hidden_size]``, and R likewise.
    """

    cell: str
    versions: tuple[int, ...]
    inputs: tuple[str, ...]
    attributes: Mapping[str, tuple[int, int]]
    required: tuple[str, ...] = ("X", "W", "R")
    transposed: bool = False


def _standard(op_type: str) -> Signature:
    cell = RECURRENT_OPS[op_type]
    inputs = _INPUTS if op_type == "LSTM" else _INPUTS[:6]
    return Signature(op_type, cell.versions, inputs, {**SHARED_ATTRIBUTES, **cell.attributes})


QUANTIZED_LSTM = "DynamicQuantizeLSTM"
"""onnxruntime's LSTM with weights of 8 bits, which rounds X and H to 8 bits as it runs."""

SIGNATURES: Mapping[tuple[str, str], Signature] = {
    **{("", op_type): _standard(op_type) for op_type in RECURRENT_OPS},
    ("com.microsoft", QUANTIZED_LSTM): Signature(
        "LSTM",
        (1,),
        INPUT_NAMES,
        {
            name: _ALWAYS
            for name in (*SHARED_ATTRIBUTES, "input_forget")
            if name not in ("layout", "output_sequence")
        },
        required=("X", "W", "R", *_QUANTIZATION),
        transposed=True,
    ),
}
"""The key is (domain, operator)."""


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Defaults of alpha and beta; ``None`` if the function does not take the parameter."""

    alpha: float | None = None
    beta: float | None = None


# The spec: "the default values are the same as of corresponding ONNX operators". onnxruntime follows it
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
