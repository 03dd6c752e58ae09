"""Excuses for a difference: rounding, values beyond the range of their type, near ties."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rnnlower.engines.session import Array, RunError
from rnnlower.verification.engine_choice import Semantics
from rnnlower.verification.models import ParsedModel, RunModel, select_feeds
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


@dataclass(frozen=True)
class Equal:
    """The excuse that an output counts as equal, with a comparison that finds it so and the reason."""

    comparison: OutputComparison
    reason: str


@dataclass(frozen=True)
class Undetermined:
    """The excuse that the trial's inputs do not determine an output, with what such trials do."""

    reason: str = "overflow or amplify rounding"


class SecondLook:
    """A second look at one trial, which searches for excuses for its differences.

    ``run`` runs the reference; its outputs in another precision are a second opinion. ``masks`` are outputs
    that overflow on purpose, such as a mask of -inf.
    """

    def __init__(self, judge: Judge, run: RunModel, one: Judged, seed: int, masks: Collection[str]) -> None:
        self._judge, self._run, self._one, self._seed, self._masks = judge, run, one, seed, {*masks}
        self._runner = judge.runner
        self._feeds, self._outputs, self._found = one.trial.feeds, one.trial.outputs, one.outputs
        self._tolerance = partial(judge.tolerance, feeds=self._feeds)

    def excuse(self, name: str) -> Equal | Undetermined | None:
        """Return the first excuse that applies to an output; ``None`` if it differs."""
        unset = self._unset(name)
        if unset.any():
            # Further runs, which tell rounding, find other numbers there.
            reason = "run an LSTM over no steps, whose Y_c onnxruntime does not set"
            has_shape = name in floats_in(self._found) and self._found[name].shape == unset.shape
            is_equal = has_shape and self._compare_without(name, unset, None).equal
            return Undetermined(reason) if is_equal else None
        # Comparisons come first: they also hold for outputs that their own type leaves undetermined.
        if compared := self._equal_within_range(name) or self._equal_but_for_quantizers(name):
            return compared
        if self._amplifies_rounding(name) or self._only_overflows_differ(name) or self._loses_precision(name):
            return Undetermined()
        # The last one: only a determined output has a noise to allow.
        return self._equal_but_for_rounding(name)

    def _equal_within_range(self, name: str) -> Equal | None:
        """Compare the elements that neither overflow nor agree in float64.

        This applies only if the reference overflows or amplifies rounding: otherwise a candidate that is
        correct only in float64, such as one that overflows alone, is wrong. Nor does it if all elements
        overflow. A comparison in float64 says nothing about a runtime that computes in float16.
        """
        is_coarse = self._runner.runtime is not None and self._runner.runtime.is_coarse
        may_differ = self._overflows or (self._amplifies_rounding(name) and not is_coarse)
        if not may_differ or not self._is_comparable(name):
            return None
        expected, settled = self._outputs[name], self._at_range_limit(name)
        if not self._has_large_numbers:
            # A NaN or infinity in both precisions is intended.
            settled &= ~self._is_intended(name)
        if settled.all():
            return None
        wide, other = (each.get(name) for each in self._in_float64)
        if wide is not None and other is not None and wide.shape == other.shape == expected.shape:
            axis = self._runner.reference_facts.time_axes.get(name)
            with np.errstate(invalid="ignore", over="ignore"):
                gap = np.abs(wide - other)
                settled = settled | (gap <= self._tolerance(expected.dtype).allowed(wide, gap > 0, axis))
        compared = self._compare_without(name, settled, self._noise[name])
        why = "equal in float64 or within range; in its own type it overflows, or rounding decides it"
        return Equal(replace(compared, note=""), why) if compared.equal else None

    def _equal_but_for_quantizers(self, name: str) -> Equal | None:
        quantizers = self._quantizers
        if quantizers is None or not quantizers.explains(name, self._outputs[name]):
            return None
        compared = replace(self._one.comparisons[name], equal=True, note="", allowed=None, used=None)
        steps = f"from steps of 8 bits alone: {quantizers.off_by_one}"
        return Equal(compared, f"differs by {compared.max_abs:.2g}, {steps}")

    def _equal_but_for_rounding(self, name: str) -> Equal | None:
        second, runtime = self._with_noise[name], self._runner.runtime
        if not second.equal and not self._is_near_tie(name):
            return None
        compared = replace(second, equal=True, note="", used=second.used if second.equal else None)
        if runtime is None or not runtime.activation_error:
            return Equal(compared, "differs only as far as rounding goes")
        return Equal(
            compared,
            f"differs by {second.max_abs:.2g}, only as far as rounding goes, and the Sigmoid and Tanh of "
            f"{runtime.label}, which are up to {runtime.activation_error:.1g} off",
        )

    def _unset(self, name: str) -> Array:
        """Return the mask of elements that follow from the Y_c of an LSTM over no steps."""
        marked = floats_in(self._marks_of_unset).get(name)
        if marked is None or marked.shape != self._outputs[name].shape:
            return np.zeros((), bool)
        return np.asarray(np.isnan(marked) & _is_number(self._output_of(self._opinion, name)))

    def _amplifies_rounding(self, name: str) -> bool:
        """Return whether rounding leaves an output undetermined."""
        return name in self._noise and self._noise[name] is None

    def _only_overflows_differ(self, name: str) -> bool:
        """Return whether an output of a trial with an overflow differs only in overflowing elements.

        A mask, such as -inf, does not count as an overflow of the trial.
        """
        if not (self._overflows and self._is_comparable(name)):
            return False
        return self._compare_without(name, self._out_of_range(name), self._noise[name]).equal

    def _loses_precision(self, name: str) -> bool:
        """Return whether the reference itself gives another output in the runtime's precision."""
        expected, coarse = self._outputs[name], self._coarse.get(name)
        if coarse is None or name not in self._noise:
            return False
        found, tolerance = coarse.astype(expected.dtype), self._tolerance(expected.dtype)
        return not compare_values(name, expected, found, tolerance, self._noise[name]).equal

    def _is_near_tie(self, name: str) -> bool:
        """Return whether a discrete output, such as an ArgMax, differs only where rounding decides.

        Each element must equal the reference's on the inputs, on perturbed inputs, or in another precision.
        """
        expected, found = self._outputs[name], self._found[name]
        if not (isinstance(expected, np.ndarray) and isinstance(found, np.ndarray)):
            return False
        if is_inexact(expected.dtype) or (found.shape, found.dtype) != (expected.shape, expected.dtype):
            return False
        moved = perturbed_outputs(self._run, self._feeds, self._seed, _DRAWS_OF_TIES, evenly=True)
        others = [self._output_of(each, name) for each in (self._opinion, *moved)]
        return bool(np.any([found == each for each in (expected, *others)], axis=0).all())

    def _is_comparable(self, name: str) -> bool:
        expected, found = self._outputs[name], self._found[name]
        return name in self._noise and (found.shape, found.dtype) == (expected.shape, expected.dtype)

    def _compare_without(self, name: str, places: Array, noise: Array | None) -> OutputComparison:
        """Compare an output without the elements at these places, allowing for this noise."""
        values = self._outputs[name], self._found[name]
        expected, found = (np.where(places, np.zeros((), each.dtype), each) for each in values)
        return compare_values(name, expected, found, self._tolerance(expected.dtype), noise)

    def _out_of_range(self, name: str) -> Array:
        """Return the mask of elements that are out of range in the reference or the candidate."""
        expected, found = self._outputs[name], self._found[name]
        places = self._at_range_limit(name) | overflowing(found, expected.dtype)
        if not self._has_large_numbers:
            # A NaN or infinity is then the model's result, as of a root or a mask. Only which of the two it
            # is may be undetermined, if a value inside a node exceeded every range.
            either = ~_is_number(expected) & ~_is_number(found)
            others = self._for_smaller_inputs, self._spec_in_float64
            is_number = np.any([_is_number(self._output_of(each, name)) for each in others], axis=0)
            places &= (either & is_number) | ~self._is_intended(name)
        return places

    def _at_range_limit(self, name: str) -> Array:
        expected, other = self._outputs[name], self._output_of(self._opinion, name)
        return np.asarray(overflowing(expected, expected.dtype) | overflowing(other, expected.dtype))

    def _is_intended(self, name: str) -> Array:
        """Return the mask of elements that are the same NaN or infinity in another precision, if available.

        A NaN that is a number in float64 is not intended: an inner overflow, such as that of Softplus in the
        kernels, met a state of 0 or another overflow.
        """
        both = self._outputs[name], self._output_of(self._opinion, name)
        wide, opinion = (each.astype(np.float64) for each in both)
        is_nan = np.isnan(wide) & np.isnan(opinion)
        if is_nan.any():
            # An evaluation of long sequences in float64 takes seconds.
            is_nan &= ~_is_number(self._output_of(self._spec_in_float64, name))
        return np.asarray(is_nan | (np.isinf(wide) & (wide == opinion)))

    # Evidence: further runs of the models, without outputs where a run is not possible.

    def _output_of(self, outputs: Mapping[str, Any], name: str) -> Array:
        """Return an output of a further run; the trial's if the run has none, or one of another shape."""
        expected: Array = self._outputs[name]
        other: Array = outputs.get(name, expected)
        return other if other.shape == expected.shape else expected

    @cached_property
    def _opinion(self) -> Mapping[str, Any]:
        return self._runner.second_opinion(self._feeds) or {}

    @cached_property
    def _marks_of_unset(self) -> Mapping[str, Any]:
        """The outputs, NaN where Y_c of an LSTM over no steps leads."""
        return self._runner.run_in_numpy(self._feeds, marks_unset=True) or {}

    @cached_property
    def _coarse(self) -> Mapping[str, Any]:
        precision, reference = self._judge.precision, self._runner.reference
        return {} if precision is None or precision.itemsize >= 4 else self._run_in(precision, reference)

    @cached_property
    def _noise(self) -> dict[str, Array | None]:
        """The difference of each float output that rounding explains; ``None`` if it explains any."""
        feeds, opinions, precision = self._feeds, [self._opinion, self._coarse], self._judge.precision
        moved = self._runner.with_perturbed_weights(feeds), self._runner.with_inexact_activations(feeds)
        others = itertools.chain(*moved)
        return rounding_noise(self._run, feeds, self._outputs, self._seed, opinions, precision, others)

    @cached_property
    def _with_noise(self) -> dict[str, OutputComparison]:
        return self._judge.compare(self._one.trial, self._found, self._noise)

    @cached_property
    def _quantizers(self) -> Quantizers | None:
        return Quantizers.run(self._runner, self._feeds, self._tolerance)

    @cached_property
    def _in_float64(self) -> list[Mapping[str, Any]]:
        """The outputs of the two models."""
        models = self._runner.reference, self._runner.candidate
        return [self._run_in(np.dtype(np.float64), each) for each in models]

    @cached_property
    def _spec_in_float64(self) -> Mapping[str, Any]:
        return self._run_in(np.dtype(np.float64), self._runner.reference, "spec")

    def _run_in(self, dtype: np.dtype[Any], model: ParsedModel, *semantics: Semantics) -> Mapping[str, Any]:
        feeds = select_feeds(model.proto, self._feeds)
        return self._runner.run_in_type(dtype, model, feeds, *semantics) or {}

    @cached_property
    def _for_smaller_inputs(self) -> Mapping[str, Any]:
        """The reference's outputs once the inputs are divided by a thousand."""
        with contextlib.suppress(RunError):
            return self._run(map_floats(self._feeds, lambda array: (array / 1000).astype(array.dtype)))
        return {}

    @cached_property
    def _overflows(self) -> bool:
        """True if an output overflows that is no mask.

        A kernel may turn an internal overflow into a number; the second opinion reveals it.
        """
        overflows = overflowing_outputs(self._outputs) | overflowing_outputs(self._opinion, self._outputs)
        return bool(overflows - self._masks)

    @cached_property
    def _has_large_numbers(self) -> bool:
        """True if the inputs, the reference or the second opinion have a number near the end of its range.

        A state that was fed back may be such an input: the next steps overflow at once.
        """
        runs = (self._feeds, self._feeds), (self._outputs, self._outputs), (self._opinion, self._outputs)
        return any(
            bool((overflowing(values[name], typed[name].dtype) & _is_number(values[name])).any())
            for values, typed in runs
            for name in overflowing_outputs(values, typed)
        )


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
