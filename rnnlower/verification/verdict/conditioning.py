"""The sensitivity of the reference's outputs to rounding.

Some graphs amplify rounding (deep ones, divisions by small norms): two correct evaluations then differ by
more than any fixed tolerance. Before such a difference counts, the reference runs again on inputs
moved by a few units in the last place, and once in another precision. No comparison can resolve changes
of that size; real faults are larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from rnnlower.engines.session import Array, RunError
from rnnlower.verification.models import RunModel
from rnnlower.verification.verdict.compare import is_inexact

_DRAWS = 4
_FACTOR = 4.0
# Rounding inside a graph adds up to more than one unit of its inputs.
_ULPS = 8.0
# Beyond this share of an output's scale, the output carries no information.
_LARGEST_SHARE = 1e-2
_LARGEST_SHARE_OF_SMALL = 1e-1
_NEAR_OVERFLOW = 1e-3


def rounding_noise(
    run: RunModel,
    feeds: Mapping[str, Array],
    outputs: Mapping[str, Any],
    seed: int,
    opinions: Sequence[Mapping[str, Any]] = (),
    precision: Any = None,
    others: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Array | None]:
    """Return the difference to allow for rounding: float64, for each element of each float output.

    ``None`` if the inputs do not determine the output: rounding moves it by more than 1% of its scale
    (10% for types of two bytes).

    ``run`` runs the reference, ``outputs`` are its outputs on ``feeds``; ``opinions`` are those of
    evaluations in other precisions, which count where they are close. ``precision`` is the type to which the
    candidate's runtime rounds what it is fed. ``others`` are outputs with weights moved by the rounding to
    a type of two bytes or fewer.
    """
    floats = {
        name: value
        for name, value in outputs.items()
        if isinstance(value, np.ndarray) and is_inexact(value.dtype)
    }
    noise = {name: np.zeros(value.shape) for name, value in floats.items()}
    closest = _share(precision)
    for moved in outputs_nearby(run, feeds, seed, _DRAWS, precision=precision):
        for name in noise:
            if moved[name].shape == noise[name].shape:
                noise[name] = np.fmax(noise[name], _difference(moved[name], outputs[name]))
    for rounded in others:
        closest = _LARGEST_SHARE_OF_SMALL
        for name in noise:
            if rounded[name].shape == noise[name].shape:
                apart = _difference(rounded[name], outputs[name])
                # Of so many weights each draw moves other elements: any may be moved by half the most.
                noise[name] = np.fmax(noise[name], np.fmax(apart, apart.max(initial=0.0) / 2))
    for name, other in ((name, each[name]) for each in opinions for name in floats if name in each):
        if other.shape != noise[name].shape:
            continue
        apart = _difference(other, outputs[name])
        if float(apart.max(initial=0.0)) <= closest * _scale(floats[name]):
            noise[name] = np.fmax(noise[name], apart)
    largest = {name: max(_share(each.dtype), closest) * _scale(each) for name, each in floats.items()}
    allowed = {name: _FACTOR * values for name, values in noise.items()}
    return {n: each if float(each.max(initial=0.0)) <= largest[n] else None for n, each in allowed.items()}


def outputs_nearby(
    run: RunModel,
    feeds: Mapping[str, Array],
    seed: int,
    draws: int,
    *,
    evenly: bool = False,
    precision: Any = None,
) -> Iterator[dict[str, Any]]:
    """Yield the reference's outputs on inputs moved by some units in the last place, or `evenly` up to it.

    The units are those of the inputs' types, or of ``precision`` if that is coarser.
    """
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        try:
            yield run({name: _moved(array, rng, evenly, precision) for name, array in feeds.items()})
        except RunError:
            # At the edge of what the model accepts; the other draws are enough.
            continue


def overflowing(values: Any, dtype: Any) -> Array:
    """Return where values are NaN or at the end of the type's range; the result then depends on the order."""
    largest = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    # The product of two such values, somewhere inside, may exceed the range.
    bound = min(_NEAR_OVERFLOW * largest, math.sqrt(largest))
    return ~np.asarray(np.abs(values.astype(np.float64)) < bound)


def _moved(array: Array, rng: np.random.Generator, evenly: bool, precision: Any) -> Array:
    if not is_inexact(array.dtype):
        return array
    step = max(_step(array.dtype), 0.0 if precision is None else _step(precision))
    moves = rng.uniform(-1, 1, array.shape) if evenly else rng.integers(0, 2, array.shape) * 2 - 1
    with np.errstate(over="ignore"):
        moved = (array.astype(np.float64) * (1 + step * moves)).astype(array.dtype)
    # The largest number of the type stays one.
    return np.where(np.isfinite(moved), moved, array)


def _step(dtype: Any) -> float:
    # In a small type one unit is already much.
    ulps = 1.0 if _is_small(dtype) else _ULPS
    return ulps * float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


def _is_small(dtype: Any) -> bool:
    return dtype is not None and np.dtype(dtype).itemsize < 4


def _difference(a: Array, b: Array) -> Array:
    with np.errstate(invalid="ignore"):
        difference = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return np.where(np.isfinite(difference), difference, 0.0)


def _scale(output: Array) -> float:
    magnitude = np.abs(output.astype(np.float64))
    return float(np.where(np.isfinite(magnitude), magnitude, 0.0).max(initial=0.0))


def _share(dtype: Any) -> float:
    # One unit of a small type may itself exceed the share of a large one.
    return _LARGEST_SHARE_OF_SMALL if _is_small(dtype) else _LARGEST_SHARE
