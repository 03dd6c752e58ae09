"""The words of target files: the names of operators, types and properties."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Annotated, Literal

import onnx
from msgspec import Meta

from rnnlower.recurrent import operators

Activations = Literal["int8", "int16", "uint16", "int8-only"]
"""Types of what a product of integers reads and writes: x and h have 8 bits, all have 16, all have 8."""

CONTROL_FLOW = ("If", "Loop", "Scan")

ADAPTABLE = {
    "B": "B written out as zeros",
    "initial_h": "initial_h written out as zeros",
    "initial_c": "initial_c written out as zeros",
    "sequence_lens": "full sequence_lens left out",
    "hidden_size": "hidden_size written",
    "layout": "X, states and outputs transposed",
    "direction": "direction = forward left out",
    "bidirectional": "one node for each direction",
    "reverse": "time turned around a forward node",
    "inputs": "no empty inputs at the end",
    "activations": "default activations left out",
    "Y": "Y named",
    "Y_h": "Y_h named",
    "Y_c": "Y_c named",
}
"""The properties of a recurrent node that ops around the operator can correct, with the correction."""


@functools.cache
def standard_operators() -> frozenset[str]:
    """Return the operators of the default domain, except control flow."""
    return frozenset(_STANDARD) - {*CONTROL_FLOW}


def one_of(known: Iterable[str]) -> Meta:
    """Return the constraint that a text is one of these."""
    words = [*known]
    return Meta(extra={"known": words}, extra_json_schema={"enum": words})


_STANDARD = sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""})
_SIZES = ("batch", "time")
OPTIONAL_INPUTS = operators.INPUT_NAMES[3:]
OPTIONAL_PORTS = (*OPTIONAL_INPUTS, *operators.OUTPUT_NAMES)
PROPERTIES = (
    *(*operators.INPUT_NAMES, *operators.OUTPUT_NAMES, *operators.ATTRIBUTE_TYPES, *operators.DIRECTIONS),
    *(*_SIZES, "type", "empty", "inputs", "nested", "semantics", "repeated", "input_size", "two_states"),
    "one_reader",
)
_DTYPES = (
    *("bool", "string", "float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
    *("int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32"),
    *("uint64", "float4e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
)

Natural = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Op = Annotated[str, one_of(_STANDARD)]
DomainOp = Annotated[
    str,
    Meta(
        extra={"known": _STANDARD, "domains": True},
        extra_json_schema={"anyOf": [{"enum": _STANDARD}, {"pattern": r"\."}]},
    ),
]
RecurrentOp = Annotated[str, one_of(op_type for _, op_type in operators.SIGNATURES)]
LoopOp = Annotated[str, one_of(("Loop", "Scan"))]
DType = Annotated[str, one_of(_DTYPES)]
Size = Annotated[str, one_of(_SIZES)]
Input = Annotated[str, one_of(operators.INPUT_NAMES)]
