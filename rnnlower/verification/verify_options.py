"""The options of a verification, whose values and combinations are checked."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import get_args

import onnx

from rnnlower import wording
from rnnlower.arguments import check_choice, integer
from rnnlower.engines.session import Array
from rnnlower.errors import OptionError
from rnnlower.verification.engine_choice import EngineName, Semantics
from rnnlower.verification.inputs.given import GivenInputs, read_inputs
from rnnlower.verification.verdict.compare import ToleranceType

Progress = Callable[[str, int, int], None]


@dataclasses.dataclass(frozen=True)
class VerifyOptions:
    """The options of a verification, apart from the models.

    Raises:
        OptionError: An option is out of range, or two exclude each other.
    """

    trials: int | None = None
    seed: int = 0
    atol: float | None = None
    rtol: float | None = None
    tolerance: ToleranceType | None = None
    inputs: GivenInputs | None = None
    states: Mapping[str, str] | None = None
    semantics: Semantics = "ort"
    engine: EngineName | None = None
    on: str | None = None
    progress: Progress = lambda role, done, total: None
    feeds: Sequence[dict[str, Array]] | None = None

    def __post_init__(self) -> None:
        if self.trials is not None:
            integer("number of trials", self.trials, 1)
        object.__setattr__(self, "seed", integer("seed", self.seed, 0))
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            if value is not None and not (isinstance(value, Real) and 0 <= value < math.inf):
                raise OptionError(f"{name} must be a number from 0, not {value!r}")
        if self.tolerance is not None:
            check_choice("the tolerance is", self.tolerance, get_args(ToleranceType))
        if self.engine is not None:
            check_choice("the engine is", self.engine, get_args(EngineName))
        check_choice("the semantics are", self.semantics, get_args(Semantics), "they")
        if self.inputs is not None and self.states:
            raise OptionError("states are fed back into generated inputs: leave out the inputs or the states")
        option = wording.option
        for excluded, problem in (
            (
                self.tolerance is not None and (self.atol is not None or self.rtol is not None),
                f"{option('tolerance')} follows from a type, {option('atol')} and "
                f"{option('rtol')} are numbers",
            ),
            (
                self.inputs is not None and self.trials is not None,
                f"{option('trials')} counts generated inputs, {option('inputs')} gives others",
            ),
            (
                self.on is not None and self.engine is not None,
                f"{option('engine')} says where both models run, {option('on')} where one does",
            ),
        ):
            if excluded:
                raise OptionError(problem, remedy="leave out one of the two")

    def given(self, graph: onnx.GraphProto, sets: Mapping[str, Array]) -> Sequence[dict[str, Array]] | None:
        """Return the given sets of inputs; ``None`` if inputs are generated."""
        if self.feeds is not None or self.inputs is None:
            return self.feeds
        return read_inputs(self.inputs, graph, sets)
