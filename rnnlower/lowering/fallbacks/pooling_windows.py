"""Pooling expressed by pooling that more runtimes have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rnnlower.lowering.fallbacks.arithmetic import Form

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.lowering.emitter import Emitter


def _without_ceil(op_type: str) -> Form:
    """Return the form that pads the ends instead of rounding the number of windows up."""

    def form(
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

    return form


WINDOWS: Mapping[str, Sequence[Form]] = {
    "AveragePool": [_without_ceil("AveragePool")],
    "MaxPool": [_without_ceil("MaxPool")],
}
