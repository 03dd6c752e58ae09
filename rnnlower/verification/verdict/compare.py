"""Comparison of outputs: tolerances, errors in three measures, the worst element.

Tolerances by default, with the reason (``scale`` is the largest finite magnitude in the reference's output):

========  ===========================================  ==================================================
dtype     ``|a - b|`` may be                           why
========  ===========================================  ==================================================
float64   1e-10 max(scale, 0.1) + 1e-9 |reference|     rounding (2e-16) over long sums and sequences
float32   1e-5 max(scale, 0.1) + 1e-4 |reference|      as above (1e-7): fused and reordered products
float16   5e-3 max(scale, 0.1) + 5e-3 |reference|      a lowered graph rounds every step (1e-3), a native
                                                       kernel rounds once
bfloat16  2e-2 max(scale, 0.1) + 2e-2 |reference|      as above (8e-3)
others    exact                                        integers, booleans and strings have no rounding; for
                                                       decisions by rounding see :mod:`.excuses`
========  ===========================================  ==================================================

Rounding errors of either sign add up over the time steps of a recurrent node, with the square root of
their number. The table holds for up to 64 steps; for T steps, both terms are sqrt(T / 64) times as large.

The scale is included because an element near zero may be the difference of large ones; its floor is 0.1
because gate values are of order one whatever the inputs are. If a recurrent node computes in a coarser type
than the output's, the coarser type's row applies. A larger difference is checked against
:mod:`.conditioning` before it counts. A tolerance given by the caller is used as it is, unscaled, and
is final; if only one of the two is given, the other is 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np

from rnnlower.engines.session import Array
from rnnlower.verification.verification_result import OutputComparison

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ToleranceType = Literal["float16", "bfloat16", "int8", "int16"]
_DEFAULTS: list[tuple[Any, float, float]] = [
    # From coarse to fine.
    (np.dtype(np.int8), 2e-2, 2e-2),
    (_BFLOAT16, 2e-2, 2e-2),
    (np.dtype(np.float16), 5e-3, 5e-3),
    (np.dtype(np.int16), 1e-4, 1e-4),
    (np.dtype(np.float32), 1e-5, 1e-4),
    (np.dtype(np.float64), 1e-10, 1e-9),
]
_SMALL_FLOATS = {
    np.dtype(getattr(ml_dtypes, name))
    for name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
}
_SCALE_FLOOR = 0.1
_STEPS_OF_TABLE = 64
_MAX_TURNED_AXES = 5


@dataclass(frozen=True)
class Tolerance:
    """``|a - b| <= atol * (scale if scaled else 1) + rtol * |reference|``."""

    atol: float
    rtol: float
    scaled: bool

    def allowed(self, reference: Array, differs: Array, axis: int | None = None) -> Array:
        """Return the allowed absolute difference, element by element; ``reference`` is float64.

        The scale is that of the elements that differ: a mask of -1e38 next to them must not hide them. With
        a time `axis`, the scale of a step is that of the steps up to it: the last steps of a diverging
        sequence must not hide the first.
        """
        magnitude = np.abs(reference)
        finite = np.where(np.isfinite(magnitude), magnitude, 0.0)
        others = None if axis is None else tuple(each for each in range(finite.ndim) if each != axis)
        largest = finite.max(initial=_SCALE_FLOOR, where=differs, axis=others, keepdims=True)
        if axis is not None:
            largest = np.maximum.accumulate(largest, axis)
        scale = largest if self.scaled else 1.0
        return np.asarray(self.atol * scale + self.rtol * finite)


def tolerance_for(
    dtype: Any,
    coarse_dtypes: Sequence[Any] = (),
    atol: float | None = None,
    rtol: float | None = None,
    steps: int = 1,
) -> Tolerance:
    """Return the tolerance for ``dtype`` after ``steps`` time steps, with nodes in ``coarse_dtypes``."""
    wanted = (dtype, *coarse_dtypes)
    row = next((r for r in _DEFAULTS if r[0] in wanted), (None, 0.0, 0.0))
    if atol is None and rtol is None:
        growth = math.sqrt(max(1.0, steps / _STEPS_OF_TABLE))
        return Tolerance(growth * row[1], growth * row[2], scaled=True)
    return Tolerance(atol or 0.0, rtol or 0.0, scaled=False)


def is_inexact(dtype: Any) -> bool:
    """Return whether ``dtype`` is a float, including the small ones of ml_dtypes."""
    return np.issubdtype(dtype, np.floating) or np.dtype(dtype) in _SMALL_FLOATS


def largest_finite(values: Array) -> float:
    """Return the largest finite magnitude; 0 if there is none."""
    magnitude = np.abs(values.astype(np.float64))
    return float(magnitude.max(initial=0.0, where=np.isfinite(magnitude)))


def floats_in(values: Mapping[str, Any]) -> dict[str, Array]:
    """Return the float arrays among the values."""
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    return {name: array for name, array in arrays.items() if is_inexact(array.dtype)}


def map_floats(arrays: Mapping[str, Any], change: Callable[[Array], Array]) -> dict[str, Any]:
    """Apply `change` to the float arrays."""
    with np.errstate(over="ignore"):
        return {name: change(a) if is_inexact(a.dtype) else a for name, a in arrays.items()}


def compare_values(
    name: str, reference: Any, candidate: Any, tolerance: Tolerance, noise: Array | None = None
) -> OutputComparison:
    """Compare one output of one trial: arrays, or lists of them for sequence outputs.

    ``noise`` is allowed on top of ``tolerance``, element by element.
    """
    if isinstance(reference, list) or isinstance(candidate, list):
        return _compare_lists(name, reference, candidate, tolerance)
    if reference is None or candidate is None:
        return _mismatch(name, "one side has no value") if reference is not candidate else _match(name)
    reference, candidate = np.asarray(reference), np.asarray(candidate)
    if reference.dtype != candidate.dtype and {reference.dtype.kind, candidate.dtype.kind} - set("OUS"):
        return _mismatch(name, f"dtype {reference.dtype} against {candidate.dtype}")
    if reference.shape != candidate.shape:
        order = _order_of_axes(name, reference, candidate, tolerance)
        same = f"; right but for the order of its axes, {list(order)}: transpose it" if order else ""
        return _mismatch(name, f"shape {list(reference.shape)} against {list(candidate.shape)}{same}")
    if reference.size == 0:
        return replace(_match(name), dtype=str(reference.dtype))
    if is_inexact(reference.dtype):
        compared = _compare_floats(name, reference, candidate, tolerance, noise)
    else:
        compared = _compare_exactly(name, reference, candidate)
    return replace(compared, dtype=str(reference.dtype))


def _order_of_axes(
    name: str, reference: Array, candidate: Array, tolerance: Tolerance
) -> tuple[int, ...] | None:
    """Return the permutation of the reference's axes that matches the candidate, as converters transpose."""
    if sorted(reference.shape) != sorted(candidate.shape) or reference.ndim > _MAX_TURNED_AXES:
        return None
    for order in itertools.permutations(range(reference.ndim)):
        turned = reference.transpose(order)
        if turned.shape == candidate.shape and compare_values(name, turned, candidate, tolerance).equal:
            return order
    return None


