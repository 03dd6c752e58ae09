"""The verdict on outputs: comparison, a second look at differences, and where a difference begins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower import wording
from rnnlower.engines.session import Array
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import Trial
from rnnlower.verification.inputs.uses import dims_of, unnamed_dim
from rnnlower.verification.interface import accepted_by
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.compare import (
    Tolerance,
    compare_values,
    errors_over_time,
    is_inexact,
    merge,
    tolerance_for,
)
from rnnlower.verification.verdict.doubt import Doubt, masked_outputs
from rnnlower.verification.verdict.quantizer_edges import Quantizers
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
    """A comparer of the outputs of the runner's two models; without given tolerances, by dtype."""

    def __init__(self, runner: Runner, atol: float | None, rtol: float | None) -> None:
        self._runner = runner
        self.atol, self.rtol = atol, rtol
        self._coarse = [
            np.dtype(tensor_dtype_to_np_dtype(node.elem_type))
            for facts in (runner.reference_facts, runner.candidate_facts)
            for node in facts.recurrent
            if node.elem_type
        ]
        self._precision: np.dtype[Any] | None = None
        if runner.runtime is not None:
            self._precision = np.dtype(runner.runtime.precision)
            self._coarse.append(self._precision)
        if runner.tolerance is not None:
            kind = np.dtype(runner.tolerance)
            self._coarse.append(kind)
            self._precision = kind if is_inexact(kind) else None

    def tolerance(self, dtype: Any, feeds: Mapping[str, Array]) -> Tolerance:
        """Return the tolerance for values of ``dtype`` (``None`` for a non-array) computed from ``feeds``."""
        return tolerance_for(dtype, self._coarse, self.atol, self.rtol, self._steps(feeds))

    def _steps(self, feeds: Mapping[str, Array]) -> int:
        """Return the time steps of the longest recurrent node, as far as the inputs determine them."""
        sizes: dict[Any, int] = {}
        for value in self._runner.reference.proto.graph.input:
            shape = np.shape(feeds.get(value.name, ()))
            for axis, (dim, size) in enumerate(zip(dims_of(value) or (), shape, strict=False)):
                sizes[unnamed_dim(value.name, axis) if dim is None else dim] = size
        lengths = [
            node.x_dims[node.layout]
            for facts in (self._runner.reference_facts, self._runner.candidate_facts)
            for node in facts.recurrent
            if node.x_dims and node.layout < len(node.x_dims)
        ]
        return max((d if isinstance(d, int) else sizes.get(d, 1) for d in lengths), default=1)

    def compare(
        self, trial: Trial, outputs: dict[str, Any], noise: Mapping[str, Array | None] | None = None
    ) -> Comparisons:
        """Compare the outputs that both models have; ``noise`` is allowed on top of the tolerances."""
        comparisons = {}
        for name, expected in trial.outputs.items():
            if name not in outputs:
                continue
            found = outputs[name]
            if name in self._runner.reference_facts.random_outputs:
                self._runner.note(
                    f"output {name!r} is random or undefined: only shape and dtype were compared"
                )
                expected, found = _shape_only(expected), _shape_only(found)
            tolerance = self.tolerance(getattr(expected, "dtype", None), trial.feeds)
            allowed = None if noise is None else noise.get(name)
            comparisons[name] = compare_values(name, expected, found, tolerance, allowed)
        return comparisons

    def look_again(self, judged: list[Judged], seed: int) -> list[Judged]:
        """Check differences again, allowing for how much the reference amplifies rounding.

        An output that a trial's inputs do not determine is left out of that trial, if other trials compare
        it. Given tolerances are final: then nothing is excused.
        """
        if all(one.is_equal for one in judged) or self.atol is not None or self.rtol is not None:
            return judged
        masks = masked_outputs([one.trial.outputs for one in judged])
        again: list[Judged] = []
        undetermined: list[tuple[Comparisons, OutputComparison]] = []
        with self._runner.open(self._runner.reference) as run:
            for one in judged:
                kept = dict(one.comparisons)
                again.append(replace(one, comparisons=kept))
                doubtful = [name for name, comparison in one.comparisons.items() if not comparison.equal]
                if not doubtful:
                    continue
                doubt = Doubt(self._runner, run, one.trial, seed, self._precision)
                look = _SecondLook(self, self._runner, one, doubt, masks)
                for name in doubtful:
                    excuse = look.excuse(name)
                    if excuse is None:
                        # One difference is enough; the other trials need no second look.
                        return again + judged[len(again) :]
                    comparison, words = excuse
                    if comparison is None:
                        undetermined.append((kept, kept.pop(name)))
                    else:
                        kept[name] = comparison
                        self._runner.note(f"trial {one.trial.number}, output {name!r}: {words}")
        self._settle(again, undetermined)
        return again

    def _settle(self, judged: list[Judged], undetermined: list[tuple[Comparisons, OutputComparison]]) -> None:
        """Leave out undetermined outputs that other trials compare; the others count as they are."""
        names = {name for one in judged for name in one.comparisons}
        for comparisons, comparison in undetermined:
            if comparison.name in names:
                self._runner.note(
                    f"output {comparison.name!r}: some trials overflow or amplify rounding, and were left out"
                )
            else:
                comparisons[comparison.name] = comparison

    def merged(self, judged: list[Judged]) -> Comparisons:
        """Return one comparison for each output, over all trials."""
        self._note_small_outputs([one.trial for one in judged])
        merged: Comparisons = {}
        for one in judged:
            for name, comparison in one.comparisons.items():
                merged[name] = merge(merged.get(name), comparison, one.trial.number)
        axes = self._runner.reference_facts.time_axes
        if any(not c.equal and c.name not in axes for c in merged.values()):
            axes = self._time_axes() | axes
        for name, comparison in merged.items():
            if name in axes and comparison.worst_index and axes[name] < len(comparison.worst_index):
                merged[name] = replace(comparison, worst_step=comparison.worst_index[axes[name]])
            if name in axes:
                errors = errors_over_time(
                    [(o.trial.outputs[name], o.outputs[name]) for o in judged if name in o.comparisons],
                    axes[name],
                )
                merged[name] = replace(merged[name], errors_over_time=errors)
        return merged

    def _note_small_outputs(self, trials: Sequence[Trial]) -> None:
        """Note which outputs are so small that the tolerance cannot distinguish them from 0."""
        sizes: dict[str, float] = {}
        limits: dict[str, float] = {}
        for trial in trials:
            for name, value in trial.outputs.items():
                if not isinstance(value, np.ndarray) or not is_inexact(value.dtype):
                    continue
                magnitude = np.abs(value.astype(np.float64))
                largest = magnitude.max(initial=0.0, where=np.isfinite(magnitude))
                sizes[name] = max(sizes.get(name, 0.0), float(largest))
                limit = self.tolerance(value.dtype, trial.feeds).allowed(np.zeros(1), np.ones(1, bool))
                limits[name] = max(limits.get(name, 0.0), float(limit[0]))
        for name, size in sizes.items():
            if 0.0 < size <= limits[name] and self.atol is None:
                tolerances = f"{wording.option('atol')}, {wording.option('rtol')}"
                self._runner.note(
                    f"output {name!r} stays below {limits[name]:.1g} in every trial, where the tolerance "
                    f"takes any such number for another; give a smaller one ({tolerances}) to compare them"
                )

    def _time_axes(self) -> dict[str, int]:
        """Return the time axes, which show once the sizes of the inputs are removed."""
        proto = self._runner.reference.proto
        named = {
            value.name: [unnamed_dim(value.name, axis) for axis in range(len(dims))]
            for value in proto.graph.input
            if (dims := dims_of(value)) is not None
        }
        return gather_facts(proto, named).time_axes


