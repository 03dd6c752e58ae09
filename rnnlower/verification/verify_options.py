"""The options of a verification, and which of them exclude one another."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import get_args

import onnx

from rnnlower import wording
from rnnlower.arguments import integer
from rnnlower.engines.session import Array
from rnnlower.errors import OptionError
from rnnlower.verification.engine_choice import EngineName, Semantics
from rnnlower.verification.inputs.given import GivenInputs, read_inputs
from rnnlower.verification.verdict.compare import ToleranceType

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """The options of a verification, apart from the models and their engines."""

    trials: int | None
    seed: int
    inputs: GivenInputs | None
    states: Mapping[str, str] | None
    progress: Progress
    atol: float | None
    rtol: float | None
    feeds: Sequence[dict[str, Array]] | None = None

    def given(self, graph: onnx.GraphProto, sets: Mapping[str, Array]) -> Sequence[dict[str, Array]] | None:
        """Return the sets of inputs to run on; ``None`` if they are to be generated."""
        if self.feeds is not None or self.inputs is None:
            return self.feeds
        return read_inputs(self.inputs, graph, sets)


def check_options(
    trials: int | None,
    seed: int,
    atol: float | None,
    rtol: float | None,
    tolerance: ToleranceType | None,
    inputs: GivenInputs | None,
    states: Mapping[str, str] | None,
    semantics: Semantics,
    engine: EngineName | None,
    on: str | None,
) -> None:
    """Check the options of ``verify``.

    Raises:
        OptionError: One is out of range, or two exclude one another.
    """
    if trials is not None and integer("number of trials", trials) < 1:
        raise OptionError(f"trials must be at least 1, not {trials}")
    if integer("seed", seed) < 0:
        raise OptionError(f"seed must be at least 0, not {seed}")
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not (isinstance(value, Real) and 0 <= value < math.inf):
            raise OptionError(f"{name} must be a number from 0, not {value!r}")
    if tolerance not in (None, *get_args(ToleranceType)):
        raise OptionError(f"tolerance must be one of {', '.join(get_args(ToleranceType))}, not {tolerance!r}")
    if tolerance is not None and (atol is not None or rtol is not None):
        raise OptionError(
            f"{wording.option('tolerance')} follows from a type, {wording.option('atol')} and "
            f"{wording.option('rtol')} are numbers",
            remedy="leave out one of the two",
        )
    if engine not in (None, "onnxruntime", "rnnlower-reference"):
        raise OptionError(f"unknown engine {engine!r}; known are onnxruntime and rnnlower-reference")
    if semantics not in ("ort", "spec"):
        raise OptionError(f"semantics must be 'ort' or 'spec', not {semantics!r}")
    if inputs is not None and states:
        raise OptionError("states are fed back into generated inputs: leave out the inputs or the states")
    if inputs is not None and trials is not None:
        raise OptionError(
            f"{wording.option('trials')} counts generated inputs, {wording.option('inputs')} gives others",
            remedy="leave out one of the two",
        )
    if on is not None and engine is not None:
        raise OptionError(
            f"{wording.option('engine')} says where both models run, {wording.option('on')} where one does",
            remedy="leave out one of the two",
        )
