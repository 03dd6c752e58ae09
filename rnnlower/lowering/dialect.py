"""The set of operators that a runtime has, as the emitter needs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.lowering.pricing import NATIVE


@dataclasses.dataclass(frozen=True)
class Dialect:
    """The operators that may be emitted.

    Attributes:
        name: The target's name.
        ops: The operators.
        constant: For each operator, the inputs that must be constants.
        lacks: For each element type, the operators that do not support it.
        costs: The price of one unit of each of the `Counts` of a lowering. Empty if unknown.
        native: The same prices for the runtime's own recurrent operators, by their kind.
        forms: The names of the forms of a step that may be emitted, beside the plain one.
        fused: Activations that the runtime fuses with a preceding Gemm.
        apart: Whether each direction gets its own Scan or Loop, if that needs no If around it.
        nearby_weights: Whether weights that only a nested body reads are moved into that body.
        keeps_gathered_axis: Whether Gather by the number of a Loop's iteration keeps the axis.
        empty_scan: Whether a Scan over no steps runs, so that it needs no If around it.
        split_outputs: Maximum number of outputs of a Split; ``None``: no limit.
    """

    name: str
    ops: frozenset[str]
    constant: Mapping[str, frozenset[int]]
    lacks: Mapping[ir.DataType, frozenset[str]] = dataclasses.field(default_factory=dict)
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    native: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    forms: frozenset[str] = frozenset()
    fused: frozenset[str] = frozenset()
    apart: bool = False
    nearby_weights: bool = False
    empty_scan: bool = False
    keeps_gathered_axis: bool = False
    split_outputs: int | None = None

    def prices(self, kind: str) -> Mapping[str, float]:
        """Return the price of one unit of each of the `Counts` of a recurrent operator and its ops."""
        own = {f"{NATIVE}{name}": price for name, price in self.native[kind].items()}
        return {**self.costs, **own}
