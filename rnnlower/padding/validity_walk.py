"""The walk that makes the valid elements of every value equal to those of the unpadded model.

After each node holds: along every axis whose size follows from a length, the first elements (as many as that
size) are those that the source computes on the unpadded input. The elements after them are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.dynamic_sizes import describe_deciding_option
from rnnlower.graph.operator_kinds import POINTWISE, RESHAPING
from rnnlower.graph.rewiring import remove_orphans, take_place_of
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import LocatedNode, captured_values, default_opset, is_read, operand, required_input
from rnnlower.lowering.emitter import Emitter, Emitters, RuntimeDim
from rnnlower.padding.examples import Examples
from rnnlower.padding.sizes import MIXED_ROWS, ROWS, Axes, NoRuleError, OpenSizeError, Size
from rnnlower.padding.validity import MaskEmitter
from rnnlower.recurrent.finding import shown_names
from rnnlower.wording import dims

Rule: TypeAlias = "Callable[[PadFlow, ir.Node], Axes | list[Axes]]"

CONTROLS: Mapping[str, Sequence[int]] = {
    "Col2Im": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Loop": (0,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3, 4),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
"""Inputs that take the padded size of what is over time; all others take the number of valid steps."""
_OTHER_STEPS = "changes the number of steps in an unsupported way"


class PadFlow(Examples):
    """A walk through the main graph of a model, which it changes to take the valid lengths of its inputs.

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
        self._rules: Mapping[str, Rule] = {}
        # Where the walk is, and the nodes in whose bodies that is, the innermost last.
        self._visited = next(iter(model.graph))
        self._entered: list[ir.Node] = []
        self._replaced: list[ir.Node] = []
        self._filled: dict[tuple[object, ...], ir.Value] = {}
        # Contents that follow from lengths: one for the maximum is not that for a length.
        self._sized: set[ir.Value] = set()
        self._at_length: dict[ir.Value, ir.Value] = {}
        # Contents that are numbers of the valid steps in the result already.
        self._counted: set[ir.Value] = set()

    def run(self, rules: Mapping[str, Rule]) -> PadFlow:
        """Walk to the end, by the rule of each operator.

        Raises:
            UnsupportedModelError: A node does with padding what no rule undoes.
        """
        self._rules = rules
        names = shown_names(self.model)  # Before nodes are added.
        try:
            for node in list(self.model.graph):
                self._visit(node)
            self._check_least()
        except NoRuleError as error:
            raise UnsupportedModelError(
                f"{error}: what it computes at the end of a sequence would depend on the padding",
                node=LocatedNode(self._visited, names[self._visited], "", default_opset(self.model)),
                remedy=describe_deciding_option(self.model, self._visited)
                or (self._describe_open_sizes() if isinstance(error, OpenSizeError) else "")
                or "take this part out of the model, or pad to the length that it always has",
            ) from None
        remove_orphans(out for node in self._replaced for out in node.outputs)
        for value in dict.fromkeys(self.model.graph.outputs):
            if self.is_sized(value):
                self._give_number_of_steps(value)
        return self

    def _give_number_of_steps(self, output: ir.Value) -> None:
        """Make an output that depends on a length use the actual length."""
        if self.rows is not None:
            raise UnsupportedModelError(
                f"output {output.name!r} is a number of steps, which differs from row to row",
                remedy="pad without lengths of rows",
            )
        emitter = self.emitters.at("output", ir.DataType.FLOAT)
        try:
            number = emitter.op("Identity", self._content_at_length(output))
            self.record_origin(number, output)
        except NoRuleError as error:
            raise UnsupportedModelError(
                f"output {output.name!r} follows from the number of steps, and {error}",
                remedy="take it out of the model",
            ) from None
        self.model.graph.extend(emitter.nodes)
        old_name = self.emitters.names.fresh(f"{output.name}_padded")
        take_place_of(number, output, old_name=old_name, readers=())

    # Parts that several rules share.

    def is_fixed(self, value: ir.Value | None) -> bool:
        """Return whether the contents of a value are known, where it is read in the result as well."""
        return (
            value is not None and self.contents(value) is not None and self.origin(value) not in self._counted
        )

    def is_sized(self, value: ir.Value | None) -> bool:
        """Return whether the contents of a value follow from lengths."""
        return value is not None and self.origin(value) in self._sized

    def walk_body(self, node: ir.Node, body: ir.Graph, known: Collection[ir.Node] = ()) -> None:
        """Walk through the body of a node; the axes of its inputs are noted, and those of known nodes."""
        self._entered.append(node)
        for inner in list(body):
            if inner not in known:
                self._visit(inner)
        self._visited = self._entered.pop()

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

    def fill_along(self, node: ir.Node, axes: Sequence[int], fill: float, keeps: bool = True) -> Axes:
        """Fill the padding on these axes; they are no longer over time, or removed unless kept."""
        rank = len(self.shape(node.inputs[0]))
        along = {axis % rank for axis in axes}
        for axis in along & {*self.axes_of(node.inputs[0])}:
            self.fill(node, 0, axis, fill)
        return {
            axis - (0 if keeps else sum(other < axis for other in along)): size
            for axis, size in self.axes_of(node.inputs[0]).items()
            if axis not in along
        }

    def feature_axes(self, node: ir.Node, over: Sequence[int], what: str) -> Axes:
        """Return the axes of an operator along these, none of which may be over time; `what` it would do."""
        rank, axes = len(self.shape(node.inputs[0])), self.axes_of(node.inputs[0])
        if {axis % rank for axis in over} & {*axes} or any(map(self.axes_of, node.inputs[1:])):
            raise NoRuleError(what)
        return axes

    def fill(self, node: ir.Node, index: int, axis: int, fill: float | ir.Value) -> None:
        """Fill the padding of an input on an axis, with a number or a scalar value."""
        value, axes = required_input(node, index), self.axes_of(node.inputs[index])
        key = (value, axis, fill)
        if key not in self._filled:
            emitter = self.emitters.at(f"{value.name}_valid", self.dtype(value))
            mask = self.masks.mask(axes[axis], axis, axes, len(self.shape(value)))
            if not isinstance(fill, ir.Value):
                fill = _clamp_to_type(fill, emitter.dtype.numpy())
            if isinstance(fill, bool):
                # onnxruntime has no Where of booleans.
                made = (
                    emitter.op("Or", value, emitter.op("Not", mask))
                    if fill
                    else emitter.op("And", value, mask)
                )
            else:
                filling = fill if isinstance(fill, ir.Value) else emitter.scalar(fill)
                made = emitter.op("Where", mask, value, filling, since=9)
            made.dtype = emitter.dtype
            # What a body captures is filled once, before the body's node.
            places = (node, self._visited, *self._entered)
            emitter.insert_before(next(each for each in places if each.graph is value.graph))
            self.record_origin(made, value)
            self._filled[key] = made
        node.replace_input_with(index, self._filled[key])

    def fill_positions(self, node: ir.Node, index: int) -> None:
        """Fill positions over time: any number may stand there, and the data has no such position."""
        value = node.inputs[index]
        contents = self.contents(value) or []
        # Positions that count from the first step go on in the padding.
        if not self.is_fixed(value) or not all(
            np.array_equal(part, contents[0][tuple(map(slice, part.shape))]) for part in contents
        ):
            for axis in self.lengths_of(value):
                self.fill(node, index, axis, 0)

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
        self._origins[value] = old

    def emitter_for(self, node: ir.Node) -> Emitter:
        """Return an emitter of nodes next to this one, in the type of its first input."""
        return self.emitters.at(node.outputs[0].name or node.op_type, self.dtype(required_input(node)))

    def _visit(self, node: ir.Node) -> None:
        self._visited = node
        captured = captured_values(node)
        over_time = any(map(self.axes_of, captured)) or any(map(self.is_sized, captured))
        if over_time and node.op_type not in ("Loop", "Scan"):
            raise NoRuleError("has a body that reads values over time")
        controls = () if node.domain else CONTROLS.get(node.op_type, ())
        self._fix_controls(node, controls)
        if self._has_contents(node, controls):
            return
        over_time |= any(map(self.axes_of, node.inputs))
        numbers = [index for index, each in enumerate(node.inputs) if self.is_sized(each)]
        if not over_time and not numbers:
            return
        rule = None if node.domain not in ("", "com.microsoft") else self._rules.get(node.op_type)
        if rule is None:
            raise NoRuleError(f"no rule says what {node.op_type} does to padding")
        for index in numbers:
            # The rule of Gather takes numbers of rows itself.
            if index not in controls and not (self.rows is not None and node.op_type == "Gather"):
                value, number = required_input(node, index), self._operand_at_length(node, index)
                node.replace_input_with(index, number)
                self.record_origin(number, value)
        read = [*map(is_read, node.outputs)]
        has_rows = any(size.symbol == ROWS for each in node.inputs for size in self.axes_of(each).values())
        found = rule(self, node)
        results = found if isinstance(found, list) else [found]
        for index, out in enumerate(node.outputs):
            if read[index] and index >= len(results):
                raise NoRuleError(f"gives {out.name!r}, for which {node.op_type} has no rule")
            if read[index]:
                self._check(out, results[index])
                if has_rows and sum(size.symbol == ROWS for size in results[index].values()) != 1:
                    raise NoRuleError(MIXED_ROWS)

    def _describe_open_sizes(self) -> str:
        """Return which sizes of inputs must be numbers, in words; empty if all are."""
        names = [dim_name(dim) for value in self.model.graph.inputs for dim in value.shape or ()]
        named = {name: 1 for name in names if name is not None and name not in self.least}
        return f"give the other open sizes numbers: {dims(named)}" if named else ""

    def _check(self, out: ir.Value, axes: Axes) -> None:
        """Refuse a size that the rule did not follow."""
        for axis, sizes in enumerate(zip(*self.shapes(out), strict=True)):
            size = axes.get(axis)
            if size is None and not self.varies(out, axis):
                continue
            if size is None:
                raise NoRuleError("makes a length the size of another axis")
            if size.symbol != ROWS and self.is_dynamic(out, axis):
                raise OpenSizeError(
                    "makes an axis whose size follows from a length and from another open size"
                )
            if not size.fits(self._lengths, sizes) or not self.fits_short(size, out, axis):
                raise NoRuleError(_OTHER_STEPS)
        # An axis that every sequence fills has no padding.
        self.axes[out] = {axis: size for axis, size in axes.items() if not self._is_constant(size)}
        self._sizes |= set(self.axes[out].values())

    def _check_least(self) -> None:
        """Refuse a size that is another one at the least lengths: they may be no examples."""
        for node in self.unlike_at_least():
            self._visited = node
            raise NoRuleError(_OTHER_STEPS)

    def _is_constant(self, size: Size) -> bool:
        return size.symbol != ROWS and len({*size.table[self.least[size.symbol] :]}) == 1

    def _has_contents(self, node: ir.Node, controls: Sequence[int]) -> bool:
        """Return whether the contents of a node's outputs follow from constants and sizes, and note them."""
        operands = [
            each for index, each in enumerate(node.inputs) if each is not None and index not in controls
        ]
        reads_counted = any(self.origin(each) in self._counted for each in operands)
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
                if axes := self.varying_axes(out):
                    self.axes[out] = axes
            elif is_prefix or (node.op_type not in ("Shape", "Size") and any(map(self.axes_of, node.inputs))):
                # An operator on known steps combines the valid ones alone.
                self._counted.update(node.outputs)
                return False
            elif not self._takes_part(node, index):
                self._sized.add(out)
                if any(each is not None and self.origin(each) in self._counted for each in node.inputs):
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
            return value
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
        if all(each == int(each) for each in numbers):
            try:
                dtype = ir.DataType.from_numpy(contents[0].dtype)
                return self.masks.count(self.size_in(value, 0), dtype)
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
                part = self.masks.steps_from(emitter, value, axis, begin, range(size.full), size.full)
                self.replace(node, part, emitter, index)
                return True
        return False

    def _emit_again(self, emitter: Emitter, value: ir.Value, node: ir.Node) -> ir.Value:
        """Emit a copy of a value's node that reads contents at the length."""
        inputs = [None if each is None else self._content_at_length(each) for each in node.inputs]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        made = emitter.ops(node.op_type, *inputs, outputs=len(node.outputs), **attributes)
        return made[node.outputs.index(value)]


def _clamp_to_type(fill: float, dtype: np.dtype[np.generic]) -> float | int | bool:
    """Return a number; in a type without infinities, an infinite one becomes the extreme of the type."""
    if dtype.kind == "b":
        return fill > 0
    if np.isfinite(fill) or dtype.kind not in "iu":
        return fill
    limits = np.iinfo(dtype.name)
    return int(limits.max if fill > 0 else limits.min)
