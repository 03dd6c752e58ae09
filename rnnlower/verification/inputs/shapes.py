"""Sizes for dynamic dimensions: named ones consistently, several batches and lengths.

Not every size suits a model: a convolution needs a minimum, a reshape a multiple, and unnamed dimensions
may have to agree. Sizes are therefore proposed one after the other until the reference runs; success guides
the next proposals.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from rnnlower import wording
from rnnlower.errors import UnverifiableError, VerificationError
from rnnlower.verification.inputs.uses import Dim, Dims, GraphFacts, unnamed_dim

Sizes = dict[str, tuple[int, ...]]

# If a name matches the first pattern, those that match the second are lengths.
_BATCH_NAMES = [re.compile(names, re.IGNORECASE) for names in ("batch", r"^(b|n|bs|bsz)$")]
_BATCHES = (2, 3, 1, 4, 2, 5)
# The longest exceeds the steps that a lowered loop may process at once.
_LENGTHS = (5, 8, 1, 11, 3, 67)
# Tried in this order until the reference runs.
_SCALES = (5, 64, 512, 16, 256, 33, 1024, 128, 7, 576, 100, 160, 257, 1600, 4096, 9, 16000)
_RARE_BATCHES = (3, 4, 5, 6, 8, 16, 32)
_TIES = ("named", "first", "last", "all")
_MAX_ELEMENTS = 2**23
_MAX_STATIC_ELEMENTS = 2**28


@dataclass(frozen=True)
class SizeChoice:
    """A choice of sizes for the dynamic dimensions.

    ``tie`` states which unnamed dimensions are equal: only those known to be (``named``), the ``first`` or
    the ``last`` of all inputs, or ``all``.
    """

    tie: str
    batch: int
    length: int


@dataclass
class ShapePlan:
    """The dimensions of all inputs, merged from both models, and a search for sizes.

    Every dimension in ``dims`` is a size or a name; unnamed dimensions are named after their position.
    ``batches`` and ``lengths`` are names known to be batch sizes or sequence lengths.
    """

    dims: Mapping[str, Dims]
    batches: frozenset[str]
    lengths: frozenset[str]
    hints: Sequence[int]
    _same: dict[str, Dim]
    _good: dict[Hashable, SizeChoice] = field(default_factory=dict)

    @classmethod
    def merge(
        cls,
        reference: Mapping[str, Dims | None],
        candidate: Mapping[str, Dims | None],
        facts: GraphFacts,
        hints: Iterable[int],
    ) -> ShapePlan:
        """Merge the dimensions of both models: a size in one fixes a name in the other.

        Raises:
            VerificationError: The models fix a dimension to different sizes, or an input's rank differs.
            UnverifiableError: Neither model declares the rank of an input.
        """
        dims: dict[str, Dims] = {}
        same: dict[str, Dim] = {}
        for name, own in reference.items():
            other = candidate.get(name)
            own = own if own is not None else other
            if own is None:
                raise UnverifiableError(
                    f"input {name!r} has no known rank",
                    remedy=f"give {wording.option('inputs')} or, where it can be given, "
                    f"{wording.input_shapes({name: [2, 3, 4]})} or {wording.option('no-verify')}",
                )
            dims[name] = tuple(unnamed_dim(name, axis) if d is None else d for axis, d in enumerate(own))
            for axis, dim in enumerate(own):
                if dim == f"{name}_d{axis}":
                    # onnxslim's name for a dimension without one: it may have to agree with another.
                    same[dim] = unnamed_dim(name, axis)
            if other is not None:
                _adopt_sizes(name, dims[name], other, same)
        for first, second in facts.equal_dims:
            _unify(first, second, same)
        resolved = {name: tuple(_resolve(d, same) for d in own) for name, own in dims.items()}
        batches, lengths = (
            frozenset(d for d in (_resolve(name, same) for name in names) if isinstance(d, str))
            for names in (facts.batches, facts.lengths)
        )
        return cls(resolved, batches, lengths, [*dict.fromkeys(hint for hint in hints if hint > 0)], same)

    @property
    def has_empty_inputs(self) -> bool:
        """True if the models fix a dimension to zero."""
        return any(d == 0 for dims in self.dims.values() for d in dims)

    @property
    def is_dynamic(self) -> bool:
        """True if any dimension is left to choose."""
        return bool(self._names)

    def proposals(self, trial: int, variant: Hashable) -> Iterator[SizeChoice]:
        """Yield choices for one trial: the most varied first, those known to work last.

        The sizes that work may depend on the branches taken, which ``variant`` distinguishes.
        """
        varied = SizeChoice("named", _BATCHES[trial % len(_BATCHES)], _LENGTHS[trial % len(_LENGTHS)])
        if variant in self._good:
            good = self._good[variant]
            around = (0, 1, -1, good.length, 2, 3)[trial % 6]
            length = max(1, good.length + around)
            yield SizeChoice(good.tie, varied.batch, varied.length if good.length < 16 else length)
            yield SizeChoice(good.tie, varied.batch, length)
            yield SizeChoice(good.tie, varied.batch, good.length)
            yield SizeChoice(good.tie, good.batch, length)
            yield good
            return
        yield varied
        if not self.is_dynamic:
            return
        yield from dict.fromkeys(self._good.values())
        ties = _TIES if any(map(_is_unnamed, self._names)) else _TIES[:1]
        for tie in ties:
            yield from (SizeChoice(tie, batch, length) for length in _SCALES[:3] for batch in (2, 1))
        for hint in self.hints:
            yield from (SizeChoice(tie, batch, hint) for tie in ties for batch in (2, 1, hint))
            yield from (SizeChoice(tie, hint, length) for tie in ties for length in _SCALES[:2])
        for length in _SCALES[3:]:
            yield from (SizeChoice(tie, batch, length) for tie in ties for batch in (2, 1))
        yield from (SizeChoice(tie, batch, _SCALES[0]) for batch in _RARE_BATCHES for tie in ties)
        for batch, length in itertools.permutations(self.hints, 2):
            yield from (SizeChoice(tie, batch, length) for tie in ties)

    def record_success(self, recipe: SizeChoice, variant: Hashable) -> None:
        """Remember ``recipe``, with which the reference ran, unless another is already known."""
        self._good.setdefault(variant, recipe)

    def sizes(self, recipe: SizeChoice) -> Sizes | None:
        """Return a shape for every input, or ``None`` if that would be too large to try."""
        shapes: Sizes = {}
        for name, dims in self.dims.items():
            shapes[name] = tuple(d if isinstance(d, int) else self.size_of(d, recipe) or 0 for d in dims)
            limit = _MAX_ELEMENTS if any(isinstance(d, str) for d in dims) else _MAX_STATIC_ELEMENTS
            if math.prod(shapes[name]) > limit:
                return None
        return shapes

    def size_of(self, dim: Dim, recipe: SizeChoice) -> int | None:
        """Return the size of any value's dimension under ``recipe``; ``None`` if no input determines it."""
        found = _resolve(dim, self._same)
        if not isinstance(found, str):
            return found
        if found not in self._names:
            return None
        if _is_unnamed(found) and recipe.tie != "named":
            if recipe.tie == "all":
                return recipe.length
            return recipe.batch if found in self._ends[recipe.tie == "last"] else recipe.length
        if self._is_batch(found):
            return recipe.batch
        # Lengths differ, so that mixing them up is noticed.
        return recipe.length + (self._length_order.index(found) if recipe.tie == "named" else 0)

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(d for dims in self.dims.values() for d in dims if isinstance(d, str)))

    @cached_property
    def _length_order(self) -> list[str]:
        return [name for name in self._names if not self._is_batch(name)]

    @cached_property
    def _ends(self) -> tuple[set[str], set[str]]:
        """The first, and the last, unnamed dimension of every input."""
        unnamed = [[d for d in dims if isinstance(d, str) and _is_unnamed(d)] for dims in self.dims.values()]
        return {names[0] for names in unnamed if names}, {names[-1] for names in unnamed if names}

    def _is_batch(self, name: str) -> bool:
        if name in self.batches or name in self.lengths:
            return name in self.batches
        named = [each for each in self._names if not _is_unnamed(each)]
        for pattern in _BATCH_NAMES:
            if any(map(pattern.search, named)):
                return name in named and bool(pattern.search(name))
        firsts = {dims[0] for dims in self.dims.values() if len(dims) > 1}
        return name in firsts and (len(self._names) > 1 or _is_unnamed(name))


