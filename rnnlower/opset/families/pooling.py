"""Pooling and convolution."""

from __future__ import annotations

from rnnlower.opset.adapters import both, drop_if, only, refuse_unless
from rnnlower.opset.step import Row, Step

NO_DILATIONS = drop_if("dilations", 1, "the older version has no dilation")
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
        step.refuse("its indices are read, which MaxPool-1 does not have")
    step.drop("storage_order")
    step.drop_outputs(1)


def windows_in_the_pad(step: Step) -> None:
    """Since 22 a window that ceil_mode adds is left out if it starts in the pad; the older spec keeps it.

    Upwards nothing is done: runtimes never had such a window, and 22 documents that.
    """
    if not step.attr("ceil_mode") or step.attr("auto_pad") not in ("NOTSET", "VALID"):
        return
    kernel = list(step.attr("kernel_shape"))
    strides = step.attr("strides") or [1] * len(kernel)
    dilations = step.attr("dilations") or [1] * len(kernel)
    pads = step.attr("pads") or [0] * (2 * len(kernel))
    shape = step.shape(step.x())
    sizes = [None] * len(kernel) if shape is None else list(shape[2:])
    for axis, (width, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        reach = (width - 1) * dilation + 1
        begin, end = pads[axis], pads[axis + len(kernel)]
        if end + stride <= reach:
            continue
        size = sizes[axis]
        if not isinstance(size, int):
            step.refuse(
                f"ceil_mode=1, and whether a window starts in the pad of axis {axis + 2} is not known"
            )
        windows = -(-(size + begin + end - reach) // stride) + 1
        if (windows - 1) * stride >= size + begin:
            step.refuse(f"ceil_mode=1 with a window that starts in the pad of axis {axis + 2}")


ROWS = (
    Row("ConvTranspose", 1, 11, "the spec had the sides of an odd automatic pad swapped, runtimes never did"),
    Row("AveragePool", 19, 22, "windows that start in the pad are left out", down=windows_in_the_pad),
    Row("MaxPool", 12, 22, "windows that start in the pad are left out", down=windows_in_the_pad),
    Row("LpPool GlobalLpPool", 1, 2, "p became an integer", whole_p, float_p),
    Row("LpPool", 11, 18, "ceil_mode and dilations are new", down=both(NO_CEIL, NO_DILATIONS)),
    Row("MaxPool", 1, 8, "storage_order and the indices are new", down=column_major_unused),
    Row("MaxPool", 8, 10, "ceil_mode and dilations are new", down=both(NO_CEIL, NO_DILATIONS)),
    only(
        "AveragePool",
        1,
        7,
        "count_include_pad is new",
        "count_include_pad",
        (0,),
        "the older version leaves pads out of the average",
    ),
    Row("AveragePool", 7, 10, "ceil_mode is new", down=NO_CEIL),
    Row("AveragePool", 11, 19, "dilations are new", down=NO_DILATIONS),
)
