"""The part of each axis that a Slice takes, as attributes below opset 10, and slices as a sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array


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


def keeps_split_axis(node: ir.Node, sizes: Array) -> bool:
    """Return whether the elements of a SplitToSequence keep the axis, given its sizes, or 1 without any.

    onnxruntime drops it also where `split` is a scalar, as PyTorch's exporter expects. By the ONNX spec,
    `keepdims` is ignored then.
    """
    return node.attributes.get_int("keepdims", 1) == 1 or sizes.ndim > 0
