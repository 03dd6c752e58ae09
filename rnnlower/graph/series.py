"""Values along an axis: split, stacked and joined by nodes that are inserted before another one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource

_FAN_IN = 64


class SeriesWriter:
    """A writer of nodes that are inserted before another one, and named after it.

    Args:
        names: Source of fresh names.
        pool: Makes constants.
        opset: The model's opset.
    """

    def __init__(self, names: NameSource, pool: InitializerPool, opset: int) -> None:
        self._names = names
        self._pool = pool
        self._opset = opset

    def slices(self, node: ir.Node, value: ir.Value, count: int, axis: int) -> list[ir.Value]:
        """Return the `count` slices of a value along an axis, without the axis."""
        return [self._with_axes(node, "Squeeze", part, axis) for part in self.split(node, value, count, axis)]

    def split(self, node: ir.Node, value: ir.Value, count: int, axis: int) -> Sequence[ir.Value]:
        """Return the `count` equal parts of a value along an axis."""
        if count < 2:
            return [value] * count
        attributes: dict[str, int | list[int]] = {"axis": axis}
        if self._opset >= 18:
            attributes["num_outputs"] = count
        return self._emit(node, "Split", [value], attributes, outputs=count)

    def split_into(
        self, node: ir.Node, value: ir.Value, sizes: Sequence[int], axis: int
    ) -> Sequence[ir.Value]:
        """Return the parts of a value along an axis that have the given sizes."""
        if len(sizes) < 2:
            return [value] * len(sizes)
        if self._opset < 13:
            return self._emit(node, "Split", [value], {"axis": axis, "split": [*sizes]}, outputs=len(sizes))
        inputs = [value, self._pool.integers(tuple(sizes))]
        return self._emit(node, "Split", inputs, {"axis": axis}, outputs=len(sizes))

    def stack(self, node: ir.Node, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        """Return the values along a new axis."""
        return self.join(node, [self._with_axes(node, "Unsqueeze", part, axis) for part in parts], axis)

    def join(self, node: ir.Node, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        """Return the values one after the other along an axis."""
        # A Concat of thousands of inputs takes runtimes long to load.
        while len(parts) > 1:
            groups = [parts[first : first + _FAN_IN] for first in range(0, len(parts), _FAN_IN)]
            parts = [
                self._emit(node, "Concat", group, {"axis": axis})[0] if len(group) > 1 else group[0]
                for group in groups
            ]
        return parts[0]

    def number(self, number: int) -> ir.Value:
        """Return a constant of type int64 without axes."""
        return self._pool.of(ir.Tensor(np.array(number, np.int64)))

    def _with_axes(self, node: ir.Node, op_type: str, value: ir.Value, axis: int) -> ir.Value:
        if self._opset < 13:
            return self._emit(node, op_type, [value], {"axes": [axis]})[0]
        return self._emit(node, op_type, [value, self._pool.integers((axis,))], {})[0]

    def _emit(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value],
        attributes: dict[str, int | list[int]],
        outputs: int = 1,
    ) -> Sequence[ir.Value]:
        graph = node.graph
        assert graph is not None
        name = self._names.fresh(f"{node.name or node.outputs[0].name}/{op_type}")
        made = ir.node(op_type, inputs, attributes, num_outputs=outputs, name=name)
        for out in made.outputs:
            out.name = self._names.fresh(name)
        graph.insert_before(node, made)
        return made.outputs
