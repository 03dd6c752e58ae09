"""Gathering, scattering and one-hot."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.opset.adapters import nonnegative_axis, only, positive_axis
from rnnlower.opset.families.shaping import OLD_TEXT
from rnnlower.opset.step import Row, Step

NO_REDUCTION = "the older version only overwrites"
COMPUTED_INDICES = (
    "before opset 11 the indices of Gather must not be negative: computed ones are assumed not to be"
)


def scatter_up(step: Step) -> None:
    """Scatter was renamed."""
    _rename(step, "ScatterElements")


def scatter_down(step: Step) -> None:
    """ScatterElements was called Scatter."""
    step.opset = 10
    _rename(step, "Scatter")


def _rename(step: Step, op_type: str) -> None:
    step.replace(step.op(op_type, step.x(0), step.x(1), step.x(2), axis=step.attr("axis")))


def _may_be_negative(step: Step, indices: ir.Value) -> bool:
    known = step.array(indices)
    if known is not None:
        return bool((known < 0).any())
    dtype = step.known_dtype(indices)
    return dtype.is_signed() or not dtype.is_integer()


def one_hot_up(step: Step) -> None:
    """OneHot-9 ignores a negative index, OneHot-11 counts it from the back."""
    indices = step.x(0)
    if not _may_be_negative(step, indices):
        return
    dtype = step.known_dtype(indices)
    zero = step.const(0, dtype)
    depth = step.cast(step.reshape(step.x(1), []), dtype)
    step.set_input(0, step.op("Where", step.op("Less", indices, zero), depth, indices))


def one_hot_down(step: Step) -> None:
    """OneHot-9 has no negative indices: they are converted before the node."""
    indices = step.x(0)
    if not _may_be_negative(step, indices):
        return
    dtype = step.known_dtype(indices)
    depth = step.cast(step.reshape(step.x(1), []), dtype)
    zero = step.const(0, dtype)
    counted = step.op("Add", indices, depth)
    # An index that is still negative matches nothing; runtimes know this of an index that is too large.
    hit = step.op("Where", step.op("Less", counted, zero), depth, counted)
    step.set_input(0, step.op("Where", step.op("Less", indices, zero), hit, indices))


def gather_down(step: Step) -> None:
    """Constant indices are counted from the front; computed ones are assumed not to be negative."""
    known = step.array(step.x(1))
    if known is None:
        step.note(COMPUTED_INDICES)
        return
    if not bool((known < 0).any()):
        return
    axis, shape = step.attr("axis"), step.shape(step.x(0))
    size = None if shape is None else shape[axis]
    if isinstance(size, int):
        step.set_input(1, step.const(np.where(known < 0, known + size, known), ir.DataType.INT64))
        return
    sizes = step.op("Shape", step.x(0))
    count = step.op("Gather", sizes, step.const(positive_axis(step, axis)), axis=0)
    away = step.const(np.where(known < 0, 1, 0), ir.DataType.INT64)
    indices = step.const(known, ir.DataType.INT64)
    step.set_input(1, step.op("Add", indices, step.op("Mul", away, count)))


ROWS = (
    Row("Gather", 1, 11, "indices may count from the back", down=gather_down),
    Row("Scatter", 9, 11, "renamed to ScatterElements", up=scatter_up),
    Row("ScatterElements", 0, 11, "was called Scatter", down=scatter_down),
    only("ScatterElements ScatterND", 13, 16, "reductions are new", "reduction", ("none",), NO_REDUCTION),
    only(
        "ScatterElements ScatterND",
        16,
        18,
        "max and min are new",
        "reduction",
        ("none", "add", "mul"),
        "max and min are new",
    ),
    only("GatherND", 11, 12, "batch_dims are new", "batch_dims", (0,), "the older version has no batch"),
    Row("Compress", 9, 11, OLD_TEXT, down=nonnegative_axis),
    Row("OneHot", 9, 11, "negative indices count from the back", one_hot_up, one_hot_down),
)
