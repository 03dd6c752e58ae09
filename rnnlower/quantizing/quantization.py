"""Quantization of a model: the ranges, the rest, the recurrence, and the measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OptionError, UnsupportedModelError, UnverifiableError, VerificationError
from rnnlower.files.metadata import to_json_types
from rnnlower.files.model_io import load_model, to_proto
from rnnlower.graph.initializers import sink_initializers
from rnnlower.graph.walk import default_opset
from rnnlower.passes.command_options import QuantizeOptions
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.quantizing.measuring import (
    MeasuredOutput,
    clipped_shares,
    count_steps,
    measure,
    outputs_over_time,
)
from rnnlower.quantizing.model_preparation import prepare
from rnnlower.quantizing.observing import Ranges, Role, find_ranges, read_ranges
from rnnlower.quantizing.onnxruntime_tool import quantize_rest
from rnnlower.quantizing.placement import capture_integers, carry_integers, localize_constants, quantize_moved
from rnnlower.quantizing.quantizers import Quantization, Quantizers
from rnnlower.quantizing.recordings import Array, Feeds, Recordings, Session, as_list, open_model, open_source
from rnnlower.quantizing.schemes import Scheme, TfliteScheme
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.suspicions import Suspicion, find_suspicions
from rnnlower.targets import Target, find_target
from rnnlower.targets.choosing import loop_strategy
from rnnlower.verification.engine_choice import SATURATION, products_saturate
from rnnlower.verification.verdict.compare import map_floats

SCHEMES: Mapping[str, type[Scheme]] = {"qdq": Scheme, "pow2": Scheme, "tflite": TfliteScheme}

_OPSET = 21
"""The first opset whose QuantizeLinear writes 16 bits."""

_SHORT = 32
"""Steps up to which a straight line is smaller than the weights that it saves."""

_SET_ASIDE = 4
"""One of this many recordings is kept for the measurement."""

_SENSITIVE, _DRAWS = 1e-2, 8
"""The share of a difference by which tiny input changes move an unstable model; the changes tried."""

_LOSS = 1.0
"""The loss in a default session, in dB, above which to warn."""

_EQUAL = 1e-3
"""The difference, relative to the largest value, up to which models without visible rounding are equal."""

_EXACT = 2e-7
"""The error of onnxruntime's Tanh and Sigmoid, whose results may all be that small."""


