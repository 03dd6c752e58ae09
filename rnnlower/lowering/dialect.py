"""The operators that a runtime has, as far as emitting goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

__all__ = ["Dialect"]


@dataclasses.dataclass(frozen=True)
class Dialect:
    """The operators that may be emitted.

    Attributes:
        name: Whose operators they are.
        ops: The operators.
        constant: By operator the inputs that must be constants.
        lacks: By type the operators that it has not for that type.
        costs: What one of each of the `Counts` of a lowering costs; empty where that is not known, and then
            the forms of a step are plain.
        fused: Activations that it makes part of a Gemm in front of them.
        apart: Whether each direction of a node of static length gets a Scan or Loop of its own.
        nearby_weights: Whether weights that only a nested body reads are put into that body.
        split_outputs: Most outputs of a Split; ``None``: any number.
    """

    name: str
    ops: frozenset[str]
    constant: Mapping[str, frozenset[int]]
    lacks: Mapping[ir.DataType, frozenset[str]] = dataclasses.field(default_factory=dict)
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    fused: frozenset[str] = frozenset()
    apart: bool = False
    nearby_weights: bool = False
    split_outputs: int | None = None
