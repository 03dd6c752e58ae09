"""The walk that makes the valid elements of every value equal to those of the unpadded model.

After each node holds: along every axis whose size follows from a length, the first elements (as many as that
size) are those that the source computes on the unpadded input. The elements after them are unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.dynamic_sizes import describe_deciding_inputs
from rnnlower.graph.walk import captured_values, is_read, operand
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.sizes import ROWS, Axes, NoRuleError, Size, add_axis
from rnnlower.padding.validity import Validity
from rnnlower.timeflow.flow import locate

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
    "Upsample": (1,),
}
"""Inputs that are read as shapes and positions: there a size is the maximum; as a number it is the length."""

_PICK_STEPS = ("Gather",)
"""Their rules take numbers of rows themselves."""


class PadFlow(Validity):
    """A walk through the main graph of a model, which it changes."""

    def run(self) -> PadFlow:
        """Walk to the end.

        Raises:
            UnsupportedModelError: A node does with padding what no rule undoes.
        """
        for node in list(self.model.graph):
            try:
                self._visit(node)
            except NoRuleError as error:
                decided = describe_deciding_inputs(self.model, node.inputs[0]) if node.op_type == "If" else ""
                raise UnsupportedModelError(
                    f"{error}: what it computes at the end of a sequence would depend on the padding",
                    node=locate(self.model, node),
                    remedy=decided
                    or "take this part out of the model, or pad to the length that it always has",
                ) from None
        self.remove_replaced()
        outputs = self.model.graph.outputs
        for index, value in enumerate(outputs):
            if self.origin(value) in self._sized:
                if self.rows is not None:
                    raise UnsupportedModelError(
                        f"output {value.name!r} is a number of steps, which differs from row to row",
                        remedy="pad without lengths of rows",
                    )
                emitter = self._emitter("output")
                number = emitter.op("Identity", self.content_at_length(value))
                self.model.graph.extend(emitter.nodes)
                name, value.name = value.name, self._names.fresh(f"{value.name}_padded")
                number.name, number.type, number.shape = name, value.type, value.shape
                outputs[index] = number
        return self

    # Parts that several rules share.

    def broadcast(self, node: ir.Node, indices: Sequence[int]) -> Axes:
        """Return the axes of operands that are aligned at their ends."""
        axes, rank = dict[int, Size](), len(self.shape(node.outputs[0]))
        for index in indices:
            value = node.inputs[index]
            for axis, size in self.axes_of(value).items():
                add_axis(axes, rank - len(self.shape(value)) + axis, size)
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

    def emit_min(self, emitter: Emitter, one: ir.Value, other: ir.Value) -> ir.Value:
        """Emit the minimum of positions, for which old opsets have no Min."""
        return emitter.op("Where", emitter.op("Less", one, other, since=9), one, other)

    def emit_max(self, emitter: Emitter, one: ir.Value, other: ir.Value) -> ir.Value:
        """Emit the maximum of positions."""
        return emitter.op("Where", emitter.op("Less", one, other, since=9), other, one)

    def _visit(self, node: ir.Node) -> None:
        from rnnlower.padding.padding_rules import RULES

        if any(self.axes_of(each) or self.origin(each) in self._sized for each in captured_values(node)):
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
            if index not in controls and not (self.rows is not None and node.op_type in _PICK_STEPS):
                value, number = self.operand(node, index), self.operand_at_length(node, index)
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
                if has_rows and all(size.symbol != ROWS for size in results[index].values()):
                    raise NoRuleError("combines rows, each of which has a length of its own")

    def _check(self, out: ir.Value, axes: Axes) -> None:
        """Refuse a size that the rule did not follow."""
        for axis, sizes in enumerate(zip(*self.shapes(out), strict=True)):
            size = axes.get(axis)
            if size is None and len(set(sizes)) == 1:
                continue
            if size is None:
                raise NoRuleError("makes a length the size of another axis")
            if not size.fits(self._lengths, sizes):
                raise NoRuleError("changes the number of steps in an unsupported way")
        # An axis that every sequence fills has no padding.
        self.axes[out] = {axis: size for axis, size in axes.items() if not self._is_constant(size)}
        self._sizes |= set(self.axes[out].values())

    def _is_constant(self, size: Size) -> bool:
        return size.symbol != ROWS and len({*size.table[self.least[size.symbol] :]}) == 1

    def _has_contents(self, node: ir.Node) -> bool:
        """Return whether the contents of a node's outputs follow from constants and sizes, and note them."""
        for out in node.outputs:
            contents = self.contents(out)
            if contents is None:
                return False
            full = contents[0]
            # Where one number is the same for all examples, it may not be for a short sequence.
            contents = [*contents, *self.short_contents(out)]
            prefixes = [
                full[tuple(map(slice, each.shape))] if each.ndim == full.ndim else None for each in contents
            ]
            if all(a is not None and np.array_equal(a, b) for a, b in zip(prefixes, contents, strict=True)):
                if axes := self.varying_axes(out):
                    self.axes[out] = axes
            elif node.op_type not in ("Shape", "Size") and any(map(self.axes_of, node.inputs)):
                # An operator on known steps combines the valid ones alone.
                self._ruled.update(node.outputs)
                return False
            else:
                self._sized.add(out)
                if any(each is not None and self.origin(each) in self._ruled for each in node.inputs):
                    self._ruled.add(out)
        return True

    def _fix_controls(self, node: ir.Node, controls: Sequence[int]) -> None:
        """Turn shapes and positions that follow from the number of steps into constants."""
        for index in controls:
            value = operand(node, index)
            if value is None or self.origin(value) not in self._ruled:
                continue
            contents, other = self.contents(value), self._other.constant(self.origin(value))
            if contents is None or other is None or not np.array_equal(contents[0], other):
                raise NoRuleError("takes a shape from a number of steps and from another open size")
            emitter = self.emitter_for(node)
            constant = emitter.constant(contents[0])
            self.record_origin(constant, value)
            node.replace_input_with(index, constant)
