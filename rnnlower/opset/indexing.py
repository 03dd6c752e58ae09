"""Gathering, scattering and one-hot."""

from __future__ import annotations

from rnnlower.opset.adapters import nonnegative_axis, refuse_unless
from rnnlower.opset.shaping import OLD_TEXT
from rnnlower.opset.step import Row, Step

NO_REDUCTION = "the older version only overwrites"


def scatter_up(step: Step) -> None:
    """Scatter was renamed."""
    _rename(step, "ScatterElements")


def scatter_down(step: Step) -> None:
    """ScatterElements was called Scatter."""
    step.opset = 10
    _rename(step, "Scatter")


def _rename(step: Step, op_type: str) -> None:
    step.replace(step.emit(op_type, step.x(0), step.x(1), step.x(2), axis=step.attr("axis")))


def one_hot_up(step: Step) -> None:
    """OneHot-9 turns a negative index into no hit at all, OneHot-11 counts it from the back."""
    indices = step.x(0)
    known = step.array(indices)
    if known is not None and not bool((known < 0).any()):
        return
    dtype = step.known_dtype(indices)
    if dtype.is_integer() and not dtype.is_signed():
        return
    zero = step.const(0, dtype)
    depth = step.cast(step.reshape(step.x(1), []), dtype)
    step.set_input(0, step.emit("Where", step.emit("Less", indices, zero), depth, indices))


def one_hot_down(step: Step) -> None:
    """OneHot-9 does not count from the back: do it before."""
    indices = step.x(0)
    known = step.array(indices)
    if known is not None and not bool((known < 0).any()):
        return
    dtype = step.known_dtype(indices)
    if dtype.is_integer() and not dtype.is_signed():
        return
    depth = step.cast(step.reshape(step.x(1), []), dtype)
    zero = step.const(0, dtype)
    counted = step.emit("Add", indices, depth)
    # Still negative means no hit, which every runtime knows of an index that is too large.
    hit = step.emit("Where", step.emit("Less", counted, zero), depth, counted)
    step.set_input(0, step.emit("Where", step.emit("Less", indices, zero), hit, indices))


ROWS = (
    Row("Scatter", 9, 11, "renamed to ScatterElements", up=scatter_up),
    Row("ScatterElements", 0, 11, "was called Scatter", down=scatter_down),
    Row(
        "ScatterElements ScatterND",
        13,
        16,
        "reductions are new",
        down=refuse_unless("reduction", ("none",), NO_REDUCTION),
    ),
    Row(
        "ScatterElements ScatterND",
        16,
        18,
        "max and min are new",
        down=refuse_unless("reduction", ("none", "add", "mul"), "max and min are new"),
    ),
    Row(
        "GatherND",
        11,
        12,
        "batch_dims are new",
        down=refuse_unless("batch_dims", (0,), "the older version has no batch"),
    ),
    Row("Compress", 9, 11, OLD_TEXT, down=nonnegative_axis()),
    Row("OneHot", 9, 11, "negative indices count from the back", one_hot_up, one_hot_down),
)