class _SecondLook:
    """A search for excuses for the differences in one trial; ``masks`` are outputs such as one of -inf."""

    def __init__(
        self, judge: Judge, runner: Runner, one: Judged, doubt: Doubt, masks: Collection[str]
    ) -> None:
        self._judge, self._runner, self._one, self._doubt = judge, runner, one, doubt
        self._overflows = bool(doubt.overflowing_outputs - {*masks})
        self._tolerance = partial(judge.tolerance, feeds=one.trial.feeds)

    def excuse(self, name: str) -> tuple[OutputComparison | None, str] | None:
        """Return a comparison that finds an output equal, and why; ``None`` if there is no excuse.

        The comparison is ``None`` if the trial's inputs do not determine the output.
        """
        expected, found = self._one.trial.outputs[name], self._one.outputs[name]
        if (within := self._within_range(name)) is not None:
            why = "equal in float64 or within range; in its own type it overflows, or rounding decides it"
            return within, why
        if self._quantizers is not None and self._quantizers.explain(name, expected):
            compared = replace(self._one.comparisons[name], equal=True, note="", allowed=None, used=None)
            steps = f"from steps of 8 bits alone: {self._quantizers.edge}"
            return compared, f"differs by {compared.max_abs:.2g}, {steps}"
        if (
            self._doubt.is_open(name)
            or self._differs_by_overflow_alone(name)
            or self._doubt.is_lost(name, self._tolerance(getattr(expected, "dtype", None)))
        ):
            return None, ""
        second = self._with_noise[name]
        if second.equal or self._doubt.is_decided_by_a_hair(name, found):
            used = second.used if second.equal else None
            return replace(second, equal=True, note="", used=used), self._explained(second)
        return None

    @cached_property
    def _with_noise(self) -> Comparisons:
        return self._judge.compare(self._one.trial, self._one.outputs, self._doubt.noise)

    @cached_property
    def _quantizers(self) -> Quantizers | None:
        return Quantizers.settle(self._runner, self._one.trial.feeds, self._tolerance)

    @cached_property
    def _in_float64(self) -> list[dict[str, Any]]:
        """The outputs of the two models in float64; empty if that is not possible."""
        feeds = self._one.trial.feeds
        return [
            self._runner.in_type(np.dtype(np.float64), model, accepted_by(model.proto, feeds)) or {}
            for model in (self._runner.reference, self._runner.candidate)
        ]

    def _explained(self, comparison: OutputComparison) -> str:
        runtime = self._runner.runtime
        if runtime is None or not runtime.activation_error:
            return "differs only as far as rounding goes"
        return (
            f"differs by {comparison.max_abs:.2g}, only as far as rounding goes, and the Sigmoid and Tanh of "
            f"{runtime.label}, which are up to {runtime.activation_error:.1g} off"
        )

    def _without(self, name: str, places: Array) -> OutputComparison:
        """Compare an output without the elements in these places, allowing for rounding."""
        values = self._one.trial.outputs[name], self._one.outputs[name]
        dtype = values[0].dtype
        expected, found = (np.where(places, np.zeros((), dtype), value) for value in values)
        return compare_values(name, expected, found, self._tolerance(dtype), self._doubt.noise[name])

    def _is_comparable(self, name: str) -> bool:
        expected, found = self._one.trial.outputs[name], self._one.outputs[name]
        return name in self._doubt.noise and (found.shape, found.dtype) == (expected.shape, expected.dtype)

    def _within_range(self, name: str) -> OutputComparison | None:
        """Compare elements that do not overflow and still differ in float64; ``None`` if unequal.

        Only where the reference overflows or amplifies rounding: elsewhere a candidate that is correct in
        float64 alone, such as one that overflows where the reference does not, is wrong. ``None``, too, if
        nothing is left that either comparison finds equal. A comparison in float64 says nothing about a
        runtime that computes in float16.
        """
        is_coarse = self._runner.runtime is not None and self._runner.runtime.is_coarse
        may_differ = self._overflows or (self._doubt.is_open(name) and not is_coarse)
        if not may_differ or not self._is_comparable(name):
            return None
        expected, beyond = self._one.trial.outputs[name], self._doubt.reference_overflows(name)
        if beyond.all():
            return None
        wide, other = (values.get(name) for values in self._in_float64)
        settled = beyond
        if wide is not None and other is not None and wide.shape == other.shape == expected.shape:
            axis = self._runner.reference_facts.time_axes.get(name)
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(wide - other)
                settled = beyond | (gap <= self._tolerance(expected.dtype).allowed(wide, gap > 0, axis))
        comparison = self._without(name, settled)
        return replace(comparison, note="") if comparison.equal else None

    def _differs_by_overflow_alone(self, name: str) -> bool:
        """Return whether an output differs only in overflowing elements, in a trial with an overflow.

        A mask, such as -inf, does not count as an overflow of the trial.
        """
        if not self._overflows or not self._is_comparable(name):
            return False
        return self._without(name, self._doubt.overflows(name, self._one.outputs[name])).equal


def _shape_only(value: Any) -> Any:
    return np.zeros_like(value) if isinstance(value, np.ndarray) else value
