"""The part of each axis that a Slice takes, as attributes below opset 10, and slices as a sequence."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array, Dim

if TYPE_CHECKING:
    from rnnlower.graph.node_facts import NodeFacts


class AxisSlice(NamedTuple):
    """A part of an axis, which may be counted from the end; the bounds are numbers or symbolic sizes."""

    start: Any
    end: Any
    axis: int
    step: Any

    def is_to_end(self, size: Any = None) -> bool:
        """Return whether the part ends where an axis of this size does; ``None`` for an unknown size."""
        if isinstance(self.end, int):
            return self.end >= (size if isinstance(size, int) else np.iinfo(np.int32).max)
        return self.end is not None and self.end == size

    def is_whole(self, size: Any = None) -> bool:
        """Return whether the part is all of an axis of this size, in the same order."""
        return self.start == 0 and self.step == 1 and self.is_to_end(size)


def axis_slices(
    node: ir.Node | None, read: Callable[[ir.Value | None], Array | None]
) -> list[AxisSlice] | None:
    """Return what a Slice takes of each axis; ``None`` for another operator or an input unknown to `read`."""
    if node is None or node.op_type != "Slice" or node.domain:
        return None
    given: list[Any] = [node.attributes.get_ints(name, ()) for name in ("starts", "ends", "axes")]
    if "starts" not in node.attributes:
        given = [() if value is None else read(value) for value in node.inputs[1:]]
    if any(each is None for each in given):
        return None
    starts, ends, axes, steps = [*(np.reshape(each, -1).tolist() for each in given), [], [], []][:4]
    axes, steps = axes or [*range(len(starts))], steps or [1] * len(starts)
    if len({*map(len, (starts, ends, axes, steps))}) > 1 or not all(isinstance(axis, int) for axis in axes):
        return None
    return [AxisSlice(*each) for each in zip(starts, ends, axes, steps, strict=True)]


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a value along one axis.

    Attributes:
        start: The start of the part; negative if it is counted from the end of an unknown size.
        size: Its length, a number or unknown.
        keeps_axis: Whether the part has the axis.
    """

    whole: ir.Value
    axis: int
    start: int
    size: Any
    keeps_axis: bool


def cut_parts(node: ir.Node, facts: NodeFacts) -> list[Part]:
    """Return the part of one axis that each output of a Gather, Split or Slice is; empty if it is none."""
    whole = node.inputs[0] if node.inputs else None
    dims = facts.dims(whole)
    if whole is None or node.domain or not dims:
        return []
    axis = node.attributes.get_int("axis", 0) % len(dims)
    shapes = [facts.dims(out) or (None,) * len(dims) for out in node.outputs]
    if node.op_type == "Gather":
        index = facts.constant(node.inputs[1])
        if index is None or index.size != 1 or index.ndim > 1:
            return []
        return [Part(whole, axis, _from_start(int(index.item()), dims[axis]), 1, index.ndim == 1)]
    if node.op_type == "Split":
        sizes = [size for shape in shapes if isinstance(size := shape[axis], int)]
        starts = itertools.accumulate(sizes, initial=0) if len(sizes) == len(shapes) else ()
        return [Part(whole, axis, *each, True) for each in zip(starts, sizes, strict=False)]
    given = axis_slices(node, facts.constant) or []
    cuts = [cut for cut in given if len(given) == 1 or shapes[0][cut.axis] != dims[cut.axis]]
    if len(cuts) != 1 or any(cut.step != 1 for cut in given):
        return []
    axis = cuts[0].axis % len(dims)
    return [Part(whole, axis, _from_start(cuts[0].start, dims[axis]), shapes[0][axis], True)]


def _from_start(place: int, size: Dim) -> int:
    return max(place + size, 0) if place < 0 and isinstance(size, int) else place


def keeps_split_axis(node: ir.Node, sizes: Array) -> bool:
    """Return whether the elements of a SplitToSequence keep the axis, given its sizes, or 1 without any.

    onnxruntime drops it also where `split` is a scalar, as PyTorch's exporter expects. By the ONNX spec,
    `keepdims` is ignored then.
    """
    return node.attributes.get_int("keepdims", 1) == 1 or sizes.ndim > 0
