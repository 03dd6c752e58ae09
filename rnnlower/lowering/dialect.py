"""The operators that may be emitted, and the forms that suit a runtime. A target is a dialect."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Protocol

import onnx_ir as ir


class LoopForms(Protocol):
    """The forms in which loops are emitted."""

    @property
    def apart(self) -> bool:
        """Whether each direction gets its own Scan or Loop, if that needs no If around it."""

    @property
    def empty_scan(self) -> bool:
        """Whether a Scan over no steps runs, so that it needs no If around it."""

    @property
    def keeps_gathered_axis(self) -> bool:
        """Whether Gather by the number of a Loop's iteration keeps the axis."""


class Prices(Protocol):
    """The prices of what is emitted, and the forms among which they choose."""

    @property
    def microseconds(self) -> Mapping[str, float]:
        """The price of one unit of each of the `Counts` of a lowering; empty if unknown."""

    @property
    def native(self) -> Mapping[str, Mapping[str, float]]:
        """The same prices for the runtime's own recurrent operators, by their kind."""

    @property
    def forms(self) -> Collection[str]:
        """The names of the forms of a step that may be emitted, in addition to the plain one."""

    @property
    def fused(self) -> Collection[str]:
        """The activations that the runtime fuses with a preceding Gemm."""

    @property
    def nearby_weights(self) -> bool:
        """Whether weights that only a nested body reads are moved into that body."""


class Dialect(Protocol):
    """What may be emitted."""

    @property
    def name(self) -> str:
        """The name for messages."""

    @property
    def control_flow(self) -> LoopForms:
        """The forms of loops."""

    @property
    def prices(self) -> Prices:
        """The prices."""

    @property
    def split_outputs(self) -> int | None:
        """The maximum number of outputs of a Split; ``None``: no limit."""

    def has(self, op_type: str, dtype: ir.DataType | None = None) -> bool:
        """Return whether an operator may be emitted, for an element type if one is given."""

    def needs_constant(self, op_type: str, index: int) -> bool:
        """Return whether an input of an operator must be a constant."""


@dataclasses.dataclass(frozen=True)
class _AnyLoops:
    apart: bool = False
    empty_scan: bool = False
    keeps_gathered_axis: bool = False


@dataclasses.dataclass(frozen=True)
class NoPrices:
    """The prices of a runtime of which none are known."""

    microseconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    native: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    forms: Collection[str] = ()
    fused: Collection[str] = ()
    nearby_weights: bool = False


@dataclasses.dataclass(frozen=True)
class Anything:
    """The dialect of all operators."""

    name: str = ""
    control_flow: LoopForms = _AnyLoops()
    prices: Prices = NoPrices()
    split_outputs: int | None = None

    def has(self, op_type: str, dtype: ir.DataType | None = None) -> bool:
        return True

    def needs_constant(self, op_type: str, index: int) -> bool:
        return False


ANY: Dialect = Anything()
