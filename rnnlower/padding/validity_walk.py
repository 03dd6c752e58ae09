"""The walk that makes the valid elements of every value equal to those of the unpadded model.

After each node holds: along every axis whose size follows from a length, the first elements (as many as that
size) are those that the source computes on the unpadded input. The elements after them are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.dynamic_sizes import describe_deciding_option
from rnnlower.graph.rewiring import remove_orphans, take_place_of
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import LocatedNode, captured_values, default_opset, is_read, required_input
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.contents import LengthContents
from rnnlower.padding.sizes import (
    MIXED_ROWS,
    OPEN_PRODUCT,
    REPEATED,
    ROWS,
    Axes,
    Fold,
    NoRuleError,
    OpenSizeError,
    Size,
)
from rnnlower.recurrent.finding import shown_names
from rnnlower.wording import dims

Rule: TypeAlias = "Callable[[PadFlow, ir.Node], Axes | list[Axes]]"

CONTROLS: Mapping[str, Sequence[int]] = {
    **dict.fromkeys(("Col2Im", "Expand", "Reshape", "Split", "Tile", "TopK", "Upsample"), (1,)),
    **dict.fromkeys(("ConstantOfShape", "Loop"), (0,)),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    **dict.fromkeys(("Resize", "Slice"), (1, 2, 3, 4)),
}
"""Inputs that take the padded size of what is over time; all others take the number of valid steps."""
_OTHER_STEPS = "changes the number of steps in an unsupported way"


class PadFlow(LengthContents):
    """A walk through the main graph of a model, which it changes to take the valid lengths of its inputs.

    Args:
        model, maxima, inputs, by_mask, rows: As in `LengthContents`.
    """

    def run(self, rules: Mapping[str, Rule]) -> PadFlow:
        """Walk to the end, by the rule of each operator.

        Raises:
            UnsupportedModelError: A node does with padding what no rule undoes.
        """
        self._rules = rules
        # Where the walk is, and the nodes in whose bodies that is, the innermost last.
        self._visited = next(iter(self.model.graph))
        self._entered: list[ir.Node] = []
        self._filled: dict[tuple[object, ...], ir.Value] = {}
        names = shown_names(self.model)  # Before nodes are added.
        try:
            for node in list(self.model.graph):
                self._visit(node)
            self._check_least()
            self._check_outputs()
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

    def walk_body(self, node: ir.Node, body: ir.Graph, known: Collection[ir.Node] = ()) -> None:
        """Walk through the body of a node; the axes of its inputs are noted, and those of known nodes."""
        self._entered.append(node)
        for inner in list(body):
            if inner not in known:
                self._visit(inner)
        self._visited = self._entered.pop()

    def fill_along(self, node: ir.Node, axes: Sequence[int], fill: float, keeps: bool = True) -> Axes:
        """Fill the padding on these axes; they are no longer over time, or removed unless kept."""
        rank = len(self.shape(node.inputs[0]))
        along = {axis % rank for axis in axes}
        for axis in along & {*self.axes_of(node.inputs[0])}:
            self.require(self.axes_of(node.inputs[0])[axis], 1)  # Means of nothing differ.
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
            made = self._filled[key] = _emit_filled(emitter, mask, value, fill)
            # What a body captures is filled once, before the body's node.
            places = (node, self._visited, *self._entered)
            emitter.insert_before(next(each for each in places if each.graph is value.graph))
            self.record_origin(made, value)
        node.replace_input_with(index, self._filled[key])

    def fill_elements(self, node: ir.Node, index: int, fill: float) -> None:
        """Fill the padding of an input on all axes, for an operator that takes each element by itself."""
        for axis in self.lengths_of(node.inputs[index]):
            self.fill(node, index, axis, fill)
        for axis, fold in self.folds_of(node.inputs[index]).items():
            if fold == REPEATED:
                continue
            value, counts = required_input(node, index), [each.static_count for each in fold.factors]
            if value.graph is not node.graph or counts.count(None) > 1:
                fold.refuse_rows()
            emitter = self.emitters.at(f"{value.name}_valid", self.dtype(value))
            others = self.sizes(
                emitter, value, (each for each in range(len(self.shape(value))) if each != axis)
            )
            outer, inner = others[:axis], others[axis:]
            unfolded = [*outer, *(-1 if each is None else each for each in counts), *inner]
            filled = emitter.reshape(value, unfolded)
            axes = {
                axis + place: each.size for place, each in enumerate(fold.factors) if each.size is not None
            }
            for place, size in axes.items():
                if size.symbol != ROWS:
                    mask = self.masks.mask(size, place, axes, len(unfolded))
                    filled = _emit_filled(emitter, mask, filled, fill)
            made = emitter.reshape(filled, [*outer, -1, *inner])
            made.dtype = emitter.dtype
            emitter.insert_before(node)
            self.record_origin(made, value)
            node.replace_input_with(index, made)

    def fill_positions(self, node: ir.Node, index: int) -> None:
        """Fill positions over time: any number may stand there, and the data has no such position."""
        value = node.inputs[index]
        contents = self.contents(value) or []
        # Positions that count from the first step go on in the padding.
        if not self.is_fixed(value) or not all(
            np.array_equal(part, contents[0][tuple(map(slice, part.shape))]) for part in contents
        ):
            self.fill_elements(node, index, 0)

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
        self._check_folds(node)
        has_rows = any(size.has_rows for each in node.inputs for size in self.axes_of(each).values())
        found = rule(self, node)
        results = found if isinstance(found, list) else [found]
        for index, out in enumerate(node.outputs):
            if read[index] and index >= len(results):
                raise NoRuleError(f"gives {out.name!r}, for which {node.op_type} has no rule")
            if read[index]:
                self._check(out, results[index])
                if has_rows and sum(size.has_rows for size in results[index].values()) != 1:
                    raise NoRuleError(MIXED_ROWS)

    def _check_folds(self, node: ir.Node) -> None:
        """Refuse a node that combines rows into which time is folded with other ones."""
        read = [
            (size, self.shape(value)[axis])
            for value in node.inputs
            if value is not None
            for axis, size in self.axes_of(value).items()
            if size != REPEATED
        ]
        for fold, count in read:
            if isinstance(fold, Fold) and any(size != fold and other == count for size, other in read):
                fold.refuse_rows()

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
                raise OpenSizeError(OPEN_PRODUCT)
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

    def _check_outputs(self) -> None:
        """Refuse outputs of rows into which time is folded."""
        for value in self.model.graph.outputs:
            self._visited = self.origin(value).producer() or self._visited
            if self.folds_of(value):
                raise OpenSizeError("returns steps that are folded with another axis")

    def _is_constant(self, size: Size) -> bool:
        return size.symbol != ROWS and len({*size.table[self.least[size.symbol] :]}) == 1


def _emit_filled(emitter: Emitter, mask: ir.Value, value: ir.Value, fill: float | ir.Value) -> ir.Value:
    """Emit a value in which a number, or a scalar value, stands where a mask is false."""
    if not isinstance(fill, ir.Value):
        fill = _clamp_to_type(fill, emitter.dtype.numpy())
    if isinstance(fill, bool):
        # onnxruntime has no Where of booleans.
        made = emitter.op("Or", value, emitter.op("Not", mask)) if fill else emitter.op("And", value, mask)
    else:
        filling = fill if isinstance(fill, ir.Value) else emitter.scalar(fill)
        made = emitter.op("Where", mask, value, filling, since=9)
    made.dtype = emitter.dtype
    return made


def _clamp_to_type(fill: float, dtype: np.dtype[np.generic]) -> float | int | bool:
    """Return a number; in a type without infinities, an infinite one becomes the extreme of the type."""
    if dtype.kind == "b":
        return fill > 0
    if np.isfinite(fill) or dtype.kind not in "iu":
        return fill
    limits = np.iinfo(dtype.name)
    return int(limits.max if fill > 0 else limits.min)
