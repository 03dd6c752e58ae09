"""The operators that may be emitted, and the forms that suit a runtime. A target is a dialect."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Protocol

import onnx_ir as ir


class LoopForms(Protocol):
    """The forms in which loops are emitted.

    Attributes:
        apart: Whether each direction gets its own Scan or Loop, if that needs no If around it.
        empty_scan: Whether a Scan over no steps runs, so that it needs no If around it.
    """

    @property
    def apart(self) -> bool: ...
    @property
    def empty_scan(self) -> bool: ...


class Prices(Protocol):
    """The prices of what is emitted, and the forms among which they choose.

    Attributes:
        microseconds: The price of one unit of each of the `Counts` of a lowering; empty if unknown.
        native: The same prices for the runtime's own recurrent operators, by their kind.
        forms: The names of the forms of a step that may be emitted, in addition to the plain one.
        thresholds: The sizes at which forms are allowed, by their names in `forms.THRESHOLDS`.
        fused: The activations that the runtime fuses with a preceding Gemm.
        nearby_weights: Whether weights that only a nested body reads are moved into that body.
    """

    @property
    def microseconds(self) -> Mapping[str, float]: ...
    @property
    def native(self) -> Mapping[str, Mapping[str, float]]: ...
    @property
    def forms(self) -> Collection[str]: ...
    @property
    def thresholds(self) -> Mapping[str, float]: ...
    @property
    def fused(self) -> Collection[str]: ...
    @property
    def nearby_weights(self) -> bool: ...


class Dialect(Protocol):
    """The operators and forms that may be emitted.

    Attributes:
        name: The name for messages.
        control_flow: The forms of loops.
        prices: The prices.
        split_outputs: The maximum number of outputs of a Split; ``None``: no limit.
    """

    @property
    def name(self) -> str: ...
    @property
    def control_flow(self) -> LoopForms: ...
    @property
    def prices(self) -> Prices: ...
    @property
    def split_outputs(self) -> int | None: ...

    def has(self, op_type: str, dtype: ir.DataType | None = None) -> bool:
        """Return whether an operator may be emitted, for an element type if one is given."""

    def needs_constant(self, op_type: str, index: int) -> bool:
        """Return whether an input of an operator must be a constant."""


@dataclasses.dataclass(frozen=True)
class _AnyLoops:
    apart: bool = False
    empty_scan: bool = False


@dataclasses.dataclass(frozen=True)
class NoPrices:
    """The prices of a runtime about which nothing is known."""

    microseconds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    native: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    forms: Collection[str] = ()
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)
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