@dataclasses.dataclass(frozen=True)
class QuantizeReport:
    """The report on a quantization.

    Attributes:
        scales: An entry for each node, direction and role: ``type``, ``scale``, ``zero_point``, and
            ``clipped``, the share of values that cannot be expressed on the recordings set aside.
        strategy: ``unroll``, ``scan`` or ``loop``.
        calibrated: The number of sequences that the ranges are from; 0 if they were given.
        measured: The number of sequences set aside.
        outputs: The ratios of signal to noise.
        warnings: Messages on what the result may lack.
    """

    scales: Sequence[Mapping[str, Any]]
    strategy: str
    calibrated: int = 0
    measured: int = 0
    outputs: Sequence[MeasuredOutput] = ()
    notes: Sequence[str] = ()
    warnings: Sequence[Suspicion] = ()

    @property
    def sqnr(self) -> float | None:
        """The lowest ratio of all outputs and sessions, if they were measured."""
        return min((output.least for output in self.outputs), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        fields = to_json_types(self) | {"warnings": [str(warning) for warning in self.warnings]}
        return {{"outputs": "sqnr"}.get(name, name): value for name, value in fields.items()}


def quantize_model(model: ir.Model, options: QuantizeOptions) -> QuantizeReport:
    """Quantize the model in place, and return the report on it.

    The errors are those of `rnnlower.quantize`.
    """
    notes, suspicions = prepare(model, options), find_suspicions(model)
    scheme = SCHEMES[options.scheme].of(options)
    _check_target(options, scheme)
    for located in find_recurrent(model):
        scheme.check(located)
    if default_opset(model) < _OPSET:
        ConvertOpsetPass(_OPSET)(model)
    strategy = _strategy(model, options)
    source = to_proto(model)
    data = _Data.read(source, options)
    notes += data.recordings.notes()
    if options.integer_states and any(each.keys() & data.recordings.states.values() for each in data.held):
        raise OptionError("the recordings hold states, and integer states are carried: leave them out")
    with contextlib.closing(open_source(source)) as floats:
        options.report_progress("calibrating")
        feeds = [*itertools.chain.from_iterable(data.calls(floats, data.calibrated))]
        quantization = Quantization(scheme, data.ranges or find_ranges(model, feeds))
        if options.verify:
            options.report_progress("verifying")
            held = data.calls(floats, data.held)
            _prove_placement(model, source, strategy, quantization, feeds[0] if feeds else held[0][0])
        options.report_progress("quantizing")
        result, words = _quantize(source, feeds, options, strategy, quantization)
        notes += words
        outputs: Sequence[MeasuredOutput] = ()
        clipped: Mapping[Role, float] = {}
        if options.verify:
            options.report_progress("measuring")
            steps = count_steps(model, data.recordings, held)
            timed = outputs_over_time(model)
            outputs = measure(data.recordings, data.held, steps, timed, floats, to_proto(result), options.on)
            clipped = clipped_shares(model, held, quantization)
    notes += _notes_on_ignored(quantization, options.runtime)
    report = QuantizeReport(
        [_scale_entry(role, quantization, clipped) for role in sorted(quantization.encodings)],
        strategy,
        len(data.calibrated),
        len(data.held),
        outputs,
        notes,
        [*suspicions, *_warnings_of_zeros(quantization), *_warnings(options, outputs)],
    )
    model.graph, model.ir_version = result.graph, result.ir_version
    return report


def _check_target(options: QuantizeOptions, scheme: Scheme) -> None:
    """Refuse a target that lacks quantizers, the integers of activations, or products of them."""
    target = options.runtime
    if target is None:
        return
    if not (target.has("QuantizeLinear") and "int8" in target.dtypes.allowed):
        raise UnsupportedModelError(
            f"target {target.name} takes no model that is quantized: it has no QuantizeLinear to int8",
            remedy="if its own tool quantizes, give that the result of "
            f"`{wording.call('lower', target=target.address)}` and the data of `rnnlower calibrate`",
        )
    known = None if target.arithmetic is None else target.arithmetic.quantized
    if known is not None and options.activations not in known:
        raise UnsupportedModelError(
            f"target {target.name} does not compute products of {options.activations}",
            remedy=f"choose {' or '.join(wording.option('activations', each) for each in known)}",
        )
    if lacking := sorted(scheme.integers - {*target.dtypes.allowed}):
        narrow = {"activations": "int8-only", "scheme": "qdq" if "uint8" in target.dtypes.allowed else "pow2"}
        ways = [wording.option(key, value) for key, value in narrow.items() if getattr(options, key) != value]
        raise UnsupportedModelError(
            f"target {target.name} lacks {' and '.join(lacking)}, which the activations need",
            remedy=f"choose {' and '.join(ways)}",
        )


def _notes_on_ignored(quantization: Quantization, target: Target | None) -> list[str]:
    """Return a note on quantizers that the target is known to ignore."""
    if target is None or target.arithmetic is None:
        return []
    found = {each.dtype.name.lower() for each in quantization.encodings.values()}
    left = " and ".join(sorted(found & {*target.arithmetic.unclipped}))
    words = f"target {target.name} leaves out quantizers of {left}: it computes in floats there"
    return [words] if left else []


@dataclasses.dataclass(frozen=True)
class _Data:
    """The recordings of a quantization: those of the calibration, and those set aside."""

    recordings: Recordings
    calibrated: Sequence[Feeds]
    held: Sequence[Feeds]
    ranges: Ranges | None

    @classmethod
    def read(cls, model: onnx.ModelProto, options: QuantizeOptions) -> _Data:
        given, inputs, verify = as_list(options.calibration), options.inputs, options.verify
        files = [None if isinstance(each, Mapping) else pathlib.Path(each) for each in given]
        of_ranges = [file for file in files if file is not None and file.suffix == ".json"]
        ranges = read_ranges(of_ranges) if of_ranges else None
        given = [each for each, file in zip(given, files, strict=True) if file not in of_ranges]
        other = None if inputs is None else Recordings(model, as_list([inputs]))
        if ranges is not None and not given:
            if other is None and verify:
                raise UnverifiableError(
                    "a file of ranges holds no recordings to measure on",
                    remedy=f"add {wording.option('inputs', 'REC.npz')}, or {wording.option('no-verify')}",
                )
            held = [] if other is None else other.sequences
            return cls(other or Recordings(model, []), [], held, ranges)
        recordings = Recordings(model, given)
        if other is not None or not verify:
            return cls(recordings, recordings.sequences, [] if other is None else other.sequences, ranges)
        if len(recordings.sequences) < 2:
            raise UnverifiableError(
                "there is one recording, and none can be set aside to measure on",
                remedy=f"give more, or others with {wording.option('inputs', 'REC.npz')}",
            )
        last = min(_SET_ASIDE, len(recordings.sequences)) - 1
        parts: tuple[list[Feeds], list[Feeds]] = ([], [])
        for number, sequence in enumerate(recordings.sequences):
            parts[number % _SET_ASIDE == last].append(sequence)
        return cls(recordings, *parts, ranges)

    def calls(self, session: Session, sequences: Sequence[Feeds]) -> list[list[Feeds]]:
        """Return what the model reads in each call of each sequence."""
        return [[call.feeds for call in self.recordings.calls(session, each)] for each in sequences]


def _warnings_of_zeros(quantization: Quantization) -> Iterator[Suspicion]:
    """Warn of roles without a range, as a state has none if all recordings have one step."""
    for node in sorted({role.node for role in quantization.unseen}):
        names = ", ".join(repr(role.name) for role in sorted(quantization.unseen) if role.node == node)
        yield Suspicion(
            f"node {node!r}",
            f"{names}: 0 in all steps of all recordings",
            "their ranges are a guess, and longer or other sequences may exceed them",
            "give recordings as long as those of the application",
        )


def _warnings(options: QuantizeOptions, outputs: Sequence[MeasuredOutput]) -> Iterator[Suspicion]:
    """Warn of 8-bit activations, and of a default session that loses accuracy on this processor."""
    int16 = wording.option("activations", "int16")
    if options.activations == "int8-only":
        yield Suspicion(
            "the model",
            "all activations have 8 bits",
            "a recurrence with long memory loses most of its accuracy",
            f"where the device has 16 bits, {int16} keeps it",
        )
    lost = [each for each in outputs if each.sqnr - each.sqnr_default > _LOSS]
    if lost and products_saturate():
        found = f"output {lost[0].name!r} has {lost[0].sqnr_default:.1f} dB"
        yield Suspicion(
            "the model",
            f"{found} in onnxruntime's default session here",
            f"its {SATURATION}",
            f"for such a processor, {int16} keeps the accuracy",
        )


def _quantize(
    source: onnx.ModelProto,
    feeds: Sequence[Feeds],
    options: QuantizeOptions,
    strategy: str,
    quantization: Quantization,
) -> tuple[ir.Model, list[str]]:
    """Return the quantized model, and notes on what stays in float."""
    rest, notes = _quantize_rest(source, feeds, options, quantization.scheme)
    result = _lower_quantized(load_model(rest), strategy, quantization, options.runtime)
    if quantization.unquantized:
        role = min(quantization.unquantized)
        raise VerificationError(f"{role.name!r} of node {role.node!r} has no quantizers")
    return result, [*notes, *(carry_integers(result) if options.integer_states else ())]


def _quantize_rest(
    source: onnx.ModelProto, feeds: Sequence[Feeds], options: QuantizeOptions, scheme: Scheme
) -> tuple[onnx.ModelProto, list[str]]:
    """Quantize the rest of the model; if it stays in float, return a note on the reason."""
    if options.recurrent_only:
        return source, []
    if scheme.powers:
        return source, ["onnxruntime's tool has no powers of two: the rest of the model stays in float32"]
    if not feeds:
        return source, ["the calibration holds ranges alone: the rest of the model stays in float32"]
    return quantize_rest(source, feeds, scheme), []


def _strategy(model: ir.Model, options: QuantizeOptions) -> str:
    if options.strategy != "auto":
        return options.strategy
    lengths = [parse_recurrent(each, "ort", lenient=True).seq_length for each in find_recurrent(model)]
    if all(length is not None and 0 < length <= _SHORT for length in lengths):
        return "unroll"
    runtime = options.runtime or find_target()
    return loop_strategy(runtime, dynamic=None in lengths) or "unroll"


def _lower_quantized(
    model: ir.Model, strategy: str, quantization: Quantization, target: Target | None = None
) -> ir.Model:
    # Folded constants would be weights in float again.
    options = LoweringOptions(
        strategy, target=target, native="lower", fold=False, gates=quantization.scheme.gates
    )
    lower_model(model, options, functools.partial(Quantizers, quantization))
    capture_integers(model)
    quantize_moved(model)
    localize_constants(model)
    # onnxruntime looks for the integers of a product in the body that reads them.
    sink_initializers(model.graph, list(model.graph.initializers.values()), least_depth=1)
    return model


def _prove_placement(
    model: ir.Model, source: onnx.ModelProto, strategy: str, quantization: Quantization, feeds: Feeds
) -> None:
    """Refuse a model that differs from its source even with scales too small for any rounding to be seen."""
    fine = dataclasses.replace(quantization, fine=True, encodings={}, unquantized=set(), unseen=set())
    # onnxruntime's optimizer computes products with dequantized weights in integers.
    with contextlib.closing(open_source(source, optimize=False)) as floats:
        _compare_unrounded(floats, to_proto(_lower_quantized(model.clone(), strategy, fine)), feeds)


def _compare_unrounded(floats: Session, fine: onnx.ModelProto, feeds: Feeds) -> None:
    """Compare a model without visible rounding with the float model.

    Raises:
        UnsupportedModelError: They differ, and so does the float model from itself.
        UnverifiableError: An output holds no numbers.
        VerificationError: They differ: a quantizer is not where it belongs.
    """
    wanted = floats.run(feeds)
    for name, array in wanted.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
            raise UnverifiableError(
                f"output {name!r} is no tensor of numbers, and has no ratio of signal to noise",
                remedy="take it out of the model, or write the result unmeasured "
                f"({wording.option('no-verify')})",
            )
    with contextlib.closing(open_model(fine, optimize=False)) as session:
        got = session.run(feeds)
    for name, array in wanted.items():
        largest = max(float(np.abs(array).max(initial=0.0)), _EXACT / _EQUAL)
        difference = float(np.abs(got[name].astype(np.float64) - array).max(initial=0.0))
        if not difference <= _EQUAL * largest:
            _refuse_if_unstable(floats, feeds, name, array, difference)
            raise VerificationError(
                f"with scales too small to round, {name} differs by {difference:g}: a quantizer is misplaced"
            )


def _refuse_if_unstable(floats: Session, feeds: Feeds, name: str, wanted: Array, difference: float) -> None:
    """Refuse a model whose own result moves that much when its inputs move by a millionth."""
    rng, moved = np.random.default_rng(0), 0.0
    for _ in range(_DRAWS):
        nearby = map_floats(
            feeds, lambda each: each * (1 + 1e-6 * rng.choice((-1, 1), each.shape)).astype(each.dtype)
        )
        found = floats.run(nearby)[name].astype(np.float64)
        moved = max(moved, float(np.abs(found - wanted).max(initial=0.0)))
    if not moved < _SENSITIVE * difference:
        raise UnsupportedModelError(
            f"the float model is unstable: if its inputs move by a millionth, {name} moves by {moved:g}",
            remedy="give shorter recordings, or some on which its values stay small",
        )


def _scale_entry(role: Role, quantization: Quantization, clipped: Mapping[Role, float]) -> dict[str, Any]:
    encoding = quantization.encodings[role]
    return role.to_dict() | {
        "type": encoding.dtype.name.lower(),
        "scale": encoding.scale,
        "zero_point": encoding.zero_point,
        "clipped": clipped.get(role),
    }
