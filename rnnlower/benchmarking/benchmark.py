"""The benchmark: the model as it is and in every lowered form, checked first and then timed in rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.benchmarking.bench_result import BenchResult, BenchVariant, Status, Timing
from rnnlower.benchmarking.worker import Worker, WorkerError
from rnnlower.calling import options_function
from rnnlower.engines.catalog import Engine, find_engine
from rnnlower.engines.child import versions
from rnnlower.engines.opened_models import EngineError, OpenedModel, open_on
from rnnlower.engines.session import Array, LoadError, RunError, brief
from rnnlower.errors import OpsetError, OptionError, UnsupportedModelError, UnverifiableError
from rnnlower.files.metadata import StreamMetadata
from rnnlower.files.model_io import ModelLike, load_model, size_on_disk, stage_model
from rnnlower.folders import temporary_folder
from rnnlower.graph.versions import notes_on_newer_operators
from rnnlower.graph.walk import count_ops
from rnnlower.passes.command_options import BENCH_STRATEGIES, BenchOptions
from rnnlower.passes.constant_inputs import FreezeInitializersPass, LegacyConstantsPass, SetInputsPass
from rnnlower.passes.declared_sizes import FreezeDimsPass
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.targets import Target, find_target, target_names
from rnnlower.verification.engine_choice import reasons_against_onnxruntime
from rnnlower.verification.inputs.given import read_inputs
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import Trial, generate_trials, input_maker
from rnnlower.verification.models import ParsedModel, load_parsed
from rnnlower.verification.rewritten_models import reinterpret
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.judging import Judge, Judged
from rnnlower.verification.verify_options import VerifyOptions


class RuntimeWorker(Worker):
    """Models on a runtime, in a child process that ends with each request; it counts no kernels."""

    def __init__(self, runtime: Engine, threads: int) -> None:
        super().__init__(threads)
        self._runtime = runtime

    def check(self, path: str, feeds: Mapping[str, Array]) -> tuple[dict[str, Any], int | None]:
        with self._opened(path) as opened:
            return opened.run(feeds), None

    def measure(
        self, path: str, feeds: Mapping[str, Array], warmup: int, runs: int
    ) -> tuple[float, list[float]]:
        with self._opened(path) as opened:
            return opened.measure(feeds, warmup, runs)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[OpenedModel]:
        try:
            with contextlib.closing(open_on(self._runtime, onnx.load(path), self._threads)) as opened:
                yield opened
        except EngineError as error:
            raise WorkerError(str(error)) from error


TARGET_STRATEGIES = ("adapt", "lower")
"""The forms that only a target has."""


@dataclasses.dataclass
class Entry:
    """A variant that is being measured; ``path`` is set if there is a file to run."""

    variant: BenchVariant
    path: str = ""
    sessions: list[float] = dataclasses.field(default_factory=list)
    latencies: list[float] = dataclasses.field(default_factory=list)

    def drop(self, status: Status, reason: str) -> None:
        """Exclude it from the benchmark."""
        self.variant = dataclasses.replace(self.variant, status=status, reason=reason)

    @property
    def is_timed(self) -> bool:
        """True if nothing prevents timing it so far."""
        return self.variant.status == "timed"


def make_native_entry(own: ir.Model, source: ParsedModel, folder: Path) -> Entry:
    """Return the model as it is; ``own`` is a copy of it, for counting ops."""
    path = source.path
    if path is None:
        path = folder / "native.onnx"
        path.write_bytes(source.proto.SerializeToString())
    size, ops = size_on_disk(path, own), sum(count_ops(own).values())
    variant = BenchVariant("native", "native", file_bytes=size, ops=ops)
    return Entry(variant, str(path))


def make_lowered_entry(model: ModelLike, strategy: str, options: LoweringOptions, folder: Path) -> Entry:
    """Return the lowered model, in the operators of the options' target if any, or why there is none.

    Args:
        strategy: ``unroll``, ``scan`` or ``loop``, or one of `TARGET_STRATEGIES`: ``adapt``, the target's own
            operators adapted, or ``lower``, what is found to be the fastest.
        folder: Where the file is written.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: The model breaks the ONNX specification.
    """
    factor = options.unroll_factor
    name = strategy if factor == 1 else f"{strategy} x{factor}"
    variant = BenchVariant(name, strategy, factor)
    lowered = load_model(model)
    try:
        report = lower_model(lowered, options)
    except (UnsupportedModelError, OpsetError) as error:
        return Entry(dataclasses.replace(variant, status="not made", reason=str(error)))
    taken = [*(node.strategy for node in report.nodes), *("keep" for _ in report.kept)]
    if strategy == "adapt" and "adapt" not in taken:
        problem = "there is nothing that can be adapted"
        return Entry(dataclasses.replace(variant, status="not made", reason=problem))
    if strategy == "lower":
        variant = dataclasses.replace(variant, taken=tuple(dict.fromkeys(taken)))
    path = folder / f"{strategy}_{factor}.onnx"
    ops = sum(count_ops(lowered).values())
    with stage_model(lowered, path) as stage:
        stage.accepted = True
    return Entry(dataclasses.replace(variant, file_bytes=stage.size, ops=ops), str(path))


_WITHOUT_TARGET = tuple(strategy for strategy in BENCH_STRATEGIES if strategy not in TARGET_STRATEGIES)
# Every round makes each variant's session anew and runs it for its share, so that noise meets all alike.
_ROUNDS = 5


@options_function(BenchOptions)
def bench(model: ModelLike, options: BenchOptions) -> BenchResult:
    """Time the model as it is and in its lowered forms, on one runtime and on the same inputs.

    Sessions run in a child process, one at a time. A form is timed only if its outputs agree with
    the model's.

    Raises:
        OptionError: An option is out of range or does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        UnverifiableError: No engine runs the model, so nothing could be checked.
    """
    return measure(model, options)


def measure(model: ModelLike, options: BenchOptions) -> BenchResult:
    """Time the model; see `bench`."""
    runtime = None if options.on is None else find_engine(options.on)
    target = None if runtime is None else _find_target_of(runtime)
    strategies = options.strategies
    if strategies is None:
        strategies = BENCH_STRATEGIES if target is not None else _WITHOUT_TARGET
    if target is None and (asked := [strategy for strategy in strategies if strategy in TARGET_STRATEGIES]):
        raise OptionError(
            f"the strategy {asked[0]!r} is for a runtime that a target describes",
            remedy=f"name one ({wording.option('on', 'openvino')}), or leave the strategy out",
        )
    plans = [(strategy, 1) for strategy in BENCH_STRATEGIES if strategy in strategies]
    factors = sorted({*(options.unroll_factors or ())} - {1})
    plans += [(s, factor) for s, _ in plans if s in ("scan", "loop") for factor in factors]
    if options.sets or options.freeze:
        # Every form, including the native one, is of the model without these inputs.
        model = load_model(model)
        SetInputsPass(options.sets or {})(model)
        if options.freeze:
            FreezeInitializersPass()(model)
        LegacyConstantsPass()(model)
    with temporary_folder() as folder:
        return _Benchmark(options, runtime, target, folder).result(model, plans)


def _find_target_of(runtime: Engine) -> Target | None:
    """Return the target of a runtime; the one of its name, where there are several."""
    targets = [find_target(name) for name in target_names()]
    own = [target for target in targets if target.engine == runtime.name]
    return min(own, key=lambda target: target.name != runtime.name, default=None)


@dataclasses.dataclass(frozen=True)
class _Benchmark:
    """A measurement on a runtime, with the target that describes it; onnxruntime has none."""

    options: BenchOptions
    runtime: Engine | None
    target: Target | None
    folder: Path

    def result(self, model: ModelLike, plans: Sequence[tuple[str, int]]) -> BenchResult:
        options, runtime = self.options, self.runtime
        own = load_model(model)
        has_recurrent = bool(find_recurrent(own))
        source = load_parsed(model, "reference", self.folder)
        read = reinterpret(
            source,
            dequantize=options.dequantize,
            assume_linear_before_reset=options.assume_linear_before_reset,
        )
        runner = Runner(read, read, VerifyOptions(seed=options.seed, semantics=options.semantics))
        entries = [make_native_entry(own, source, self.folder)]
        FreezeDimsPass(options.dims or {}, options.input_shapes or {})(own)
        trial = self._trial(runner, own)
        notes = [*notes_on_newer_operators(own), *_notes_on_open_inputs(own, trial)]
        if not has_recurrent:
            notes.append("the model has no recurrent node: there is nothing to lower")
            plans = ()
        if read is not source:
            notes.append(
                "the model as it is computes other numbers than those asked for: its outputs are not compared"
            )
        stream = StreamMetadata.read({entry.key: entry.value for entry in source.proto.metadata_props})
        for done, (strategy, factor) in enumerate(plans):
            options.report_progress("lowering: form", done + 1, len(plans))
            lowering = options.make_lowering_options(strategy, factor, self.target)
            entries.append(make_lowered_entry(model, strategy, lowering, self.folder))
        lengths = _sequence_lengths(source, {name: array.shape for name, array in trial.feeds.items()})
        threads = options.threads
        if runtime is not None and threads and not runtime.threads:
            notes.append(f"{runtime.title} has no option for the number of threads: it ran with its default")
            threads = 0
        worker = Worker(threads) if runtime is None else RuntimeWorker(runtime, threads)
        judging = runner if runtime is None else runner.on_runtime(runtime)
        with contextlib.closing(worker):
            for done, entry in enumerate(entries):
                options.report_progress("checking: form", done + 1, len(entries))
                compares = read is source or entry.variant.strategy != "native"
                self._check(entry, judging if compares else None, trial, worker)
            self._measure(entries, trial, worker)
        return BenchResult(
            variants=_with_timings(entries, max(lengths, default=None)),
            inputs={name: f"{array.dtype}{list(array.shape)}" for name, array in trial.feeds.items()},
            lengths=lengths,
            threads=threads,
            runs=options.runs,
            environment={
                "onnxruntime": versions(["onnxruntime"]).get("onnxruntime", "?"),
                "machine": platform.machine(),
                "processors": os.cpu_count() or 0,
            },
            runtime=runtime,
            notes=notes,
            chunk=None if stream is None else stream.chunk,
        )

    def _trial(self, runner: Runner, frozen: ir.Model) -> Trial:
        """Return the inputs, given or generated, and the model's outputs on them.

        Raises:
            UnverifiableError: No engine runs the model on them.
        """
        self.options.report_progress("running the model")
        graph = runner.reference.proto.graph
        try:
            if self.options.inputs is not None:
                feeds = read_inputs(self.options.inputs, graph)[0]
                runner.empty_inputs = any(array.size == 0 for array in feeds.values())
                with runner.open(runner.reference) as run:
                    return Trial(0, feeds, run(feeds))
            fixed = onnx.GraphProto(input=[ir.to_proto(value) for value in frozen.graph.inputs])
            maker = input_maker(graph, fixed, runner.reference_facts, self.options.seed)
            runner.empty_inputs = maker.plan.has_empty_inputs
            with runner.open(runner.reference) as run:
                return generate_trials(run, maker, 1)[0][0]
        except (LoadError, RunError) as error:
            raise UnverifiableError(f"no engine runs the model: {brief(error)}") from error

    def _check(self, entry: Entry, runner: Runner | None, trial: Trial, worker: Worker) -> None:
        """Run the variant once, as it will be timed, and let the runner compare its outputs."""
        if not entry.is_timed:
            return
        try:
            outputs, kernels = worker.check(entry.path, trial.feeds)
        except WorkerError as error:
            reasons = []
            if entry.variant.strategy == "native" and self.runtime is None and runner is not None:
                reasons = reasons_against_onnxruntime(runner.reference_facts, "ort", runner.empty_inputs)
            entry.drop("does not run", "; ".join(reasons) or brief(error))
            return
        if runner is not None:
            judge = Judge(runner)
            judged = [Judged(trial, outputs, judge.compare(trial, outputs))]
            again = judge.merge_trials(judge.recheck(judged)).values()
            wrong = [str(comparison) for comparison in again if not comparison.equal]
            wrong += [f"no output {name!r}" for name in trial.outputs if name not in outputs]
            if wrong:
                entry.drop("different", "; ".join(wrong))
                return
        entry.variant = dataclasses.replace(entry.variant, ops_run=kernels)

    def _measure(self, entries: Sequence[Entry], trial: Trial, worker: Worker) -> None:
        runs = self.options.runs
        rounds = min(_ROUNDS, runs)
        shares = [runs // rounds + (number < runs % rounds) for number in range(rounds)]
        total = rounds * len(entries)
        for number, share in enumerate(shares):
            # Back and forth, so that the successor of an expensive variant changes.
            for position, entry in enumerate(entries if number % 2 == 0 else entries[::-1]):
                self.options.report_progress(
                    "measuring: session", number * len(entries) + position + 1, total
                )
                if not entry.is_timed:
                    continue
                try:
                    seconds, latencies = worker.measure(entry.path, trial.feeds, self.options.warmup, share)
                except WorkerError as error:
                    entry.drop("does not run", brief(error))
                    continue
                entry.sessions.append(seconds)
                entry.latencies += latencies


def _notes_on_open_inputs(frozen: ir.Model, trial: Trial) -> list[str]:
    """Return notes on dynamic dimensions of the inputs, and their sizes in the benchmark."""
    notes = []
    for value in frozen.graph.inputs:
        array = trial.feeds.get(value.name or "")
        if array is None or (value.shape is not None and value.shape.is_static()):
            continue
        dims = "" if value.shape is None else f" {value.shape}"
        notes.append(
            f"input {value.name!r}{dims} ran as {list(array.shape)}; {wording.option('dim')} and "
            f"{wording.option('input-shape')} fix that"
        )
    return notes


def _sequence_lengths(source: ParsedModel, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Return the time steps of each recurrent node; nothing if a shape is unknown."""
    nodes = gather_facts(source.proto, shapes).recurrent
    lengths = [node.x_dims[1 if node.layout else 0] if node.x_dims else None for node in nodes]
    known = [length for length in lengths if isinstance(length, int)]
    return known if len(known) == len(nodes) else []


def _with_timings(entries: Sequence[Entry], steps: int | None) -> list[BenchVariant]:
    native = Timing.of(entries[0].latencies).median if entries[0].is_timed else None
    variants = []
    for entry in entries:
        variant = entry.variant
        if entry.is_timed:
            latency, ops_run = Timing.of(entry.latencies), variant.ops_run
            variant = dataclasses.replace(
                variant,
                latency=latency,
                session=Timing.of(entry.sessions),
                ratio=None if native is None else latency.median / native,
                ops_per_step=round(ops_run / steps, 3) if ops_run is not None and steps else None,
            )
        variants.append(variant)
    return variants
