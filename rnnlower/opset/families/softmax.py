"""Softmax, LogSoftmax and Hardmax: over all dimensions from `axis` on up to 12, over one from 13 on."""

from __future__ import annotations

from rnnlower.opset.adapters import nonnegative_axis
from rnnlower.opset.families.shaping import OLD_TEXT
from rnnlower.opset.step import Row, Step


def one_dimension_up(step: Step) -> None:
    """Over the last dimension both are the same; otherwise the tensor is reshaped to a matrix and back."""
    axis, rank, x = step.attr("axis"), step.rank(step.x()), step.x()
    if axis == -1 or (rank is not None and axis == rank - 1):
        step.set("axis", -1)
        return
    step.set_input(0, step.op("Flatten", x, axis=axis))
    step.set("axis", -1)
    shape = step.op("Shape", x)
    step.wrap_output(0, lambda y: step.reshape(y, shape))


def one_dimension_down(step: Step) -> None:
    """Over the last dimension both are the same; another one is moved to the end and back."""
    axis, x = step.attr("axis"), step.x()
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


ROWS = (
    Row("Softmax LogSoftmax Hardmax", 1, 11, OLD_TEXT, down=nonnegative_axis),
    Row(
        "Softmax LogSoftmax Hardmax",
        11,
        13,
        "one dimension instead of all from axis on; the default axis was 1 and is -1",
        one_dimension_up,
        one_dimension_down,
    ),
)
