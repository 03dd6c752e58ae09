"""The benchmark: the model as it is and in every lowered form, checked first and then timed in rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.arguments import check_strings, integer
from rnnlower.benchmarking.elsewhere import RuntimeWorker
from rnnlower.benchmarking.result import BenchResult, BenchVariant, Timing, per_step, ratio
from rnnlower.benchmarking.variants import OF_TARGET, Entry, Settings, lowered_form, native_form
from rnnlower.benchmarking.worker import Worker, WorkerError
from rnnlower.engines.known import Engine, find_engine
from rnnlower.engines.session import LoadError, RunError, brief
from rnnlower.errors import OptionError, UnverifiableError
from rnnlower.files.model_io import ModelLike, load_model
from rnnlower.files.stream_metadata import StreamMetadata
from rnnlower.folders import temporary_folder
from rnnlower.graph.versions import notes_on_operators
from rnnlower.lowering.replacing import Gates
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.freeze_initializers import FreezeInitializersPass
from rnnlower.passes.legacy_constants import LegacyConstantsPass
from rnnlower.passes.set_inputs import SetInputsPass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import Semantics, check_semantics
from rnnlower.targets import Target, find_target, target_names
from rnnlower.verification.engine_choice import reasons_against_onnxruntime
from rnnlower.verification.inputs.given import GivenInputs, read_inputs
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import Trial, generate_trials, input_maker
from rnnlower.verification.models import HeldModel, hold
from rnnlower.verification.options import Progress
from rnnlower.verification.readings import as_read
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.judging import Judge, Judged

STRATEGIES = ("adapt", "unroll", "scan", "loop", "lower")
_WITHOUT_TARGET = tuple(strategy for strategy in STRATEGIES if strategy not in OF_TARGET)
# Every round makes each variant's session anew and runs it for its share, so that noise meets all alike.
_ROUNDS = 5


def bench(
    model: ModelLike,
    *,
    strategies: Sequence[str] | None = None,
    unroll_factors: Sequence[int] = (),
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    sets: Mapping[str, Any] | None = None,
    freeze: bool | None = None,
    nodes: Sequence[str] | None = None,
    semantics: Semantics = "ort",
    inputs: GivenInputs | None = None,
    seed: int = 0,
    threads: int = 1,
    runs: int = 50,
    warmup: int = 3,
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    on: str | None = None,
    progress: Progress | None = None,
) -> BenchResult:
    """Time the model as it is and in its lowered forms, on one runtime and on the same inputs.

    Sessions run in a child process, one at a time. A form is timed only if its outputs agree with
    the model's.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        strategies: Which of ``unroll``, ``scan`` and ``loop``, and on a runtime that a target describes
            ``adapt`` (its own operators adapted) and ``lower`` (what `rnnlower.lower` takes); left out: all.
        unroll_factors: Time steps in an iteration; each adds a form of scan and of loop.
        dims: As for `rnnlower.unroll`.
        input_shapes: As for `rnnlower.unroll`.
        sets: As for `rnnlower.unroll`.
        freeze: As for `rnnlower.unroll`.
        nodes: As for `rnnlower.unroll`.
        semantics: As for `rnnlower.unroll`.
        inputs: As for `rnnlower.verify`; of several sets of inputs the first is used.
        seed: As for `rnnlower.verify`.
        threads: Threads of onnxruntime within an operator; 0 leaves it to onnxruntime.
        runs: Timed runs of each form.
        warmup: Runs before those, in each session.
        dequantize: As for `rnnlower.unroll`. The model as it is then computes other numbers: it is timed, and
            the forms are compared with the dequantized model.
        assume_linear_before_reset: As for `rnnlower.unroll`, and compared likewise.
        compute_type: As for `rnnlower.unroll`.
        gates: As for `rnnlower.unroll`.
        on: Another runtime than onnxruntime: a name of `rnnlower.engines()`, or
            ``"cmd:PROGRAM {model} {inputs} {outputs}"``, each of whose runs is timed as a whole.
        progress: Called with a description of the current phase, the work done, and the work in total.

    Raises:
        OptionError: An option is out of range or does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        UnverifiableError: No engine runs the model, so nothing could be checked.
    """
    runtime = None if on is None else find_engine(on)
    target = None if runtime is None else _target_of(runtime)
    if strategies is None:
        strategies = STRATEGIES if target is not None else _WITHOUT_TARGET
    check_semantics(semantics)
    _check_options(strategies, unroll_factors, threads, runs, warmup)
    if target is None and (asked := [strategy for strategy in strategies if strategy in OF_TARGET]):
        raise OptionError(
            f"the strategy {asked[0]!r} is for a runtime that a target describes",
            remedy=f"name one ({wording.option('on', 'openvino')}), or leave the strategy out",
        )
    settings = Settings(
        dims=dims or {},
        input_shapes=input_shapes or {},
        nodes=nodes,
        semantics=semantics,
        inputs=inputs,
        seed=seed,
        threads=threads,
        runs=runs,
        warmup=warmup,
        dequantize=dequantize,
        assume_linear_before_reset=assume_linear_before_reset,
        compute_type=compute_type,
        gates=gates,
        runtime=runtime,
        target=target,
        is_folded=target is not None or bool(sets),
        progress=progress or (lambda activity, done, total: None),
    )
    plans = [(strategy, 1) for strategy in STRATEGIES if strategy in strategies]
    factors = sorted({*unroll_factors} - {1})
    plans += [(s, factor) for s, _ in plans if s in ("scan", "loop") for factor in factors]
    if sets or freeze:
        # Every form, including the native one, is of the model without these inputs.
        model = load_model(model)
        SetInputsPass(sets or {})(model)
        if freeze:
            FreezeInitializersPass()(model)
        LegacyConstantsPass()(model)
    with temporary_folder() as folder:
        return _bench(model, plans, settings, folder)


def _target_of(runtime: Engine) -> Target | None:
    """Return the target of a runtime; the one of its name, where there are several."""
    targets = [find_target(name) for name in target_names()]
    own = [target for target in targets if target.engine == runtime.name]
    return min(own, key=lambda target: target.name != runtime.name, default=None)


def _check_options(
    strategies: Sequence[str], unroll_factors: Sequence[int], threads: int, runs: int, warmup: int
) -> None:
    check_strings("strategies", strategies)
    for strategy in strategies:
        if strategy not in STRATEGIES:
            raise OptionError(f"the strategy {strategy!r} is not one of {', '.join(STRATEGIES)}")
    if not isinstance(unroll_factors, Iterable):
        raise OptionError(f"unroll_factors is {unroll_factors!r}; it must be a list of integers")
    least = [("unroll factor", 1, factor) for factor in unroll_factors]
    least += [("number of threads", 0, threads), ("number of runs", 1, runs), ("warm-up", 0, warmup)]
    for name, bound, value in least:
        if integer(name, value) < bound:
            raise OptionError(f"the {name} is {value}; it must be at least {bound}")


def _bench(
    model: ModelLike, plans: Sequence[tuple[str, int]], settings: Settings, folder: Path
) -> BenchResult:
    own = load_model(model)
    has_recurrent = bool(find_recurrent(own))
    source = hold(model, "reference", folder)
    read = as_read(
        source,
        dequantize=settings.dequantize,
        assume_linear_before_reset=settings.assume_linear_before_reset,
    )
    runner = Runner(read, read, settings.semantics, None)
    entries = [native_form(own, source, folder)]
    FreezeDimsPass(settings.dims, settings.input_shapes)(own)
    trial = _trial(runner, own, settings)
    notes = [*notes_on_operators(own), *_notes(own, trial)]
    if not has_recurrent:
        notes.append("the model has no recurrent node: there is nothing to lower")
        plans = ()
    if read is not source:
        notes.append(
            "the model as it is computes other numbers than those asked for: its outputs are not compared"
        )
    stream = StreamMetadata.read({entry.key: entry.value for entry in source.proto.metadata_props})
    total = len(plans) + 1
    for done, (strategy, factor) in enumerate(plans):
        settings.progress("lowering: form", done + 1, total - 1)
        entries.append(lowered_form(model, strategy, factor, settings, folder))
    shapes = {name: array.shape for name, array in trial.feeds.items()}
    lengths = _lengths(source, shapes)
    runtime = settings.runtime
    if runtime is not None and settings.threads and not runtime.threads:
        notes.append(f"{runtime.title} has no option for the number of threads: it ran with its default")
        settings = dataclasses.replace(settings, threads=0)
    judging = runner if runtime is None else runner.on(runtime)
    with contextlib.closing(Worker() if runtime is None else RuntimeWorker(runtime)) as worker:
        for done, entry in enumerate(entries):
            settings.progress("checking: form", done + 1, total)
            compares = read is source or entry.variant.strategy != "native"
            _check(entry, judging if compares else None, trial, settings, worker)
        _measure(entries, trial, settings, worker)
    return BenchResult(
        variants=_timed(entries, max(lengths, default=None)),
        inputs={name: f"{array.dtype}{list(array.shape)}" for name, array in trial.feeds.items()},
        lengths=lengths,
        threads=settings.threads,
        runs=settings.runs,
        environment=_environment(),
        runtime=runtime,
        notes=notes,
        chunk=None if stream is None else stream.chunk,
    )


def _trial(runner: Runner, frozen: ir.Model, settings: Settings) -> Trial:
    """Return the inputs, given or generated, and the model's outputs on them.

    Raises:
        UnverifiableError: No engine runs the model on them.
    """
    settings.progress("running the model", 0, 0)
    graph = runner.reference.proto.graph
    try:
        if settings.inputs is not None:
            feeds = read_inputs(settings.inputs, graph)[0]
            runner.empty_inputs = any(array.size == 0 for array in feeds.values())
            with runner.open(runner.reference) as run:
                return Trial(0, feeds, run(feeds))
        fixed = onnx.GraphProto(input=[ir.to_proto(value) for value in frozen.graph.inputs])
        maker = input_maker(graph, fixed, runner.reference_facts, settings.seed)
        runner.empty_inputs = maker.plan.has_empty_inputs
        with runner.open(runner.reference) as run:
            return generate_trials(run, maker, 1)[0][0]
    except (LoadError, RunError) as error:
        raise UnverifiableError(f"no engine runs the model: {brief(error)}") from error


def _notes(frozen: ir.Model, trial: Trial) -> list[str]:
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


def _lengths(source: HeldModel, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Return the time steps of each recurrent node; nothing if a shape is unknown."""
    nodes = gather_facts(source.proto, shapes).recurrent
    lengths = [node.x_dims[1 if node.layout else 0] if node.x_dims else None for node in nodes]
    known = [length for length in lengths if isinstance(length, int)]
    return known if len(known) == len(nodes) else []


