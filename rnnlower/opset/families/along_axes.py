"""Operators along an axis: gathering, scattering, one-hot; reductions, ArgMax, ArgMin; Softmax and its kin.

Up to opset 12, Softmax, LogSoftmax and Hardmax normalize over all dimensions from `axis` on; from 13 on, over
one.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.opset.adapters import (
    Adapter,
    Row,
    nonnegative_axes,
    nonnegative_axis,
    only,
    positive_axis,
    refuse_unless,
)
from rnnlower.opset.families.shaping import NO_NEGATIVE_AXES, to_input
from rnnlower.opset.step import VersionStep

NO_REDUCTION = "the older version only overwrites"
COMPUTED_INDICES = (
    "before opset 11 the indices of Gather must not be negative: computed ones are assumed not to be"
)


def scatter_up(step: VersionStep) -> None:
    """Scatter was renamed."""
    _rename(step, "ScatterElements")


def scatter_down(step: VersionStep) -> None:
    """ScatterElements was called Scatter."""
    step.opset = 10
    _rename(step, "Scatter")


def _rename(step: VersionStep, op_type: str) -> None:
    inputs = (step.required_input(position) for position in range(3))
    step.replace(step.op(op_type, *inputs, axis=step.attr("axis")))


def _may_be_negative(step: VersionStep, indices: ir.Value) -> bool:
    known = step.array(indices)
    if known is not None:
        return bool((known < 0).any())
    dtype = step.known_dtype(indices)
    return dtype.is_signed() or not dtype.is_integer()


def one_hot_up(step: VersionStep) -> None:
    """OneHot-9 ignores a negative index, OneHot-11 counts it from the back."""
    indices = step.required_input(0)
    if not _may_be_negative(step, indices):
        return
    dtype = step.known_dtype(indices)
    zero = step.const(0, dtype)
    depth = step.cast(step.reshape(step.required_input(1), []), dtype)
    step.set_input(0, step.op("Where", step.op("Less", indices, zero), depth, indices))


def one_hot_down(step: VersionStep) -> None:
    """OneHot-9 has no negative indices: they are converted before the node."""
    indices = step.required_input(0)
    if not _may_be_negative(step, indices):
        return
    dtype = step.known_dtype(indices)
    depth = step.cast(step.reshape(step.required_input(1), []), dtype)
    zero = step.const(0, dtype)
    counted = step.op("Add", indices, depth)
    # An index that is still negative matches nothing; runtimes know this of an index that is too large.
    hit = step.op("Where", step.op("Less", counted, zero), depth, counted)
    step.set_input(0, step.op("Where", step.op("Less", indices, zero), hit, indices))


def gather_down(step: VersionStep) -> None:
    """Constant indices are counted from the front; computed ones are assumed not to be negative."""
    known = step.array(step.required_input(1))
    if known is None:
        step.note(COMPUTED_INDICES)
        return
    if not bool((known < 0).any()):
        return
    axis, shape = step.attr("axis"), step.shape(step.required_input(0))
    size = None if shape is None else shape[axis]
    if isinstance(size, int):
        step.set_input(1, step.const(np.where(known < 0, known + size, known), ir.DataType.INT64))
        return
    sizes = step.op("Shape", step.required_input(0))
    count = step.op("Gather", sizes, step.const(positive_axis(step, axis)), axis=0)
    away = step.const(np.where(known < 0, 1, 0), ir.DataType.INT64)
    indices = step.const(known, ir.DataType.INT64)
    step.set_input(1, step.op("Add", indices, step.op("Mul", away, count)))


LATER = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare"
)
ALL = f"ReduceSum {LATER}"

# The effect of a reduction over no axes on each element.
WITHOUT_AXES = {"ReduceL1": "Abs", "ReduceL2": "Abs", "ReduceLogSum": "Log"}


def axes_down(step: VersionStep) -> None:
    """Constant axes become an attribute; over no axes at all only the elementwise part is left."""
    reason = "its axes are not constant, the older version needs an attribute"
    axes = None if step.input(1) is None else step.known_ints(step.input(1), reason)
    if not axes and step.attr("noop_with_empty_axes"):
        _elementwise(step)
        return
    step.drop("noop_with_empty_axes")
    step.set_inputs(step.required_input())
    if axes:
        step.set("axes", axes)


def _elementwise(step: VersionStep) -> None:
    op_type, x = step.node.op_type, step.required_input()
    if op_type == "ReduceSumSquare":
        step.replace(step.op("Mul", x, x))
    else:
        step.replace(step.op(WITHOUT_AXES.get(op_type, "Identity"), x))


def of_booleans(step: VersionStep) -> None:
    """The maximum of booleans is the maximum as integers; of an empty tensor it is False."""
    if step.dtype(step.required_input()) == ir.DataType.BOOL:
        zero = step.const(0, ir.DataType.INT32)
        step.set_input(0, step.cast(step.required_input(), ir.DataType.INT32))
        step.wrap_output(0, lambda y: step.op("Greater", y, zero), raw_dtype=ir.DataType.INT32)


def not_of_integers(step: VersionStep) -> None:
    """The newer version takes floating point only."""
    dtype = step.known_dtype(step.required_input())
    if dtype.is_integer():
        step.refuse("its input is an integer tensor, and the newer version takes floating point only")


def one_dimension_up(step: VersionStep) -> None:
    """Over the last dimension both are the same; otherwise the tensor is reshaped to a matrix and back."""
    axis, rank, x = step.attr("axis"), step.rank(step.required_input()), step.required_input()
    if axis == -1 or (rank is not None and axis == rank - 1):
        step.set("axis", -1)
        return
    step.set_input(0, step.op("Flatten", x, axis=axis))
    step.set("axis", -1)
    shape = step.op("Shape", x)
    step.wrap_output(0, lambda y: step.reshape(y, shape))


def one_dimension_down(step: VersionStep) -> None:
    """Over the last dimension both are the same; another one is moved to the end and back."""
    axis, x = step.attr("axis"), step.required_input()
    rank = step.rank(x)
    if axis == -1:
        step.set("axis", -1 if rank is None else max(rank - 1, 0))
        return
    rank = step.known_rank(x)
    axis %= rank
    step.set("axis", rank - 1)
    if axis == rank - 1:
        return
    order = [*range(axis), rank - 1, *range(axis + 1, rank - 1), axis]
    step.set_input(0, step.op("Transpose", x, perm=order))
    step.wrap_output(0, lambda y: step.op("Transpose", y, perm=order))


FIRST_ONLY: Adapter = refuse_unless(
    "select_last_index", (0,), "the older version always selects the first of equal elements"
)


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
    Row("Compress", 9, 11, NO_NEGATIVE_AXES, down=nonnegative_axis),
    Row("OneHot", 9, 11, "negative indices count from the back", one_hot_up, one_hot_down),
    Row(ALL, 1, 11, NO_NEGATIVE_AXES, down=nonnegative_axes),
    Row("ReduceSum", 11, 13, "the axes became an input", to_input("axes"), axes_down),
    Row(LATER, 13, 18, "the axes became an input", to_input("axes"), axes_down),
    Row("ReduceMax ReduceMin", 18, 20, "booleans are new", down=of_booleans),
    Row("ReduceLogSum ReduceLogSumExp", 18, 28, "integers were removed", up=not_of_integers),
    Row("ArgMax ArgMin", 1, 11, NO_NEGATIVE_AXES, down=nonnegative_axis),
    Row("ArgMax ArgMin", 11, 12, "select_last_index is new", down=FIRST_ONLY),
    Row("Softmax LogSoftmax Hardmax", 1, 11, NO_NEGATIVE_AXES, down=nonnegative_axis),
    Row(
        "Softmax LogSoftmax Hardmax",
        11,
        13,
        "one dimension instead of all from axis on; the default axis was 1 and is -1",
        one_dimension_up,
        one_dimension_down,
    ),
)
