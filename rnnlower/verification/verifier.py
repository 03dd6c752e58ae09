"""Verification by running: the same inputs through two models, and every output compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import onnx

from rnnlower import wording
from rnnlower.engines import child
from rnnlower.engines.catalog import Engine, find_engine
from rnnlower.engines.opened_models import EngineError
from rnnlower.engines.session import LacksKernelError, LoadError, RunError, brief
from rnnlower.errors import UnverifiableError, VerificationError
from rnnlower.files.metadata import PadMetadata, StreamMetadata
from rnnlower.folders import temporary_folder
from rnnlower.verification.chunk_procedure import ChunkProcedure
from rnnlower.verification.engine_choice import SATURATION, EngineName, NumpyEngine, Semantics, may_saturate
from rnnlower.verification.inputs.given import GivenInputs, brief_value, read_sets
from rnnlower.verification.inputs.trials import Trial
from rnnlower.verification.models import ModelLike, ParsedModel, load_parsed, op_types, overridable_inputs
from rnnlower.verification.pad_procedure import PadProcedure
from rnnlower.verification.procedures import Procedure, StepProcedure
from rnnlower.verification.rewritten_models import reinterpret
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.compare import ToleranceType
from rnnlower.verification.verdict.judging import Judge, Judged
from rnnlower.verification.verification_result import RuntimeTrial, VerificationResult
from rnnlower.verification.verify_options import Progress, VerifyOptions

_TRIALS_IN_FLOAT32 = 24
# The message of onnx's checker on nodes in the wrong order.
_UNSORTED = "must be topologically sorted"


def verify(
    reference: ModelLike,
    candidate: ModelLike,
    *,
    trials: int | None = None,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    tolerance: ToleranceType | None = None,
    inputs: GivenInputs | None = None,
    states: Mapping[str, str] | None = None,
    semantics: Semantics = "ort",
    engine: EngineName | None = None,
    on: str | None = None,
    also_on: str | None = None,
    sets: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    dequantize: bool | Collection[str] = False,
    assume_linear_before_reset: bool = False,
) -> VerificationResult:
    """Run both models on the same inputs and compare all outputs by name.

    A streamed candidate (``rnnlower stream``) runs on chunks of the reference's sequences, a padded one
    (``rnnlower pad``) on padded ones.

    Args:
        reference: The model taken as correct: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        candidate: The model to check. Its dimensions may be fixed where the reference's are dynamic.
        trials: Number of input sets to generate, if none are given; by default 8 patterns of magnitudes,
            times up to 4 where flags among the inputs choose branches, times 3 for a small model.
        seed: Determines the generated inputs; the same seed gives the same inputs.
        atol: Allow ``|a - b| <= atol + rtol * |reference|``. If one of the two is given, the other is 0 by
            default; without both, they depend on the dtype (see :mod:`.compare`).
        rtol: See `atol`.
        tolerance: Allow for a candidate that computes in this type, whose weights are rounded to it; inputs
            and outputs that differ in their float type alone are cast.
        inputs: Run on these instead: a dictionary of arrays, an .npz file or a test-data folder.
        states: For a streaming model, the state input that each state output feeds in the next call; by
            default matched by name and shape. Some of the generated trials continue with such states.
        dequantize: Read the reference's DynamicQuantizeLSTM nodes as LSTM with dequantized weights: all of
            them, or those with one of these outputs.
        assume_linear_before_reset: Read its GRU nodes as ``linear_before_reset=1``.
        semantics: The semantics of the reference's recurrent operators where onnxruntime and the ONNX spec
            differ.
        engine: Run both models on this engine; by default, each on onnxruntime if it has the kernels.
        on: Run the candidate on this runtime instead, or as well if it computes in float16: a name of
            ``rnnlower.engines()``, or ``"cmd:PROGRAM {model} {inputs} {outputs}"``.
        also_on: Also run the candidate on this runtime, with the same inputs.
        sets: Values of inputs that the reference always gets; the candidate may lack these inputs.
        progress: Called with ``"reference"`` or ``"candidate"``, the runs done and all runs.

    Returns:
        A result that is truthy if every output of every trial is equal.

    Raises:
        UnverifiableError: No engine runs one of the models, the requested runtime does not run the candidate,
            or no generated inputs suit the reference.
        InvalidModelError: A model cannot be read.
        OptionError: An option is out of range, or the given inputs do not fit.
    """
    tell = progress or VerifyOptions.progress
    options = VerifyOptions(trials, seed, atol, rtol, tolerance, inputs, states, semantics, engine, on, tell)
    other = None if also_on is None else find_engine(also_on)
    runtime = None if on is None else find_engine(on)
    if runtime is not None and runtime.is_coarse:
        # A weight that is 5% off may hide in the rounding there.
        other, runtime = runtime, None
    with temporary_folder() as folder:
        models = load_parsed(reference, "reference", folder), load_parsed(candidate, "candidate", folder)
        read = reinterpret(
            models[0], dequantize=dequantize, assume_linear_before_reset=assume_linear_before_reset
        )
        fixed = read_sets(sets, models[0].proto.graph)
        runner = Runner(read, models[1], options, fixed)
        if runtime is not None:
            runner = runner.on_runtime(runtime)
        with closing(runner):
            return _Verification(runner, _choose_procedure(*models)).result(other)


def _choose_procedure(reference: ParsedModel, candidate: ParsedModel) -> Procedure:
    """Choose the procedure by metadata that only the candidate has."""
    ours, theirs = (
        {entry.key: entry.value for entry in model.proto.metadata_props} for model in (reference, candidate)
    )
    stream, padding = StreamMetadata.read(theirs), PadMetadata.read(theirs)
    if stream is not None and StreamMetadata.read(ours) is None:
        graph, states = reference.proto.graph, {*stream.states, *stream.states.values()}
        has_states = bool(states) and states <= {value.name for value in (*graph.input, *graph.output)}
        # A sequence of one step would not show whether the states are carried to the next call.
        is_step = not stream.inputs or (has_states and stream.steps == stream.chunk == 1)
        return StepProcedure(stream.states) if is_step else ChunkProcedure(stream)
    return PadProcedure(padding) if padding is not None and PadMetadata.read(ours) is None else Procedure()


@dataclass(frozen=True)
class _Verification:
    """A comparison of the runner's two models by a procedure."""

    runner: Runner
    procedure: Procedure

    def result(self, also_on: Engine | None) -> VerificationResult:
        """Return the result, including the candidate's on another runtime if one is requested."""
        runner = self.runner
        problems, runnable = self.procedure.interface_problems(runner)
        for name, kinds in runner.casts.items():
            runner.note(f"{name!r} is {kinds}: it was cast")
        for name, array in runner.sets.items():
            runner.note(f"input {name!r} is set: the reference was fed {brief_value(array)}")
        if not runnable:
            return self._result([], problems)
        try:
            finished = self.procedure.run_reference(runner)
        except UnverifiableError:
            raise
        except VerificationError as error:
            return self._result([], [*problems, str(error)])
        result = self._compare(finished, problems)
        if result:
            result = self._recheck_in_float32(finished, result)
        if also_on is None or not result:
            return result
        if also_on.is_here and also_on.name == runner.engines["candidate"]:
            return _with_trial(also_on, result)
        other = replace(self, runner=runner.on_runtime(also_on))._compare(finished, [])
        return replace(
            result,
            equal=other.equal,
            on=other.on,
            skipped=other.skipped,
            first_difference=other.first_difference,
        )

    def _recheck_in_float32(self, finished: list[Trial], result: VerificationResult) -> VerificationResult:
        """Return the result, or the difference of two models of small floats once computed in float32.

        Float16's rounding at every step may hide a wrong weight.
        """
        options = self.runner.options
        if options.atol is not None or options.rtol is not None or self.runner.runtime is not None:
            return result
        other = self.runner.in_float32([trial.feeds for trial in finished[:_TRIALS_IN_FLOAT32]])
        if other is None:
            return result
        with closing(other):
            try:
                trials = self.procedure.run_reference(other)
                wide = _Verification(other, self.procedure)._compare(trials, [])
            except (UnverifiableError, VerificationError) as error:
                return replace(result, skipped=(*result.skipped, f"not compared in float32: {error.problem}"))
        if wide:
            return result
        if wide.problems:
            return replace(result, skipped=(*result.skipped, f"not compared in float32: {wide.problems[0]}"))
        note = (
            f"computed in float32 instead of {other.rounded_to}, the models differ by more than its rounding"
        )
        return replace(
            wide, skipped=(*result.skipped, note), engines=result.engines, versions=result.versions
        )

    def _compare(self, finished: list[Trial], problems: list[str]) -> VerificationResult:
        pairs, failures = self._run_candidate(finished)
        judge = Judge(self.runner)
        judged = [Judged(trial, outputs, judge.compare(trial, outputs)) for trial, outputs in pairs]
        return self._result(judge.recheck(judged), problems + failures)

    def _result(self, judged: list[Judged], problems: list[str]) -> VerificationResult:
        runner = self.runner
        judge = Judge(runner)
        outputs = tuple(judge.merge_trials(judged).values())
        same = bool(outputs) and all(output.equal for output in outputs)
        engines = dict(runner.engines)
        packages = {name: "rnnlower" if name == NumpyEngine.name else name for name in engines.values()}
        # Some are installed under another name, such as onnxruntime-gpu, or not at all.
        found = child.versions([*packages.values()])
        models = (runner.candidate, runner.reference)
        here = [model.proto for model in models if engines.get(model.role) == "onnxruntime"]
        if outputs and not same and any(map(may_saturate, here)):
            runner.note(f"onnxruntime's {SATURATION}: the difference may be its own")
        given = runner.options.feeds is not None or runner.options.inputs is not None
        candidate, reference = ("QuantizeLinear" in op_types(model.proto) for model in models)
        if outputs and not same and not given and candidate and not reference:
            runner.note(
                "the quantizers of the candidate clip what their calibration did not see, and these inputs "
                f"were generated: compare on recordings ({wording.option('inputs', 'FILE.npz')})"
            )
        result = VerificationResult(
            equal=same and not problems,
            engines=engines,
            trials=len(judged),
            outputs=outputs,
            skipped=tuple(runner.notes),
            states=dict(runner.states),
            versions={name: found.get(package, "") for name, package in packages.items()},
            tolerances={"atol": judge.atol, "rtol": judge.rtol},
            problems=tuple(problems),
            first_difference=None if same else self.procedure.locate_difference(runner, judge, judged),
        )
        return result if runner.runtime is None else _with_trial(runner.runtime, result)

    def _run_candidate(self, finished: list[Trial]) -> tuple[list[tuple[Trial, dict[str, Any]]], list[str]]:
        """Return the candidate's outputs, and its failures to load or run."""
        runner, progress = self.runner, self.runner.options.progress
        pairs: list[tuple[Trial, dict[str, Any]]] = []
        failures = []
        if runner.runtime is not None:
            finished = _drop_overriding_trials(runner, runner.runtime, finished)
        try:
            with runner.open(runner.candidate) as run:
                progress("candidate", 0, len(finished))
                for pair in self.procedure.run_candidate(runner, run, finished):
                    pairs.append(pair)
                    if len(pairs) < len(finished):
                        progress("candidate", len(pairs), len(finished))
        except EngineError as error:
            on = None
            if runner.runtime is not None:
                on = RuntimeTrial.of(runner.runtime, problem=str(error)).to_dict()
            raise UnverifiableError(str(error), on=on) from error
        except LacksKernelError as error:
            raise UnverifiableError(f"no engine runs the candidate: {brief(error)}") from error
        except LoadError as error:
            failures.append(f"the candidate does not load: {brief(error)}")
        except RunError as error:
            failures.append(f"the candidate does not run where the reference does: {brief(error)}")
        if runner.runtime is not None:
            failures += _output_name_problems(runner, pairs)
        if runner.engines.get("candidate") == NumpyEngine.name:
            # NumPy also evaluates models that violate the ONNX spec; the reference may do so, too.
            complaints = [_checker_complaint(model) for model in (runner.reference, runner.candidate)]
            if complaints[1] and not complaints[0]:
                failures.append(f"the candidate is not a valid model: {complaints[1]}")
        return pairs, failures


