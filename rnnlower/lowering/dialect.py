"""The operators that may be emitted, and the forms that suit a runtime. A target is a dialect."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import onnx_ir as ir


class LoopForms(Protocol):
    """The forms in which loops are emitted."""

    @property
    def apart(self) -> bool:
        """True if each direction gets its own Scan or Loop, if that needs no If around it."""
        return False

    @property
    def empty_scan(self) -> bool:
        """True if a Scan over no steps runs, so that it needs no If around it."""
        return False


class Prices(Protocol):
    """The prices of what is emitted, and the forms among which they choose."""

    @property
    def microseconds(self) -> Mapping[str, float]:
        """The price of one unit of each of the `Counts` of a lowering; empty if unknown."""
        return {}

    @property
    def native(self) -> Mapping[str, Mapping[str, float]]:
        """The same prices for the runtime's own recurrent operators, by their kind."""
        return {}

    @property
    def forms(self) -> Collection[str]:
        """The names of the forms of a step that may be emitted, in addition to the plain one."""
        return ()

    @property
    def thresholds(self) -> Mapping[str, float]:
        """The sizes at which forms are allowed, by their names in `forms.THRESHOLDS`."""
        return {}

    @property
    def fused(self) -> Collection[str]:
        """The activations that the runtime fuses with a preceding Gemm."""
        return ()

    @property
    def nearby_weights(self) -> bool:
        """True if weights that only a nested body reads are moved into that body."""
        return False


class _AnyLoops(LoopForms): ...


class NoPrices(Prices):
    """The prices of a runtime about which nothing is known."""


class Dialect(Protocol):
    """The operators and forms that may be emitted."""

    @property
    def name(self) -> str:
        """The name for messages."""
        return ""

    @property
    def control_flow(self) -> LoopForms:
        """The forms of loops."""
        return _AnyLoops()

    @property
    def prices(self) -> Prices:
        """The prices."""
        return NoPrices()

    @property
    def split_outputs(self) -> int | None:
        """The maximum number of outputs of a Split; ``None``: no limit."""
        return None

    def has(self, op_type: str, dtype: ir.DataType | None = None) -> bool:
        """Return whether an operator may be emitted, for an element type if one is given."""
        return True

    def needs_constant(self, op_type: str, index: int) -> bool:
        """Return whether an input of an operator must be a constant."""
        return False


class AnyOperator(Dialect):
    """The dialect of all operators."""


ANY: Dialect = AnyOperator()
