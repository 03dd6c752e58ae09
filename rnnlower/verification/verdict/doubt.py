"""Excuses for a difference: rounding, values beyond the range of their type, near ties."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from rnnlower.engines.session import Array, RunError
from rnnlower.verification.inputs.trials import Trial
from rnnlower.verification.models import RunModel
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.compare import Tolerance, compare_values, is_inexact
from rnnlower.verification.verdict.conditioning import outputs_nearby, overflowing, rounding_noise

_DRAWS_OF_TIES = 16


class Doubt:
    """A second look at the reference's outputs on one trial's inputs.

    ``run`` runs the reference; its outputs in another precision are a second opinion. ``noise`` is, for each
    float output, the difference that rounding explains, element by element; ``None`` if it explains any.
    ``precision`` is the type that the candidate's runtime computes in.
    """

    def __init__(
        self, runner: Runner, run: RunModel, trial: Trial, seed: int, precision: np.dtype[Any] | None
    ) -> None:
        self._runner, self._run, self._seed, self._precision = runner, run, seed, precision
        self._feeds, self._outputs = trial.feeds, trial.outputs
        self._opinion = runner.second_opinion(trial.feeds) or {}
        opinions = [self._opinion, self._coarse]
        moved = runner.with_moved_weights(trial.feeds), runner.with_inexact_activations(trial.feeds)
        self.noise = rounding_noise(
            run, trial.feeds, trial.outputs, seed, opinions, precision, itertools.chain(*moved)
        )

    def is_open(self, name: str) -> bool:
        """Return whether the inputs do not determine an output, because of rounding."""
        return name in self.noise and self.noise[name] is None

    def is_lost(self, name: str, tolerance: Tolerance) -> bool:
        """Return whether the reference itself has another output in the type that the runtime computes in."""
        expected, coarse = self._outputs[name], self._coarse.get(name)
        if coarse is None or name not in self.noise:
            return False
        found = coarse.astype(expected.dtype)
        return not compare_values(name, expected, found, tolerance, self.noise[name]).equal

    @cached_property
    def overflowing_outputs(self) -> set[str]:
        """The outputs that overflow, in the reference or in the second opinion.

        A kernel may turn an internal overflow into a number.
        """
        return overflowing_outputs(self._outputs) | overflowing_outputs(self._opinion, self._outputs)

    def overflows(self, name: str, found: Array) -> Array:
        """Return the elements of an output, ``found`` in the candidate, that are beyond the range."""
        expected = self._outputs[name]
        places = self._reaches_the_end(name) | overflowing(found, expected.dtype)
        if not self._has_large_numbers:
            # A NaN or infinity is the model's result there, as of a root or a mask. Only which of the two it
            # is may be undetermined, if a value inside a node exceeded every range.
            either = ~_is_number(expected) & ~_is_number(found)
            is_number = self._is_number_for_smaller_inputs(name) | self._is_number_in_float64(name)
            places &= (either & is_number) | ~self._is_meant(name)
        return places

    def reference_overflows(self, name: str) -> Array:
        """Return the elements of an output beyond the range in the reference, in one precision or another.

        A NaN or infinity in both precisions is intended, if no number is large.
        """
        places = self._reaches_the_end(name)
        return places if self._has_large_numbers else places & ~self._is_meant(name)

    def _reaches_the_end(self, name: str) -> Array:
        expected, other = self._outputs[name], self._opinion.get(name)
        places = overflowing(expected, expected.dtype)
        if other is not None and other.shape == expected.shape:
            places = places | overflowing(other, expected.dtype)
        return places

    def is_decided_by_a_hair(self, name: str, found: Any) -> bool:
        """Return whether a discrete output, such as an ArgMax, differs only where rounding decides.

        Each element must equal the reference's on the inputs, on inputs moved by rounding, or in
        another precision.
        """
        expected = self._outputs[name]
        arrays = isinstance(expected, np.ndarray) and isinstance(found, np.ndarray)
        if not arrays or is_inexact(expected.dtype):
            return False
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            return False
        settled = np.asarray(found == expected)
        moved = outputs_nearby(self._run, self._feeds, self._seed, _DRAWS_OF_TIES, evenly=True)
        for other in (self._opinion, *moved):
            if name in other and np.shape(other[name]) == found.shape:
                settled |= found == other[name]
        return bool(settled.all())

    @cached_property
    def _has_large_numbers(self) -> bool:
        """True if the inputs, the reference or the second opinion have a number near the end of its range.

        A state that was fed back is such an input: the next steps take it out of the range at once.
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

    def _is_meant(self, name: str) -> Array:
        """Return where the reference has the same NaN or infinity in another precision, if there is one.

        A NaN that is a number in float64 is not meant: an overflow inside, such as that of Softplus in the
        kernels, met a state of 0 or another overflow.
        """
        meant = self._is_in_another_precision(name)
        is_nan = np.isnan(self._outputs[name].astype(np.float64)) & meant
        # An evaluation of long sequences in float64 takes seconds.
        return meant & ~(is_nan & self._is_number_in_float64(name)) if is_nan.any() else meant

    @cached_property
    def _wide(self) -> dict[str, Any]:
        runner = self._runner
        return runner.in_type(np.dtype(np.float64), runner.reference, self._feeds, "spec") or {}

    @cached_property
    def _coarse(self) -> dict[str, Any]:
        if self._precision is None or self._precision.itemsize >= 4:
            return {}
        return self._runner.in_type(self._precision, self._runner.reference, self._feeds) or {}

    def _is_number_in_float64(self, name: str) -> Array:
        expected, wide = self._outputs[name], self._wide.get(name)
        if wide is None or wide.shape != expected.shape:
            return np.zeros(expected.shape, bool)
        return np.asarray(np.isfinite(wide))

    def _is_in_another_precision(self, name: str) -> Array:
        expected, other = self._outputs[name], self._opinion.get(name)
        if other is None or other.shape != expected.shape:
            return ~_is_number(expected)
        wide, opinion = expected.astype(np.float64), other.astype(np.float64)
        return np.asarray((np.isnan(wide) & np.isnan(opinion)) | (np.isinf(wide) & (wide == opinion)))

    def _is_number_for_smaller_inputs(self, name: str) -> Array:
        """Return where the reference has a number once its inputs are divided by a thousand."""
        expected = self._outputs[name]
        less = {
            key: (value / 1000).astype(value.dtype) if is_inexact(value.dtype) else value
            for key, value in self._feeds.items()
        }
        try:
            value = self._run(less)[name]
        except RunError:
            value = expected
        return _is_number(value if value.shape == expected.shape else expected)


def overflowing_outputs(values: Mapping[str, Any], typed: Mapping[str, Any] | None = None) -> set[str]:
    """Return the float outputs that overflow somewhere, in the types that ``typed`` has."""
    types = {
        name: value.dtype
        for name, value in (typed or values).items()
        if isinstance(value, np.ndarray) and is_inexact(value.dtype)
    }
    return {
        name for name, dtype in types.items() if name in values and overflowing(values[name], dtype).any()
    }


def masked_outputs(trials: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the outputs that overflow in every trial to the same few values, as a mask of -inf does.

    A value that grows beyond the range has other numbers in every trial.
    """
    names = set.intersection(*map(overflowing_outputs, trials))
    return {name for name in names if len({_overflowing_values(each[name]) for each in trials}) == 1}


def _overflowing_values(values: Array) -> bytes:
    return np.unique(values[overflowing(values, values.dtype)].astype(np.float64)).tobytes()


def _is_number(values: Array) -> Array:
    return np.isfinite(values.astype(np.float64))
