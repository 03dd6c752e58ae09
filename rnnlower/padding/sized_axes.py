"""The axes of a model whose sizes follow from the lengths of sequences, and what these sizes are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnnlower.errors import InvalidModelError
from rnnlower.graph.facts import Facts, trip_count
from rnnlower.graph.size_tables import size_table
from rnnlower.padding.examples import LENGTH, Examples
from rnnlower.padding.sizes import (
    OPEN_PRODUCT,
    REPEATED,
    ROWS,
    Axes,
    Factor,
    Fold,
    NoRuleError,
    OpenSizeError,
    Size,
)

_PARTS = (1, 2, 3, 4)
"""Divisors of a size that is not known as an expression in the length."""


class SizedAxes(Examples):
    """The axes over time of the values of a model.

    Args:
        model, maxima, inputs: As in `Examples`.

    Attributes:
        axes: For each value over time, the size of each axis that has one.
    """

    def __init__(
        self, model: ir.Model, maxima: Mapping[str, int], inputs: Mapping[str, Mapping[int, str]]
    ) -> None:
        super().__init__(model, maxima, inputs)
        self.axes: dict[ir.Value, Axes] = {}
        self._sizes = {*self._whole}
        whole = {size.symbol: size for size in self._whole}
        for value in model.graph.inputs:
            for axis, symbol in inputs.get(value.name or "", {}).items():
                self.axes.setdefault(value, {})[axis] = whole[symbol]

    def require(self, size: Size, least: int) -> None:
        """Record that the source does not accept sequences so short that a size is below this."""
        size.refuse_rows()
        if size.full < least:
            raise NoRuleError("reads more steps than the maximum")
        self._raise_least(size.symbol, [1, *size.first_valid_lengths()][least])

    def add_axis(self, axes: Axes, axis: int, size: Size) -> None:
        """Add an axis of an operand to those of a result.

        The source does not accept short lengths at which that of another operand has another size.

        Raises:
            NoRuleError: Longer ones differ as well.
        """
        other = axes.setdefault(axis, size)
        if other == REPEATED:
            axes[axis] = size
        if REPEATED in (other, size) or other == size:
            return
        for each in (other, size):
            if isinstance(each, Fold):
                each.refuse_rows()
        pairs = enumerate(zip(other.table, size.table, strict=False), 1)
        least = max((longer for longer, (one, another) in pairs if one != another), default=0)
        if other.symbol != size.symbol or 2 * least > len(size.table):
            raise NoRuleError("combines values of different lengths")
        if least and size.symbol != ROWS:
            self._raise_least(size.symbol, least)

    def counts_of(self, factor: Factor) -> list[int]:
        """Return a factor at the example lengths, and last with the other example of other open sizes."""
        return [*map(factor.at, self._lengths), factor.other]

    def unlike_at_least(self) -> Iterator[ir.Node]:
        """Yield the nodes with an output of another size than the known one at the least lengths."""
        lengths = {
            symbol: -(-least // self.multiples[symbol]) * self.multiples[symbol]
            for symbol, least in self.least.items()
        }
        try:
            facts = self._facts_at(lengths, model=self._source)
        except InvalidModelError:
            return  # The source does not accept them.
        for node, own in self._in_source:
            for value, copy in zip(node.outputs, own.outputs, strict=True):
                shape = facts.shape(copy)
                if value not in self.axes or shape is None:
                    continue
                sizes = dict(enumerate(self.shape(value))) | {
                    axis: size.at(lengths) for axis, size in self.axes[value].items()
                }
                if any(
                    found is not None and found != sizes[axis] and self.axes[value].get(axis) != REPEATED
                    for axis, found in enumerate(shape)
                ):
                    yield node

    def iterations(self, node: ir.Node) -> tuple[int, Size | None] | None:
        """Return how often a Loop runs at the maximum, if lengths decide it, and the size if that varies."""

        def count(world: Facts) -> int | None:
            found = self._iterations.get((world, node), trip_count(world, node, simulate=False))
            return None if found is None else max(found, 0)

        found = [each for world in self._worlds if (each := count(world)) is not None]
        if len(found) < len(self._worlds) or count(self._other) != found[0]:
            return None
        varies = {*found, *(count(world) for _, world in self._short)} != {found[0]}
        return found[0], self.match_size(found, count) if varies else None

    def axes_of(self, value: ir.Value | None) -> Axes:
        """Return the axes of a value whose sizes follow from lengths."""
        return {} if value is None else self.axes.get(self.origin(value), {})

    def lengths_of(self, value: ir.Value | None) -> Axes:
        """Return the axes of a value whose sizes follow from lengths, without that of rows."""
        return {axis: size for axis, size in self.axes_of(value).items() if size.symbol != ROWS}

    def folds_of(self, value: ir.Value | None) -> dict[int, Fold]:
        """Return the axes of a value into which time is folded."""
        return {axis: size for axis, size in self.axes_of(value).items() if isinstance(size, Fold)}

    def refuse_rows(self, value: ir.Value | None, *along: int) -> None:
        """Refuse an operator for which the order of elements along these axes counts, if they are no time."""
        for axis, size in self.axes_of(value).items():
            if axis in along:
                size.refuse_rows()

    def row_axes_of(self, value: ir.Value) -> list[int]:
        """Return the axis of rows of a value, if each row has a length of its own and it has one."""
        return [axis for axis, size in self.axes_of(value).items() if size.symbol == ROWS]

    def deciding_length(self, numbers: Sequence[int]) -> Size:
        """Return the length from which numbers at the example lengths follow."""
        examples = [each for each, number in zip(self._lengths, numbers, strict=True) if number != numbers[0]]
        found = [each for each in self._whole if any(own[each.symbol] < each.full for own in examples)]
        if len(found) != 1:
            raise NoRuleError("has a size that follows from several lengths")
        return found[0]

    def match_size(
        self,
        sizes: Sequence[int],
        at_short: Callable[[Facts], int | None] = lambda _: None,
        formula: int | ir.SymbolicDim | None = None,
    ) -> Size:
        """Return the size that an axis has at the example lengths.

        It is a known one, a multiple of a length and some steps, follows from the formula, or is a multiple
        of a known one and some steps.

        Args:
            at_short: Returns the size for a short sequence, where known.
            formula: The size as inferred for open lengths, if it is.
        """
        known = [size for size in self._sizes if size.symbol != ROWS]
        lines, others = ((self._line(size, sizes) for size in sources) for sources in (self._whole, known))
        computed = (size for each in self._computed(formula) if (size := each.affine()).grows)
        if found := self._first_that_fits(itertools.chain(known, lines, computed, others), sizes, at_short):
            return found
        raise NoRuleError("has a size that follows from a length in an unsupported way")

    def _first_that_fits(
        self,
        candidates: Iterable[Size],
        sizes: Sequence[int],
        at_short: Callable[[Facts], int | None] = lambda _: None,
    ) -> Size | None:
        fitting = (each for each in candidates if each.fits(self._lengths, sizes))
        return next((each for each in fitting if self._fits_short(each, at_short)), None)

    def _fits_short(self, size: Size, at_short: Callable[[Facts], int | None]) -> bool:
        short = [(each[size.symbol], at_short(world)) for each, world in self._short if size.symbol in each]
        return all(
            found is None or size.table[length] == found
            for length, found in short
            if length >= self.least[size.symbol]
        )

    def fits_short(self, size: Size, value: ir.Value, axis: int) -> bool:
        """Return whether an axis has this size at the short lengths that the source accepts, where known."""
        return self._fits_short(size, self._size_at(value, axis))

    def _line(self, source: Size, sizes: Sequence[int]) -> Size:
        """Return the line through the sizes at the maximum and at the next example of another source."""
        steps = [source.table[each[source.symbol]] for each in self._lengths]
        pairs = zip(steps, sizes, strict=True)
        slopes = ((sizes[0] - size) // (steps[0] - step) for step, size in pairs if step < steps[0])
        slope = max(next(slopes, 1), 1)
        return source.affine(slope, sizes[0] - slope * source.full)

    def _computed(self, formula: int | ir.SymbolicDim | None) -> Iterator[Size]:
        """Yield the numbers by a formula in a single length, if that is known; they may be below 0."""
        for number, whole in enumerate(self._whole):
            table = None
            if isinstance(formula, ir.SymbolicDim):
                table = size_table(formula, LENGTH % number, whole.full)
            if table is not None:
                yield whole.with_table(table[length] for length in whole.table)

    def _formula(self, value: ir.Value, place: int) -> int | ir.SymbolicDim | None:
        formulas = self._open.sizes(self.origin(value))
        return None if formulas is None else formulas.flat[place]

    def size_in(self, value: ir.Value) -> Size:
        """Return the size that a value of one element is at the example lengths."""
        elements = [int(each.item()) for each in self.contents(value) or []]
        return self.match_size(elements, formula=self._formula(value, 0))

    def bound_of(
        self, value: ir.Value | None, place: int, numbers: Sequence[int], size: Size, *, is_start: bool
    ) -> Size | None:
        """Return where a part of an axis starts or ends, for each length; below 0, it counts from the end.

        Args:
            value, place: The starts or ends of a Slice, if they are an input, and the element of them.
            numbers: The element at the example lengths.
            size: The size of the axis.
            is_start: Whether the part starts there. A wrong end would show in the size of the part.
        """
        candidates = [
            size.with_table(each // divisor + numbers[0] - size.full // divisor for each in size.table)
            for divisor in _PARTS
        ]
        if not is_start or value is None or self._open.constant(self.origin(value)) is not None:
            candidates.insert(0, size.with_table([numbers[0]] * len(size.table)))
        computed = () if value is None else self._computed(self._formula(value, place))
        return self._first_that_fits(
            [*(each for each in computed if each.symbol == size.symbol), *candidates], numbers
        )

    def fits_short_elements(self, size: Size, value: ir.Value, place: int) -> bool:
        """Return whether an element of a value is this at the accepted short lengths, where known."""

        def element_at(world: Facts) -> int | None:
            content = world.constant(self.origin(value))
            return None if content is None else int(content.flat[place])

        return self._fits_short(size, element_at)

    def _may_be_folded(self, size: Size) -> bool:
        """Return whether a size is only known as a multiple of another one, as one of rows and steps is."""
        known = [each for each in self._sizes if each.symbol != ROWS]
        factors = ((each, size.full // max(each.full, 1)) for each in known)
        return size not in known and any(many > 1 and each.affine(many) == size for each, many in factors)

    def varying_axes(self, value: ir.Value, *, is_repeated: bool = False, known: Axes | None = None) -> Axes:
        """Return the axes of a value that differ in size at the example lengths, by known sizes.

        Args:
            is_repeated: Whether the elements along these axes are equal, so that they may be in any order.
            known: The axes whose sizes are known.
        """
        axes = dict(known or {})
        formulas = self._open.dims(self.origin(value)) or ()
        for axis, sizes in enumerate(zip(*self.shapes(value), strict=True)):
            if axis in axes or not self.varies(value, axis):
                continue
            if not self.is_dynamic(value, axis):
                formula = formulas[axis] if formulas else None
                size = self.match_size(sizes, self._size_at(value, axis), formula)
                axes[axis] = REPEATED if is_repeated and self._may_be_folded(size) else size
            elif is_repeated:
                axes[axis] = REPEATED
            else:
                raise OpenSizeError(OPEN_PRODUCT)
        return axes
