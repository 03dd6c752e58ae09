"""Contents that follow from the lengths of sequences, as a padded model computes them for the actual ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.operator_kinds import POINTWISE, RESHAPING
from rnnlower.graph.rewiring import take_place_of
from rnnlower.graph.walk import operand, required_input
from rnnlower.lowering.emitter import Emitter, Emitters, RuntimeDim
from rnnlower.padding.sized_axes import SizedAxes
from rnnlower.padding.sizes import ROWS, Axes, NoRuleError, OpenSizeError, Size
from rnnlower.padding.validity import MaskEmitter


class LengthContents(SizedAxes):
    """The values of a model that is padded, and what numbers of steps in it are at the actual lengths.

    Args:
        model, maxima, inputs: As in `Examples`.
        by_mask: Whether the caller gives masks instead of lengths.
        rows: The axis of rows of each input that has one, if each row has a length of its own.

    Attributes:
        masks: The masks and counts of the valid elements.
    """

    def __init__(
        self,
        model: ir.Model,
        maxima: Mapping[str, int],
        inputs: Mapping[str, Mapping[int, str]],
        *,
        by_mask: bool,
        rows: Mapping[str, int],
    ) -> None:
        super().__init__(model, maxima, inputs)
        self.rows: Size | None = None
        row_dim: int | ir.SymbolicDim = 1
        for value in model.graph.inputs:
            axis = rows.get(str(value.name))
            if axis is not None and value.shape is not None:
                row_dim = value.shape[axis]
                self.rows = Size.of(ROWS, self.shape(value)[axis])
                self.axes.setdefault(value, {})[axis] = self.rows
        self.emitters = Emitters(model)
        given: dict[str, ir.Value] = {}
        for symbol, maximum in maxima.items():
            word = "mask" if by_mask else "length"
            name = self.emitters.names.fresh(word if len(maxima) == 1 else f"{word}_{symbol}")
            kind = ir.TensorType(ir.DataType.FLOAT if by_mask else ir.DataType.INT64)
            shape = ir.Shape([row_dim, maximum] if by_mask else [row_dim])
            given[symbol] = ir.Value(name=name, type=kind, shape=shape)
        model.graph.inputs.extend(given.values())
        self.masks = MaskEmitter(self.emitters, next(iter(model.graph)), given, self.rows, by_mask=by_mask)
        self._replaced: list[ir.Node] = []
        self._replacements: dict[ir.Value, ir.Value] = {}
        # Contents that follow from lengths: one for the maximum is not that for a length.
        self._sized: set[ir.Value] = set()
        self._at_length: dict[ir.Value, ir.Value] = {}
        # Contents that are numbers of the valid steps in the result already.
        self._counted: set[ir.Value] = set()

    def is_fixed(self, value: ir.Value | None) -> bool:
        """Return whether the contents of a value are known, where it is read in the result as well."""
        return (
            value is not None and self.contents(value) is not None and self.origin(value) not in self._counted
        )

    def is_sized(self, value: ir.Value | None) -> bool:
        """Return whether the contents of a value follow from lengths."""
        return value is not None and self.origin(value) in self._sized

    def sizes(self, emitter: Emitter, value: ir.Value, axes: Iterable[int]) -> list[RuntimeDim]:
        """Return the sizes of axes in the result: numbers, or values where the caller chooses them."""
        shape = self.shape(value)
        return [emitter.dim(value, axis) if self.is_dynamic(value, axis) else shape[axis] for axis in axes]

    def broadcast(self, node: ir.Node, indices: Sequence[int]) -> Axes:
        """Return the axes of operands that are aligned at their ends."""
        axes, rank = dict[int, Size](), len(self.shape(node.outputs[0]))
        for index in indices:
            value = node.inputs[index]
            for axis, size in self.axes_of(value).items():
                self.add_axis(axes, rank - len(self.shape(value)) + axis, size)
        return axes

    def replace(self, node: ir.Node, value: ir.Value, emitter: Emitter, index: int = 0) -> None:
        """Replace a node's output by a value; the nodes emitted for it follow the node."""
        self._replaced.append(node)
        old = node.outputs[index]
        value.type = old.type
        readers = [use for use in old.uses() if use.node not in emitter.nodes]
        emitter.insert_after(node)
        if old.is_graph_output():
            take_place_of(value, old, old_name=self.emitters.names.fresh(f"{old.name}_padded"), readers=())
        for reader, place in readers:
            reader.replace_input_with(place, value)
        self._origins[value], self._replacements[old] = old, value

    def emitter_for(self, node: ir.Node) -> Emitter:
        """Return an emitter of nodes next to this one, in the type of its first input."""
        return self.emitters.at(node.outputs[0].name or node.op_type, self.dtype(required_input(node)))

    def _has_contents(self, node: ir.Node, controls: Sequence[int]) -> bool:
        """Return whether the contents of a node's outputs follow from constants and sizes, and note them."""
        operands = [
            each for index, each in enumerate(node.inputs) if each is not None and index not in controls
        ]
        takes_shape = node.op_type in ("Shape", "Size")  # That of all elements, whatever they are.
        reads_counted = not takes_shape and any(self.origin(each) in self._counted for each in operands)
        for index, out in enumerate(node.outputs):
            contents = self.contents(out)
            if contents is None:
                return False
            full = contents[0]
            # Where one number is the same for all examples, it may not be for a short sequence.
            contents = [*contents, *self.short_contents(out)]
            prefixes = [
                full[tuple(map(slice, each.shape))] if each.ndim == full.ndim else None for each in contents
            ]
            is_prefix = all(
                a is not None and np.array_equal(a, b) for a, b in zip(prefixes, contents, strict=True)
            )
            if is_prefix and not reads_counted:
                if axes := self.varying_axes(out, is_repeated=np.unique(full).size == 1):
                    self.axes[out] = axes
            elif is_prefix or (not takes_shape and any(map(self.axes_of, node.inputs))):
                # An operator on known steps combines the valid ones alone.
                self._counted.update(node.outputs)
                return False
            elif not self._takes_part(node, index):
                self._sized.add(out)
                if reads_counted:
                    self._counted.add(out)
        return True

    def _fix_controls(self, node: ir.Node, controls: Sequence[int]) -> None:
        """Turn shapes and positions that follow from the number of steps into constants."""
        for index in controls:
            value = operand(node, index)
            if value is None or self.origin(value) not in self._counted:
                continue
            contents = self.contents(value)
            if contents is None or self.follows_from_other_sizes(value):
                raise OpenSizeError("takes a shape from a number of steps and from another open size")
            emitter = self.emitter_for(node)
            constant = emitter.constant(contents[0])
            self.record_origin(constant, value)
            node.replace_input_with(index, constant)

    def _content_at_length(self, value: ir.Value) -> ir.Value:
        """Return content that follows from sizes as it is for the actual length, not for the maximum.

        If each row has a length, the value is one of ``[rows]`` instead of a single number.
        """
        value = self.origin(value)
        if value not in self._sized:
            return self._replacements.get(value, value)
        node = value.producer()
        if value not in self._at_length and node is not None:
            emitter = self.emitters.at(f"{value.name}_of_length", ir.DataType.FLOAT)
            if self.rows is not None:
                self._at_length[value] = self._number_of_rows(emitter, value, node)
            elif len(set(self.shapes(value))) > 1:
                raise NoRuleError(f"reads {value.name!r}, each element of which changes with the length")
            elif node.op_type == "Shape":
                self._at_length[value] = self._shape_of_length(emitter, node)
            elif node.op_type == "Size":
                shape = self._shape_of_length(emitter, node)
                self._at_length[value] = emitter.op("ReduceProd", shape, keepdims=0)
            else:
                self._at_length[value] = self._emit_again(emitter, value, node)
            emitter.insert_after(node)
        return self._at_length[value]

    def _operand_at_length(self, node: ir.Node, index: int) -> ir.Value:
        """Return an input's content at the length, shaped to broadcast."""
        value = required_input(node, index)
        if self.rows is None:
            return self._content_at_length(value)
        if node.op_type not in POINTWISE:
            raise NoRuleError(f"computes with {value.name!r}, which differs from row to row")
        rank = len(self.shape(node.outputs[0]))
        axes = self.broadcast(node, range(len(node.inputs)))
        emitter = self.emitter_for(node)
        placed = self.masks.per_row(emitter, self._content_at_length(value), axes, rank)
        emitter.insert_before(node)
        return placed

    def _number_of_rows(self, emitter: Emitter, value: ir.Value, node: ir.Node) -> ir.Value:
        contents = self.contents(value) or []
        if any(each.size != 1 for each in contents):
            raise NoRuleError(f"reads {value.name!r}, several numbers that differ from row to row")
        numbers = [each.item() for each in contents]
        if all(each == int(each) for each in numbers) and not self.follows_from_other_sizes(value):
            try:
                dtype = ir.DataType.from_numpy(contents[0].dtype)
                return self.masks.count(self.size_in(value), dtype)
            except NoRuleError:
                pass
        operands = [each for each in node.inputs if each is not None]
        if node.op_type in RESHAPING | {"Identity"}:
            return self._content_at_length(operands[0])
        if node.op_type not in POINTWISE or any(math.prod(self.shape(each)) != 1 for each in operands):
            raise NoRuleError(f"reads {value.name!r}, which differs from row to row")
        return self._emit_again(emitter, value, node)

    def _shape_of_length(self, emitter: Emitter, node: ir.Node) -> ir.Value:
        source = required_input(node)
        axes, start = self.axes_of(source), node.attributes.get_int("start", 0)
        places = range(len(self.shape(source)))[start : node.attributes.get_int("end")]
        return emitter.size_vector(
            [
                self.masks.count(axes[axis]) if axis in axes else self.sizes(emitter, source, [axis])[0]
                for axis in places
            ]
        )

    def _takes_part(self, node: ir.Node, index: int) -> bool:
        """Replace content over time by its part for the length, and return whether it is one.

        It is the end of that at the maximum where steps are counted down, and its middle where distances are.
        """
        value = node.outputs[index]
        contents = [*(self.contents(value) or []), *self.short_contents(value)]
        if len({each.shape for each in contents}) == 1 or self.rows is not None:
            return False
        axes = self.varying_axes(value)
        axis, size = next(iter(axes.items()))
        counts = [each.shape[axis] for each in contents]
        for divisor in (1, 2):
            begins = ((size.full - count) // divisor for count in counts)
            places = (range(begin, begin + count) for begin, count in zip(begins, counts, strict=True))
            if all(map(np.array_equal, (contents[0].take(each, axis) for each in places), contents)):
                begin = size.with_table((size.full - each) // divisor for each in size.table)
                self.axes[value] = axes
                self._counted.add(value)
                emitter = self.emitters.at(f"{value.name}_of_length", self.dtype(value))
                part = self.masks.steps_from(
                    emitter, value, axis, axes, begin, range(size.full), contents[0].ndim
                )
                self.replace(node, part, emitter, index)
                return True
        return False

    def _emit_again(self, emitter: Emitter, value: ir.Value, node: ir.Node) -> ir.Value:
        """Emit a copy of a value's node that reads contents at the length."""
        inputs = [None if each is None else self._content_at_length(each) for each in node.inputs]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        made = emitter.ops(node.op_type, *inputs, outputs=len(node.outputs), **attributes)
        return made[node.outputs.index(value)]
