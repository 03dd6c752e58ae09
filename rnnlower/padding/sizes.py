"""Sizes that follow from the length of a sequence, and the facts at example lengths that show it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rnnlower.errors import InvalidModelError
from rnnlower.graph.evaluation import Array
from rnnlower.graph.facts import Facts, trip_count
from rnnlower.graph.loop_signature import LoopSignature
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import default_opset, ints_of_attribute_or_input
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.state_operators import is_state_operator, parse_state_operators

_FACTORS = range(1, 9)
_DIVISORS = (*range(1, 65), *(2**n for n in range(7, 13)))

ROWS = ""
"""Stands for a symbol in the size of an axis of rows, if each row has a length of its own."""

MIXED_ROWS = "combines rows, each of which has a length of its own"
"""The problem of an operator that treats the axis of rows like time."""
FIRST_PADDED_OPSET = 9
"""The first opset with all the operators that padding emits."""

_OTHER_SIZES = ((29, 31), (37, 41))
_FEWER_STEPS = (1, 2, 5)
_FEW_STEPS = (1, 2, 4)


class NoRuleError(Exception):
    """No rule undoes what a node does to padding; the message says what."""


class OpenSizeError(NoRuleError):
    """No rule undoes what a node does to padding as long as other sizes than the lengths are open."""


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
    def of(cls, symbol: str, maximum: int) -> Size:
        """Return the size of an axis that is as long as the sequence."""
        return cls(symbol, tuple(range(maximum + 1)))

    @property
    def full(self) -> int:
        """The size for the maximum."""
        return self.table[-1]

    @property
    def is_length(self) -> bool:
        """True if it is the length itself."""
        return self.table == tuple(range(len(self.table)))

    def affine(self, factor: int = 1, offset: int = 0, divisor: int = 1) -> Size:
        """Return ``(factor * size + offset) // divisor``, at least 0."""
        return Size(self.symbol, tuple(max((factor * size + offset) // divisor, 0) for size in self.table))

    def sliced(self, start: int, end: int, step: int) -> Size:
        """Return the size of ``[start:end:step]``."""
        return Size(self.symbol, tuple(len(range(size)[start:end:step]) for size in self.table))

    def __add__(self, other: Size) -> Size:
        """Return the sum of two sizes of one length."""
        return Size(self.symbol, tuple(map(sum, zip(self.table, other.table, strict=True))))

    def fits(self, lengths: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> bool:
        """Return whether the size is this one at each of the lengths."""
        return all(
            self.table[each.get(self.symbol, -1)] == size for each, size in zip(lengths, sizes, strict=True)
        )

    def first_valid_lengths(self) -> list[int]:
        """Return for each element of the axis the least length at which it is valid, at least 1."""
        table = np.asarray(self.table)
        return [max(int(np.argmax(table > place)), 1) for place in range(self.full)]

    def expression(self, least: int = 1) -> str:
        """Return the size as an expression in the length, valid from the least length on; below 0 means 0.

        Raises:
            NoRuleError: No product of a quotient describes it.
        """
        lengths, table = np.arange(least, len(self.table)), np.asarray(self.table[least:])
        for outer in _FACTORS:
            rest = int(table[-1]) % outer
            if ((table - rest) % outer).any():
                continue
            inner = _quotient(self.symbol, lengths, (table - rest) // outer)
            if inner is not None:
                more = f" + {rest}" if rest else ""
                return inner if outer == 1 else f"{outer} * ({inner}){more}"
        raise NoRuleError(f"has sizes that no expression gives: {[*self.table]}")


Axes: TypeAlias = "dict[int, Size]"


def add_axis(axes: Axes, axis: int, size: Size) -> None:
    """Add an axis of an operand to those of a result.

    Raises:
        NoRuleError: That of another operand has another size.
    """
    if axes.setdefault(axis, size) != size:
        raise NoRuleError("combines values of different lengths")


def _quotient(symbol: str, lengths: Array, table: Array) -> str | None:
    for divisor, factor in itertools.product(_DIVISORS, _FACTORS):
        first = int(table[-1] * divisor - factor * lengths[-1])
        for offset in range(first, first + divisor):
            if (np.maximum((factor * lengths + offset) // divisor, 0) == table).all():
                return _text(symbol, factor, offset, divisor)
    return None


def _text(symbol: str, factor: int, offset: int, divisor: int) -> str:
    text = symbol if factor == 1 else f"{factor} * {symbol}"
    if offset:
        text += f" {'+' if offset > 0 else '-'} {abs(offset)}"
    if divisor == 1:
        return text
    return f"({text}) // {divisor}" if offset or factor != 1 else f"{text} // {divisor}"


class Examples:
    """The values of a model at the maximum and at some lengths below.

    Args:
        model: The model, with open sizes.
        maxima: The maximum for each symbol.
        inputs: For each input over time, its axis and symbol.

    Attributes:
        axes: For each value over time, the size of each axis that has one.
        least: For each symbol, the least length that fills a window of each operator.
    """

    def __init__(
        self, model: ir.Model, maxima: Mapping[str, int], inputs: Mapping[str, Mapping[int, str]]
    ) -> None:
        self.model, self.opset = model, default_opset(model)
        self.axes: dict[ir.Value, Axes] = {}
        self.least = dict.fromkeys(maxima, 1)
        self._origins: dict[ir.Value, ir.Value] = {}
        self._sizes: set[Size] = {Size.of(symbol, maximum) for symbol, maximum in maxima.items()}
        self._inputs = inputs
        self._iterations: dict[tuple[Facts, ir.Node], int | None] = {}
        self._lengths = _lengths(maxima)
        self._worlds = [self._facts_at(each) for each in self._lengths]
        self._short = self._short_facts(maxima)
        # Where other sizes than lengths are open.
        self._other = self._facts_at(maxima, _OTHER_SIZES[1])
        for value in model.graph.inputs:
            for axis, symbol in inputs.get(value.name or "", {}).items():
                self.axes.setdefault(value, {})[axis] = Size.of(symbol, maxima[symbol])

    def _short_facts(self, maxima: Mapping[str, int]) -> list[tuple[dict[str, int], Facts]]:
        """Return short lengths that the model accepts, and the facts about such sequences."""
        worlds = []
        for symbol, maximum in maxima.items():
            for length in (each for each in _FEW_STEPS if each < maximum):
                # A size below 0: it is too short.
                with contextlib.suppress(InvalidModelError):
                    lengths = {**maxima, symbol: length}
                    worlds.append((lengths, self._facts_at(lengths)))
        return worlds

    def short_contents(self, value: ir.Value) -> list[Array]:
        """Return the contents of a value for short sequences, where known."""
        found = (world.constant(self.origin(value)) for _, world in self._short)
        return [each for each in found if each is not None]

    def require(self, size: Size, least: int) -> None:
        """Record that the source does not accept sequences so short that a size is below this."""
        if size.symbol == ROWS:
            raise NoRuleError(MIXED_ROWS)
        if size.full < least:
            raise NoRuleError("reads more steps than the maximum")
        least = max(self.least[size.symbol], [1, *size.first_valid_lengths()][least])
        self.least[size.symbol] = least
        # The source does not run on shorter examples.
        kept = [number for number, each in enumerate(self._lengths) if each[size.symbol] >= least]
        self._lengths = [self._lengths[number] for number in kept]
        self._worlds = [self._worlds[number] for number in kept]

    def _facts_at(self, lengths: Mapping[str, int], others: tuple[int, int] = _OTHER_SIZES[0]) -> Facts:
        """Return the facts about the model at these lengths, with numbers for other open sizes."""
        facts = Facts(self.model)
        for value in self.model.graph.inputs:
            if value.shape is not None and not value.is_initializer():
                own = self._inputs.get(value.name or "", {})
                shape = [_number(dim, others) for dim in value.shape]
                for axis, symbol in own.items():
                    shape[axis] = lengths[symbol]
                facts.assume(value, tuple(shape))
        parse_state_operators(find_recurrent(self.model, is_state_operator), facts)
        for node in self.model.graph:
            facts.visit(node)
            if node.op_type == "Loop":
                self._count_iterations(facts, node)
        return facts

    def _count_iterations(self, facts: Facts, node: ir.Node) -> None:
        """Note how often a Loop runs in an example: as many elements its stacked outputs have."""
        count = self._iterations[facts, node] = trip_count(facts, node)
        for out in node.outputs[LoopSignature(node).count :]:
            shape = facts.shape(out)
            if count is not None and shape is not None:
                facts.assume(out, (count, *shape[1:]))

    def iterations(self, node: ir.Node) -> tuple[int, Size | None] | None:
        """Return how often a Loop runs at the maximum, if lengths decide it, and the size if that varies."""

        def count(world: Facts) -> int | None:
            return self._iterations.get((world, node), trip_count(world, node, simulate=False))

        found = [each for world in self._worlds if (each := count(world)) is not None]
        if len(found) < len(self._worlds) or count(self._other) != found[0]:
            return None
        varies = {*found, *(count(world) for _, world in self._short)} != {found[0]}
        return found[0], self.match_size(found, count) if varies else None

    def origin(self, value: ir.Value) -> ir.Value:
        """Return the value of the source model that a value represents."""
        return self._origins.get(value, value)

    def record_origin(self, value: ir.Value, source: ir.Value) -> None:
        """Record that a value equals one of the source, except for its padding."""
        self._origins[value] = self.origin(source)

    def operand(self, node: ir.Node, index: int = 0) -> ir.Value:
        """Return an input that the operator requires."""
        value = node.inputs[index]
        assert value is not None
        return value

    def axes_of(self, value: ir.Value | None) -> Axes:
        """Return the axes of a value whose sizes follow from lengths."""
        return {} if value is None else self.axes.get(self.origin(value), {})

    def lengths_of(self, value: ir.Value | None) -> Axes:
        """Return the axes of a value whose sizes follow from lengths, without that of rows."""
        return {axis: size for axis, size in self.axes_of(value).items() if size.symbol != ROWS}

    def row_axes_of(self, value: ir.Value) -> list[int]:
        """Return the axis of rows of a value, if each row has a length of its own and it has one."""
        return [axis for axis, size in self.axes_of(value).items() if size.symbol == ROWS]

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """Return the shape of a value at the maximum, with an example of other open sizes."""
        return self.shapes(value)[0]

    def shapes(self, value: ir.Value | None) -> list[tuple[int, ...]]:
        """Return the shapes of a value at the example lengths, the maximum first."""
        assert value is not None
        found = [world.shape(self.origin(value)) for world in self._worlds]
        if any(shape is None or None in shape for shape in found):
            raise NoRuleError("has an input or an output of unknown shape")
        return found  # type: ignore[return-value]

    def is_dynamic(self, value: ir.Value, axis: int) -> bool:
        """Return whether the caller chooses the size of an axis that is not over time."""
        shape = self._other.shape(self.origin(value))
        return shape is None or shape[axis] != self.shape(value)[axis]

    def is_multiple(self, node: ir.Node, axis: int, place: int) -> bool:
        """Return whether a size of a node's output is as many times one of its input at other open sizes."""
        source, out = node.inputs[0], node.outputs[0]
        assert source is not None
        before, after = (self._other.shape(self.origin(value)) for value in (source, out))
        rows, elements = before and before[axis], after and after[place]
        if not isinstance(rows, int) or not isinstance(elements, int):
            return False
        return self.shape(source)[axis] * elements == self.shape(out)[place] * rows

    def follows_from_other_sizes(
        self, value: ir.Value | None, places: list[int] | types.EllipsisType = ...
    ) -> bool:
        """Return whether contents at the maximum differ there with open sizes that are not lengths."""
        contents = self.contents(value)
        if value is None or contents is None:
            return False
        other = self._other.constant(self.origin(value))
        return other is None or not np.array_equal(contents[0][places], other[places])

    def numbers(self, value: ir.Value | None) -> list[Array] | None:
        """Return the contents of a value at the example lengths, if they follow from nothing else."""
        return None if self.follows_from_other_sizes(value) else self.contents(value)

    def static_size(self, value: ir.Value, axis: int) -> int | None:
        """Return the size of an axis at the maximum; ``None`` if it is chosen by the caller, or not known."""
        shapes = [facts.shape(self.origin(value)) for facts in (self._worlds[0], self._other)]
        sizes = {None if shape is None else shape[axis] for shape in shapes}
        return sizes.pop() if len(sizes) == 1 else None

    def contents(self, value: ir.Value | None) -> list[Array] | None:
        """Return the contents of a value at the example lengths, if they follow from constants and sizes."""
        if value is None:
            return None
        found = [each for world in self._worlds if (each := world.constant(self.origin(value))) is not None]
        return found if len(found) == len(self._worlds) else None

    def ints(self, node: ir.Node, name: str, index: int) -> list[list[int]] | None:
        """Return integers at the example lengths: an attribute, or an input."""
        unknown = NoRuleError(f"takes its {name} from an unsupported computation")
        contents = [lambda value, world=world: world.constant(self.origin(value)) for world in self._worlds]
        found = [ints_of_attribute_or_input(node, name, index, content, unknown) for content in contents]
        return [each for each in found if each is not None] or None

    def dtype(self, value: ir.Value) -> ir.DataType:
        """Return the type of a value."""
        return value.dtype or self._worlds[0].dtype(self.origin(value)) or ir.DataType.FLOAT

    def match_size(
        self, sizes: Sequence[int], at_short: Callable[[Facts], int | None] = lambda _: None
    ) -> Size:
        """Return the known size, or the length and some steps, that an axis has at the example lengths.

        Args:
            at_short: Returns the size for a short sequence, where known.
        """
        known = [size for size in self._sizes if size.symbol != ROWS]
        shifted = [size.affine(1, sizes[0] - size.full) for size in known if size.is_length]
        for size in (*known, *shifted):
            if size.fits(self._lengths, sizes):
                short = [(each[size.symbol], at_short(world)) for each, world in self._short]
                if all(
                    found is None or size.table[length] == max(found, 0)
                    for length, found in short
                    if length >= self.least[size.symbol]
                ):
                    return size
        raise NoRuleError("has a size that follows from a length in an unsupported way")

    def varying_axes(self, value: ir.Value) -> Axes:
        """Return the axes of a value that differ in size at the example lengths, by known sizes."""

        def size_at(world: Facts, axis: int) -> int | None:
            shape = world.shape(self.origin(value))
            return None if shape is None else shape[axis]

        columns = enumerate(zip(*self.shapes(value), strict=True))
        return {
            axis: self.match_size(sizes, functools.partial(size_at, axis=axis))
            for axis, sizes in columns
            if len(set(sizes)) > 1
        }


def _lengths(maxima: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the example lengths for each symbol, the maxima first."""
    lengths = [dict(maxima)]
    for symbol, maximum in maxima.items():
        fewer = [*_FEWER_STEPS, maximum // 2 + 1, maximum // 3 + 1]
        shorter = sorted({maximum - less for less in fewer})
        lengths += [{**maxima, symbol: length} for length in shorter if length > 0]
    return lengths


def _number(dim: int | ir.SymbolicDim | None, others: tuple[int, int]) -> int:
    if isinstance(dim, int) and dim >= 0:
        return dim
    return others[0] if dim_name(dim) else others[1]
