"""Signal-to-quantization-noise ratios, overall and along the sequence."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.engines.catalog import find_engine
from rnnlower.engines.opened_models import EngineError, open_on
from rnnlower.errors import UnverifiableError
from rnnlower.graph.walk import reachable, values_read_by
from rnnlower.quantizing.observing import Role, observed_values
from rnnlower.quantizing.quantizers import Quantization
from rnnlower.quantizing.recordings import Array, Feeds, Recordings, Session, open_model
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.verification.engine_choice import products_saturate

_QUARTERS = 4


@dataclasses.dataclass
class Noise:
    """The power of an output (signal) and of its error (noise).

    Attributes:
        signal: Sums of squares by quarter of the sequence.
        noise: The same of the difference.
    """

    signal: Array = dataclasses.field(default_factory=lambda: np.zeros(_QUARTERS))
    noise: Array = dataclasses.field(default_factory=lambda: np.zeros(_QUARTERS))
    by_quarter: bool = True

    def add(self, reference: Array, result: Array, axis: int | None) -> None:
        """Add an output of a sequence; `axis` is that of time, if it has one."""
        self.by_quarter &= axis is not None and reference.shape[axis] >= _QUARTERS
        parts = [(reference, result)]
        if self.by_quarter:
            cut: list[Sequence[Array]] = [
                np.array_split(each, _QUARTERS, axis or 0) for each in (reference, result)
            ]
            parts = list(zip(*cut, strict=True))
        for quarter, (wanted, got) in enumerate(parts):
            exact = wanted.astype(np.float64)
            self.signal[quarter] += np.sum(exact**2)
            self.noise[quarter] += np.sum((got.astype(np.float64) - exact) ** 2)

    @property
    def sqnr(self) -> float:
        """The ratio in dB."""
        return _decibels(self.signal.sum(), self.noise.sum())

    @property
    def quarters(self) -> list[float] | None:
        """The ratios of the four quarters of the sequences, if a clear time axis has 4 steps or more."""
        if not self.by_quarter:
            return None
        return [_decibels(*pair) for pair in zip(self.signal, self.noise, strict=True)]


@dataclasses.dataclass(frozen=True)
class MeasuredOutput:
    """An output on recordings that were set aside.

    Attributes:
        sqnr: The ratio of signal to noise in dB, of the file as it is written (onnxruntime without
            optimizations).
        quarters: The same by quarter of the sequence, if it has a time axis, and no other of that size.
        sqnr_default: The ratio in onnxruntime's default session.
        sqnr_on: The ratio on another runtime, if one was asked for.
    """

    name: str
    sqnr: float
    quarters: Sequence[float] | None
    sqnr_default: float
    sqnr_on: float | None = None

    @property
    def least(self) -> float:
        """The lowest of the ratios of the whole sequence.

        The default session's does not count where it tells more of the processor than of the model.
        """
        ratios = [self.sqnr, self.sqnr_on]
        if not (self.sqnr_default < self.sqnr and products_saturate()):
            ratios.append(self.sqnr_default)
        return min(-math.inf if math.isnan(ratio) else ratio for ratio in ratios if ratio is not None)


def outputs_over_time(model: ir.Model) -> set[str]:
    """Return the names of the outputs that are computed from Y, which has all steps; others have no time."""
    nodes = {located.node for located in find_recurrent(model)}

    def followed(value: ir.Value) -> list[ir.Value | None]:
        return [] if value.producer() in nodes else values_read_by(value.producer())

    sequences = {node.outputs[0] for node in nodes}
    found = {value: reachable([value], followed) for value in model.graph.outputs}
    return {str(value.name) for value, sources in found.items() if not sequences.isdisjoint(sources)}


def count_steps(model: ir.Model, recordings: Recordings, held: Sequence[Sequence[Feeds]]) -> list[int | None]:
    """Return the number of time steps of each sequence, as its first recurrent node sees it."""
    if recordings.stream is not None:
        return [None] * len(held)
    # H of all steps, not the initial one.
    return [
        next((array.shape[0] for role, array in observed if role.name == "h" and array.ndim == 3), None)
        for observed in observed_values(model, [calls[0] for calls in held])
    ]


def measure(
    recordings: Recordings,
    held: Sequence[Feeds],
    steps: Sequence[int | None],
    timed: Collection[str],
    floats: Session,
    result: onnx.ModelProto,
    on: str | None,
) -> list[MeasuredOutput]:
    """Return the ratios of signal to noise of each output on the recordings set aside.

    `steps` are the numbers of time steps of the sequences, `timed` the outputs that may have an axis of them.
    """
    sessions: dict[str, Session] = {}
    carrying = Recordings(result, [])
    try:
        sessions["written"] = open_model(result, optimize=False)
        sessions["default"] = open_model(result, optimize=True)
        if on is not None:
            engine = find_engine(on)
            try:
                sessions["on"] = open_on(engine, result)
            except EngineError as error:
                raise UnverifiableError(f"{engine.title} does not run the result: {error}") from error
        noises: dict[str, dict[str, Noise]] = {}
        for sequence, length in zip(held, steps, strict=True):
            wanted = _run_sequence(recordings, floats, sequence)
            for kind, session in sessions.items():
                try:
                    got = _run_sequence(carrying, session, sequence)
                except UnverifiableError as error:
                    where = on if kind == "on" else "onnxruntime"
                    raise UnverifiableError(
                        f"{where} does not run the result: {error.__cause__}",
                        remedy=f"keep the rest in float32 ({wording.option('recurrent-only', True)})",
                    ) from error
                for name, array in wanted.items():
                    noise = noises.setdefault(name, {}).setdefault(kind, Noise())
                    axis = _time_axis(recordings, name, array, length if name in timed else None)
                    noise.add(array, got[name], axis)
    finally:
        for session in sessions.values():
            session.close()
    return [
        MeasuredOutput(
            name,
            each["written"].sqnr,
            each["written"].quarters,
            each["default"].sqnr,
            each["on"].sqnr if "on" in each else None,
        )
        for name, each in noises.items()
    ]


def _time_axis(recordings: Recordings, name: str, array: Array, steps: int | None) -> int | None:
    """Return the time axis of an output: the only one whose size is the number of time steps."""
    if recordings.stream is not None:
        return recordings.stream.outputs.get(name)
    found = [axis for axis, size in enumerate(array.shape) if size == steps]
    return found[0] if len(found) == 1 else None


def _run_sequence(recordings: Recordings, session: Session, sequence: Feeds) -> dict[str, Array]:
    """Return the outputs of a sequence: those of a step model joined along time, without its states."""
    calls = [call.outputs for call in recordings.calls(session, sequence)]
    names = [name for name in calls[0] if name not in recordings.states]
    if recordings.stream is None:
        return {name: calls[0][name] for name in names}
    axes = recordings.stream.outputs
    return {
        name: np.concatenate([call[name] for call in calls], axes[name]) if name in axes else calls[-1][name]
        for name in names
    }


def clipped_shares(
    model: ir.Model, held: Sequence[Sequence[Feeds]], quantization: Quantization
) -> Mapping[Role, float]:
    """Return the share of values of each role that its integers cannot express."""
    counts: dict[Role, tuple[int, int]] = {}
    observed = observed_values(model, [call for calls in held for call in calls])
    for role, values in itertools.chain.from_iterable(observed):
        encoding = quantization.encodings.get(role)
        if encoding is not None:
            clipped, total = counts.get(role, (0, 0))
            counts[role] = clipped + encoding.clipped(values), total + values.size
    return {role: clipped / max(total, 1) for role, (clipped, total) in counts.items()}


def _decibels(signal: float, noise: float) -> float:
    if math.isnan(noise) or math.isnan(signal):
        return math.nan
    if not noise:
        return math.inf
    ratio = signal / noise  # 0 too where a result is infinite
    return 10 * math.log10(ratio) if ratio else -math.inf
