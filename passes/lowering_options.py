"""The options of the lowerings: `unroll`, `scan`, `loop` and `lower`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, get_args

from rnnlower import wording
from rnnlower.arguments import check_choice, check_strings, check_unroll_factor, integer
from rnnlower.errors import OptionError
from rnnlower.passes.options import RecurrentOptions

if TYPE_CHECKING:
    from rnnlower.targets import Target
    from rnnlower.targets.choosing import Native


LOOPS = ("Loop", "Scan")


@dataclasses.dataclass(frozen=True)
class LoweringOptions(RecurrentOptions):
    """The options of a lowering by any strategy.

    Attributes:
        strategy: ``unroll``, ``scan``, ``loop``, or ``target``: chosen for the target.
    """

    strategy: str
    _: dataclasses.KW_ONLY
    opset: int | None = None
    target: str | os.PathLike[str] | Target | None = None
    nodes: Sequence[str] | None = None
    unroll_factor: int = 1
    fold: bool | None = None
    control_flow: str | None = None
    strict: bool = False
    native: Native = "auto"
    max: Mapping[str, int] | None = None
    namespaces: bool = False

    @property
    def folds(self) -> bool:
        """True if constants are folded and If nodes of known condition are replaced."""
        return self.fold if self.fold is not None else self.strategy == "target" or super().folds

    @property
    def may_freeze(self) -> bool:
        """True if initializers that are graph inputs may become constants."""
        return bool(self.freeze) or (self.freeze is None and self.runtime is not None)

    @property
    def unrolls(self) -> tuple[str, ...]:
        """The model's own control flow operators that are unrolled."""
        if self.control_flow == "unroll":
            return LOOPS
        if self.control_flow == "keep" or self.runtime is None:
            return ()
        return tuple(op_type for op_type in LOOPS if op_type not in self.runtime.control_flow.ops)

    @property
    def may_unroll(self) -> bool:
        """True if some of the model's own control flow may be unrolled."""
        return bool(self.unrolls) or (self.runtime is not None and self.control_flow is None)

    @property
    def lifts_lines(self) -> bool:
        """True if straight lines of cells are lifted first; `unroll` would only write them again."""
        return self.lift and self.strategy != "unroll"

    @property
    def emits(self) -> bool:
        """True if recurrent nodes are replaced, and not kept by a profile."""
        return self.runtime is None or not self.runtime.profile

    @property
    def needs_lengths(self) -> bool:
        """True if every sequence length must be a number."""
        from rnnlower.targets.fit import needs_static_length

        return self.strategy == "unroll" or (self.runtime is not None and needs_static_length(self.runtime))

    def __post_init__(self) -> None:
        from rnnlower.lowering import FIRST_OPSET, LAST_OPSET
        from rnnlower.lowering.replacing import Gates
        from rnnlower.targets.choosing import Native
        from rnnlower.targets.fit import check_opset

        super().__post_init__()
        check_strings("nodes", self.nodes)
        if self.namespaces and self.strip:
            first, second = (wording.option(name) for name in ("namespaces", "strip"))
            raise OptionError(
                f"{second} removes the metadata that {first} adds", remedy=f"leave out {second}"
            )
        if self.control_flow not in (None, "keep", "unroll"):
            name = wording.option("control-flow")
            raise OptionError(f"{name} is {self.control_flow!r}; it must be keep or unroll")
        check_unroll_factor(self.unroll_factor)
        if self.compute_type not in (None, "float32"):
            raise OptionError(f"the compute type is {self.compute_type!r}; it must be 'float32'")
        check_choice("the gates are", self.gates, get_args(Gates), "they")
        check_choice("native is", self.native, get_args(Native))
        if self.native == "lower":
            self.refuse_profile(wording.option("native", "lower"))
        if self.opset is not None and not FIRST_OPSET <= integer("opset", self.opset) <= LAST_OPSET:
            raise OptionError(
                f"the opset is {self.opset}; a lowered model has one from {FIRST_OPSET} to {LAST_OPSET}"
            )
        if self.runtime is not None and self.opset is not None:
            check_opset(self.runtime, self.opset)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnrollOptions(LoweringOptions):
    """The options of `rnnlower.unroll`."""

    strategy: str = field(default="unroll", init=False)
    unroll_factor: int = field(default=1, init=False)
    target: None = field(default=None, init=False)
    strict: bool = field(default=False, init=False)
    native: Native = field(default="auto", init=False)
    max: None = field(default=None, init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanOptions(LoweringOptions):
    """The options of `rnnlower.scan`."""

    strategy: str = field(default="scan", init=False)
    control_flow: str | None = field(default=None, init=False)
    target: None = field(default=None, init=False)
    strict: bool = field(default=False, init=False)
    native: Native = field(default="auto", init=False)
    max: None = field(default=None, init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopOptions(ScanOptions):
    """The options of `rnnlower.loop`."""

    strategy: str = field(default="loop", init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowerOptions(LoweringOptions):
    """The options of `rnnlower.lower`."""

    NEEDS_TARGET = True

    strategy: str = field(default="target", init=False)
    target: str | os.PathLike[str] = field()
