"""Sums of products of tensors, whose axes have indices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from rnnlower.lifting.affine_forms import NotLiftableError

Axis = tuple[int, ...]
"""The indices of an axis: several if axes are merged, none if its elements are all equal."""
Size = int | str
"""The size of an axis: a number or a symbol."""
Factor = tuple[ir.Value, tuple[Axis, ...]]
"""A tensor and the indices of its axes."""


@dataclasses.dataclass(frozen=True)
class Term:
    """A product of tensors, summed over the indices that are on no axis of the result.

    Attributes:
        axes: The axes of the result.
    """

    coef: float
    factors: tuple[Factor, ...]
    axes: tuple[Axis, ...]

    @property
    def indices(self) -> set[int]:
        """All indices."""
        return {index for _, axes in (*self.factors, (None, self.axes)) for axis in axes for index in axis}

    @property
    def summed(self) -> set[int]:
        """The indices over which the product is summed."""
        return self.indices - {index for axis in self.axes for index in axis}

    def rename(self, names: Mapping[int, Axis]) -> Term:
        """Return the term with other indices."""
        factors = tuple((value, rename_axes(axes, names)) for value, axes in self.factors)
        return Term(self.coef, factors, rename_axes(self.axes, names))


def rename_axes(axes: Iterable[Axis], names: Mapping[int, Axis]) -> tuple[Axis, ...]:
    return tuple(tuple(i for index in axis for i in names.get(index, (index,))) for axis in axes)


@dataclasses.dataclass(frozen=True)
class Sum:
    """A sum of products, all broadcast to one shape."""

    terms: tuple[Term, ...]
    dims: tuple[Size, ...]

    def permute(self, order: Sequence[int | None]) -> Sum:
        """Permute the axes of the sum; ``None`` inserts an axis of size 1."""
        terms = (
            Term(each.coef, each.factors, tuple(() if axis is None else each.axes[axis] for axis in order))
            for each in self.terms
        )
        return Sum(tuple(terms), tuple(1 if axis is None else self.dims[axis] for axis in order))

    def scale(self, factor: float) -> Sum:
        """Multiply the sum by a number."""
        terms = (Term(each.coef * factor, each.factors, each.axes) for each in self.terms)
        return Sum(tuple(terms), self.dims)

    def pad_rank(self, rank: int) -> Sum:
        """Prepend axes of size 1."""
        own = len(self.dims)
        return self.permute([*[None] * (rank - own), *range(own)])


def group_axes(before: Sequence[Size], after: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Group the axes of two shapes by which become which, without axes of size 1."""
    old = [axis for axis, size in enumerate(before) if size != 1]
    new = [axis for axis, size in enumerate(after) if size != 1]
    groups = []
    while old and new:
        sources, targets = [old.pop(0)], [new.pop(0)]
        while True:
            sizes = [[before[each] for each in sources], [after[each] for each in targets]]
            if sizes[0] == sizes[1]:
                break
            numbers = [math.prod(size for size in each if isinstance(size, int)) for each in sizes]
            if any(isinstance(size, str) for each in sizes for size in each):
                raise NotLiftableError("a Reshape merges an axis of unknown size")
            if numbers[0] == numbers[1]:
                break
            shorter, rest = (sources, old) if numbers[0] < numbers[1] else (targets, new)
            if not rest:
                raise NotLiftableError("a Reshape mixes axes")
            shorter.append(rest.pop(0))
        groups.append((sources, targets))
    if old or new:
        raise NotLiftableError("a Reshape mixes axes")
    return groups


def broadcast_sizes(first: Sequence[Size], second: Sequence[Size]) -> tuple[Size, ...]:
    """Broadcast two shapes of equal rank."""
    sizes = []
    for one, other in zip(first, second, strict=True):
        if one != other and 1 not in (one, other):
            raise NotLiftableError(f"the sizes {one} and {other} are not known to be equal")
        sizes.append(other if one == 1 else one)
    return tuple(sizes)
