"""Pooling."""

from __future__ import annotations

from rnnlower.opset.adapters import both, drop_if, refuse_unless
from rnnlower.opset.step import Row, Step

NO_DILATIONS = drop_if("dilations", 1, "the older version does not dilate its window")
NO_CEIL = refuse_unless("ceil_mode", (0,), "the older version rounds output sizes down")


def whole_p(step: Step) -> None:
    """p became an integer."""
    p = float(step.attr("p"))
    if not p.is_integer():
        step.refuse(f"p={p} is not a whole number")
    step.set("p", int(p))


def float_p(step: Step) -> None:
    """p was a float."""
    step.set("p", float(step.attr("p")))


def column_major_unused(step: Step) -> None:
    """storage_order only matters for the indices."""
    if step.used(1):
        step.refuse("its indices are read, MaxPool-1 does not make them")
    step.drop("storage_order")
    step.drop_outputs(1)


ROWS = (
    Row("LpPool GlobalLpPool", 1, 2, "p became an integer", whole_p, float_p),
    Row("LpPool", 11, 18, "ceil_mode and dilations are new", down=both(NO_CEIL, NO_DILATIONS)),
    Row("MaxPool", 1, 8, "storage_order and the indices are new", down=column_major_unused),
    Row("MaxPool", 8, 10, "ceil_mode and dilations are new", down=both(NO_CEIL, NO_DILATIONS)),
    Row(
        "AveragePool",
        1,
        7,
        "count_include_pad is new",
        down=refuse_unless("count_include_pad", (0,), "the older version leaves pads out of the average"),
    ),
    Row("AveragePool", 7, 10, "ceil_mode is new", down=NO_CEIL),
    Row("AveragePool", 11, 19, "dilations are new", down=NO_DILATIONS),
)
