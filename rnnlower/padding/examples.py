"""The facts about a model at example lengths, which show the sizes that follow from a length."""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.errors import InvalidModelError, OptionError
from rnnlower.graph.evaluation import Array
from rnnlower.graph.facts import Facts, trip_count
from rnnlower.graph.loop_signature import LoopSignature
from rnnlower.graph.operator_kinds import POINTWISE
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import default_opset, ints_of_attribute_or_input
from rnnlower.padding.sizes import DIVISORS, NoRuleError, OpenSizeError, Size
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.state_operators import is_state_operator, parse_state_operators

_OTHER_SIZES = ((29, 31), (37, 41))
_FEWER_STEPS = (1, 2, 5)
_FEW_STEPS = (1, 2, 4, 8)
LENGTH = "length_%d"
"""The name of a length in sizes that are known as an expression in it, by the number of its symbol."""
_JOINING = {*POINTWISE, "Concat", "Einsum", "Expand", "Gemm", "MatMul", "Reshape", "Split"}
"""Operators that fail where lengths do not fit."""


class Examples:
    """The values of a model at the maximum and at some lengths below.

    Args:
        model: The model, with open sizes.
        maxima: The maximum for each symbol.
        inputs: For each input over time, its axis and symbol.

    Attributes:
        least: For each symbol, the least length that fills a window of each operator.
        multiples: For each symbol, the number whose multiples are the lengths that the model accepts.
    """

    def __init__(
        self, model: ir.Model, maxima: Mapping[str, int], inputs: Mapping[str, Mapping[int, str]]
    ) -> None:
        self.model, self.opset = model, default_opset(model)
        self._source = model.clone()
        self._in_source = [*zip(model.graph, self._source.graph, strict=True)]
        self._origins: dict[ir.Value, ir.Value] = {}
        self._inputs = inputs
        self._iterations: dict[tuple[Facts, ir.Node], int | None] = {}
        self._known: dict[tuple[int, ...], Facts] = {}
        self.multiples = {symbol: self._find_multiple(maxima, symbol) for symbol in maxima}
        self.least = dict(self.multiples)
        self._whole = [Size.of(symbol, most, self.multiples[symbol]) for symbol, most in maxima.items()]
        self._lengths = _lengths(maxima, self.multiples)
        self._worlds = [self._facts_of(each) for each in self._lengths]
        self._open = self._facts_at({symbol: ir.SymbolicDim(LENGTH % n) for n, symbol in enumerate(maxima)})
        self._short = self._short_facts(maxima)
        # Where other sizes than lengths are open.
        self._other = self._facts_at(maxima, _OTHER_SIZES[1])

    def _find_multiple(self, maxima: Mapping[str, int], symbol: str) -> int:
        """Return the least number whose multiples, near the maximum, the model accepts as a length.

        Other lengths fail where a network halves the sequence and doubles it again, or folds it.

        Raises:
            OptionError: The maximum is no multiple of it.
        """
        maximum = maxima[symbol]

        @functools.cache
        def accepts(length: int) -> bool | None:
            return self._accepts({**maxima, symbol: length})

        def is_multiple(number: int) -> bool:
            last = maximum - maximum % number
            fits = accepts(last) and accepts(last - number)
            return bool(fits) and (number == 1 or not accepts(last - 1))

        is_told = accepts(maximum) is not None
        candidates = (each for each in DIVISORS if is_told and (each == 1 or 2 * each <= maximum))
        multiple = next(filter(is_multiple, candidates), 1)
        if rest := maximum % multiple:
            raise OptionError(
                f"the maximum of {symbol!r} is {maximum}; lengths must be multiples of {multiple}",
                remedy=f"choose {maximum - rest} or {maximum - rest + multiple}",
            )
        return multiple

    def _accepts(self, lengths: Mapping[str, int]) -> bool | None:
        """Return whether no node fails at these lengths, by the shapes; ``None`` if they do not tell."""
        try:
            facts = self._facts_of(lengths)
        except InvalidModelError:
            return False
        first = next((node for node in self.model.graph if _fails(node, facts)), None)
        # The sizes that others make follow from data.
        return first is None or (False if first.op_type in _JOINING else None)

    def _short_facts(self, maxima: Mapping[str, int]) -> list[tuple[dict[str, int], Facts]]:
        """Return short lengths that the model accepts, and the facts about such sequences."""
        worlds = []
        for symbol, maximum in maxima.items():
            few = (each * self.multiples[symbol] for each in _FEW_STEPS)
            for length in (each for each in few if each < maximum):
                # A size below 0: it is too short.
                with contextlib.suppress(InvalidModelError):
                    lengths = {**maxima, symbol: length}
                    worlds.append((lengths, self._facts_of(lengths)))
        return worlds

    def short_contents(self, value: ir.Value) -> list[Array]:
        """Return the contents of a value for short sequences, where known."""
        found = (world.constant(self.origin(value)) for world in self._accepted_short())
        return [each for each in found if each is not None]

    def short_numbers(self, value: ir.Value | None, place: int) -> set[int]:
        """Return an element of a value for short sequences, where there is one and it is known."""
        return set() if value is None else {int(each.flat[place]) for each in self.short_contents(value)}

    def _accepted_short(self) -> Iterator[Facts]:
        return (
            world for lengths, world in self._short if all(lengths[n] >= m for n, m in self.least.items())
        )

    def _raise_least(self, symbol: str, least: int) -> None:
        """Leave out examples that the source does not run on."""
        least = self.least[symbol] = max(self.least[symbol], least)
        kept = [number for number, each in enumerate(self._lengths) if each[symbol] >= least]
        self._lengths = [self._lengths[number] for number in kept]
        self._worlds = [self._worlds[number] for number in kept]

    def _facts_of(self, lengths: Mapping[str, int]) -> Facts:
        """Return the facts about the model at lengths that may be asked for again."""
        key = (*lengths.values(),)
        if key not in self._known:
            self._known[key] = self._facts_at(lengths)
        return self._known[key]

    def _facts_at(
        self,
        lengths: Mapping[str, int | ir.SymbolicDim],
        others: tuple[int, int] = _OTHER_SIZES[0],
        model: ir.Model | None = None,
    ) -> Facts:
        """Return the facts about the model at these lengths, with numbers for other open sizes."""
        model = model or self.model
        facts = Facts(model)
        for value in model.graph.inputs:
            if value.shape is not None and not value.is_initializer():
                own = self._inputs.get(value.name or "", {})
                shape: list[int | ir.SymbolicDim] = [_number(dim, others) for dim in value.shape]
                for axis, symbol in own.items():
                    shape[axis] = lengths[symbol]
                facts.assume(value, tuple(shape))
        parse_state_operators(find_recurrent(model, is_state_operator), facts)
        for node in model.graph:
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

    def origin(self, value: ir.Value) -> ir.Value:
        """Return the value of the source model that a value represents."""
        return self._origins.get(value, value)

    def record_origin(self, value: ir.Value, source: ir.Value) -> None:
        """Record that a value equals one of the source, except for its padding."""
        self._origins[value] = self.origin(source)

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """Return the shape of a value at the maximum, with an example of other open sizes."""
        return self.shapes(value)[0]

    def shapes(self, value: ir.Value | None) -> list[tuple[int, ...]]:
        """Return the shapes of a value at the example lengths, the maximum first."""
        assert value is not None
        source = self.origin(value)
        found = [world.shape(source) for world in self._worlds]
        for world, shape in zip(self._worlds, found, strict=True):
            if shape is None or None in shape:
                raise NoRuleError(
                    _misfit(world, source.producer()) or f"reads or gives {source.name!r}, of unknown shape"
                )
        return found  # type: ignore[return-value]

    def is_dynamic(self, value: ir.Value, axis: int) -> bool:
        """Return whether the caller chooses the size of an axis that is not over time."""
        shape = self._other.shape(self.origin(value))
        return shape is None or shape[axis] != self.shape(value)[axis]

    def shapes_with_other(self, value: ir.Value) -> list[tuple[int, ...]]:
        """Return the shapes at the example lengths, and last that with another example of open sizes."""
        found, other = self.shapes(value), self._other.shape(self.origin(value))
        if other is None or None in other:
            raise OpenSizeError("makes a shape that is not known for each of the other open sizes")
        return [*found, other]  # type: ignore[list-item]

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

    def _size_at(self, value: ir.Value, axis: int) -> Callable[[Facts], int | None]:
        def size_at(world: Facts) -> int | None:
            shape = world.shape(self.origin(value))
            return None if shape is None or axis >= len(shape) else shape[axis]

        return size_at

    def varies(self, value: ir.Value, axis: int) -> bool:
        """Return whether an axis differs in size at the example lengths, or at short ones, where known."""
        size_at = self._size_at(value, axis)
        sizes = {shape[axis] for shape in self.shapes(value)}
        short = {size for world in self._accepted_short() if (size := size_at(world)) is not None}
        return len(sizes | short) > 1


