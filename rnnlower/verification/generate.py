"""Inputs made up for a model: values of several magnitudes, within what the consumers accept.

Everything follows from the seed, the trial and the input's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.errors import UnverifiableError
from rnnlower.verification.compare import is_inexact
from rnnlower.verification.graph_facts import Dim, Uses
from rnnlower.verification.shapes import Recipe, ShapePlan, Sizes

__all__ = ["InputMaker"]

Array = NDArray[Any]

# From rounding level to saturation; "mixed" draws a magnitude for every element.
_PATTERNS = ("ordinary", "large", "tiny", "mixed", "positive", "sparse")
_UNKNOWN_LIMIT = 2


@dataclass(frozen=True)
class InputMaker:
    """Makes values for the inputs ``elem_types``, which ``uses`` describes and ``plan`` gives shapes."""

    elem_types: Mapping[str, int]
    uses: Mapping[str, Uses]
    plan: ShapePlan
    seed: int

    @property
    def has_discrete_inputs(self) -> bool:
        """Whether another draw of values may make the difference between running and failing."""
        exact = any(not is_inexact(self._dtype(name)) for name in self.elem_types)
        return exact or any(use.lengths or use.indices for use in self.uses.values())

    def make(self, trial: int, attempt: int, recipe: Recipe, shapes: Sizes) -> dict[str, Array]:
        """The inputs of one trial. A later attempt draws other discrete values and narrower limits."""
        values = {}
        for name, shape in shapes.items():
            entropy = [self.seed, trial, attempt, zlib.crc32(name.encode())]
            rng = np.random.default_rng(entropy)
            dtype = self._dtype(name)
            use = self.uses.get(name, Uses())
            values[name] = self._values(rng, dtype, shape, use, trial, attempt, recipe, shapes)
        return values

    def _dtype(self, name: str) -> Any:
        elem_type = self.elem_types[name]
        if elem_type == onnx.TensorProto.UNDEFINED:
            raise UnverifiableError(f"input {name!r} is no tensor: give --inputs")
        return tensor_dtype_to_np_dtype(elem_type)

    def _values(
        self,
        rng: np.random.Generator,
        dtype: Any,
        shape: tuple[int, ...],
        use: Uses,
        trial: int,
        attempt: int,
        recipe: Recipe,
        shapes: Sizes,
    ) -> Array:
        if use.lengths:
            limit = min(self._limit(d, recipe, shapes) for d in use.lengths)
            return _lengths(rng, shape, max(limit >> (attempt // 4), min(limit, 1)), trial).astype(dtype)
        if use.indices:
            limits = [self.plan.size_of(d, recipe) for d in use.indices]
            limit = min(size or _UNKNOWN_LIMIT for size in limits)
            return np.asarray(rng.integers(0, limit, shape)).astype(dtype)
        if dtype == np.bool_:
            return _booleans(rng, shape, trial + attempt)
        if (use.equal_to or use.ordered_with) and not is_inexact(dtype):
            return _compared(rng, shape, use, trial + attempt).astype(dtype)
        if is_inexact(dtype):
            return _floats(
                rng, dtype, shape, "weight" if use.is_weight else _PATTERNS[trial % len(_PATTERNS)]
            )
        if dtype.kind in "iu":
            return _integers(rng, dtype, shape, use).astype(dtype)
        if dtype.kind == "c":
            return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
        return rng.choice(np.array(["", "a", "B c", "word"], dtype=object), shape)

    def _limit(self, dim: Dim, recipe: Recipe, shapes: Sizes) -> int:
        size = self.plan.size_of(dim, recipe)
        if size is not None:
            return size
        # Unknown where X comes from: no sequence is longer than the shortest of these.
        leading = [s for shape in shapes.values() if len(shape) >= 2 for s in shape[:2]]
        return min(leading, default=1)


def _lengths(rng: np.random.Generator, shape: tuple[int, ...], limit: int, trial: int) -> Array:
    """Sequence lengths within 0..limit: full, empty, 1 and others, not all full."""
    lengths = rng.integers(0, limit + 1, shape)
    flat = lengths.reshape(-1)
    special = [limit, 0, 1, max(limit - 1, 0)]
    if flat.size == 1:
        flat[0] = (limit - 1, limit, 0, 1, limit // 2)[trial % 5] if limit > 1 else (limit, 0)[trial % 2]
    else:
        for index in range(min(flat.size, 2)):
            flat[index] = special[(trial + index) % len(special)]
    return np.clip(lengths, 0, limit)


def _booleans(rng: np.random.Generator, shape: tuple[int, ...], turn: int) -> Array:
    if not shape or int(np.prod(shape)) == 1:
        return np.full(shape, turn % 2 == 0)
    return (rng.random(shape) < 0.5, np.ones(shape, bool), rng.random(shape) < 0.8, np.zeros(shape, bool))[
        turn % 4
    ]


def _compared(rng: np.random.Generator, shape: tuple[int, ...], use: Uses, turn: int) -> Array:
    """The constants that a value is compared with, and their neighbours, so that both outcomes occur."""
    choices = sorted(use.equal_to)
    choices += sorted({v + step for v in use.ordered_with for step in (-1, 0, 1)} - set(choices))
    if use.equal_to:
        choices.append(max(choices) + 1)
    if not shape or int(np.prod(shape)) == 1:
        return np.full(shape, choices[turn % len(choices)])
    return np.asarray(rng.choice(np.array(choices), shape))


def _floats(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], pattern: str) -> Array:
    normal = rng.standard_normal(shape)
    if pattern == "large":
        normal = normal * 10
    elif pattern == "tiny":
        normal = normal * 1e-3
    elif pattern == "mixed":
        normal = normal * 10.0 ** rng.uniform(-3, 1.5, shape)
    elif pattern == "positive":
        normal = np.abs(normal)
    elif pattern == "sparse":
        normal = np.where(rng.random(shape) < 0.5, 0.0, 3 * normal)
    elif pattern == "weight":
        normal = normal * 0.4
    return np.asarray(normal).astype(dtype)


def _integers(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], use: Uses) -> Array:
    if use.is_shape or use.is_count:
        return np.asarray(rng.integers(1, 4, shape))
    top = 256 if dtype.itemsize == 1 and dtype.kind == "u" else 10
    return np.asarray(rng.integers(0, top, shape))
