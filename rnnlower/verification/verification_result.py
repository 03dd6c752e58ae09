"""The result of a verification, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rnnlower.files.metadata import to_json_types

if TYPE_CHECKING:
    from rnnlower.engines.catalog import Engine


@dataclass(frozen=True)
class OutputComparison:
    """The comparison of one graph output over all trials.

    ``max_abs`` is the largest absolute difference, ``max_rel`` the largest ``|a - b| / max(|a|, |b|)`` and
    ``max_ulp`` the largest distance in units in the last place (0 for integers, booleans and strings that
    agree). They are infinite, and null in JSON, where only one side is NaN or infinite or where shapes or
    dtypes differ. ``error`` is the difference with the largest ratio to the ``allowed`` error, and ``used``
    is that ratio: above 1, the outputs differ. ``allowed`` and ``used`` are ``None`` if no error is allowed,
    or if rounding decides between two correct results.
    ``worst_index`` is the position of that difference, ``worst_step`` its time step in an output over time.
    ``errors_over_time`` holds the largest absolute difference at each time step over all trials, for reports;
    it is empty without a time axis, and absent from JSON.
    """

    name: str
    equal: bool
    max_abs: float
    max_rel: float
    max_ulp: float
    worst_trial: int | None = None
    worst_index: tuple[int, ...] | None = None
    worst_step: int | None = None
    reference_value: str | None = None
    candidate_value: str | None = None
    note: str = ""
    dtype: str = ""
    error: float = 0.0
    allowed: float | None = None
    used: float | None = None
    errors_over_time: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the keys that ``verify --json`` documents, and the position of the worst element."""
        fields: dict[str, Any] = to_json_types(self)
        del fields["errors_over_time"]
        return fields

    def __str__(self) -> str:
        verdict = "equal" if self.equal else "DIFFERENT"
        text = f"{self.name}: {verdict}, max abs {self.max_abs:.3g}, rel {self.max_rel:.3g}"
        if not self.equal and self.worst_index is not None:
            text += f"; at {list(self.worst_index)} {self.reference_value} against {self.candidate_value}"
            text += "" if self.worst_step is None else f" (time step {self.worst_step})"
        return f"{text}; {self.note}" if self.note else text


@dataclass(frozen=True)
class RuntimeTrial:
    """The result of the candidate on another runtime, on the same inputs.

    ``engine`` is its name, ``label`` its title and version. ``ran`` is true if it ran the candidate;
    ``problem`` is the reason if not, or a fault besides the ``outputs``.
    """

    engine: str
    label: str
    version: str | None
    ran: bool = False
    equal: bool = False
    outputs: tuple[OutputComparison, ...] = ()
    problem: str | None = None

    @classmethod
    def of(cls, runtime: Engine, **findings: Any) -> RuntimeTrial:
        """Make the result on ``runtime`` from these fields."""
        return cls(runtime.name, runtime.label, runtime.version, **findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the value of ``on`` in JSON, in JSON types."""
        fields = {name: value for name, value in vars(self).items() if name != "label"}
        return fields | {"outputs": [output.to_dict() for output in self.outputs]}

    def __str__(self) -> str:
        if not self.ran:
            return f"{self.problem}: not tried"
        verdict = "equal" if self.equal else "DIFFERENT"
        return f"tried on {self.label}: {verdict}{f', {self.problem}' if self.problem else ''}"


@dataclass(frozen=True)
class VerificationResult:
    """The result of a verification; truthy if the two models agree on every trial.

    ``engines`` names the engines of ``"reference"`` and ``"candidate"``; ``trials`` counts the sets of
    inputs on which both ran; ``skipped`` lists what was not compared, with reasons; ``problems`` are
    differences other than values (a missing output, a model that does not run).
    ``first_difference`` describes the first inner value of the same name that differs. ``states`` maps the
    outputs that some trials fed back to their inputs. ``versions`` holds those of the engines; ``tolerances``
    holds ``atol`` and ``rtol`` as given, ``None`` for those by type. ``on`` is the result on another
    runtime, if one was requested.
    """

    equal: bool
    engines: dict[str, str]
    trials: int
    outputs: tuple[OutputComparison, ...]
    skipped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    first_difference: str | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    tolerances: Mapping[str, float | None] = field(default_factory=dict)
    on: RuntimeTrial | None = None

    def __bool__(self) -> bool:
        return self.equal

    def to_dict(self) -> dict[str, Any]:
        """Return what ``verify --json`` prints, in JSON types; ``on`` only if it was requested."""
        fields: dict[str, Any] = to_json_types(self) | {
            "outputs": [output.to_dict() for output in self.outputs]
        }
        del fields["on"]
        return fields if self.on is None else fields | {"on": self.on.to_dict()}

    def __str__(self) -> str:
        verdict = "equal" if self.equal else "different"
        lines = [f"{verdict} after {self.trials} trials"]
        lines += [f"  {text}" for text in (*self.problems, *map(str, self.outputs))]
        lines += [f"  {self.on}"] if self.on else []
        lines += [f"  begins with {self.first_difference}"] if self.first_difference else []
        lines += [f"  note: {text}" for text in self.skipped]
        return "\n".join(lines)
