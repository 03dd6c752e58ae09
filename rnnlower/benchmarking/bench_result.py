"""The result of a benchmark, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from rnnlower.verification import RuntimeTrial
from rnnlower.wording import counted

if TYPE_CHECKING:
    from rnnlower.engines.catalog import Engine

Status = Literal["timed", "not made", "does not run", "different"]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, the 10th and 90th percentile, and the minimum."""

    median: float
    p10: float
    p90: float
    min: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """Return the statistics of the samples, which are in seconds."""
        p10, median, p90 = (float(1e3 * value) for value in np.percentile(seconds, (10, 50, 90)))
        return cls(median, p10, p90, 1e3 * min(seconds))


@dataclasses.dataclass(frozen=True)
class BenchVariant:
    """The model in one form.

    Attributes:
        name: ``native``, ``adapt``, ``unroll``, ``scan``, ``loop``, ``lower``, or ``scan x4`` for four steps
            in an iteration.
        strategy: ``native``, ``unroll``, ``scan`` or ``loop``; for another runtime also ``adapt``, its own
            operators adapted, and ``lower``, what a lowering for it takes for the fastest.
        unroll_factor: Time steps in an iteration of a Scan or Loop.
        status: Only what is ``timed`` has times, and only after its outputs were found to be right.
        reason: Why it has none.
        latency: Of one run.
        session: Of making a session.
        ratio: Median latency over that of the model as it is, if onnxruntime runs that.
        file_bytes: Size of the file, external data included.
        ops: Nodes in the file, including subgraphs and functions.
        ops_run: Kernels that onnxruntime runs in one inference, after its optimizations.
        ops_per_step: The same divided by the time steps of the recurrence (`BenchResult.steps`).
        taken: What ``lower`` does with the recurrent nodes: ``keep``, ``adapt`` or a strategy.
    """

    name: str
    strategy: str
    unroll_factor: int = 1
    status: Status = "timed"
    reason: str = ""
    latency: Timing | None = None
    session: Timing | None = None
    ratio: float | None = None
    file_bytes: int | None = None
    ops: int | None = None
    ops_run: int | None = None
    ops_per_step: float | None = None
    taken: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of JSON types."""
        fields = dataclasses.asdict(self)
        return {{"latency": "latency_ms", "session": "session_ms"}.get(k, k): v for k, v in fields.items()}


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """The variants, and the conditions of the measurement.

    Attributes:
        variants: The model as it is, then its lowered forms.
        inputs: Shape and type of every input.
        lengths: Time steps of each recurrent node on these inputs; none if shapes are unknown.
        threads: Threads of onnxruntime; 0 is its default.
        runs: Timed runs of each variant.
        environment: What measured: version of onnxruntime, processors, machine.
        notes: Messages for the user.
        runtime: The runtime of the forms, if it is not onnxruntime in this environment.
        chunk: Time steps of the inputs in a run, if the model is streamed (`rnnlower stream`) with a fixed
            number.
    """

    variants: Sequence[BenchVariant]
    inputs: Mapping[str, str]
    lengths: Sequence[int]
    threads: int
    runs: int
    environment: Mapping[str, str | int]
    notes: Sequence[str] = ()
    runtime: Engine | None = None
    chunk: int | None = None

    @property
    def steps(self) -> int | None:
        """The time steps of the recurrence: those of the longest node, as layers take the same steps."""
        return max(self.lengths, default=None)

    @property
    def length(self) -> str:
        """The number of steps, and of what, in words; nothing if it is unknown."""
        if self.steps is None:
            return ""
        nodes = "the recurrent node" if len(self.lengths) == 1 else "each recurrent node"
        if min(self.lengths) == self.steps:
            return f"{counted(self.steps, 'time step')} in {nodes}"
        return f"up to {counted(self.steps, 'time step')} in a recurrent node"

    @property
    def threads_in_words(self) -> str:
        """The number of threads with its noun: `1 thread`, or `all threads`."""
        return counted(self.threads, "thread") if self.threads else "all threads"

    @property
    def wrong(self) -> list[BenchVariant]:
        """The lowered forms whose results differ from the model's."""
        return [v for v in self.variants if v.status == "different" and v.strategy != "native"]

    @property
    def timed(self) -> list[BenchVariant]:
        """The variants that have times."""
        return [variant for variant in self.variants if variant.status == "timed"]

    @property
    def step_ms(self) -> dict[str, float]:
        """Return the time of each form per step of a streamed model's inputs: a run's median over them."""
        return {v.name: v.latency.median / self.chunk for v in self.timed if v.latency and self.chunk}

    def to_dict(self) -> dict[str, Any]:
        """Return what ``bench --json`` prints."""
        return {
            "variants": [variant.to_dict() for variant in self.variants],
            "inputs": dict(self.inputs),
            "steps": self.steps,
            "threads": self.threads,
            "runs": self.runs,
            "environment": dict(self.environment),
            "notes": list(self.notes),
            **({} if self.chunk is None else {"step_ms": self.step_ms}),
            **({} if self.runtime is None else {"on": self._on(self.runtime)}),
        }

    def _on(self, runtime: Engine) -> dict[str, Any]:
        """Return the result of the lowered forms on the runtime, in the format of ``verify --on``."""
        reasons = [v.reason for v in self.variants if v.status in ("does not run", "different")]
        ran, equal = bool(self.timed or self.wrong), bool(self.timed) and not self.wrong
        problem = "; ".join(reasons) or None
        return RuntimeTrial.of(runtime, ran=ran, equal=equal, problem=problem).to_dict()
