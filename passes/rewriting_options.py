"""The options of `stream`, `lift`, `pad`, `convert` and `check`."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from rnnlower import wording
from rnnlower.arguments import check_choice, check_strings, integer
from rnnlower.errors import OptionError
from rnnlower.passes.lowering_options import LoweringOptions
from rnnlower.passes.options import Options, RecurrentOptions

if TYPE_CHECKING:
    from rnnlower.recurrent.node import Semantics


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions(RecurrentOptions):
    """The options of `rnnlower.stream`."""

    chunk: int | str | None = 1
    connect: Mapping[str, str] | None = None
    rate: float | None = None
    time_axes: Mapping[str, int] | None = None
    allow_delay: bool = False
    states: Mapping[str, str] | None = None
    emit: str | None = None
    strategy: str = "none"
    target: str | os.PathLike[str] | None = None

    @functools.cached_property
    def steps(self) -> int | None:
        """The time steps per call; ``None``: any number."""
        if not isinstance(self.chunk, str):
            if self.rate is not None:
                raise OptionError(
                    f"{wording.option('rate')} is for a chunk in ms or s",
                    remedy=f"leave it out, or give a duration ({wording.option('chunk', '10ms')})",
                )
            return self.chunk
        unit = "ms" if self.chunk.endswith("ms") else "s"
        try:
            seconds = float(self.chunk.removesuffix(unit)) / (1000 if unit == "ms" else 1)
        except ValueError:
            raise OptionError(
                f"{wording.option('chunk')} is {self.chunk!r}; it must be a number of time steps, a "
                "duration such as 10ms, or any"
            ) from None
        if self.rate is None:
            raise OptionError(
                f"a chunk of {self.chunk} has a number of steps that follows from a rate",
                remedy=f"say how many steps a second has ({wording.option('rate', 16000)})",
            )
        steps = seconds * self.rate
        if steps < 1 or not math.isclose(steps, round(steps)):
            raise OptionError(
                f"{self.chunk} at {self.rate:g} steps a second are {steps:g} steps; they must be whole"
            )
        return round(steps)

    @property
    def lowers(self) -> bool:
        """True if the recurrent nodes are lowered as well."""
        return self.strategy != "none" or self.runtime is not None

    def of_lowering(self) -> LoweringOptions:
        """Return the options by which the recurrent nodes of the chunk are lowered."""
        return LoweringOptions(
            self.strategy if self.runtime is None else "target",
            semantics=self.semantics,
            target=self.runtime,
            compute_type=self.compute_type,
            gates=self.gates,
            progress=self.progress,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps  # noqa: B018  # Refuse a chunk that is no number of steps.
        check_choice("the strategy is", self.strategy, ("none", "unroll", "scan", "loop"))
        if self.emit is not None:
            check_choice("the language to emit is", self.emit, ("python", "js", "c"))
        if self.runtime is not None and self.strategy != "none":
            raise OptionError("a target chooses the strategy itself: leave out one of the two")
        if not self.lowers and (self.compute_type is not None or self.gates != "auto"):
            what = f"{wording.option('compute-type')} and {wording.option('gates')}"
            how = f"{wording.option('strategy', 'unroll')}, {wording.option('target', 'NAME')}"
            raise OptionError(
                f"{what} are for recurrent nodes that are lowered, and these stay",
                remedy=f"say how to lower them ({how})",
            )
        if self.lowers:
            self.of_lowering()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiftOptions(Options):
    """The options of `rnnlower.lift`."""

    target: None = field(default=None, init=False)
    nodes: Sequence[str] | None = None
    steps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes is not None:
            check_strings("nodes", self.nodes)
        if integer("number of steps", self.steps) < 1:
            raise OptionError(f"{wording.option('steps')} is {self.steps}; it must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PadOptions(Options):
    """The options of `rnnlower.pad`."""

    target: None = field(default=None, init=False)
    max: Mapping[str, int] = field()
    mask: bool = False
    per_row: bool = False
    time_axes: Mapping[str, int] | None = None
    lift: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """The options of `rnnlower.convert`."""

    opset: int = field()
    dims: None = field(default=None, init=False)
    input_shapes: None = field(default=None, init=False)
    semantics: Semantics = field(default="ort", init=False)
    target: None = field(default=None, init=False)

    @property
    def changes_inputs(self) -> bool:
        """True if initializers may no longer be graph inputs, as old IR versions require."""
        return bool(self.sets or self.freeze)

    @property
    def lacks_state_operators(self) -> bool:
        """True if the requested opset has neither LinearAttention nor CausalConvWithState."""
        from rnnlower.recurrent.state_operators import FIRST_OPSET

        return integer("opset", self.opset) < FIRST_OPSET


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """The options of `rnnlower.check`."""

    NEEDS_TARGET = True

    target: str | os.PathLike[str] = field()
    strip: bool = field(default=False, init=False)