def merge(worst: OutputComparison | None, new: OutputComparison, trial: int) -> OutputComparison:
    """Merge comparisons: the largest errors, with the position of the first failure (or largest error)."""
    new = replace(new, worst_trial=trial)
    if worst is None:
        return new
    failed_first = worst.equal and not new.equal
    larger = worst.equal == new.equal and new.max_abs > worst.max_abs
    place = new if failed_first or larger else worst
    share = max((worst, new), key=lambda each: -1.0 if each.used is None else each.used)
    return replace(
        place,
        error=share.error,
        allowed=share.allowed,
        used=share.used,
        dtype=worst.dtype or new.dtype,
        equal=worst.equal and new.equal,
        max_abs=max(worst.max_abs, new.max_abs),
        max_rel=max(worst.max_rel, new.max_rel),
        max_ulp=max(worst.max_ulp, new.max_ulp),
    )


def errors_over_time(pairs: Sequence[tuple[Any, Any]], axis: int) -> tuple[float, ...]:
    """Return the largest absolute difference at each index of the axis, over pairs of arrays of any length.

    Pairs that are not numbers or differ in shape are skipped. Infinite if only one side is finite or NaN.
    """
    found: list[Array] = []
    for reference, candidate in pairs:
        if not (isinstance(reference, np.ndarray) and isinstance(candidate, np.ndarray)):
            continue
        if reference.shape != candidate.shape or reference.ndim <= axis or reference.dtype.kind in "OUS":
            continue
        a, b = (np.moveaxis(each, axis, 0).astype(np.float64) for each in (reference, candidate))
        difference = _absolute_difference(a, b)
        found.append(difference.max(axis=tuple(range(1, difference.ndim)), initial=0.0))
    errors = np.zeros(max(map(len, found), default=0))
    for each in found:
        errors[: len(each)] = np.maximum(errors[: len(each)], each)
    return tuple(errors.tolist())


