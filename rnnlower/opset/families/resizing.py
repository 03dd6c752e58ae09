"""Upsample (1, 7, 9) and Resize (10, 11, 13, 18, 19).

Resize-10 does not define how coordinates are rounded. Its runtimes, and onnx's own tests, count from the
corner (asymmetric) and take the pixel below when growing and above when shrinking; Resize-11 nodes are
written that way.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.opset.adapters import Row, both, only, refuse_unless
from rnnlower.opset.step import VersionStep

# Set on a Resize-10 that was an Upsample, whose scales are at least 1. Never written to a file.
WAS_UPSAMPLE = "rnnlower.opset.was_upsample"
ASYMMETRIC = "asymmetric"
HALF_PIXEL = ("half_pixel", "pytorch_half_pixel")


def upsample_7_up(step: VersionStep) -> None:
    """Two scales became one for each dimension; bilinear is called linear."""
    height, width = step.take("height_scale"), step.take("width_scale")
    step.set("scales", [1.0, 1.0, height, width])
    if step.attr("mode") == "bilinear":
        step.set("mode", "linear")


def upsample_7_down(step: VersionStep) -> None:
    """Only the last two of four dimensions have a scale."""
    scales = list(step.attr("scales"))
    if len(scales) != 4 or scales[:2] != [1.0, 1.0]:
        step.refuse(f"scales={scales}: Upsample-1 scales the last two of four dimensions")
    step.drop("scales")
    step.set("height_scale", scales[2])
    step.set("width_scale", scales[3])
    if step.attr("mode") == "linear":
        step.set("mode", "bilinear")


def upsample_9_up(step: VersionStep) -> None:
    """The scales became an input."""
    step.set_inputs(step.required_input(), step.const(list(step.take("scales")), ir.DataType.FLOAT))


def upsample_9_down(step: VersionStep) -> None:
    """Constant scales become an attribute."""
    scales = _scales(step, 1)
    step.set_inputs(step.required_input())
    step.set("scales", scales)


def upsample_10_up(step: VersionStep) -> None:
    """Upsample ended with 9: Resize does the same."""
    y = step.op("Resize", step.required_input(0), step.required_input(1), mode=step.attr("mode"))
    step.emitted[-1].meta[WAS_UPSAMPLE] = True
    step.replace(y)


def resize_10_to_upsample(step: VersionStep) -> None:
    """Before 10 Upsample does it, for scales of at least 1."""
    scales = step.array(step.input(1))
    if scales is None or bool((scales < 1).any()):
        step.refuse("its scales are not known to be at least 1, as Upsample requires")
    step.opset = 9
    step.replace(step.op("Upsample", step.required_input(0), step.required_input(1), mode=step.attr("mode")))


def resize_11_up(step: VersionStep) -> None:
    """The implicit behavior of Resize-10 is written out; growing and shrinking round differently."""
    x, scales = step.required_input(0), step.required_input(1)
    known = step.array(scales)
    step.set("coordinate_transformation_mode", ASYMMETRIC)
    roi = step.const([], ir.DataType.FLOAT)
    step.set_inputs(x, roi, scales)
    if step.attr("mode") != "nearest":
        return
    if step.node.meta.pop(WAS_UPSAMPLE, False) or (known is not None and bool((known >= 1).all())):
        step.set("nearest_mode", "floor")
    elif known is not None and bool((known <= 1).all()):
        step.set("nearest_mode", "ceil")
    else:
        one = step.const([1.0], ir.DataType.FLOAT)
        if known is not None:
            grow = step.const(np.maximum(known, 1), ir.DataType.FLOAT)
            shrink = step.const(np.minimum(known, 1), ir.DataType.FLOAT)
        else:
            grow, shrink = step.op("Max", scales, one), step.op("Min", scales, one)
        modes = {"coordinate_transformation_mode": ASYMMETRIC, "nearest_mode": "floor", "mode": "nearest"}
        step.set_inputs(step.op("Resize", x, roi, grow, **modes), roi, shrink)
        step.set("nearest_mode", "ceil")


def resize_11_down(step: VersionStep) -> None:
    """Resize-10 counts from the corner and rounds by direction; it only has scales."""
    scales = _scales_of_11(step)
    mode, rounding = step.attr("mode"), step.attr("nearest_mode")
    coordinates = step.attr("coordinate_transformation_mode")
    if mode == "cubic" or step.attr("exclude_outside"):
        step.refuse("Resize-10 only has the modes nearest and linear, and no exclude_outside")
    if not _same_in_10(scales, mode, coordinates, rounding):
        step.refuse(
            f"Resize-10 has no coordinate_transformation_mode={coordinates!r} with nearest_mode={rounding!r}"
        )
    step.drop(
        "coordinate_transformation_mode",
        "nearest_mode",
        "cubic_coeff_a",
        "exclude_outside",
        "extrapolation_value",
    )
    step.set_inputs(step.required_input(), step.const(scales, ir.DataType.FLOAT))


def _same_in_10(scales: Sequence[float], mode: str, coordinates: str, rounding: str) -> bool:
    if all(scale == 1 for scale in scales):
        return coordinates != "tf_crop_and_resize"
    if mode == "linear":
        return coordinates == ASYMMETRIC
    grows, whole = all(scale >= 1 for scale in scales), all(float(scale).is_integer() for scale in scales)
    if coordinates == ASYMMETRIC:
        return (grows and rounding == "floor") or (all(scale <= 1 for scale in scales) and rounding == "ceil")
    # Every pixel k times: the middle of each copy lies in its original, however halves are rounded.
    return grows and whole and coordinates in HALF_PIXEL and rounding.startswith("round_prefer")


def _scales_of_11(step: VersionStep) -> list[float]:
    if step.input(3) is None:
        return _scales(step, 2)
    sizes, shape = step.ints(step.input(3)), step.static_shape(step.required_input())
    if sizes is None or shape is None or 0 in shape or len(sizes) != len(shape):
        step.refuse(
            "it is given sizes, Resize-10 needs scales, and those are not known before the model runs"
        )
    scales = [float(np.float32(size / old)) for size, old in zip(sizes, shape, strict=True)]
    if [int(np.floor(np.float32(scale) * old)) for scale, old in zip(scales, shape, strict=True)] != sizes:
        step.refuse(f"no float32 scales give the sizes {sizes}")
    return scales


def _scales(step: VersionStep, position: int) -> list[float]:
    scales = step.array(step.input(position))
    if scales is None:
        step.refuse("its scales are not constant")
    return [float(each) for each in scales.reshape(-1)]


def resize_13_up(step: VersionStep) -> None:
    """Either scales or sizes, none of them empty; tf_half_pixel_for_nn was removed."""
    x, roi, scales, sizes = (step.input(position) for position in range(4))
    empty = step.array(roi)
    if step.attr("coordinate_transformation_mode") != "tf_crop_and_resize" or (
        empty is not None and not empty.size
    ):
        roi = None
    step.set_inputs(x, roi, scales if sizes is None else None, sizes)
    if step.attr("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        if step.attr("mode") != "nearest" or step.attr("nearest_mode") != "floor":
            step.refuse("tf_half_pixel_for_nn was removed, and only nearest_mode='floor' has another name")
        step.set("coordinate_transformation_mode", "half_pixel")
        step.set("nearest_mode", "round_prefer_ceil")


def resize_13_down(step: VersionStep) -> None:
    """An omitted input was an empty tensor."""
    x, roi, scales, sizes = (step.input(position) for position in range(4))
    roi = roi or step.const([], ir.DataType.FLOAT)
    step.set_inputs(x, roi, scales or step.const([], ir.DataType.FLOAT), sizes)


def resize_18_axes_down(step: VersionStep) -> None:
    """Scales, sizes and region of some axes become those of all."""
    axes = step.attr("axes")
    if axes is None:
        return
    rank = step.known_rank(step.required_input())
    axes = [axis % rank for axis in axes]
    step.drop("axes")
    scales, sizes, roi = step.array(step.input(2)), step.ints(step.input(3)), step.array(step.input(1))
    if roi is not None and roi.size:
        full = np.array([0.0] * rank + [1.0] * rank, np.float32)
        full[[*axes, *(axis + rank for axis in axes)]] = roi
        step.set_input(1, step.const(full, step.known_dtype(step.required_input(1))))
    elif step.input(1) is not None and roi is None:
        step.refuse("axes with a region that is not constant")
    if step.input(3) is not None:
        shape = step.static_shape(step.required_input())
        if sizes is None or shape is None:
            step.refuse("axes with sizes that are not known for all dimensions")
        whole = list(shape)
        for axis, size in zip(axes, sizes, strict=True):
            whole[axis] = size
        step.set_input(3, step.const(whole))
    elif scales is None:
        step.refuse("axes with scales that are not constant")
    else:
        factors = np.ones(rank, np.float32)
        factors[axes] = scales
        step.set_input(2, step.const(factors, ir.DataType.FLOAT))


ROWS = (
    Row("Upsample", 1, 7, "two scales became one for each dimension", upsample_7_up, upsample_7_down),
    Row("Upsample", 7, 9, "the scales became an input", upsample_9_up, upsample_9_down),
    Row("Upsample", 9, 10, "Resize took its place", up=upsample_10_up),
    Row("Resize", 0, 10, "new in 10; Upsample grows tensors before", down=resize_10_to_upsample),
    Row(
        "Resize",
        10,
        11,
        "coordinates and rounding can be selected; sizes are new",
        resize_11_up,
        resize_11_down,
    ),
    Row(
        "Resize",
        11,
        13,
        "scales or sizes are left out instead of empty; a mode was removed",
        resize_13_up,
        resize_13_down,
    ),
    Row(
        "Resize",
        13,
        18,
        "antialias, axes and keep_aspect_ratio_policy are new",
        down=both(
            refuse_unless("antialias", (0,), "the older version has no antialiasing"),
            refuse_unless("keep_aspect_ratio_policy", ("stretch",), "the older version has no such policy"),
            resize_18_axes_down,
        ),
    ),
    only(
        "Resize",
        18,
        19,
        "half_pixel_symmetric is new",
        "coordinate_transformation_mode",
        (*HALF_PIXEL, ASYMMETRIC, "align_corners", "tf_crop_and_resize"),
        "the older version does not have it",
    ),
)
