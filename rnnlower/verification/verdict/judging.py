"""The verdict on outputs: comparison, and a second look at differences."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower import wording
from rnnlower.engines.session import Array
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import Trial
from rnnlower.verification.inputs.uses import dims_of, unnamed_dim
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict import compare
from rnnlower.verification.verdict.excuses import Equal, SecondLook, Undetermined, masked_outputs
from rnnlower.verification.verification_result import OutputComparison

Comparisons = dict[str, OutputComparison]


@dataclass(frozen=True)
class Judged:
    """A trial, the candidate's outputs, and their comparison."""

    trial: Trial
    outputs: dict[str, Any]
    comparisons: Comparisons

    @property
    def is_equal(self) -> bool:
        """True if no output differs."""
        return all(comparison.equal for comparison in self.comparisons.values())


class Judge:
    """A comparer of the outputs of the runner's two models; the default tolerances depend on the dtype.

    ``precision`` is the float type that the candidate computes in, if it differs from the model's.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.atol, self.rtol = runner.options.atol, runner.options.rtol
        self._coarse = [
            np.dtype(tensor_dtype_to_np_dtype(node.elem_type))
            for facts in (runner.reference_facts, runner.candidate_facts)
            for node in facts.recurrent
            if node.elem_type
        ]
        self.precision: np.dtype[Any] | None = None
        if runner.runtime is not None:
            self.precision = np.dtype(runner.runtime.precision)
            self._coarse.append(self.precision)
        if runner.options.tolerance is not None:
            kind = np.dtype(runner.options.tolerance)
            self._coarse.append(kind)
            self.precision = kind if compare.is_inexact(kind) else None

    def tolerance(self, dtype: Any, feeds: Mapping[str, Array]) -> compare.Tolerance:
        """Return the tolerance for values of ``dtype`` (``None`` if not an array) computed from ``feeds``."""
        return compare.tolerance_for(dtype, self._coarse, self.atol, self.rtol, self._steps(feeds))

    def _steps(self, feeds: Mapping[str, Array]) -> int:
        """Return the time steps of the longest recurrent node, as far as the inputs determine them."""
        known, places = self._lengths
        shapes = ((np.shape(feeds.get(name, ())), axis) for name, axis in places)
        longest: int = max([1, *known, *(shape[axis] for shape, axis in shapes if axis < len(shape))])
        return longest

    @functools.cached_property
    def _lengths(self) -> tuple[list[int], list[tuple[str, int]]]:
        """Return the known lengths of recurrent nodes, and the inputs and axes that determine others."""
        lengths = {
            node.x_dims[node.layout]
            for facts in (self.runner.reference_facts, self.runner.candidate_facts)
            for node in facts.recurrent
            if node.x_dims and node.layout < len(node.x_dims)
        }
        places = {
            unnamed_dim(value.name, axis) if dim is None else dim: (value.name, axis)
            for value in self.runner.reference.proto.graph.input
            for axis, dim in enumerate(dims_of(value) or ())
        }
        known = [length for length in lengths if isinstance(length, int)]
        return known, [places[length] for length in lengths if isinstance(length, str) and length in places]

    def compare(
        self, trial: Trial, outputs: dict[str, Any], noise: Mapping[str, Array | None] | None = None
    ) -> Comparisons:
        """Compare the outputs that both models have; ``noise`` is allowed on top of the tolerances."""
        comparisons = {}
        for name, expected in trial.outputs.items():
            if name not in outputs:
                continue
            found = outputs[name]
            if name in self.runner.reference_facts.random_outputs:
                self.runner.note(
                    f"output {name!r} is random or undefined: only shape and dtype were compared"
                )
                expected, found = _shape_only(expected), _shape_only(found)
            tolerance = self.tolerance(getattr(expected, "dtype", None), trial.feeds)
            allowed = None if noise is None else noise.get(name)
            comparisons[name] = compare.compare_values(name, expected, found, tolerance, allowed)
        return comparisons

    def recheck(self, judged: list[Judged]) -> list[Judged]:
        """Check differences again, allowing for rounding that the reference amplifies.

        An output that a trial does not determine is dropped from it if other trials compare the output.
        Given tolerances are final: then nothing is excused.
        """
        if all(one.is_equal for one in judged) or self.atol is not None or self.rtol is not None:
            return judged
        masks = masked_outputs([one.trial.outputs for one in judged])
        again: list[Judged] = []
        undetermined: list[tuple[Comparisons, OutputComparison, str]] = []
        with self.runner.open(self.runner.reference) as run:
            for one in judged:
                kept = dict(one.comparisons)
                again.append(replace(one, comparisons=kept))
                doubtful = [name for name, comparison in one.comparisons.items() if not comparison.equal]
                if not doubtful:
                    continue
                look = SecondLook(self, run, one, self.runner.options.seed, masks)
                for name in doubtful:
                    match look.excuse(name):
                        case Equal(comparison, reason):
                            kept[name] = comparison
                            self.runner.note(f"trial {one.trial.number}, output {name!r}: {reason}")
                        case Undetermined(reason):
                            undetermined.append((kept, kept.pop(name), reason))
                        case None:
                            # One difference is enough; the other trials need no second look.
                            return again + judged[len(again) :]
        self._settle(again, undetermined)
        return again

    def _settle(
        self, judged: list[Judged], undetermined: list[tuple[Comparisons, OutputComparison, str]]
    ) -> None:
        """Drop undetermined outputs that other trials compare; restore the others."""
        names = {name for one in judged for name in one.comparisons}
        for comparisons, comparison, reason in undetermined:
            if comparison.name in names:
                self.runner.note(f"output {comparison.name!r}: some trials {reason}, and were left out")
            else:
                comparisons[comparison.name] = comparison

    def merge_trials(self, judged: list[Judged]) -> Comparisons:
        """Return one comparison for each output, over all trials."""
        self._note_small_outputs([one.trial for one in judged])
        merged: Comparisons = {}
        for one in judged:
            for name, comparison in one.comparisons.items():
                merged[name] = compare.merge(merged.get(name), comparison, one.trial.number)
        axes = self.runner.reference_facts.time_axes
        if any(not c.equal and c.name not in axes for c in merged.values()):
            axes = self._time_axes() | axes
        for name, comparison in merged.items():
            if name in axes and comparison.worst_index and axes[name] < len(comparison.worst_index):
                merged[name] = replace(comparison, worst_step=comparison.worst_index[axes[name]])
            if name in axes:
                errors = compare.errors_over_time(
                    [(o.trial.outputs[name], o.outputs[name]) for o in judged if name in o.comparisons],
                    axes[name],
                )
                merged[name] = replace(merged[name], errors_over_time=errors)
        return merged

    def _note_small_outputs(self, trials: Sequence[Trial]) -> None:
        """Note outputs that are so small that the tolerance cannot distinguish them from 0."""
        sizes: dict[str, float] = {}
        limits: dict[str, float] = {}
        for trial in trials:
            for name, value in compare.floats_in(trial.outputs).items():
                sizes[name] = max(sizes.get(name, 0.0), compare.largest_finite(value))
                limit = self.tolerance(value.dtype, trial.feeds).allowed(np.zeros(1), np.ones(1, bool))
                limits[name] = max(limits.get(name, 0.0), float(limit[0]))
        for name, size in sizes.items():
            if 0.0 < size <= limits[name] and self.atol is None:
                tolerances = f"{wording.option('atol')}, {wording.option('rtol')}"
                self.runner.note(
                    f"output {name!r} stays below {limits[name]:.1g} in every trial, too small for the "
                    f"tolerance to tell such numbers apart; give a smaller one ({tolerances}) to compare them"
                )

    def _time_axes(self) -> dict[str, int]:
        """Return the time axes that are found once input sizes are replaced by names."""
        proto = self.runner.reference.proto
        named = {
            value.name: [unnamed_dim(value.name, axis) for axis in range(len(dims))]
            for value in proto.graph.input
            if (dims := dims_of(value)) is not None
        }
        return gather_facts(proto, named).time_axes


def _shape_only(value: Any) -> Any:
    return np.zeros_like(value) if isinstance(value, np.ndarray) else value


def notes_on_empty_outputs(trials: Sequence[Trial]) -> list[str]:
    """Return a sentence for each output of the reference that never held a number."""
    notes = []
    for name in trials[0].outputs if trials else ():
        values = [trial.outputs[name] for trial in trials]
        if not all(isinstance(value, np.ndarray) for value in values):
            continue
        if all(value.size == 0 for value in values):
            notes.append(f"output {name!r} is empty in every trial: only its shape and dtype were compared")
        elif not any(
            not compare.is_inexact(v.dtype) or np.isfinite(v.astype(np.float64)).any() for v in values
        ):
            notes.append(f"output {name!r} is NaN or infinite in every trial: no number of it was compared")
    return notes
