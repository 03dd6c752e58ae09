"""The proof by running: the same inputs through two models, and every output compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.errors import OptionError, UnverifiableError, VerificationError
from rnnlower.verification.compare import Tolerance, compare_values, merge, tolerance_for
from rnnlower.verification.conditioning import rounding_noise
from rnnlower.verification.engines import (
    Engine,
    EngineName,
    NumpyEngine,
    Semantics,
    inherited_fault,
    open_engine,
)
from rnnlower.verification.given import GivenInputs, read_inputs
from rnnlower.verification.graph_facts import facts_of_candidate, gather_facts
from rnnlower.verification.interface import interface_problems
from rnnlower.verification.models import HeldModel, ModelLike, hold
from rnnlower.verification.result import OutputComparison, VerificationResult
from rnnlower.verification.session import RECORDED_SHAPE, LacksKernelError, LoadError, RunError, brief
from rnnlower.verification.trials import RunModel, Trial, generate_trials, input_maker

__all__ = ["verify"]

Array = NDArray[Any]
Comparisons = dict[str, OutputComparison]
Tolerances = Callable[[Any], Tolerance]
_Compared = tuple[Trial, dict[str, Any], Comparisons]
_LARGE_GRAPH = 10_000


def verify(
    reference: ModelLike,
    candidate: ModelLike,
    *,
    trials: int | None = None,
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
        trials: how many sets of inputs to generate; left out: 8 patterns of magnitudes, times up to 4
            where flags among the inputs choose branches, times 3 for a small model.
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
    if trials is not None and trials < 1:
        raise OptionError(f"trials must be at least 1, not {trials}")
    if engine not in (None, "onnxruntime", "rnnlower-reference"):
        raise OptionError(f"unknown engine {engine!r}; known are onnxruntime and rnnlower-reference")
    if semantics not in ("ort", "spec"):
        raise OptionError(f"semantics must be 'ort' or 'spec', not {semantics!r}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = hold(reference, "reference", folder), hold(candidate, "candidate", folder)
        run = _Verification(*models, semantics, engine)
        return run.run(trials, seed, inputs, atol, rtol)


class _Verification:
    def __init__(
        self, reference: HeldModel, candidate: HeldModel, semantics: Semantics, engine: EngineName | None
    ) -> None:
        self._reference, self._candidate = reference, candidate
        self._semantics: Semantics = semantics
        self._engine: EngineName | None = engine
        self._facts = {
            reference.role: gather_facts(reference.proto),
            candidate.role: facts_of_candidate(candidate.proto),
        }
        small = [m for m in (candidate, reference) if len(m.proto.graph.node) <= _LARGE_GRAPH]
        self._optimized = small[0] if small else None
        self._empty_inputs = False
        self._engines: dict[str, str] = {}
        self._notes: list[str] = []
        self._problems: list[str] = []

    def run(
        self,
        trials: int | None,
        seed: int,
        inputs: GivenInputs | None,
        atol: float | None,
        rtol: float | None,
    ) -> VerificationResult:
        graphs = self._reference.proto.graph, self._candidate.proto.graph
        self._problems, runnable = interface_problems(*graphs)
        if not runnable:
            return self._result(0, {})
        try:
            finished = self._run_reference(trials, seed, inputs)
        except UnverifiableError:
            raise
        except VerificationError as error:
            self._problems.append(str(error))
            return self._result(0, {})
        tolerances = self._tolerances(atol, rtol)
        pairs = self._run_candidate(finished)
        compared = [(trial, outputs, self._compare(trial, outputs, tolerances)) for trial, outputs in pairs]
        if atol is None and rtol is None:
            compared = self._excuse_rounding(compared, tolerances, seed)
        merged: Comparisons = {}
        for trial, _, comparisons in compared:
            for name, comparison in comparisons.items():
                merged[name] = merge(merged.get(name), comparison, trial.number)
        return self._result(len(pairs), merged)

    def _result(self, trials: int, comparisons: Comparisons) -> VerificationResult:
        outputs = tuple(comparisons.values())
        equal = trials > 0 and not self._problems and all(output.equal for output in outputs)
        return VerificationResult(
            equal=equal and bool(outputs),
            engines=dict(self._engines),
            trials=trials,
            outputs=outputs,
            skipped=tuple(self._notes),
            problems=tuple(self._problems),
        )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    @contextmanager
    def _open(self, model: HeldModel) -> Iterator[RunModel]:
        """Yield what runs ``model``; it turns to NumPy if onnxruntime finds out late that it lacks a kernel.

        One graph runs as it is written, the other after onnxruntime's optimisations: the candidate's, unless
        it is so large that optimising takes minutes (then the reference's).
        """
        engine: Engine
        engine, notes = open_engine(
            model,
            self._facts[model.role],
            self._semantics,
            self._engine,
            optimize=model is self._optimized,
            empty_inputs=self._empty_inputs,
            excuse=lambda error: model is self._reference or inherited_fault(error, self._reference),
        )
        self._engines[model.role] = engine.name
        for note in notes:
            self._note(note)

        def run(feeds: dict[str, Array]) -> dict[str, Any]:
            nonlocal engine
            try:
                return engine.run(feeds)
            except (LacksKernelError, RunError) as error:
                if self._engine is not None or not self._is_for_numpy(error, model):
                    raise
                self._note(f"the {model.role} does not run on onnxruntime: {brief(error)}")
                engine.close()
                engine = NumpyEngine(model, self._semantics)
                self._engines[model.role] = engine.name
                return engine.run(feeds)

        try:
            yield run
        finally:
            engine.close()

    def _run_reference(self, trials: int | None, seed: int, inputs: GivenInputs | None) -> list[Trial]:
        graph = self._reference.proto.graph
        given = None if inputs is None else read_inputs(inputs, graph)
        try:
            if given is None:
                maker = input_maker(graph, self._candidate.proto.graph, self._facts["reference"], seed)
                self._empty_inputs = maker.plan.has_empty_inputs
                with self._open(self._reference) as run:
                    finished, skipped = generate_trials(run, maker, trials or maker.natural_trials)
                self._notes += skipped
                return finished
            self._empty_inputs = any(array.size == 0 for feeds in given for array in feeds.values())
            with self._open(self._reference) as run:
                return [Trial(number, feeds, run(feeds)) for number, feeds in enumerate(given)]
        except LoadError as error:
            raise UnverifiableError(f"no engine runs the reference: {brief(error)}") from error
        except RunError as error:
            raise UnverifiableError(
                f"the reference does not run on the given inputs: {brief(error)}"
            ) from error

    def _run_candidate(self, finished: list[Trial]) -> list[tuple[Trial, dict[str, Any]]]:
        """The candidate's outputs; that it does not load or run is a problem of its own."""
        accepted = {value.name for value in self._candidate.proto.graph.input}
        pairs = []
        try:
            with self._open(self._candidate) as run:
                for trial in finished:
                    pairs.append((trial, run({k: v for k, v in trial.feeds.items() if k in accepted})))
        except LacksKernelError as error:
            raise UnverifiableError(f"no engine runs the candidate: {brief(error)}") from error
        except LoadError as error:
            self._problems.append(f"the candidate does not load: {brief(error)}")
        except RunError as error:
            self._problems.append(f"the candidate does not run where the reference does: {brief(error)}")
        if self._engines.get("candidate") == NumpyEngine.name:
            self._check_candidate()
        return pairs

    def _is_for_numpy(self, error: Exception, model: HeldModel) -> bool:
        """Whether NumPy may try what onnxruntime failed on."""
        if self._engines[model.role] == NumpyEngine.name:
            return False
        if isinstance(error, LacksKernelError):
            return True
        # A shape recorded in the model is not the computed one. If only NumPy ran the reference, which does
        # not look at such records, the reference may hold the same wrong record.
        only_numpy = self._engines["reference"] == NumpyEngine.name
        return model is self._candidate and only_numpy and RECORDED_SHAPE in str(error)

    def _check_candidate(self) -> None:
        """What NumPy evaluates may still break the ONNX specification (the reference may do so, too)."""
        faults = [_checker_complaint(model) for model in (self._reference, self._candidate)]
        if faults[1] and not faults[0]:
            self._problems.append(f"the candidate is no valid model: {faults[1]}")

    def _tolerances(self, atol: float | None, rtol: float | None) -> Tolerances:
        coarse = [
            np.dtype(tensor_dtype_to_np_dtype(node.elem_type))
            for facts in self._facts.values()
            for node in facts.recurrent
            if node.elem_type
        ]
        return lambda dtype: tolerance_for(dtype, coarse, atol, rtol)

    def _compare(
        self,
        trial: Trial,
        outputs: dict[str, Any],
        tolerances: Tolerances,
        noise: Mapping[str, Array | None] | None = None,
    ) -> Comparisons:
        random = self._facts["reference"].random_outputs
        comparisons = {}
        for name, expected in trial.outputs.items():
            if name not in outputs:
                continue
            found = outputs[name]
            if name in random:
                self._note(
                    f"output {name!r} is left to chance or to the runtime: only shape and dtype compared"
                )
                expected, found = _shape_only(expected), _shape_only(found)
            tolerance = tolerances(getattr(expected, "dtype", None))
            allowed = None if noise is None else noise.get(name)
            comparisons[name] = compare_values(name, expected, found, tolerance, allowed)
        return comparisons

    def _second_opinion(self, feeds: dict[str, Array]) -> dict[str, Any] | None:
        """The reference's outputs as NumPy computes them, in another precision than its engine."""
        if len(self._reference.proto.graph.node) > _LARGE_GRAPH:
            return None
        precise = self._engines["reference"] != NumpyEngine.name
        try:
            return NumpyEngine(self._reference, self._semantics, precise).run(feeds)
        except (LoadError, RunError):
            return None

    def _excuse_rounding(
        self, compared: list[_Compared], tolerances: Tolerances, seed: int
    ) -> list[_Compared]:
        """Look again at what differs, allowing for how much the reference amplifies rounding.

        An output that a trial's inputs do not determine is left out of that trial, if other trials judge it.
        """
        if all(c.equal for _, _, comparisons in compared for c in comparisons.values()):
            return compared
        again: list[_Compared] = []
        undetermined: list[tuple[Comparisons, OutputComparison]] = []
        with self._open(self._reference) as run:
            for trial, outputs, first in compared:
                doubtful = [name for name, comparison in first.items() if not comparison.equal]
                kept = dict(first)
                again.append((trial, outputs, kept))
                if not doubtful:
                    continue
                opinion = self._second_opinion(trial.feeds)
                noise = rounding_noise(run, trial.feeds, trial.outputs, seed, opinion)
                second = self._compare(trial, outputs, tolerances, noise)
                for name in doubtful:
                    if name in noise and noise[name] is None:
                        undetermined.append((kept, kept.pop(name)))
                    elif second[name].equal:
                        kept[name] = second[name]
                        self._note(
                            f"trial {trial.number}, output {name!r}: different only as far as rounding goes"
                        )
                    else:
                        # One difference decides; the other trials need no second look.
                        return again + compared[len(again) :]
        judged = {name for _, _, kept in again for name in kept}
        for kept, comparison in undetermined:
            if comparison.name in judged:
                self._note(
                    f"output {comparison.name!r}: some trials overflow or amplify rounding, and were left out"
                )
            else:
                kept[comparison.name] = comparison
        return again


def _shape_only(value: Any) -> Any:
    return np.zeros_like(value) if isinstance(value, np.ndarray) else value


def _checker_complaint(model: HeldModel) -> str:
    try:
        onnx.checker.check_model(str(model.path) if model.path else model.proto)
    except onnx.checker.ValidationError as error:
        return str(error).strip().splitlines()[0]
    return ""
