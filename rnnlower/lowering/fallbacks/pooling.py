"""Pools and convolutions with pads and strides that are written out, where sizes are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.fallbacks.arithmetic import Fallback

if TYPE_CHECKING:
    from rnnlower.lowering.emitter import Emitter


def _without_ceil(
    op_type: str,
    e: Emitter,
    x: ir.Value,
    *,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    auto_pad: str = "NOTSET",
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    storage_order: int = 0,
) -> ir.Value | None:
    """Pad the ends instead of rounding the number of windows up."""
    sizes, axes = e.shape(x), len(kernel_shape)
    # Padding that is counted is counted inside of the padded input only.
    if not ceil_mode or count_include_pad or auto_pad != "NOTSET" or sizes is None:
        return None
    strides, dilations = list(strides) or [1] * axes, list(dilations) or [1] * axes
    pads = list(pads) or [0] * (2 * axes)
    for axis, size in enumerate(sizes[2:]):
        if size is None:
            return None
        stride, width = strides[axis], (kernel_shape[axis] - 1) * dilations[axis] + 1
        first = size + pads[axis]
        last = -(-(first + pads[axes + axis] - width) // stride)
        # A window that would begin in the padding at the end is left out.
        last -= last * stride >= first
        pads[axes + axis] = max(pads[axes + axis], last * stride + width - first)
    if any(pad >= kernel for pad, kernel in zip(pads[axes:], kernel_shape, strict=True)):
        return None
    given: dict[str, Any] = {"kernel_shape": list(kernel_shape), "strides": strides, "pads": pads}
    if set(dilations) != {1}:
        given["dilations"] = dilations
    return e.op(op_type, x, **given)


def _strides_written(
    op_type: str, e: Emitter, x: ir.Value, *, kernel_shape: Sequence[int], **attributes: Any
) -> ir.Value | None:
    """The strides, left out, are 1."""
    if "strides" in attributes:
        return None
    attributes |= {"kernel_shape": kernel_shape, "strides": [1] * len(kernel_shape)}
    return e.ops(op_type, x, outputs=1, **attributes)[0]


def _pads_written(
    op_type: str,
    e: Emitter,
    x: ir.Value,
    *weights: ir.Value | None,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] = (),
    **attributes: Any,
) -> ir.Value | None:
    """The pads follow from the sizes."""
    sizes, kernel = e.shape(x), attributes.get("kernel_shape")
    kernel = kernel or ((e.shape(weights[0]) or ())[2:] if weights else ())
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER") or not kernel or sizes is None:
        return None
    if None in (*sizes[2:], *kernel):
        return None
    ones = [1] * len(kernel)
    strides, dilations = (attributes.get(name) or ones for name in ("strides", "dilations"))
    if not weights and any(dilation != 1 for dilation in dilations):
        return None  # The ONNX spec and onnxruntime disagree on the pads of a pool with dilations.
    totals = [
        max(0, -(size or 0) % stride + (width - 1) * dilation + 1 - stride)
        for size, width, stride, dilation in zip(sizes[2:], kernel, strides, dilations, strict=True)
    ]
    attributes |= {"strides": strides, "pads": _halves(totals, more_at_end=auto_pad == "SAME_UPPER")}
    return e.ops(op_type, x, *weights, outputs=1, **attributes)[0]


def _transposed_pads_written(
    e: Emitter,
    x: ir.Value,
    *weights: ir.Value | None,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] = (),
    output_shape: Sequence[int] = (),
    **attributes: Any,
) -> ir.Value | None:
    """The pads follow from the sizes of the output."""
    sizes, kernel = e.shape(x), attributes.get("kernel_shape") or (e.shape(weights[0]) or ())[2:]
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if not (same or output_shape) or sizes is None or not kernel or None in (*sizes[2:], *kernel):
        return None
    ones = [1] * len(kernel)
    strides, dilations = (attributes.get(name) or ones for name in ("strides", "dilations"))
    added = attributes.get("output_padding") or [0] * len(kernel)
    known = [size or 0 for size in sizes[2:]]
    wanted = output_shape or [size * stride for size, stride in zip(known, strides, strict=True)]
    rows = zip(known, kernel, strides, dilations, added, wanted[-len(kernel) :], strict=True)
    totals = [
        stride * (size - 1) + more + (width - 1) * dilation + 1 - out
        for size, width, stride, dilation, more, out in rows
    ]
    if any(total < 0 for total in totals):
        return None
    written = _halves(totals, more_at_end=auto_pad == "SAME_UPPER")
    return e.ops("ConvTranspose", x, *weights, outputs=1, pads=written, **attributes)[0]


def _groups_joined(
    e: Emitter, x: ir.Value, weights: ir.Value, *bias: ir.Value | None, group: int = 1, **attributes: Any
) -> ir.Value | None:
    """Groups of one channel are joined; zeros keep their channels apart."""
    shape = e.shape(weights)
    if shape is None or group == 1 or tuple(shape[:2]) != (group, 1):
        return None
    width = next(size for size in range(2, group + 1) if group % size == 0)
    own = np.tile(np.eye(width), (group // width, 1)).reshape(group, width, *[1] * (len(shape) - 2))
    own, known = own.astype(e.dtype.numpy()), e.content(weights)
    wide = e.op("Mul", weights, e.constant(own)) if known is None else e.constant(known * own)
    return e.ops("ConvTranspose", x, wide, *bias, outputs=1, group=group // width, **attributes)[0]


def _halves(totals: Sequence[int], *, more_at_end: bool) -> list[int]:
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*less, *more] if more_at_end else [*more, *less]


POOLING: Mapping[str, Sequence[Fallback]] = {
    **{
        op_type: [partial(form, op_type) for form in (_without_ceil, _pads_written, _strides_written)]
        for op_type in ("AveragePool", "MaxPool")
    },
    "Conv": [partial(_pads_written, "Conv")],
    "ConvTranspose": [_transposed_pads_written, _groups_joined],
    "LpPool": [partial(_strides_written, "LpPool")],
}
