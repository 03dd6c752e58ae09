"""The options of the commands other than the lowerings."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from numbers import Real
from typing import TYPE_CHECKING, Any, get_args

from rnnlower import wording
from rnnlower.arguments import check_choice, check_strings, check_unroll_factor, integer
from rnnlower.errors import OptionError
from rnnlower.passes.options import LoweringOptions, Options, RecurrentOptions

if TYPE_CHECKING:
    from rnnlower.recurrent.node import Semantics
    from rnnlower.targets import Target
    from rnnlower.targets.choosing import Native
    from rnnlower.targets.vocabulary import Activations

_MAX_HEADROOM = 2**15
"""Beyond it, 16 bits hold nothing of what was seen."""


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
        if self.chunk == "any" or not isinstance(self.chunk, str):
            if self.rate is not None:
                raise OptionError(
                    f"{wording.option('rate')} is for a chunk in ms or s",
                    remedy=f"leave it out, or give a duration ({wording.option('chunk', '10ms')})",
                )
            return None if isinstance(self.chunk, str) else self.chunk
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
                f"a chunk of {self.chunk} needs a rate to be converted to time steps",
                remedy=f"give the number of steps per second ({wording.option('rate', 16000)})",
            )
        if not isinstance(self.rate, Real):
            raise OptionError(f"{wording.option('rate')} is {self.rate!r}; it must be a number")
        steps = seconds * self.rate
        if not 1 <= steps < math.inf or not math.isclose(steps, round(steps)):
            raise OptionError(
                f"{self.chunk} is {steps:g} steps at {self.rate:g} per second; "
                "it must be a whole number, at least 1"
            )
        return round(steps)

    @property
    def lowers(self) -> bool:
        """True if the recurrent nodes are lowered as well."""
        return self.strategy != "none" or self.runtime is not None

    def make_lowering_options(self) -> LoweringOptions:
        """Return the options by which the recurrent nodes of the chunk are lowered."""
        shared = ("semantics", "compute_type", "gates", "progress")
        return LoweringOptions(
            self.strategy if self.runtime is None else "target",
            target=self.runtime,
            **{name: getattr(self, name) for name in shared},
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
            self.make_lowering_options()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiftOptions(Options):
    """The options of `rnnlower.lift`."""

    nodes: Sequence[str] | None = None
    steps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strings("nodes", self.nodes)
        if integer("number of steps", self.steps) < 1:
            raise OptionError(f"{wording.option('steps')} is {self.steps}; it must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PadOptions(Options):
    """The options of `rnnlower.pad`."""

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

    @property
    def changes_inputs(self) -> bool:
        """True if initializers may no longer be graph inputs, as old IR versions require."""
        return bool(self.sets or self.freeze)

    @property
    def lacks_state_operators(self) -> bool:
        """True if the requested opset has neither LinearAttention nor CausalConvWithState."""
        from rnnlower.recurrent.state_operators import STATE_OPERATORS_OPSET

        return integer("opset", self.opset) < STATE_OPERATORS_OPSET


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """The options of `rnnlower.check`."""

    NEEDS_TARGET = True

    target: str | os.PathLike[str] = field()
    strip: bool = field(default=False, init=False)


Given = str | os.PathLike[str] | Mapping[str, Any]
"""An .npz file, or its arrays: one for each graph input."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedOptions(Options):
    """The options that `calibrate` and `quantize` share."""

    strip: bool = field(default=False, init=False)
    semantics: Semantics = field(default="ort", init=False)

    @property
    def may_freeze(self) -> bool:
        """True if initializers that are graph inputs may become constants, as integers of weights are."""
        return self.freeze is not False


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions(RecordedOptions):
    """The options of `rnnlower.calibrate`."""

    recordings: Given | Sequence[Given] = field(kw_only=False)
    ranges: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeOptions(RecordedOptions):
    """The options of `rnnlower.quantize`."""

    calibration: Given | Sequence[Given]
    activations: Activations = "int8"
    scheme: str = "qdq"
    strategy: str = "auto"
    headroom: float = 2.0
    per_tensor: bool = False
    recurrent_only: bool = False
    integer_states: bool = False
    target: str | os.PathLike[str] | None = None
    inputs: Given | None = None
    verify: bool = False
    on: str | None = None

    def __post_init__(self) -> None:
        from rnnlower.targets.vocabulary import Activations

        super().__post_init__()
        check_choice("the activations are", self.activations, get_args(Activations), "they")
        check_choice("the strategy is", self.strategy, ("auto", "unroll", "scan", "loop"))
        check_choice("the scheme is", self.scheme, ("qdq", "tflite", "pow2"))
        self.refuse_profile(wording.option("target"))
        if self.scheme == "pow2" and self.activations == "uint16":
            raise OptionError("the scheme pow2 has signed integers; choose other activations than uint16")
        if self.scheme == "tflite" and self.activations != "int8":
            raise OptionError(
                f"the scheme tflite has integers of its own, and the activations are {self.activations}",
                remedy=f"leave out {wording.option('activations')}",
            )
        if not (isinstance(self.headroom, Real) and 1 <= self.headroom <= _MAX_HEADROOM):
            raise OptionError(f"the headroom is {self.headroom!r}; it must be from 1 to {_MAX_HEADROOM}")


BENCH_STRATEGIES = ("adapt", "unroll", "scan", "loop", "lower")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchOptions(RecurrentOptions):
    """The options of `rnnlower.bench`."""

    strip: bool = field(default=False, init=False)
    lift: bool = field(default=True, init=False)
    strategies: Sequence[str] | None = None
    unroll_factors: Sequence[int] | None = None
    threads: int = 1
    runs: int = 50
    warmup: int = 3
    nodes: Sequence[str] | None = None
    inputs: Given | None = None
    seed: int = 0
    on: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_strings("strategies", self.strategies)
        for strategy in self.strategies or ():
            if strategy not in BENCH_STRATEGIES:
                raise OptionError(f"the strategy {strategy!r} is not one of {', '.join(BENCH_STRATEGIES)}")
        if not isinstance(self.unroll_factors or (), Iterable):
            raise OptionError(f"unroll_factors is {self.unroll_factors!r}; it must be a list of integers")
        for factor in self.unroll_factors or ():
            check_unroll_factor(factor)
        integer("number of threads", self.threads, 0)
        integer("number of runs", self.runs, 1)
        integer("warm-up", self.warmup, 0)
        integer("seed", self.seed, 0)

    def make_lowering_options(
        self, strategy: str, unroll_factor: int, target: Target | None
    ) -> LoweringOptions:
        """Return the options by which a form is made, with folding for a target or where inputs are set."""
        natives: Mapping[str, Native] = {"adapt": "keep", "lower": "auto"}
        shared = ("dims", "input_shapes", "nodes", "compute_type", "gates")
        return LoweringOptions(
            "target" if strategy in natives else strategy,
            target=target,
            unroll_factor=unroll_factor,
            fold=True if target is not None or self.sets else None,
            native=natives.get(strategy, "lower"),
            **self.reading(),
            **{name: getattr(self, name) for name in shared},
        )
