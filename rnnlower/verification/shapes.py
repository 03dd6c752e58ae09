"""Which sizes to give dynamic dimensions: named ones consistently, several batches and lengths.

Not every size suits a model: a convolution needs a minimum, a reshape a multiple, and dimensions without a
name may have to agree. So sizes are proposed one after the other until the reference runs; what ran steers
the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rnnlower.errors import UnverifiableError, VerificationError
from rnnlower.verification.graph_facts import Dim, Dims

__all__ = ["Recipe", "ShapePlan", "Sizes"]

Position = tuple[str, int]
Sizes = dict[str, tuple[int, ...]]

_BATCH_NAME = re.compile(r"batch|^b$|^n$|^bs$|^bsz$", re.IGNORECASE)
_BATCHES = (2, 3, 1, 4, 2, 5)
_LENGTHS = (5, 8, 1, 11, 3, 6)
# Tried in this order until the reference runs.
_SCALES = (5, 64, 512, 16, 256, 33, 1024, 128, 7, 576, 100, 160, 257, 1600, 4096, 9, 16000)
_TIES = ("named", "first", "last", "all")
_MAX_ELEMENTS = 2**23


@dataclass(frozen=True)
class Recipe:
    """How to size the dynamic dimensions.

    ``tie`` says which unnamed dimensions agree: none beyond the names, the first (or the last) of every input
    with one another, or all.
    """

    tie: str
    batch: int
    length: int


@dataclass
class ShapePlan:
    """The dimensions of all inputs, merged from both models, and a search for sizes."""

    dims: dict[str, Dims]
    hints: Sequence[int] = ()
    _names: dict[str, int] = field(default_factory=dict)
    _good: Recipe | None = None

    @classmethod
    def merge(
        cls, reference: Mapping[str, Dims | None], candidate: Mapping[str, Dims | None], hints: Sequence[int]
    ) -> ShapePlan:
        """Dimensions that hold for both models: a size in one fixes the name that the other gives it.

        Raises:
            VerificationError: the models fix a dimension to different sizes, or an input's rank differs.
            UnverifiableError: neither model says what rank an input has.
        """
        merged: dict[str, Dims] = {}
        fixed: dict[str, int] = {}
        for name, dims in reference.items():
            other = candidate.get(name)
            dims = dims if dims is not None else other
            if dims is None:
                raise UnverifiableError(f"input {name!r} has no known rank: give --inputs")
            merged[name] = _merge_dims(name, dims, dims if other is None else other, fixed)
        resolved = {
            name: tuple(fixed.get(d, d) if isinstance(d, str) else d for d in dims)
            for name, dims in merged.items()
        }
        return cls(resolved, tuple(dict.fromkeys(hints)), fixed)

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension is left to choose."""
        return any(not isinstance(d, int) for dims in self.dims.values() for d in dims)

    def proposals(self, trial: int) -> Iterator[Recipe]:
        """Recipes for one trial, the most varied first, those known to work last."""
        varied = Recipe("named", _BATCHES[trial % len(_BATCHES)], _LENGTHS[trial % len(_LENGTHS)])
        if self._good is not None:
            good = self._good
            around = (0, 1, -1, good.length, 2, 3)[trial % 6]
            length = max(1, good.length + around)
            yield Recipe(good.tie, varied.batch, varied.length if good.length < 16 else length)
            yield Recipe(good.tie, varied.batch, length)
            yield Recipe(good.tie, varied.batch, good.length)
            yield Recipe(good.tie, good.batch, length)
            yield good
            return
        yield varied
        if not self.is_dynamic:
            return
        ties = _TIES if any(d is None for dims in self.dims.values() for d in dims) else _TIES[:1]
        for tie in ties:
            yield from (Recipe(tie, batch, length) for length in _SCALES[:3] for batch in (2, 1))
        for hint in self.hints:
            yield from (Recipe(tie, batch, hint) for tie in ties for batch in (2, 1, hint))
        for length in _SCALES[3:]:
            yield from (Recipe(tie, batch, length) for tie in ties for batch in (2, 1))

    def worked(self, recipe: Recipe) -> None:
        """Remember that the reference ran with ``recipe``; the first one that did is kept."""
        if self._good is None:
            self._good = recipe

    def sizes(self, recipe: Recipe) -> Sizes | None:
        """A shape for every input, or None if that would be too large to try."""
        shapes: Sizes = {}
        unnamed = 0
        for name, dims in self.dims.items():
            shape: list[int] = []
            open_axes = [axis for axis, d in enumerate(dims) if d is None]
            for axis, d in enumerate(dims):
                if isinstance(d, int):
                    shape.append(d)
                elif isinstance(d, str):
                    shape.append(self.size_of_name(d, recipe))
                else:
                    shape.append(self._unnamed_size(recipe, axis, open_axes, unnamed))
                    unnamed += 1
            shapes[name] = tuple(shape)
            elements = 1
            for size in shape:
                elements *= size
            if elements > _MAX_ELEMENTS and any(not isinstance(d, int) for d in dims):
                return None
        return shapes

    def size_of_name(self, name: str, recipe: Recipe) -> int:
        """The size that ``recipe`` gives a named dimension (of any value, not just of inputs)."""
        if name in self._names:
            return self._names[name]
        names = [d for dims in self.dims.values() for d in dims if isinstance(d, str)]
        if self._is_batch(name, names):
            return recipe.batch
        # Other names differ from one another, so that a mix-up shows.
        lengths = [n for n in dict.fromkeys(names) if not self._is_batch(n, names)]
        offset = lengths.index(name) if name in lengths else 0
        return recipe.length + (offset if recipe.tie == "named" else 0)

    def _is_batch(self, name: str, names: Sequence[str]) -> bool:
        if any(_BATCH_NAME.search(n) for n in names):
            return bool(_BATCH_NAME.search(name))
        firsts = {dims[0] for dims in self.dims.values() if len(dims) > 1}
        return name in firsts and len(set(names)) > 1

    @staticmethod
    def _unnamed_size(recipe: Recipe, axis: int, open_axes: Sequence[int], count: int) -> int:
        if recipe.tie == "all":
            return recipe.length
        if recipe.tie == "first":
            return recipe.batch if axis == open_axes[0] else recipe.length
        if recipe.tie == "last":
            return recipe.batch if axis == open_axes[-1] else recipe.length
        return recipe.batch if axis == 0 else recipe.length + count


def _merge_dims(name: str, first: Dims, second: Dims, fixed: dict[str, int]) -> Dims:
    if len(first) != len(second):
        raise VerificationError(
            f"input {name!r} has rank {len(first)} in one model and {len(second)} in the other"
        )
    merged: list[Dim] = []
    for axis, (a, b) in enumerate(zip(first, second, strict=True)):
        if isinstance(a, int) and isinstance(b, int) and a != b:
            raise VerificationError(f"input {name!r}, axis {axis}: size {a} in one model, {b} in the other")
        if isinstance(b, int) and isinstance(a, str):
            if fixed.setdefault(a, b) != b:
                raise VerificationError(f"dimension {a!r} is fixed to both {fixed[a]} and {b}")
            a = b
        merged.append(a if a is not None else b)
    return tuple(merged)
