"""Generated inputs for a model: values of several magnitudes that its nodes accept.

Everything follows from the seed, the trial and the input's name.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower import wording
from rnnlower.engines.session import Array
from rnnlower.errors import UnverifiableError
from rnnlower.verification.inputs.shapes import ShapePlan, SizeChoice, Sizes
from rnnlower.verification.inputs.uses import Dim, GraphFacts, Uses
from rnnlower.verification.verdict.compare import is_inexact

# From rounding level to saturation; "mixed" draws a magnitude for every element.
_PATTERNS = ("ordinary", "large", "tiny", "mixed", "small", "huge", "sparse", "positive")
_FACTORS = {"large": 10.0, "small": 0.1, "tiny": 1e-3, "huge": 100.0}
# A model with thresholds above the values of "huge" gets one more pattern, which straddles them.
_BEYOND = "beyond"
_REACHED = 30.0
# Weights that are inputs: large ones saturate, small ones let the other inputs dominate.
_WEIGHT_FACTORS = {"large": 1.0, "small": 0.1, "tiny": 0.05}
_MAX_VARIANTS = 4
# More draws are cheap for a small model, and find faults that show only in a narrow range of values; still
# more if each draws only a few numbers.
_SMALL_MODEL = 20_000
_ROUNDS_OF_A_SMALL_MODEL = 3
_SMALL_INPUTS = 16
_ROUNDS_OF_SMALL_INPUTS = 12
_UNKNOWN_LIMIT = 2
# Magnitudes of integers that are never a size or an index, by round; 0: small values that may be one.
# Larger ones would be endless as the counter of a Loop, or infinite in float16.
_WIDE = (0, 9, 1000, 30_000)


@dataclass(frozen=True)
class _Turn:
    trial: int
    round: int
    attempt: int
    pattern: str
    recipe: SizeChoice
    shapes: Sizes
    reshaped: Collection[tuple[int, ...]]
    switches: Mapping[str, Any]


@dataclass(frozen=True)
class InputMaker:
    """A generator of values for the inputs ``elem_types`` of a model, with shapes from ``plan``.

    A switch is an input of one element that may choose a branch: a boolean, or an integer that is compared
    with constants. Every float pattern meets up to four combinations of the switches' values.
    ``weights`` is the number of elements of the model's initializers and constants.
    """

    elem_types: Mapping[str, int]
    facts: GraphFacts
    plan: ShapePlan
    seed: int
    weights: int

    @property
    def _patterns(self) -> tuple[str, ...]:
        return (*_PATTERNS, _BEYOND) if self.facts.threshold > _REACHED else _PATTERNS

    @property
    def natural_trials(self) -> int:
        """The number of trials for every pattern with every variant of the switches, repeated if cheap."""
        drawn = sum(math.prod(d for d in dims if isinstance(d, int)) for dims in self.plan.dims.values())
        rounds = _ROUNDS_OF_A_SMALL_MODEL if self.weights + drawn <= _SMALL_MODEL else 1
        if rounds > 1 and not self.plan.is_dynamic and 0 < drawn <= _SMALL_INPUTS:
            rounds = _ROUNDS_OF_SMALL_INPUTS
        return len(self._patterns) * self._variants * rounds

    @property
    def has_discrete_inputs(self) -> bool:
        """True if the model may run or fail depending on the drawn values."""
        names = [name for name in self.elem_types if name not in self._switches]
        exact = any(not is_inexact(self._dtype(name)) for name in names)
        return exact or any(use.lengths or use.indices for use in self.facts.uses.values())

    def round_number(self, trial: int) -> int:
        """Return the number of earlier trials with the same switches, by which everything else varies."""
        return trial // self._variants

    def make_inputs(self, trial: int, attempt: int, recipe: SizeChoice, shapes: Sizes) -> dict[str, Array]:
        """Return the inputs of one trial. A later attempt draws other discrete values and narrower limits."""
        count = self.round_number(trial)
        pattern = self._patterns[count % len(self._patterns)]
        targets = self._reshape_targets(recipe, shapes)
        reshapes = self.facts.reshapes
        shapes = shapes | {reshapes[name]: (math.prod(target),) for name, target in targets.items()}
        turn = _Turn(
            trial, count, attempt, pattern, recipe, shapes, targets.values(), self.switch_values(trial)
        )
        values = {name: self._values(name, turn) for name in shapes}
        return values | {name: np.array(target, self._dtype(name)) for name, target in targets.items()}

    def _reshape_targets(self, recipe: SizeChoice, shapes: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the value of each input that is the target shape of a flat input."""
        targets = {}
        features = [node.input_size for node in self.facts.recurrent if isinstance(node.input_size, int)]
        for name, data in self.facts.reshapes.items():
            flat = [isinstance(d, str) for d in self.plan.dims.get(data, ())] == [True]
            if flat and len(shapes.get(name, ())) == 1:
                ones = (1 for _ in range(shapes[name][0]))
                sizes = (*ones, recipe.length, recipe.batch, next(iter(features), 1))
                targets[name] = sizes[len(sizes) - shapes[name][0] :]
        return targets

    def _dtype(self, name: str) -> Any:
        elem_type = self.elem_types[name]
        if elem_type == onnx.TensorProto.UNDEFINED:
            raise UnverifiableError(
                f"input {name!r} has no known element type", remedy=f"give {wording.option('inputs')}"
            )
        return np.dtype(tensor_dtype_to_np_dtype(elem_type))

    @cached_property
    def _switches(self) -> dict[str, list[Any]]:
        """The values that each switch may take."""
        switches: dict[str, list[Any]] = {}
        for name, dims in self.plan.dims.items():
            use = self.facts.uses.get(name, Uses())
            if any(d != 1 for d in dims) or use.lengths or use.indices or name in self.facts.padded:
                continue
            if self._dtype(name) == np.bool_:
                switches[name] = [True, False]
            elif self._dtype(name).kind in "iu" and (use.equal_to or use.ordered_with):
                switches[name] = _choices(use)
        return switches

    @cached_property
    def _variants(self) -> int:
        return min(math.prod(map(len, self._switches.values())), _MAX_VARIANTS)

    def switch_values(self, trial: int) -> dict[str, Any]:
        """Return one value per switch: the first of all, the last of all, then mixtures."""
        options = list(self._switches.values())
        variant = trial % self._variants
        if variant < 2:
            chosen = [values[-variant] for values in options]
        elif math.prod(map(len, options)) <= _MAX_VARIANTS:
            ends = [tuple(values[k] for values in options) for k in (0, -1)]
            others = [combination for combination in itertools.product(*options) if combination not in ends]
            chosen = list(others[variant - 2])
        else:
            rng = np.random.default_rng([self.seed, trial])
            chosen = [values[int(rng.integers(len(values)))] for values in options]
        return dict(zip(self._switches, chosen, strict=True))

    def _values(self, name: str, turn: _Turn) -> Array:
        shape, dtype, use = turn.shapes[name], self._dtype(name), self.facts.uses.get(name, Uses())
        rng = np.random.default_rng([self.seed, turn.trial, turn.attempt, zlib.crc32(name.encode())])
        if name in self.facts.padded:
            minimum, maximum = self.facts.padded[name]
            by_mask = is_inexact(dtype)
            lengths = np.maximum(
                _lengths(rng, shape[:-1] if by_mask else shape, maximum, turn.round), minimum
            )
            return (np.arange(maximum) < lengths[..., None] if by_mask else lengths).astype(dtype)
        if name in turn.switches:
            return np.full(shape, turn.switches[name]).astype(dtype)
        if use.lengths:
            limit = min(self._limit(d, turn) for d in use.lengths)
            limit = max(limit >> (turn.attempt // 4), min(limit, 1))
            return _lengths(rng, shape, limit, turn.round).astype(dtype)
        if use.indices:
            limits = [self.plan.size_of(d, turn.recipe) for d in use.indices]
            limit = min(size or _UNKNOWN_LIMIT for size in limits)
            backwards = dtype.kind == "i" and "place" in use.roles and (turn.round + turn.attempt) % 2
            low = -limit if backwards else 0
            return _with_compared(rng, rng.integers(low, limit, shape), use, low, limit).astype(dtype)
        if is_inexact(dtype):
            if "weight" in use.roles:
                factor = _WEIGHT_FACTORS.get(turn.pattern, 0.4)
                return np.asarray(factor * rng.standard_normal(shape)).astype(dtype)
            return _limit_to_role(_floats(rng, dtype, shape, turn.pattern, self.facts.threshold), use)
        if dtype.kind == "b":
            share = (0.5, 1.0, 0.8, 0.0)[(turn.round + turn.attempt) % 4]
            return np.asarray(rng.random(shape) < share)
        if dtype.kind in "iu":
            # An integer may become a size or an index, where a wrong one can end the process.
            may_be_size = self.facts.has_computed_sizes
            wide = 0 if may_be_size or turn.attempt else _WIDE[turn.round % len(_WIDE)]
            return _integers(rng, dtype, shape, use, turn.attempt, wide).astype(dtype)
        if dtype.kind == "c":
            return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
        return rng.choice(np.array(["", "a", "B c", "word"], dtype=object), shape)

    def _limit(self, dim: Dim, turn: _Turn) -> int:
        size = self.plan.size_of(dim, turn.recipe)
        if size is not None:
            return size
        # The source of X is unknown: assume the smallest leading size of any input.
        leading = [size for shape in turn.shapes.values() if len(shape) >= 2 for size in shape[:2]]
        leading += [size for shape in turn.reshaped for size in shape[-3:-1]]
        return min(leading, default=1)


def _choices(use: Uses) -> list[int]:
    """Return the constants that a value is compared with, and neighbors for both outcomes."""
    choices = {int(v) for v in use.equal_to} | {
        int(v) + step for v in use.ordered_with for step in (0, 1, -1)
    }
    ordered = sorted(use.equal_to) + sorted(choices - use.equal_to)
    if use.equal_to:
        ordered.append(max(ordered) + 1)
    return [int(v) for v in ordered]


def _lengths(rng: np.random.Generator, shape: tuple[int, ...], limit: int, turn: int) -> Array:
    """Return sequence lengths within 0..limit: full, empty, 1 and others, not all full."""
    lengths = rng.integers(0, limit + 1, shape)
    flat = lengths.reshape(-1)
    special = [limit, 0, 1, max(limit - 1, 0)]
    if flat.size == 1:
        flat[0] = (limit - 1, limit, 0, 1, limit // 2)[turn % 5] if limit > 1 else (limit, 0)[turn % 2]
    else:
        for index in range(min(flat.size, 2)):
            flat[index] = special[(turn + index) % len(special)]
    return np.clip(lengths, 0, limit)


def _floats(
    rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], pattern: str, threshold: float
) -> Array:
    normal = rng.standard_normal(shape)
    if pattern == "mixed":
        normal = normal * 10.0 ** rng.uniform(-3, 1.5, shape)
    elif pattern == "positive":
        normal = np.abs(normal)
    elif pattern == "sparse":
        normal = np.where(rng.random(shape) < 0.5, 0.0, 3 * normal)
        # Steps without features are padding to many models.
        normal = np.where(rng.random((*shape[:-1], 1)[: len(shape)]) < 0.25, 0.0, normal)
    factor = 10.0 * threshold if pattern == _BEYOND else _FACTORS.get(pattern, 1.0)
    if dtype == np.float16:
        # The type ends at 65504: larger inputs would only test overflow.
        factor = min(factor, max(10.0, min(2.0 * threshold, 6000.0)))
    return np.asarray(normal * factor).astype(dtype)


def _limit_to_role(values: Array, use: Uses) -> Array:
    """Return the values limited to the range of a decay, rate or key, if the input is one."""
    if "decay" in use.roles:
        return np.asarray(-np.abs(values))
    if "rate" in use.roles:
        return np.minimum(np.abs(values), 1).astype(values.dtype)
    if "key" in use.roles and values.ndim:
        length = np.linalg.norm(values.astype(np.float64), axis=-1, keepdims=True)
        return np.asarray(values / np.maximum(length, 1)).astype(values.dtype)
    return values


def _with_compared(rng: np.random.Generator, drawn: Array, use: Uses, low: int, end: int) -> Array:
    """Return the numbers, half of them replaced by ones that the model compares with, if there are any."""
    known = [value for value in _choices(use) if low <= value < end]
    return np.where(rng.random(drawn.shape) < 0.5, rng.choice(known, drawn.shape), drawn) if known else drawn


def _integers(
    rng: np.random.Generator, dtype: Any, shape: tuple[int, ...], use: Uses, attempt: int, wide: int
) -> Array:
    if use.roles & {"shape", "count"}:
        return np.asarray(rng.integers(1, 4, shape))
    if attempt and (use.equal_to or use.ordered_with):
        return np.asarray(rng.choice(np.array(_choices(use)), shape))
    info = np.iinfo(dtype)
    if wide:
        last = min(wide, info.max)
        drawn = rng.integers(-last if dtype.kind == "i" else 0, last + 1, shape)
    else:
        # The model may compute an index into something small from them.
        top = 256 if dtype.itemsize == 1 and dtype.kind == "u" else 10
        drawn = rng.integers(0, max(1, top >> attempt), shape)
    return _with_compared(rng, np.asarray(drawn), use, info.min, info.max)