def _is_unnamed(name: str) -> bool:
    return name.startswith("?")


def _adopt_sizes(name: str, own: Dims, other: Dims, same: dict[str, Dim]) -> None:
    """Apply the candidate's sizes to the reference's names."""
    if len(own) != len(other):
        raise VerificationError(f"input {name!r} has rank {len(own)} in one model, {len(other)} in the other")
    for axis, (a, b) in enumerate(zip(own, other, strict=True)):
        if isinstance(b, int) and _resolve(a, same) != b:
            if isinstance(_resolve(a, same), int):
                raise VerificationError(
                    f"input {name!r}, axis {axis}: size {_resolve(a, same)} in one model, {b} in the other"
                )
            _unify(a, b, same)


def _resolve(dim: Dim, same: Mapping[str, Dim]) -> Dim:
    while isinstance(dim, str) and dim in same:
        dim = same[dim]
    return dim


def _unify(first: Dim, second: Dim, same: dict[str, Dim]) -> None:
    """Unify two dimensions; contradictions are left to the model."""
    a, b = _resolve(first, same), _resolve(second, same)
    if isinstance(a, str) and isinstance(b, str) and a != b:
        # A name of the model takes precedence over one derived from a position.
        loser, winner = (a, b) if _is_unnamed(a) else (b, a)
        same[loser] = winner
    elif isinstance(a, str) and isinstance(b, int):
        same[a] = b
    elif isinstance(a, int) and isinstance(b, str):
        same[b] = a
