"""The walk through a model in which every value's valid elements are made those of the unpadded model.

After each node holds: along every axis whose size follows from a length, the first elements (as many as that
size) are those that the source computes on the unpadded input. What comes behind them is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.evaluation import Array
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, Scope, names_in
from rnnlower.graph.walk import captured, default_opset, dim_name
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.sizes import NoRuleError, Size
from rnnlower.timeflow.flow import located
from rnnlower.wording import call

Axes: TypeAlias = "dict[int, Size]"
Rule: TypeAlias = "Callable[[PadFlow, ir.Node], Axes | list[Axes]]"

CONTROLS: Mapping[str, Sequence[int]] = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3, 4),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}
"""Inputs that are read as shapes and positions: there a size is the maximum; as a number it is the length."""

_FIRST_OPSET = 9
_OTHER_SIZES = ((29, 31), (37, 41))
_FEWER_STEPS = (1, 2, 5)


class PadFlow:
    """A walk through the main graph of a model, which it changes.

    Args:
        model: The model, with open sizes.
        maxima: The maximum for each symbol.
        inputs: For each input over time, its axis and symbol.
        by_mask: Whether the caller gives masks instead of lengths.

    Attributes:
        axes: For each value over time, the size of each axis that has one.
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
    ) -> None:
        self.model, self.by_mask = model, by_mask
        self.opset = default_opset(model)
        if self.opset < _FIRST_OPSET:
            raise UnsupportedModelError(
                f"the model has opset {self.opset}; padding needs {_FIRST_OPSET} or higher",
                remedy=f"convert it first ({call('convert', opset=17)})",
            )
        self.axes: dict[ir.Value, Axes] = {}
        self.given: dict[str, ir.Value] = {}
        self.least = dict.fromkeys(maxima, 1)
        self._start = next(iter(model.graph))
        self._names = NameSource(names_in(model))
        self._pool = InitializerPool(model, self._names)
        self._origins: dict[ir.Value, ir.Value] = {}
        self._numbers: dict[ir.Value, ir.Value] = {}
        self._sized: set[ir.Value] = set()
        # Contents that are numbers of the valid steps in the result already.
        self._ruled: set[ir.Value] = set()
        self._shared: dict[tuple[object, ...], ir.Value] = {}
        self._sizes: set[Size] = {Size.of(symbol, maximum) for symbol, maximum in maxima.items()}
        self._lengths, self._worlds = self._make_worlds(maxima, inputs)
        # Where other sizes than lengths are open.
        self._other = self._world(dict(maxima), inputs, _OTHER_SIZES[1])
        for value in model.graph.inputs:
            for axis, symbol in inputs.get(value.name or "", {}).items():
                self.axes.setdefault(value, {})[axis] = Size.of(symbol, maxima[symbol])
        for symbol, maximum in maxima.items():
            self._add_input(symbol, maximum, alone=len(maxima) == 1)

    def _make_worlds(
        self, maxima: Mapping[str, int], inputs: Mapping[str, Mapping[int, str]]
    ) -> tuple[list[dict[str, int]], list[Facts]]:
        lengths = [dict(maxima)]
        for symbol, maximum in maxima.items():
            fewer = [*_FEWER_STEPS, maximum // 2 + 1, maximum // 3 + 1]
            lengths += [
                {**maxima, symbol: length}
                for length in sorted({maximum - less for less in fewer})
                if length > 0
            ]
        return lengths, [self._world(each, inputs, _OTHER_SIZES[0]) for each in lengths]

    def _world(
        self,
        lengths: Mapping[str, int],
        inputs: Mapping[str, Mapping[int, str]],
        others: tuple[int, int],
    ) -> Facts:
        """Return the facts about the model at these lengths, with numbers for other open sizes."""
        facts = Facts(self.model)
        for value in self.model.graph.inputs:
            if value.shape is not None and not value.is_initializer():
                own = {axis: lengths[symbol] for axis, symbol in inputs.get(value.name or "", {}).items()}
                facts.assume(
                    value, tuple(own.get(axis, _number(dim, others)) for axis, dim in enumerate(value.shape))
                )
        return facts.visit_all()

    def _add_input(self, symbol: str, maximum: int, *, alone: bool) -> None:
        word = "mask" if self.by_mask else "length"
        name = self._names.fresh(word if alone else f"{word}_{symbol}")
        dtype = ir.DataType.FLOAT if self.by_mask else ir.DataType.INT64
        shape = [1, maximum] if self.by_mask else [1]
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.model.graph.inputs.append(value)
        self.given[symbol] = value

    def run(self) -> PadFlow:
        """Walk to the end.

        Raises:
            UnsupportedModelError: A node does with padding what no rule undoes.
        """
        for node in list(self.model.graph):
            try:
                self._visit(node)
            except NoRuleError as error:
                raise UnsupportedModelError(
                    f"{error}: what it computes at the end of a sequence would depend on the padding",
                    node=located(self.model, node),
                    remedy="take this part out of the model, or pad to the length that it always has",
                ) from None
        outputs = self.model.graph.outputs
        for index, value in enumerate(outputs):
            if self.origin(value) in self._sized:
                number = self.number(value)
                emitter = self._emitter("output")
                number = emitter.op("Identity", number)
                self.model.graph.extend(emitter.nodes)
                name, value.name = value.name, self._names.fresh(f"{value.name}_padded")
                number.name, number.type, number.shape = name, value.type, value.shape
                outputs[index] = number
        return self

    # Queries of the rules.

    def origin(self, value: ir.Value) -> ir.Value:
        """Return the value of the source that a value stands for."""
        return self._origins.get(value, value)

    def axes_of(self, value: ir.Value | None) -> Axes:
        """Return the axes of a value whose sizes follow from lengths."""
        return {} if value is None else self.axes.get(self.origin(value), {})

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

    def is_open(self, value: ir.Value, axis: int) -> bool:
        """Return whether the caller chooses the size of an axis that is not over time."""
        shape = self._other.shape(self.origin(value))
        return shape is None or shape[axis] != self.shape(value)[axis]

    def contents(self, value: ir.Value | None) -> list[Array] | None:
        """Return what a value holds at the example lengths, if that follows from constants and sizes."""
        if value is None:
            return None
        found = [each for world in self._worlds if (each := world.constant(self.origin(value))) is not None]
        return found if len(found) == len(self._worlds) else None

    def ints(self, node: ir.Node, name: str, index: int) -> list[list[int]] | None:
        """Return integers at the example lengths: an attribute, or an input."""
        given = node.attributes.get_ints(name)
        if given is not None:
            return [[*given]] * len(self._worlds)
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            return None
        contents = self.contents(value)
        if contents is None:
            raise NoRuleError(f"takes its {name} from a computation that is not followed")
        return [[*map(int, each.reshape(-1))] for each in contents]

    def dtype(self, value: ir.Value | None) -> np.dtype[np.generic]:
        """Return the type of a value."""
        assert value is not None
        if value.dtype is not None:
            return value.dtype.numpy()
        type_ = self._worlds[0].type(self.origin(value))
        return np.dtype(np.float32) if type_ is None else type_.dtype.numpy()

    def matched(self, sizes: Sequence[int]) -> Size:
        """Return the known size that an axis has at the example lengths."""
        for size in self._sizes:
            if size.fits(self._lengths, sizes):
                return size
        raise NoRuleError("makes an axis whose size follows from a length in a way that is not followed")

    def varying(self, value: ir.Value) -> Axes:
        """Return the axes of a value that differ in size at the example lengths, by known sizes."""
        columns = list(zip(*self.shapes(value), strict=True))
        return {axis: self.matched(sizes) for axis, sizes in enumerate(columns) if len(set(sizes)) > 1}

    # Actions of the rules.

    def windows(self, size: Size, more: int, stride: int) -> Size:
        """Return the number of windows; lengths that fill none are below the source's least one."""
        found = size.via(1, more, stride)
        if not found.full:
            raise NoRuleError("reads windows that are longer than the maximum")
        self.least[size.symbol] = max(self.least[size.symbol], found.first_length()[0])
        return found

    def fill(self, node: ir.Node, index: int, axis: int, fill: float) -> None:
        """Fill the padding of an input on an axis."""
        value, size = node.inputs[index], self.axes_of(node.inputs[index])[axis]
        assert value is not None
        rank, dtype = len(self.shape(value)), self.dtype(value)
        key = ("fill", value, axis, fill)
        if key not in self._shared:
            mask = self.mask(size, axis, rank)
            emitter = self._emitter(f"{value.name}_valid")
            constant = emitter.constant(np.array(_representable(fill, dtype), dtype))
            made = emitter.op("Where", mask, value, constant, since=9)
            made.dtype = ir.DataType.from_numpy(dtype)
            self.place(emitter, node)
            self._origins[made] = self.origin(value)
            self._shared[key] = made
        node.replace_input_with(index, self._shared[key])

    def mask(self, size: Size, axis: int, rank: int) -> ir.Value:
        """Return which elements of an axis are valid, in a form that broadcasts to this rank."""
        key = ("mask", size, rank - axis)
        if key not in self._shared:
            emitter = self._emitter(f"valid_{size.symbol}")
            given = self.given[size.symbol]
            if self.by_mask:
                places = np.array(size.first_length(), np.int64) - 1
                steps = (
                    given if size.is_length else emitter.op("Gather", given, emitter.constant(places), axis=1)
                )
                valid = emitter.op("Greater", steps, emitter.constant(np.array(0.5, np.float32)), since=9)
            else:
                numbers = emitter.constant(np.arange(size.full, dtype=np.int64)[None])
                valid = emitter.op("Less", numbers, self.count(size), since=9)
            shape = [size.full, *[1] * (rank - axis - 1)]
            self._shared[key] = emitter.reshape(valid, shape)
            self.place(emitter, None)
        return self._shared[key]

    def count(self, size: Size, dtype: np.dtype[np.generic] | None = None) -> ir.Value:
        """Return the number of valid elements, of shape ``[1]``: int64, or of the given type."""
        key: tuple[object, ...] = ("count", size)
        if key not in self._shared:
            emitter, given = self._emitter(f"count_{size.symbol}"), self.given[size.symbol]
            if self.by_mask:
                total = emitter.with_axes("ReduceSum", given, [0, 1], keepdims=0)
                given = emitter.reshape(emitter.cast(total, ir.DataType.INT64), [1])
            if not size.is_length:
                table = emitter.constant(np.array(size.table, np.int64))
                given = emitter.op("Gather", table, given, axis=0)
            self._shared[key] = given
            self.place(emitter, None)
        if dtype is None:
            return self._shared[key]
        number, key = self._shared[key], ("count", size, dtype)
        if key not in self._shared:
            emitter = self._emitter(f"count_{size.symbol}")
            self._shared[key] = emitter.cast(number, ir.DataType.from_numpy(dtype))
            self.place(emitter, None)
        return self._shared[key]

    def of_all(self, emitter: Emitter, value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
        """Emit the mean of the valid elements, given that of all, of which the others are zero."""
        dtype = self.dtype(value)
        for size in sizes:
            full = emitter.constant(np.array(size.full, dtype))
            share = emitter.op("Div", emitter.squeeze(self.count(size, dtype), 0, []), full)
            value = emitter.op("Div", value, share)
            value.dtype = ir.DataType.from_numpy(dtype)
        return value

    def number(self, value: ir.Value) -> ir.Value:
        """Return a content that follows from sizes as it is for the length, not for the maximum."""
        value = self.origin(value)
        if value not in self._sized:
            return value
        node = value.producer()
        if value not in self._numbers and node is not None:
            if self.axes_of(value) or len(set(self.shapes(value))) > 1:
                raise NoRuleError(f"reads {value.name!r}, which counts from the end of the sequence")
            emitter = self._emitter(f"{value.name}_of_length")
            if node.op_type == "Shape":
                self._numbers[value] = self._shape_of_length(emitter, node)
            elif node.op_type == "Size":
                raise NoRuleError(f"reads {value.name!r}, a product of sizes")
            else:
                inputs = [None if each is None else self.number(each) for each in node.inputs]
                attributes = {name: attribute.value for name, attribute in node.attributes.items()}
                self._numbers[value] = emitter.op(node.op_type, *inputs, **attributes)
            self.place(emitter, node, behind=True)
        return self._numbers[value]

    def _shape_of_length(self, emitter: Emitter, node: ir.Node) -> ir.Value:
        source = node.inputs[0]
        assert source is not None
        shape, axes = self.shape(source), self.axes_of(source)
        places = range(len(shape))[node.attributes.get_int("start", 0) : node.attributes.get_int("end", 99)]
        dims = [
            self.count(axes[axis])
            if axis in axes
            else emitter.dim(source, axis)
            if self.is_open(source, axis)
            else shape[axis]
            for axis in places
        ]
        return emitter.size_vector(dims)

    def replace(self, node: ir.Node, value: ir.Value, emitter: Emitter, index: int = 0) -> None:
        """Put a value in the place of a node's output; what it is emitted with follows the node."""
        old = node.outputs[index]
        value.type = old.type
        users = [(use.node, use.idx) for use in old.uses() if use.node not in emitter.nodes]
        self.place(emitter, node, behind=True)
        for user, place in users:
            user.replace_input_with(place, value)
        if old.is_graph_output():
            name, old.name = old.name, self._names.fresh(f"{old.name}_padded")
            value.name, value.shape = name, old.shape
            for place, out in enumerate(self.model.graph.outputs):
                if out is old:
                    self.model.graph.outputs[place] = value
        self._origins[value] = old

    def emitter_for(self, node: ir.Node) -> Emitter:
        """Return an emitter of nodes next to this one."""
        return self._emitter(node.outputs[0].name or node.op_type)

    def place(self, emitter: Emitter, node: ir.Node | None, *, behind: bool = False) -> None:
        """Insert emitted nodes before a node, behind it, or (those of lengths) at the beginning."""
        graph = self.model.graph
        if not emitter.nodes:
            return
        if node is None:
            # Those of lengths depend on each other in this order.
            graph.insert_before(self._start, emitter.nodes)
        elif behind:
            graph.insert_after(node, emitter.nodes)
        else:
            graph.insert_before(node, emitter.nodes)
        emitter.nodes.clear()

    def _emitter(self, name: str) -> Emitter:
        return Emitter(self.opset, Scope(self._names, f"{name}/"), ir.DataType.FLOAT, self._pool)

    # The walk.

    def _visit(self, node: ir.Node) -> None:
        from rnnlower.padding.rules import RULES

        if any(self.axes_of(each) or self.origin(each) in self._sized for each in captured(node)):
            raise NoRuleError("has a body that reads values over time")
        controls = () if node.domain else CONTROLS.get(node.op_type, ())
        self._fix_controls(node, controls)
        if self._has_contents(node):
            return
        over_time = any(self.axes_of(each) for each in node.inputs)
        numbers = [
            index
            for index, each in enumerate(node.inputs)
            if each is not None and self.origin(each) in self._sized
        ]
        if not over_time and not numbers:
            return
        rule = None if node.domain not in ("", "com.microsoft") else RULES.get(node.op_type)
        if rule is None:
            raise NoRuleError(f"no rule says what {node.op_type} does to padding")
        for index in numbers:
            if index not in controls:
                value = node.inputs[index]
                assert value is not None
                node.replace_input_with(index, self.number(value))
                self._origins[node.inputs[index]] = self.origin(value)  # type: ignore[index]
        read = [out for out in node.outputs if out.uses() or out.is_graph_output()]
        found = rule(self, node)
        for out, axes in zip(node.outputs, found if isinstance(found, list) else [found], strict=False):
            if out in read:
                self._check(out, axes)

    def _check(self, out: ir.Value, axes: Axes) -> None:
        """Refuse a size that the rule did not follow."""
        for axis, sizes in enumerate(zip(*self.shapes(out), strict=True)):
            size = axes.get(axis)
            if size is None and len(set(sizes)) == 1:
                continue
            if size is None:
                raise NoRuleError("makes a length the size of another axis")
            if not size.fits(self._lengths, sizes):
                raise NoRuleError("changes the number of steps in a way that is not followed")
        self.axes[out] = axes
        self._sizes |= set(axes.values())

    def _has_contents(self, node: ir.Node) -> bool:
        """Return whether the contents of a node's outputs follow from constants and sizes, and note them."""
        for out in node.outputs:
            contents = self.contents(out)
            if contents is None:
                return False
            full = contents[0]
            prefixes = [
                full[tuple(map(slice, each.shape))] if each.ndim == full.ndim else None for each in contents
            ]
            if all(a is not None and np.array_equal(a, b) for a, b in zip(prefixes, contents, strict=True)):
                if axes := self.varying(out):
                    self.axes[out] = axes
            elif self._reads_steps(node):
                # What combines steps that are known combines the valid ones alone.
                self._ruled.update(node.outputs)
                return False
            else:
                self._sized.add(out)
                if any(each is not None and self.origin(each) in self._ruled for each in node.inputs):
                    self._ruled.add(out)
        return True

    def _reads_steps(self, node: ir.Node) -> bool:
        return node.op_type not in ("Shape", "Size") and any(map(self.axes_of, node.inputs))

    def _fix_controls(self, node: ir.Node, controls: Sequence[int]) -> None:
        """Make constants of shapes and positions that follow from a number of valid steps."""
        for index in controls:
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None or self.origin(value) not in self._ruled:
                continue
            contents, other = self.contents(value), self._other.constant(self.origin(value))
            if contents is None or other is None or not np.array_equal(contents[0], other):
                raise NoRuleError("takes a shape from a number of steps and from another open size")
            emitter = self.emitter_for(node)
            constant = emitter.constant(contents[0])
            self._origins[constant] = self.origin(value)
            node.replace_input_with(index, constant)


def _number(dim: int | ir.SymbolicDim | None, others: tuple[int, int]) -> int:
    if isinstance(dim, int) and dim >= 0:
        return dim
    return others[0] if dim_name(dim) else others[1]


def _representable(fill: float, dtype: np.dtype[np.generic]) -> float | int | bool:
    """Return a number, or for an infinite one the farthest that the type has."""
    if np.isfinite(fill) or dtype.kind not in "iub":
        return fill
    if dtype.kind == "b":
        return fill > 0
    limits = np.iinfo(dtype.name)
    return int(limits.max if fill > 0 else limits.min)
