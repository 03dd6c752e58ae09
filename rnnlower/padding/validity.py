"""Emission into a padded model: inputs that give the valid lengths, masks, counts of valid elements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, Scope, all_names
from rnnlower.graph.rewiring import take_place_of
from rnnlower.graph.walk import RESHAPING, is_read
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.examples import Examples
from rnnlower.padding.sizes import ROWS, Axes, NoRuleError, Size
from rnnlower.timeflow.pointwise import POINTWISE


class Validity(Examples):
    """A model that is changed to take the valid lengths of its inputs.

    Args:
        model, maxima, inputs: As in `Examples`.
        by_mask: Whether the caller gives masks instead of lengths.
        rows: The axis of rows of each input that has one, if each row has a length of its own.

    Attributes:
        given: For each symbol, the input of the padded model that says how much is valid.
        least: For each symbol, the least length that fills a window of each operator.
    """

    def __init__(
        self,
        model: ir.Model,
        maxima: Mapping[str, int],
        inputs: Mapping[str, Mapping[int, str]],
        *,
        by_mask: bool,
        rows: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(model, maxima, inputs)
        self.by_mask = by_mask
        self.given: dict[str, ir.Value] = {}
        self.least = dict.fromkeys(maxima, 1)
        self.rows: Size | None = None
        self._replaced: list[ir.Node] = []
        self._start = next(iter(model.graph))
        self._names = NameSource(all_names(model))
        self._pool = InitializerPool(model, self._names)
        self._numbers: dict[ir.Value, ir.Value] = {}
        # Contents that follow from lengths: one for the maximum is not that for a length.
        self._sized: set[ir.Value] = set()
        # Contents that are numbers of the valid steps in the result already.
        self._ruled: set[ir.Value] = set()
        self._shared: dict[tuple[object, ...], ir.Value] = {}
        dim: int | ir.SymbolicDim = 1
        for value in model.graph.inputs:
            axis = (rows or {}).get(str(value.name))
            if axis is not None and value.shape is not None:
                dim = value.shape[axis]
                self.rows = Size.of(ROWS, self.shape(value)[axis])
                self.axes.setdefault(value, {})[axis] = self.rows
        for symbol, maximum in maxima.items():
            word = "mask" if by_mask else "length"
            name = self._names.fresh(word if len(maxima) == 1 else f"{word}_{symbol}")
            dtype = ir.DataType.FLOAT if by_mask else ir.DataType.INT64
            shape = ir.Shape([dim, maximum] if by_mask else [dim])
            self.given[symbol] = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)
            model.graph.inputs.append(self.given[symbol])

    def lengths_of(self, value: ir.Value | None) -> Axes:
        """Return the axes of a value whose sizes follow from lengths, without that of rows."""
        return {axis: size for axis, size in self.axes_of(value).items() if size.symbol != ROWS}

    def row_axes_of(self, value: ir.Value) -> list[int]:
        """Return the axis of rows of a value, if each row has a length of its own and it has one."""
        return [axis for axis, size in self.axes_of(value).items() if size.symbol == ROWS]

    def require(self, size: Size, least: int) -> None:
        """Record that the source does not accept sequences so short that a size is below this."""
        if size.symbol == ROWS:
            raise NoRuleError(_MIXED_ROWS)
        if size.full < least:
            raise NoRuleError("reads more steps than the maximum")
        least = max(self.least[size.symbol], [1, *size.first_valid_lengths()][least])
        self.least[size.symbol] = least
        self.drop_examples(size.symbol, least)

    def fill(self, node: ir.Node, index: int, axis: int, fill: float | ir.Value) -> None:
        """Fill the padding of an input on an axis, with a number or a scalar value."""
        value, axes = self.operand(node, index), self.axes_of(node.inputs[index])
        key = ("fill", value, axis, fill)
        if key not in self._shared:
            emitter = self._emitter(f"{value.name}_valid", self.dtype(value))
            mask = self.mask(axes[axis], axis, axes, len(self.shape(value)))
            if not isinstance(fill, ir.Value):
                fill = emitter.scalar(_clamp_to_type(fill, emitter.dtype.numpy()))
            made = emitter.op("Where", mask, value, fill, since=9)
            made.dtype = emitter.dtype
            self.insert(emitter, node)
            self.record_origin(made, value)
            self._shared[key] = made
        node.replace_input_with(index, self._shared[key])

    def mask(self, size: Size, axis: int, axes: Axes, rank: int, behind: int | None = None) -> ir.Value:
        """Return which elements of an axis are valid, in a form that broadcasts with a value of these axes.

        Args:
            size: The size of the axis.
            axis: Its place.
            axes: The axes of the value.
            rank: The rank of the value.
            behind: Return which element stands there, counted from the end, instead.
        """
        place, repeats = self._rows_in(axes)
        key = ("mask", size, rank - axis, place is not None and rank - place, repeats, behind)
        if key not in self._shared:
            emitter = self._emitter(f"valid_{size.symbol}")
            valid, dims = self._mask(emitter, size, behind), [1] * rank
            if repeats > 1:
                valid = emitter.op(
                    "Expand", emitter.reshape(valid, [-1, 1, size.full]), emitter.integers(1, repeats, 1)
                )
                valid = emitter.reshape(valid, [-1, size.full])
            if place is not None:
                dims[place] = -1
                valid = emitter.transpose(valid, [1, 0]) if place > axis else valid
            dims[axis] = size.full
            first = axis if place is None else min(axis, place)
            self._shared[key] = emitter.reshape(valid, dims[first:])
            self.insert(emitter, None)
        return self._shared[key]

    def _mask(self, emitter: Emitter, size: Size, behind: int | None) -> ir.Value:
        if self.by_mask and behind is None:
            if size.symbol == ROWS:
                raise NoRuleError(_MIXED_ROWS)
            places = np.array(size.first_valid_lengths(), np.int64) - 1
            steps = self.given[size.symbol]
            if not size.is_length:
                steps = emitter.op("Gather", steps, emitter.constant(places), axis=1)
            return emitter.op("Greater", steps, emitter.constant(np.array(0.5, np.float32)), since=9)
        numbers, count = emitter.constant(np.arange(size.full, dtype=np.int64)[None]), self.count(size)
        if self.rows is not None:
            count = emitter.reshape(count, [-1, 1])
        if behind is None:
            return emitter.op("Less", numbers, count, since=9)
        return emitter.op("Equal", numbers, emitter.op("Add", count, emitter.integers(behind)), since=7)

    def _rows_in(self, axes: Axes) -> tuple[int | None, int]:
        """Return the axis of rows, and how many elements each has there; none if all have one length."""
        if self.rows is None:
            return None, 1
        found = [axis for axis, size in axes.items() if size.symbol == ROWS]
        if len(found) != 1:
            raise NoRuleError(
                "combines steps where rows are not one axis, while each has a length of its own"
            )
        return found[0], axes[found[0]].full // self.rows.full

    def count(self, size: Size, dtype: ir.DataType | None = None) -> ir.Value:
        """Return the number of valid elements, ``[1]`` or ``[rows]``: int64, or of the given type."""
        if size.symbol == ROWS:
            raise NoRuleError(_MIXED_ROWS)
        key = ("count", size, dtype)
        if key not in self._shared:
            whole = None if dtype is None else self.count(size)
            emitter = self._emitter(f"count_{size.symbol}")
            if dtype is not None and whole is not None:
                made = emitter.cast(whole, dtype)
            else:
                made = self.given[size.symbol]
                if self.by_mask:
                    made = emitter.cast(
                        emitter.with_axes("ReduceSum", made, [1], keepdims=0), ir.DataType.INT64
                    )
                if not size.is_length:
                    table = emitter.constant(np.array(size.table, np.int64))
                    made = emitter.op("Gather", table, made, axis=0)
            self._shared[key] = made
            self.insert(emitter, None)
        return self._shared[key]

    def _per_row(self, emitter: Emitter, number: ir.Value, axes: Axes, rank: int) -> ir.Value:
        """Reshape numbers, one per row, to the axis of rows."""
        place, repeats = self._rows_in(axes)
        assert place is not None
        if repeats > 1:
            number = emitter.op("Expand", emitter.reshape(number, [-1, 1]), emitter.integers(1, repeats))
        return emitter.reshape(number, [-1, *[1] * (rank - place - 1)])

    def mean(
        self, emitter: Emitter, filled: ir.Value, where: Sequence[int], axes: Axes, rank: int
    ) -> ir.Value:
        """Emit the mean over axes of a value whose padding is zero there; the axes have size 1 then.

        A sum is divided by the number, so that the mean of a single step is that step.
        """
        over = {axis: axes[axis] for axis in where if axis in axes}
        left = {axis: size for axis, size in axes.items() if axis not in over}
        if others := [axis for axis in where if axis not in over]:
            filled = emitter.with_axes("ReduceMean", filled, others, since=18, keepdims=1)
        result = emitter.with_axes("ReduceSum", filled, [*over], keepdims=1)
        for size in over.values():
            number = self.count(size, emitter.dtype)
            if self.rows is None:
                number = emitter.squeeze(number, 0, [])
            else:
                number = self._per_row(emitter, number, left, rank)
            result = emitter.op("Div", result, number)
        result.dtype = emitter.dtype
        return result

    def last_steps(
        self, emitter: Emitter, value: ir.Value, axis: int, axes: Axes, behind: range, rank: int
    ) -> ir.Value:
        """Gather the steps at these positions, counted from the valid end, along an axis of a value."""
        size = axes[axis]
        if self.rows is None:
            steps = emitter.constant(np.arange(behind.start, behind.stop, dtype=np.int64))
            return emitter.op("Gather", value, emitter.op("Add", self.count(size), steps), axis=axis)
        # A sum of one element each: bool has none.
        is_bool, picked = emitter.dtype == ir.DataType.BOOL, []
        number = emitter.cast(value, ir.DataType.INT32) if is_bool else value
        zero = emitter.constant(np.array(0, np.int32)) if is_bool else emitter.scalar(0)
        for step in behind:
            mask = self.mask(size, axis, axes, rank, step)
            one = emitter.op("Where", mask, number, zero, since=9)
            picked.append(emitter.with_axes("ReduceSum", one, [axis], keepdims=1))
        found = emitter.concat(picked, axis)
        return emitter.cast(found, ir.DataType.BOOL) if is_bool else found

    def content_at_length(self, value: ir.Value) -> ir.Value:
        """Return content that follows from sizes as it is for the actual length, not for the maximum.

        If each row has a length, the value is one of ``[rows]`` instead of a single number.
        """
        value = self.origin(value)
        if value not in self._sized:
            return value
        node = value.producer()
        if value not in self._numbers and node is not None:
            if self.axes_of(value) or len(set(self.shapes(value))) > 1:
                raise NoRuleError(f"reads {value.name!r}, which counts from the end of the sequence")
            emitter = self._emitter(f"{value.name}_of_length")
            if self.rows is not None:
                self._numbers[value] = self._number_of_rows(emitter, value, node)
            elif node.op_type == "Shape":
                self._numbers[value] = self._shape_of_length(emitter, node)
            elif node.op_type == "Size":
                raise NoRuleError(f"reads {value.name!r}, a product of sizes")
            else:
                inputs = [None if each is None else self.content_at_length(each) for each in node.inputs]
                self._numbers[value] = _emit_again(emitter, node, inputs)
            self.insert(emitter, node, behind=True)
        return self._numbers[value]

    def operand_at_length(self, node: ir.Node, index: int) -> ir.Value:
        """Return such a content as an operand of an operator that broadcasts."""
        value = self.operand(node, index)
        if self.rows is None:
            return self.content_at_length(value)
        if node.op_type not in POINTWISE:
            raise NoRuleError(f"computes with {value.name!r}, which differs from row to row")
        rank = len(self.shape(node.outputs[0]))
        axes = {
            rank - len(self.shape(each)) + axis: size
            for each in node.inputs
            for axis, size in self.axes_of(each).items()
        }
        emitter = self.emitter_for(node)
        placed = self._per_row(emitter, self.content_at_length(value), axes, rank)
        self.insert(emitter, node)
        return placed

    def _number_of_rows(self, emitter: Emitter, value: ir.Value, node: ir.Node) -> ir.Value:
        contents = self.contents(value) or []
        if any(each.size != 1 for each in contents):
            raise NoRuleError(f"reads {value.name!r}, several numbers that differ from row to row")
        numbers = [each.item() for each in contents]
        if all(each == int(each) for each in numbers):
            try:
                dtype = ir.DataType.from_numpy(contents[0].dtype)
                return self.count(self.match_size([*map(int, numbers)]), dtype)
            except NoRuleError:
                pass
        operands = [each for each in node.inputs if each is not None]
        if node.op_type in RESHAPING | {"Identity"}:
            return self.content_at_length(operands[0])
        if node.op_type not in POINTWISE or any(math.prod(self.shape(each)) != 1 for each in operands):
            raise NoRuleError(f"reads {value.name!r}, which differs from row to row")
        return _emit_again(
            emitter, node, [None if each is None else self.content_at_length(each) for each in node.inputs]
        )

    def _shape_of_length(self, emitter: Emitter, node: ir.Node) -> ir.Value:
        source = self.operand(node)
        shape, axes = self.shape(source), self.axes_of(source)
        places = range(len(shape))[node.attributes.get_int("start", 0) : node.attributes.get_int("end", 99)]
        dims = [
            self.count(axes[axis])
            if axis in axes
            else emitter.dim(source, axis)
            if self.is_dynamic(source, axis)
            else shape[axis]
            for axis in places
        ]
        return emitter.size_vector(dims)

    def record_origin(self, value: ir.Value, source: ir.Value) -> None:
        """Record that a value equals one of the source, except for its padding."""
        self._origins[value] = self.origin(source)

    def replace(self, node: ir.Node, value: ir.Value, emitter: Emitter, index: int = 0) -> None:
        """Replace a node's output by a value; the nodes emitted for it follow the node."""
        self._replaced.append(node)
        old = node.outputs[index]
        value.type = old.type
        readers = [use for use in old.uses() if use.node not in emitter.nodes]
        self.insert(emitter, node, behind=True)
        if old.is_graph_output():
            take_place_of(value, old, rest=self._names.fresh(f"{old.name}_padded"), readers=readers)
        for reader, place in readers:
            reader.replace_input_with(place, value)
        self._origins[value] = old

    def remove_replaced(self) -> None:
        """Remove the nodes that nothing reads anymore."""
        for node in reversed(dict.fromkeys(self._replaced)):
            if not any(map(is_read, node.outputs)):
                self.model.graph.remove(node, safe=True)

    def emitter_for(self, node: ir.Node) -> Emitter:
        """Return an emitter of nodes next to this one, in the type of its first input."""
        return self._emitter(node.outputs[0].name or node.op_type, self.dtype(self.operand(node)))

    def insert(self, emitter: Emitter, node: ir.Node | None, *, behind: bool = False) -> None:
        """Insert emitted nodes before or after a node, or (for lengths) at the beginning."""
        graph = self.model.graph
        if emitter.nodes and behind and node is not None:
            graph.insert_after(node, emitter.nodes)
        elif emitter.nodes:
            # Those of lengths depend on each other in this order.
            graph.insert_before(node or self._start, emitter.nodes)
        emitter.nodes.clear()

    def _emitter(self, name: str, dtype: ir.DataType = ir.DataType.FLOAT) -> Emitter:
        return Emitter(self.opset, Scope(self._names, f"{name}/"), dtype, self._pool)


_MIXED_ROWS = "combines rows, each of which has a length of its own"


def _emit_again(emitter: Emitter, node: ir.Node, inputs: Sequence[ir.Value | None]) -> ir.Value:
    """Emit a copy of a node, with other inputs."""
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return emitter.op(node.op_type, *inputs, **attributes)


def _clamp_to_type(fill: float, dtype: np.dtype[np.generic]) -> float | int | bool:
    """Return a number; in a type without infinities, an infinite one becomes the extreme of the type."""
    if np.isfinite(fill) or dtype.kind not in "iub":
        return fill
    if dtype.kind == "b":
        return fill > 0
    limits = np.iinfo(dtype.name)
    return int(limits.max if fill > 0 else limits.min)
