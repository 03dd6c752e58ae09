"""Sizes that follow from the length of a sequence."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, TypeAlias

import numpy as np

from rnnlower.graph.evaluation import Array

_MAX_DIVISOR = 4096
"""The largest divisor of a length in an expression."""
DIVISORS = (*range(1, 65), *(2**n for n in range(7, 13)))
"""Numbers by which networks divide a length."""

_SHOWN = 16
"""The number of sizes that a message shows."""

ROWS = ""
"""Stands for a symbol in the size of an axis of rows, which nothing may combine.

Each row has a length of its own, or time is folded into them.
"""

FIRST_PADDED_OPSET = 9
"""The first opset with all the operators that padding emits."""


OPEN_PRODUCT = "makes an axis whose size follows from a length and from another open size"
"""The problem of an axis that is neither time nor known."""
MIXED_ROWS = "combines rows, each of which has a length of its own"
"""The problem of an operator that treats the axis of rows like time."""


class NoRuleError(Exception):
    """No rule undoes what a node does to padding; the message says what."""


class OpenSizeError(NoRuleError):
    """No rule undoes what a node does to padding as long as other sizes than the lengths are open."""


@dataclasses.dataclass(frozen=True)
class Formula:
    """The size ``outer * ((factor * length + offset) // divisor) + rest``; below 0 means 0."""

    factor: int
    offset: int
    divisor: int
    outer: int
    rest: int


@dataclasses.dataclass(frozen=True)
class Size:
    """The number of valid elements of an axis, as a function of one length.

    Attributes:
        symbol: The dimension of the source whose length it is.
        table: The number for each length from 0 to the maximum.
    """

    symbol: str
    table: tuple[int, ...]

    @classmethod
    def of(cls, symbol: str, maximum: int, multiple: int = 1) -> Size:
        """Return the size of an axis that is as long as the sequence, which is a multiple of a number."""
        return cls(symbol, tuple(length - length % multiple for length in range(maximum + 1)))

    def with_table(self, table: Iterable[int]) -> Size:
        """Return another size that follows from the same length."""
        return Size(self.symbol, tuple(table))

    @property
    def full(self) -> int:
        """The size for the maximum."""
        return self.table[-1]

    @property
    def is_length(self) -> bool:
        """True if it is the length itself, whatever that is."""
        return self.table == tuple(range(len(self.table)))

    @property
    def grows(self) -> bool:
        """True if a longer sequence never has fewer elements."""
        return all(one <= other for one, other in itertools.pairwise(self.table))

    def affine(self, factor: int = 1, offset: int = 0, divisor: int = 1) -> Size:
        """Return ``(factor * size + offset) // divisor``, at least 0."""
        return self.with_table(max((factor * size + offset) // divisor, 0) for size in self.table)

    def __add__(self, other: Size) -> Size:
        """Return the sum of two sizes of one length."""
        return self.with_table(map(sum, zip(self.table, other.table, strict=True)))

    def at(self, lengths: Mapping[str, int]) -> int:
        """Return the number at these lengths."""
        return self.table[lengths.get(self.symbol, -1)]

    def fits(self, lengths: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> bool:
        """Return whether the size is this one at each of the lengths."""
        return all(self.at(each) == size for each, size in zip(lengths, sizes, strict=True))

    @property
    def has_rows(self) -> bool:
        """True if the axis holds rows, each of which has a length of its own."""
        return self.symbol == ROWS

    def refuse_rows(self) -> None:
        """Refuse to treat an axis of rows like time."""
        if self.symbol == ROWS:
            raise NoRuleError(MIXED_ROWS)

    def first_valid_lengths(self) -> list[int]:
        """Return for each element of the axis the least length at which it is valid, at least 1."""
        most = np.maximum.accumulate(self.table)
        lengths = np.searchsorted(most, np.arange(self.full), side="right")
        return [*map(int, np.maximum(lengths, 1))]

    def formula(self, least: int = 1, multiple: int = 1) -> Formula:
        """Return the size as a formula in the length.

        Args:
            least, multiple: The lengths that it is for: multiples of a number, from the least one on.

        Raises:
            NoRuleError: No product of a quotient describes it.
        """
        lengths = np.arange(least, len(self.table), multiple)
        table = np.asarray(self.table)[lengths]
        for outer in (1, int(np.gcd.reduce(np.diff(table), initial=0)) or 1):
            rest = int(table[-1]) % outer
            if ((table - rest) % outer).any():
                continue
            inner = _find_quotient(lengths, (table - rest) // outer, multiple, exact=rest > 0)
            if inner is not None:
                return Formula(*inner, outer, rest)
        first = ", ".join(map(str, self.table[:_SHOWN])) + ("" if len(self.table) <= _SHOWN else ", ...")
        raise NoRuleError(f"has sizes that no expression gives: {first}")

    def expression(self, least: int = 1, multiple: int = 1) -> str:
        """Return the size as an expression in the length, as `formula` does; below 0 means 0."""
        formula = self.formula(least, multiple)
        inner = _text(self.symbol, formula.factor, formula.offset, formula.divisor)
        more = f" + {formula.rest}" if formula.rest else ""
        return inner if formula.outer == 1 else f"{formula.outer} * ({inner}){more}"


@dataclasses.dataclass(frozen=True)
class Factor:
    """One of the sizes that are folded into an axis.

    Attributes:
        size: The size, unless it is one that neither follows from a length nor is that of rows.
        count, other: The number at the maxima, in both examples of other open sizes.
    """

    size: Size | None
    count: int
    other: int

    def at(self, lengths: Mapping[str, int]) -> int:
        """Return the number at these lengths."""
        return self.count if self.size is None else self.size.at(lengths)

    @property
    def static_count(self) -> int | None:
        """The number in the padded model; ``None`` if the caller chooses it."""
        return self.count if self.count == self.other else None


@dataclasses.dataclass(frozen=True)
class Fold(Size):
    """The size of an axis into which several are folded, time among them, such as the batch and time.

    Its valid elements are not the first ones. An operator that computes each of them by itself keeps them
    where they are, until a Reshape unfolds them.

    Attributes:
        factors: What is folded, the outermost first.
    """

    factors: tuple[Factor, ...]

    @classmethod
    def of_factors(cls, *factors: Factor) -> Fold:
        """Return the size of an axis that holds these factors."""
        return cls(ROWS, (0,), factors)

    def at(self, lengths: Mapping[str, int]) -> int:
        """Return the number at these lengths."""
        return math.prod(each.at(lengths) for each in self.factors)

    def fits(self, lengths: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> bool:
        """Return whether the size is this one at each of the lengths."""
        return self == REPEATED or super().fits(lengths, sizes)

    @property
    def has_rows(self) -> bool:
        """True if a factor holds rows, each of which has a length of its own."""
        return any(each.size is not None and each.size.has_rows for each in self.factors)

    def refuse_rows(self) -> NoReturn:
        """Refuse to treat the axis like time."""
        raise OpenSizeError("combines steps that are folded with another axis")

    def with_table(self, table: Iterable[int]) -> Size:
        """Refuse to count elements of the axis."""
        self.refuse_rows()

    def affine(self, factor: int = 1, offset: int = 0, divisor: int = 1) -> Size:
        """Return the size of the same axis; refuse to add elements, and to leave out any."""
        return self if (factor, offset, divisor) == (1, 0, 1) else super().affine(factor, offset, divisor)


REPEATED = Fold.of_factors()
"""The size of an axis all of whose elements are equal: whichever factors it has, the valid ones are there."""

Axes: TypeAlias = "dict[int, Size]"


def _find_quotient(
    lengths: Array, table: Array, multiple: int, *, exact: bool
) -> tuple[int, int, int] | None:
    """Return the factor, the offset and the divisor of a quotient that gives the sizes.

    Unless it is exact, it may be below 0 where they are 0.
    """
    slope = (table[-1] - table[0]) / max(lengths[-1] - lengths[0], 1)
    # The divisors that are most likely come first.
    for divisor in sorted(
        range(1, _MAX_DIVISOR), key=lambda each: each % multiple > 0 and multiple % each > 0
    ):
        factors = {1, *(round(slope * divisor) + more for more in (-1, 0, 1))}
        for factor in sorted(each for each in factors if each > 0):
            rests = table * divisor - factor * lengths
            least = int(rests[(table > 0) | exact].max(initial=rests[-1]))
            largest = int(rests.min()) + divisor - 1
            if least <= largest:
                return factor, min(max(least, 0), largest), divisor
    return None


def _text(symbol: str, factor: int, offset: int, divisor: int) -> str:
    text = symbol if factor == 1 else f"{factor} * {symbol}"
    if offset:
        text += f" {'+' if offset > 0 else '-'} {abs(offset)}"
    if divisor == 1:
        return text
    return f"({text}) // {divisor}" if offset or factor != 1 else f"{text} // {divisor}"
