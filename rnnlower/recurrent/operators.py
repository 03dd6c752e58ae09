"""Tables of the signatures of LSTM, GRU and RNN, all versions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.graph.versions import version_at

FLOAT_TYPES = (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


@dataclasses.dataclass(frozen=True)
class Cell:
    """The properties in which the three operators differ.

    Attributes:
        gates: The gates in the order in which W, R and B stack them.
        activations: The default activation functions, one for each of f, g, h that the cell has.
        outputs: The names of the outputs in their order.
    """

    gates: str
    activations: tuple[str, ...]
    outputs: tuple[str, ...]


OUTPUT_NAMES = ("Y", "Y_h", "Y_c")
RECURRENT_OPS: Mapping[str, Cell] = {
    "LSTM": Cell("iofc", ("Sigmoid", "Tanh", "Tanh"), OUTPUT_NAMES),
    "GRU": Cell("zrh", ("Sigmoid", "Tanh"), OUTPUT_NAMES[:2]),
    "RNN": Cell("i", ("Tanh",), OUTPUT_NAMES[:2]),
}

_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
MAX_INPUTS = len(_INPUTS)
"""The number of inputs of LSTM."""

_QUANTIZATION = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")
INPUT_NAMES = (*_INPUTS, *_QUANTIZATION)
WEIGHT_INPUTS = (1, 2, 3, 7)
"""The positions of W, R, B and P."""
STATE_INPUTS = (5, 6)
"""The positions of initial_h and initial_c."""
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
        inputs: The names of the inputs in their order.
        attributes: The attributes of each version, with their types.
        required: The inputs that must be present.
        transposed: Whether W is ``[num_directions, input_size, gates * hidden_size]``, and R likewise.
    """

    cell: str
    inputs: tuple[str, ...]
    attributes: Mapping[int, Mapping[str, ir.AttributeType]]
    required: tuple[str, ...] = ("X", "W", "R")
    transposed: bool = False


def _attributes(op_type: str, since: int) -> dict[str, ir.AttributeType]:
    version = version_at(op_type, since)
    assert version is not None
    return {name: ir.AttributeType(each.type) for name, each in sorted(version.attributes.items())}


def _standard(op_type: str, *versions: int) -> Signature:
    """Return the signature with the versions that this package knows; onnx may have newer ones."""
    inputs = _INPUTS if op_type == "LSTM" else _INPUTS[:6]
    return Signature(op_type, inputs, {since: _attributes(op_type, since) for since in versions})


QUANTIZED_LSTM = "DynamicQuantizeLSTM"
"""onnxruntime's LSTM with weights of 8 bits, which rounds X and H to 8 bits as it runs."""

SIGNATURES: Mapping[tuple[str, str], Signature] = {
    ("", "LSTM"): _standard("LSTM", 1, 7, 14, 22),
    ("", "GRU"): _standard("GRU", 1, 3, 7, 14, 22),
    ("", "RNN"): _standard("RNN", 1, 7, 14, 22),
    ("com.microsoft", QUANTIZED_LSTM): Signature(
        "LSTM",
        INPUT_NAMES,
        {1: _attributes("LSTM", 7)},
        required=("X", "W", "R", *_QUANTIZATION),
        transposed=True,
    ),
}
"""The key is (domain, operator)."""

ATTRIBUTE_TYPES: Mapping[str, ir.AttributeType] = dict(
    sorted(item for each in SIGNATURES.values() for own in each.attributes.values() for item in own.items())
)
"""The attributes of all of them."""


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
