"""The proof by running: the same inputs through two models, and every output compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.errors import OptionError, UnverifiableError, VerificationError
from rnnlower.verification.compare import compare_values, merge, tolerance_for
from rnnlower.verification.engines import Engine, EngineName, NumpyEngine, Semantics, open_engine
from rnnlower.verification.generate import InputMaker
from rnnlower.verification.given import GivenInputs, read_inputs
from rnnlower.verification.graph_facts import dims_of, gather_facts
from rnnlower.verification.models import HeldModel, ModelLike, hold
from rnnlower.verification.result import OutputComparison, VerificationResult
from rnnlower.verification.session import LacksKernelError, LoadError, RunError
from rnnlower.verification.shapes import ShapePlan

__all__ = ["DEFAULT_TRIALS", "verify"]

Array = NDArray[Any]
DEFAULT_TRIALS = 6


@dataclass(frozen=True)
class _Trial:
    number: int
    feeds: dict[str, Array]
    outputs: dict[str, Any]


def verify(
    reference: ModelLike,
    candidate: ModelLike,
    *,
    trials: int = DEFAULT_TRIALS,
    seed: int = 0,
    atol: float | None = None,
    rtol: float | None = None,
    inputs: GivenInputs | None = None,
    semantics: Semantics = "ort",
    engine: EngineName | None = None,
) -> VerificationResult:
    """Run both models on the same inputs and compare all outputs by name.

    Args:
        reference: the model that is right: a path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        candidate: the model in question. Its dimensions may be fixed where the reference's are not.
        trials: how many sets of inputs to generate.
        seed: the generated inputs follow from it; the same seed gives the same inputs.
        atol, rtol: allow ``|a - b| <= atol + rtol * |reference|``. Left out: by dtype (see :mod:`.compare`).
        inputs: run on these instead: a dictionary of arrays, an .npz file or a test-data folder.
        semantics: what the reference's recurrent operators mean where the ONNX text and onnxruntime differ.
        engine: run both models on this one; left out, each on onnxruntime if that has kernels for it.

    Returns:
        A result that is truthy when every output of every trial is equal.

    Raises:
        UnverifiableError: no engine runs one of the models, or no generated inputs suit the reference.
        InvalidModelError: a model cannot be read.
        OptionError: an option is out of range, or the given inputs do not fit.
    """
    if trials < 1:
        raise OptionError(f"trials must be at least 1, not {trials}")
    if engine not in (None, "onnxruntime", "rnnlower-reference"):
        raise OptionError(f"unknown engine {engine!r}; known are onnxruntime and rnnlower-reference")
    if semantics not in ("ort", "spec"):
        raise OptionError(f"semantics must be 'ort' or 'spec', not {semantics!r}")
    with tempfile.TemporaryDirectory() as folder:
        run = _Verification(
            hold(reference, "reference", Path(folder)),
            hold(candidate, "candidate", Path(folder)),
            semantics,
            engine,
        )
        return run.run(trials, seed, inputs, atol, rtol)


class _Verification:
    def __init__(
        self, reference: HeldModel, candidate: HeldModel, semantics: Semantics, engine: EngineName | None
    ) -> None:
        self._reference, self._candidate = reference, candidate
        self._semantics: Semantics = semantics
        self._engine: EngineName | None = engine
        self._facts = {m.role: gather_facts(m.proto) for m in (reference, candidate)}
        self._engines: dict[str, str] = {}
        self._skipped: list[str] = []

    def run(
        self, trials: int, seed: int, inputs: GivenInputs | None, atol: float | None, rtol: float | None
    ) -> VerificationResult:
        problems, runnable = _interface_problems(self._reference.proto.graph, self._candidate.proto.graph)
        if not runnable:
            return self._result(0, {}, problems)
        try:
            if inputs is None:
                finished = self._generated_trials(trials, seed)
            else:
                finished = self._given_trials(read_inputs(inputs, self._reference.proto.graph))
        except UnverifiableError:
            raise
        except VerificationError as error:
            return self._result(0, {}, [*problems, str(error)])
        comparisons: dict[str, OutputComparison] = {}
        tolerances = self._tolerances(atol, rtol)
        accepted = {value.name for value in self._candidate.proto.graph.input}
        try:
            with self._open(self._candidate) as run_candidate:
                for trial in finished:
                    outputs = run_candidate({k: v for k, v in trial.feeds.items() if k in accepted})
                    self._compare(trial, outputs, tolerances, comparisons)
        except LoadError as error:
            problems.append(f"the candidate does not load: {error}")
        except RunError as error:
            problems.append(f"the candidate does not run where the reference does: {error}")
        return self._result(len(finished), comparisons, problems)

    def _result(
        self, trials: int, comparisons: dict[str, OutputComparison], problems: list[str]
    ) -> VerificationResult:
        outputs = tuple(comparisons.values())
        equal = trials > 0 and not problems and bool(outputs) and all(output.equal for output in outputs)
        return VerificationResult(
            equal=equal,
            engines=dict(self._engines),
            trials=trials,
            outputs=outputs,
            skipped=tuple(self._skipped),
            problems=tuple(problems),
        )

    @contextmanager
    def _open(self, model: HeldModel) -> Iterator[Callable[[dict[str, Array]], dict[str, Any]]]:
        """Yield what runs ``model``; it turns to NumPy if onnxruntime finds out late that it lacks a kernel.

        The reference's graph runs as it is written, the candidate's after onnxruntime's optimisations.
        """
        facts = self._facts[model.role]
        held, notes = open_engine(model, facts, self._semantics, self._engine, model.role == "candidate")
        engine: Engine = held
        self._engines[model.role] = engine.name
        self._skipped += notes

        def run(feeds: dict[str, Array]) -> dict[str, Any]:
            nonlocal engine
            try:
                return engine.run(feeds)
            except LacksKernelError as error:
                if self._engine is not None or isinstance(engine, NumpyEngine):
                    raise
                self._skipped.append(f"the {model.role} does not run on onnxruntime: {error}")
                engine.close()
                engine = NumpyEngine(model, self._semantics)
                self._engines[model.role] = engine.name
                return engine.run(feeds)

        try:
            yield run
        finally:
            engine.close()

    def _given_trials(self, sets: list[dict[str, Array]]) -> list[_Trial]:
        try:
            with self._open(self._reference) as run:
                return [_Trial(number, feeds, run(feeds)) for number, feeds in enumerate(sets)]
        except (LoadError, RunError) as error:
            raise UnverifiableError(f"the reference does not run on the given inputs: {error}") from error

    def _generated_trials(self, trials: int, seed: int) -> list[_Trial]:
        maker = self._input_maker(seed)
        finished: list[_Trial] = []
        last = ""
        try:
            with self._open(self._reference) as run:
                for number in range(trials):
                    trial, reason = _first_that_runs(run, maker, number)
                    if trial is not None:
                        finished.append(trial)
                    else:
                        last = reason
                        self._skipped.append(
                            f"trial {number}: the reference ran on no generated inputs: {reason}"
                        )
        except LoadError as error:
            raise UnverifiableError(f"no engine runs the reference: {error}") from error
        if not finished:
            raise UnverifiableError(
                f"the reference ran on no generated inputs; give some. The last reason: {last}"
            )
        return finished

    def _input_maker(self, seed: int) -> InputMaker:
        graph = self._reference.proto.graph
        values = _required_inputs(graph)
        others = {value.name: dims_of(value) for value in self._candidate.proto.graph.input}
        facts = self._facts["reference"]
        hints = [d for value in graph.output for d in dims_of(value) or () if isinstance(d, int)]
        hints += [d for node in facts.recurrent for d in node.x_dims or () if isinstance(d, int)]
        plan = ShapePlan.merge({value.name: dims_of(value) for value in values}, others, hints)
        types = {value.name: value.type.tensor_type.elem_type for value in values}
        return InputMaker(types, facts.uses, plan, seed)

    def _tolerances(self, atol: float | None, rtol: float | None) -> Callable[[Any], Any]:
        coarse = [
            np.dtype(tensor_dtype_to_np_dtype(node.elem_type))
            for facts in self._facts.values()
            for node in facts.recurrent
            if node.elem_type
        ]
        return lambda dtype: tolerance_for(dtype, coarse, atol, rtol)

    def _compare(
        self,
        trial: _Trial,
        outputs: dict[str, Any],
        tolerances: Callable[[Any], Any],
        comparisons: dict[str, OutputComparison],
    ) -> None:
        random = self._facts["reference"].random_outputs
        for name, expected in trial.outputs.items():
            if name not in outputs:
                continue
            found = outputs[name]
            if name in random:
                self._note_random(name)
                expected, found = _shape_only(expected), _shape_only(found)
            tolerance = tolerances(getattr(expected, "dtype", None))
            comparison = compare_values(name, expected, found, tolerance)
            comparisons[name] = merge(comparisons.get(name), comparison, trial.number)

    def _note_random(self, name: str) -> None:
        note = f"output {name!r} depends on a random operator: only its shape and dtype are compared"
        if note not in self._skipped:
            self._skipped.append(note)


def _shape_only(value: Any) -> Any:
    return np.zeros_like(value) if isinstance(value, np.ndarray) else value


def _first_that_runs(
    run: Callable[[dict[str, Array]], dict[str, Any]], maker: InputMaker, number: int
) -> tuple[_Trial | None, str]:
    """The first proposal of sizes and values on which the reference runs; or None and the last reason."""
    reason = "the inputs would be too large"
    attempt = 0
    for recipe in maker.plan.proposals(number):
        shapes = maker.plan.sizes(recipe)
        if shapes is None:
            continue
        for _ in range(2):
            feeds = maker.make(number, attempt, recipe, shapes)
            attempt += 1
            try:
                outputs = run(feeds)
            except RunError as error:
                reason = f"{error} (shapes {shapes})"
            else:
                maker.plan.worked(recipe)
                return _Trial(number, feeds, outputs), ""
    return None, reason


def _required_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    initialized = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initialized]


def _interface_problems(reference: onnx.GraphProto, candidate: onnx.GraphProto) -> tuple[list[str], bool]:
    """Differences between the graphs' inputs and outputs; whether both can take the same inputs at all."""
    problems, runnable = [], True
    theirs = {value.name: value for value in candidate.input}
    ours = {value.name for value in reference.input}
    for value in _required_inputs(reference):
        other = theirs.get(value.name)
        if other is None:
            problems.append(f"the candidate has no input {value.name!r}")
        elif other.type.tensor_type.elem_type != value.type.tensor_type.elem_type:
            problems.append(f"input {value.name!r} has another type in the candidate")
            runnable = False
    for value in _required_inputs(candidate):
        if value.name not in ours:
            problems.append(f"the candidate wants an input {value.name!r} that the reference lacks")
            runnable = False
    expected, found = [o.name for o in reference.output], [o.name for o in candidate.output]
    problems += [f"the candidate has no output {name!r}" for name in expected if name not in found]
    problems += [f"the candidate has an output {name!r} more" for name in found if name not in expected]
    if sorted(expected) == sorted(found) and expected != found:
        problems.append(f"the outputs are ordered {found} instead of {expected}")
    return problems, runnable