def _with_trial(runtime: Engine, result: VerificationResult) -> VerificationResult:
    """Return the result, which was computed on the runtime, with an entry that says so."""
    problem = "; ".join(result.problems) or None
    trial = RuntimeTrial.of(
        runtime, ran=result.trials > 0, equal=result.equal, outputs=result.outputs, problem=problem
    )
    return replace(result, on=trial, versions={**result.versions, runtime.name: runtime.version or ""})


def _drop_overriding_trials(runner: Runner, runtime: Engine, finished: list[Trial]) -> list[Trial]:
    """Drop trials that override default values of inputs, which runtimes treat as constants."""
    overridable = set(overridable_inputs(runner.candidate.proto))
    left = [trial for trial in finished if overridable.isdisjoint(trial.feeds)]
    if count := len(finished) - len(left):
        runner.note(f"{count} trials feed inputs that have a default value: not tried on {runtime.label}")
    return left


def _output_name_problems(runner: Runner, pairs: list[tuple[Trial, dict[str, Any]]]) -> list[str]:
    """List outputs that a runtime renames or leaves out."""
    expected = [value.name for value in runner.candidate.proto.graph.output]
    found = list(dict.fromkeys(name for _, outputs in pairs for name in outputs))
    missing = [name for name in expected if any(name not in outputs for _, outputs in pairs)]
    return [f"there is no output {name!r}" for name in missing] + [
        f"there is an output {name!r} that the model lacks" for name in found if name not in expected
    ]


def _checker_complaint(model: ParsedModel) -> str:
    try:
        onnx.checker.check_model(str(model.path) if model.path else model.proto)
    except onnx.checker.ValidationError as error:
        first = str(error).strip().splitlines()[0]
        # onnxruntime sorts nodes, and so does NumPy's evaluator.
        return "" if _UNSORTED in first else first
    return ""
