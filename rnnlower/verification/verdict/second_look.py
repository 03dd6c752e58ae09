"""Excuses for a difference: rounding, values beyond the range of their type, near ties."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rnnlower.engines.session import Array, RunError
from rnnlower.verification.models import RunModel, select_feeds
from rnnlower.verification.verdict.compare import compare_values, floats_in, is_inexact, map_floats
from rnnlower.verification.verdict.conditioning import (
    Quantizers,
    overflowing,
    perturbed_outputs,
    rounding_noise,
)
from rnnlower.verification.verification_result import OutputComparison

if TYPE_CHECKING:
    from rnnlower.verification.verdict.judging import Judge, Judged

_DRAWS_OF_TIES = 16


class SecondLook:
    """A second look at one trial, which searches for excuses for its differences.

    ``run`` runs the reference; its outputs in another precision are a second opinion. ``masks`` are outputs
    that overflow on purpose, such as a mask of -inf.
    """

    def __init__(self, judge: Judge, run: RunModel, one: Judged, seed: int, masks: Collection[str]) -> None:
        self._judge, self._run, self._one, self._seed = judge, run, one, seed
        self._runner = runner = judge.runner
        self._feeds, self._outputs, self._found = one.trial.feeds, one.trial.outputs, one.outputs
        self._tolerance = partial(judge.tolerance, feeds=self._feeds)
        self._opinion = runner.second_opinion(self._feeds) or {}
        opinions = [self._opinion, self._coarse]
        moved = (
            runner.with_perturbed_weights(self._feeds),
            runner.with_inexact_activations(self._feeds),
        )
        # For each float output, the difference that rounding explains; ``None`` if it explains any.
        self._noise = rounding_noise(
            run, self._feeds, self._outputs, seed, opinions, judge.precision, itertools.chain(*moved)
        )
        # A kernel may turn an internal overflow into a number; the second opinion reveals it.
        overflows = overflowing_outputs(self._outputs) | overflowing_outputs(self._opinion, self._outputs)
        self._overflows = bool(overflows - {*masks})

    def excuse(self, name: str) -> tuple[OutputComparison | None, str] | None:
        """Return a comparison that finds an output equal, with the reason; ``None`` without an excuse.

        The comparison is ``None`` if the trial's inputs do not determine the output.
        """
        if (within := self._within_range(name)) is not None:
            why = "equal in float64 or within range; in its own type it overflows, or rounding decides it"
            return within, why
        if self._quantizers is not None and self._quantizers.explains(name, self._outputs[name]):
            compared = replace(self._one.comparisons[name], equal=True, note="", allowed=None, used=None)
            steps = f"from steps of 8 bits alone: {self._quantizers.off_by_one}"
            return compared, f"differs by {compared.max_abs:.2g}, {steps}"
        if self._is_undetermined(name) or self._only_overflows_differ(name) or self._loses_precision(name):
            return None, ""
        second = self._with_noise[name]
        if second.equal or self._is_near_tie(name):
            used = second.used if second.equal else None
            return replace(second, equal=True, note="", used=used), self._describe_excuse(second)
        return None

    @cached_property
    def _with_noise(self) -> dict[str, OutputComparison]:
        return self._judge.compare(self._one.trial, self._found, self._noise)

    @cached_property
    def _quantizers(self) -> Quantizers | None:
        return Quantizers.run(self._runner, self._feeds, self._tolerance)

    @cached_property
    def _in_float64(self) -> list[dict[str, Any]]:
        """The outputs of the two models in float64; empty if that is not possible."""
        feeds = self._feeds
        return [
            self._runner.run_in_type(np.dtype(np.float64), model, select_feeds(model.proto, feeds)) or {}
            for model in (self._runner.reference, self._runner.candidate)
        ]

    def _describe_excuse(self, comparison: OutputComparison) -> str:
        runtime = self._runner.runtime
        if runtime is None or not runtime.activation_error:
            return "differs only as far as rounding goes"
        return (
            f"differs by {comparison.max_abs:.2g}, only as far as rounding goes, and the Sigmoid and Tanh of "
            f"{runtime.label}, which are up to {runtime.activation_error:.1g} off"
        )

    def _compare_without(self, name: str, places: Array) -> OutputComparison:
        """Compare an output without the elements at these places, allowing for rounding."""
        values = self._outputs[name], self._found[name]
        dtype = values[0].dtype
        expected, found = (np.where(places, np.zeros((), dtype), value) for value in values)
        return compare_values(name, expected, found, self._tolerance(dtype), self._noise[name])

    def _is_comparable(self, name: str) -> bool:
        expected, found = self._outputs[name], self._found[name]
        return name in self._noise and (found.shape, found.dtype) == (expected.shape, expected.dtype)

    def _within_range(self, name: str) -> OutputComparison | None:
        """Compare the elements that neither overflow nor agree in float64; ``None`` if they are unequal.

        This applies only if the reference overflows or amplifies rounding: otherwise a candidate that is
        correct only in float64, such as one that overflows alone, is wrong. Also ``None`` if all elements
        overflow. A comparison in float64 says nothing about a runtime that computes in float16.
        """
        is_coarse = self._runner.runtime is not None and self._runner.runtime.is_coarse
        may_differ = self._overflows or (self._is_undetermined(name) and not is_coarse)
        if not may_differ or not self._is_comparable(name):
            return None
        expected, beyond = self._outputs[name], self._at_range_limit(name)
        if not self._has_large_numbers:
            # A NaN or infinity in both precisions is intended.
            beyond &= ~self._is_intended(name)
        if beyond.all():
            return None
        wide, other = (values.get(name) for values in self._in_float64)
        settled = beyond
        if wide is not None and other is not None and wide.shape == other.shape == expected.shape:
            axis = self._runner.reference_facts.time_axes.get(name)
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(wide - other)
                settled = beyond | (gap <= self._tolerance(expected.dtype).allowed(wide, gap > 0, axis))
        comparison = self._compare_without(name, settled)
        return replace(comparison, note="") if comparison.equal else None

    def _only_overflows_differ(self, name: str) -> bool:
        """Return whether an output of a trial with an overflow differs only in overflowing elements.

        A mask, such as -inf, does not count as an overflow of the trial.
        """
        if not self._overflows or not self._is_comparable(name):
            return False
        return self._compare_without(name, self._out_of_range(name)).equal

    def _is_undetermined(self, name: str) -> bool:
        """Return whether rounding leaves an output undetermined."""
        return name in self._noise and self._noise[name] is None

    def _loses_precision(self, name: str) -> bool:
        """Return whether the reference itself gives another output in the runtime's precision."""
        expected, coarse = self._outputs[name], self._coarse.get(name)
        if coarse is None or name not in self._noise:
            return False
        found, tolerance = coarse.astype(expected.dtype), self._tolerance(expected.dtype)
        return not compare_values(name, expected, found, tolerance, self._noise[name]).equal

    def _out_of_range(self, name: str) -> Array:
        """Return the mask of elements that are out of range in the reference or the candidate."""
        expected, found = self._outputs[name], self._found[name]
        places = self._at_range_limit(name) | overflowing(found, expected.dtype)
        if not self._has_large_numbers:
            # A NaN or infinity is then the model's result, as of a root or a mask. Only which of the two it
            # is may be undetermined, if a value inside a node exceeded every range.
            either = ~_is_number(expected) & ~_is_number(found)
            is_number = self._is_number_for_smaller_inputs(name) | self._is_number_in_float64(name)
            places &= (either & is_number) | ~self._is_intended(name)
        return places

    def _at_range_limit(self, name: str) -> Array:
        expected, other = self._outputs[name], self._opinion.get(name)
        places = overflowing(expected, expected.dtype)
        if other is not None and other.shape == expected.shape:
            places = places | overflowing(other, expected.dtype)
        return places

    def _is_near_tie(self, name: str) -> bool:
        """Return whether a discrete output, such as an ArgMax, differs only where rounding decides.

        Each element must equal the reference's on the inputs, on perturbed inputs, or in another precision.
        """
        expected, found = self._outputs[name], self._found[name]
        arrays = isinstance(expected, np.ndarray) and isinstance(found, np.ndarray)
        if not arrays or is_inexact(expected.dtype):
            return False
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            return False
        settled = np.asarray(found == expected)
        moved = perturbed_outputs(self._run, self._feeds, self._seed, _DRAWS_OF_TIES, evenly=True)
        for other in (self._opinion, *moved):
            if name in other and np.shape(other[name]) == found.shape:
                settled |= found == other[name]
        return bool(settled.all())

    @cached_property
    def _has_large_numbers(self) -> bool:
        """True if the inputs, the reference or the second opinion have a number near the end of its range.

        A state that was fed back may be such an input: the next steps overflow at once.
        """
        return any(
            bool((overflowing(values[name], typed[name].dtype) & _is_number(values[name])).any())
            for values, typed in (
                (self._feeds, self._feeds),
                (self._outputs, self._outputs),
                (self._opinion, self._outputs),
            )
            for name in overflowing_outputs(values, typed)
        )

    def _is_intended(self, name: str) -> Array:
        """Return the mask of elements that are the same NaN or infinity in another precision, if available.

        A NaN that is a number in float64 is not intended: an inner overflow, such as that of Softplus in the
        kernels, met a state of 0 or another overflow.
        """
        expected, other = self._outputs[name], self._opinion.get(name)
        wide = expected.astype(np.float64)
        meant: Array = ~np.isfinite(wide)
        if other is not None and other.shape == expected.shape:
            opinion = other.astype(np.float64)
            meant = (np.isnan(wide) & np.isnan(opinion)) | (np.isinf(wide) & (wide == opinion))
        is_nan = np.isnan(wide) & meant
        # An evaluation of long sequences in float64 takes seconds.
        return meant & ~(is_nan & self._is_number_in_float64(name)) if is_nan.any() else meant

    @cached_property
    def _spec_in_float64(self) -> dict[str, Any]:
        runner = self._runner
        return runner.run_in_type(np.dtype(np.float64), runner.reference, self._feeds, "spec") or {}

    @cached_property
    def _coarse(self) -> dict[str, Any]:
        precision = self._judge.precision
        if precision is None or precision.itemsize >= 4:
            return {}
        return self._runner.run_in_type(precision, self._runner.reference, self._feeds) or {}

    def _is_number_in_float64(self, name: str) -> Array:
        expected, wide = self._outputs[name], self._spec_in_float64.get(name)
        if wide is None or wide.shape != expected.shape:
            return np.zeros(expected.shape, bool)
        return np.asarray(np.isfinite(wide))

    def _is_number_for_smaller_inputs(self, name: str) -> Array:
        """Return the mask of elements that are numbers once the inputs are divided by a thousand."""
        expected = self._outputs[name]
        less = map_floats(self._feeds, lambda array: (array / 1000).astype(array.dtype))
        try:
            value = self._run(less)[name]
        except RunError:
            value = expected
        return _is_number(value if value.shape == expected.shape else expected)


def overflowing_outputs(values: Mapping[str, Any], typed: Mapping[str, Any] | None = None) -> set[str]:
    """Return the float outputs with an element that overflows the type it has in ``typed``."""
    floats = {name: array for name, array in floats_in(typed or values).items() if name in values}
    return {name for name, array in floats.items() if overflowing(values[name], array.dtype).any()}


def masked_outputs(trials: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the outputs whose overflowing elements are the same in every trial, as in a mask of -inf.

    Values that grow out of range differ between trials.
    """
    names = set.intersection(*map(overflowing_outputs, trials))
    return {name for name in names if len({_overflowing_values(each[name]) for each in trials}) == 1}


def _overflowing_values(values: Array) -> bytes:
    return np.unique(values[overflowing(values, values.dtype)].astype(np.float64)).tobytes()


def _is_number(values: Array) -> Array:
    return np.isfinite(values.astype(np.float64))