def _match(name: str) -> OutputComparison:
    return OutputComparison(name, True, 0.0, 0.0, 0)


def _mismatch(name: str, note: str) -> OutputComparison:
    return OutputComparison(name, False, math.inf, math.inf, math.inf, note=note)


def _compare_lists(name: str, reference: Any, candidate: Any, tolerance: Tolerance) -> OutputComparison:
    if not (isinstance(reference, list) and isinstance(candidate, list)):
        return _mismatch(name, "one side is a sequence, the other is not")
    if len(reference) != len(candidate):
        return _mismatch(name, f"sequence of {len(reference)} against one of {len(candidate)}")
    worst = _match(name)
    for a, b in zip(reference, candidate, strict=True):
        worst = merge(worst, compare_values(name, a, b, tolerance), 0)
    return worst


def _compare_exactly(name: str, reference: Array, candidate: Array) -> OutputComparison:
    wrong = np.atleast_1d(reference != candidate)
    if not wrong.any():
        return _match(name)
    index = tuple(int(i) for i in np.argwhere(wrong)[0])[: reference.ndim]
    difference = math.inf
    if reference.dtype.kind in "iu":
        difference = float(np.abs(reference.astype(np.float64) - candidate.astype(np.float64)).max())
    return OutputComparison(
        name,
        False,
        difference,
        math.inf,
        difference,
        worst_index=index,
        reference_value=str(reference[index]),
        candidate_value=str(candidate[index]),
        note=f"{int(wrong.sum())} of {reference.size} elements differ",
        error=difference,
        used=math.inf,
    )


def _compare_floats(
    name: str, reference: Array, candidate: Array, tolerance: Tolerance, noise: Array | None
) -> OutputComparison:
    a, b = reference.astype(np.float64), candidate.astype(np.float64)
    difference = _absolute_difference(a, b)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        size = np.maximum(np.abs(a), np.abs(b))
        relative = np.where(difference == 0, 0.0, difference / size)
        relative = np.where(np.isnan(relative), np.inf, relative)
        allowed = tolerance.allowed(a, difference > 0) + (0.0 if noise is None else noise)
        excess = np.where(difference <= allowed, 0.0, np.inf)
        excess = np.where(allowed > 0, difference / np.where(allowed > 0, allowed, 1.0), excess)
    wrong = difference > allowed
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), reference.shape))
    count = int(wrong.sum())
    return OutputComparison(
        name,
        count == 0,
        float(difference.max()),
        float(relative.max()),
        _max_ulp(reference, candidate, np.isfinite(a) & np.isfinite(b))
        if np.isfinite(difference).all()
        else math.inf,
        worst_index=index,
        reference_value=str(reference[index]),
        candidate_value=str(candidate[index]),
        note=f"{count} of {reference.size} elements differ" if count else "",
        error=float(difference[index]),
        allowed=float(np.broadcast_to(allowed, difference.shape)[index]),
        used=float(excess[index]),
    )


def _absolute_difference(a: Array, b: Array) -> Array:
    """Return the absolute difference: 0 where both are NaN, infinite where only one is NaN or infinite."""
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return np.where(np.isnan(difference), np.inf, difference)


def _max_ulp(a: Array, b: Array, finite: Array) -> float:
    """Return the largest number of representable values between ``a`` and ``b``."""
    if not finite.any():
        return 0
    bits = np.dtype(f"i{a.dtype.itemsize}")
    ordered = []
    for values in (a[finite], b[finite]):
        raw = np.ascontiguousarray(values).view(bits).astype(np.int64)
        # Sign and magnitude to a number line: -0.0 and 0.0 both map to 0.
        ordered.append(np.where(raw < 0, np.int64(np.iinfo(bits).min) - raw, raw))
    # Unsigned, as the distance of two float64 of opposite sign does not fit an int64.
    high, low = np.maximum(*ordered).astype(np.uint64), np.minimum(*ordered).astype(np.uint64)
    return int((high - low).max())