def _misfit(facts: Facts, node: ir.Node | None) -> str:
    """Return what a node of known inputs reads, in words, if that gives it an output of unknown shape."""
    if node is None or node.op_type not in _JOINING:
        return ""
    shapes = [facts.shape(value) for value in node.inputs]
    if node.op_type == "Reshape":
        sizes = facts.constant(node.inputs[1])
        shapes[1:] = [None if sizes is None else tuple(sizes.tolist())]
    if any(each is None or None in each for each in shapes):
        return ""
    read = " and ".join(str([*each]) for each in shapes if each is not None)
    return (
        f"would get the shapes {read}, which do not fit together; another input may have to be as long, "
        "or the model has a fixed number of steps, such as an exporter's example"
    )


def _fails(node: ir.Node, facts: Facts) -> bool:
    """Return whether the shape of an output cannot be inferred, or does not hold what is reshaped."""
    shapes = [facts.shape(value) for value in (*node.inputs[:1], *node.outputs) if value is not None]
    if any(shape is None or None in shape for shape in shapes):
        return True
    return (
        node.op_type == "Reshape"
        and len({math.prod(size or 0 for size in shape) for shape in shapes if shape}) > 1
    )


def _lengths(maxima: Mapping[str, int], multiples: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the example lengths for each symbol, the maxima first."""
    lengths = [dict(maxima)]
    for symbol, maximum in maxima.items():
        multiple = multiples[symbol]
        most = maximum // multiple
        fewer = [*_FEWER_STEPS, most // 2 + 1, most // 3 + 1]
        shorter = sorted({most - less for less in fewer})
        lengths += [{**maxima, symbol: length * multiple} for length in shorter if length > 0]
    return lengths


def _number(dim: int | ir.SymbolicDim | None, others: tuple[int, int]) -> int:
    if isinstance(dim, int) and dim >= 0:
        return dim
    return others[0] if dim_name(dim) else others[1]