def _check(
    entry: Entry,
    runner: Runner | None,
    trial: Trial,
    settings: Settings,
    worker: Worker | RuntimeWorker,
) -> None:
    """Run the variant once, on the session that will be timed, and let the runner compare its outputs."""
    if not entry.is_timed:
        return
    try:
        outputs, kernels = worker.check(entry.path, trial.feeds, settings.threads)
    except WorkerError as error:
        reasons = []
        if entry.variant.strategy == "native" and settings.runtime is None and runner is not None:
            reasons = reasons_against_onnxruntime(runner.reference_facts, "ort", runner.empty_inputs)
        entry.drop("does not run", "; ".join(reasons) or brief(error))
        return
    if runner is not None:
        judge = Judge(runner, None, None)
        judged = judge.look_again([Judged(trial, outputs, judge.compare(trial, outputs))], settings.seed)
        wrong = [comparison for comparison in judge.merged(judged).values() if not comparison.equal]
        missing = [name for name in trial.outputs if name not in outputs]
        if wrong or missing:
            entry.drop("different", "; ".join([*map(str, wrong), *(f"no output {n!r}" for n in missing)]))
            return
    entry.variant = dataclasses.replace(entry.variant, ops_run=kernels)


def _measure(
    entries: Sequence[Entry], trial: Trial, settings: Settings, worker: Worker | RuntimeWorker
) -> None:
    rounds = min(_ROUNDS, settings.runs)
    shares = [settings.runs // rounds + (number < settings.runs % rounds) for number in range(rounds)]
    total = rounds * len(entries)
    for number, share in enumerate(shares):
        # Back and forth, so that the successor of an expensive variant changes.
        for position, entry in enumerate(entries if number % 2 == 0 else entries[::-1]):
            settings.progress("measuring: session", number * len(entries) + position + 1, total)
            if not entry.is_timed:
                continue
            try:
                seconds, latencies = worker.measure(
                    entry.path, trial.feeds, settings.threads, settings.warmup, share
                )
            except WorkerError as error:
                entry.drop("does not run", brief(error))
                continue
            entry.sessions.append(seconds)
            entry.latencies += latencies


def _timed(entries: Sequence[Entry], steps: int | None) -> list[BenchVariant]:
    latencies = {entry.variant.name: Timing.of(entry.latencies) for entry in entries if entry.is_timed}
    return [
        dataclasses.replace(
            entry.variant,
            latency=latencies[entry.variant.name],
            session=Timing.of(entry.sessions),
            ratio=ratio(latencies[entry.variant.name], latencies.get("native")),
            ops_per_step=per_step(entry.variant.ops_run, steps),
        )
        if entry.is_timed
        else entry.variant
        for entry in entries
    ]


def _environment() -> dict[str, str | int]:
    from importlib.metadata import version

    return {
        "onnxruntime": version("onnxruntime"),
        "machine": platform.machine(),
        "processors": os.cpu_count() or 0,
    }
