"""The options of the commands that run models to measure: `calibrate`, `quantize` and `bench`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, get_args

from rnnlower import wording
from rnnlower.arguments import check_choice, check_strings, integer
from rnnlower.errors import OptionError
from rnnlower.passes.lowering_options import LoweringOptions
from rnnlower.passes.options import Options, RecurrentOptions

if TYPE_CHECKING:
    from rnnlower.recurrent.node import Semantics
    from rnnlower.targets import Target
    from rnnlower.targets.choosing import Native


Activations = Literal["int8", "int16", "uint16", "int8-only"]
Given = str | os.PathLike[str] | Mapping[str, Any]
"""An .npz file, or its arrays: one for each graph input."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """The options of `rnnlower.calibrate`."""

    strip: bool = field(default=False, init=False)
    semantics: Semantics = field(default="ort", init=False)
    target: str | os.PathLike[str] | None = field(default=None, init=False)

    @property
    def may_freeze(self) -> bool:
        """True if initializers that are graph inputs may become constants, as integers of weights are."""
        return self.freeze is not False


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeOptions(CalibrateOptions):
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
        super().__post_init__()
        check_choice("the activations are", self.activations, get_args(Activations), "they")
        check_choice("the strategy is", self.strategy, ("auto", "unroll", "scan", "loop"))
        check_choice("the scheme is", self.scheme, ("qdq", "tflite", "pow2"))
        if self.runtime is not None and self.runtime.profile:
            raise OptionError(
                f"target {self.runtime.name} is a profile, which keeps recurrent nodes",
                remedy=f"leave out {wording.option('target')}",
            )
        if self.scheme == "pow2" and self.activations == "uint16":
            raise OptionError("the scheme pow2 has signed integers; choose other activations than uint16")
        if self.scheme == "tflite" and self.activations != "int8":
            raise OptionError(
                f"the scheme tflite has integers of its own, and the activations are {self.activations}",
                remedy=f"leave out {wording.option('activations')}",
            )
        if not self.headroom >= 1:
            raise OptionError(f"the headroom is {self.headroom}; it must be at least 1")


BENCH_STRATEGIES = ("adapt", "unroll", "scan", "loop", "lower")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchOptions(RecurrentOptions):
    """The options of `rnnlower.bench`."""

    strip: bool = field(default=False, init=False)
    lift: bool = field(default=True, init=False)
    target: None = field(default=None, init=False)
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
        if self.strategies is not None:
            check_strings("strategies", self.strategies)
        for strategy in self.strategies or ():
            if strategy not in BENCH_STRATEGIES:
                raise OptionError(f"the strategy {strategy!r} is not one of {', '.join(BENCH_STRATEGIES)}")
        if not isinstance(self.unroll_factors or (), Iterable):
            raise OptionError(f"unroll_factors is {self.unroll_factors!r}; it must be a list of integers")
        least = [("unroll factor", 1, factor) for factor in self.unroll_factors or ()]
        least += [("number of threads", 0, self.threads), ("number of runs", 1, self.runs)]
        for name, bound, value in (*least, ("warm-up", 0, self.warmup)):
            if integer(name, value) < bound:
                raise OptionError(f"the {name} is {value}; it must be at least {bound}")

    def of_lowering(self, strategy: str, unroll_factor: int, target: Target | None) -> LoweringOptions:
        """Return the options by which a form is made, with folding for a target or where inputs are set."""
        natives: Mapping[str, Native] = {"adapt": "keep", "lower": "auto"}
        shared = ("dims", "input_shapes", "nodes", "semantics", "compute_type", "gates")
        return LoweringOptions(
            "target" if strategy in natives else strategy,
            target=target,
            unroll_factor=unroll_factor,
            fold=True if target is not None or self.sets else None,
            native=natives.get(strategy, "lower"),
            dequantize=self.dequantize,
            assume_linear_before_reset=self.assume_linear_before_reset,
            **{name: getattr(self, name) for name in shared},
        )
