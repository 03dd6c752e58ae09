"""Conv and ConvTranspose in NumPy, without Python for every element.

Copies of the image, one for each place of the kernel, meet the weights in one product.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.defs import get_schema
from onnx.reference.op_run import OpRun

from rnnlower.engines.reference.activation_functions import Array


class ConvTranspose(OpRun):  # type: ignore[misc,unused-ignore]
    """ConvTranspose of every version: onnx's own visits each element in Python, and computes groups wrong."""

    op_schema = get_schema("ConvTranspose", 11, "")

    def _run(self, X: Array, W: Array, B: Array | None = None, **attributes: Any) -> tuple[Array]:
        sizes, kernel, ones = X.shape[2:], W.shape[2:], [1] * (X.ndim - 2)
        strides, dilations = attributes["strides"] or ones, attributes["dilations"] or ones
        extra = attributes["output_padding"] or [0] * len(ones)
        grown = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in _zip(sizes, strides, kernel, dilations)]
        full = [n + e for n, e in _zip(grown, extra)]
        begins, shape = _crop(full, [n * s for n, s in _zip(sizes, strides)], attributes)

        batch, group = len(X), attributes["group"]
        columns = W.reshape(group, len(W) // group, -1).swapaxes(1, 2) @ X.reshape(
            batch, group, len(W) // group, -1
        )
        columns = columns.reshape(batch, group * W.shape[1], *kernel, *sizes)
        room = [max(f, b + n) for f, b, n in _zip(full, begins, shape)]
        Y = np.zeros((*columns.shape[:2], *room), X.dtype)
        for place, target in _places(kernel, dilations, strides, sizes):
            Y[_of_image(*target)] += columns[_of_image(*place)]
        Y = Y[_of_image(*(slice(b, b + n) for b, n in _zip(begins, shape)))]
        return (Y if B is None else Y + B.reshape(-1, *ones),)


def _zip(*lists: Any) -> Any:
    return zip(*lists, strict=True)


def _of_image(*indices: Any) -> tuple[Any, ...]:
    """Return the index of these places in the dimensions after batch and channel."""
    return (slice(None), slice(None), *indices)


def _places(kernel: tuple[int, ...], dilations: list[int], strides: list[int], sizes: Any) -> Any:
    """Yield each place of the kernel, and the slices of a padded image that it meets."""
    for place in np.ndindex(*kernel):
        first = [p * d for p, d in _zip(place, dilations)]
        yield place, [slice(f, f + (n - 1) * s + 1, s) for f, n, s in _zip(first, sizes, strides)]


class Conv(OpRun):  # type: ignore[misc,unused-ignore]
    """Conv of every version: onnx's own gathers the windows element by element."""

    op_schema = get_schema("Conv", 11, "")

    def _run(self, X: Array, W: Array, B: Array | None = None, **attributes: Any) -> tuple[Array]:
        kernel, ones, group = W.shape[2:], [1] * (X.ndim - 2), attributes["group"]
        strides, dilations = attributes["strides"] or ones, attributes["dilations"] or ones
        pads, auto_pad = attributes["pads"] or [0] * (2 * len(ones)), attributes["auto_pad"]
        reach = [(k - 1) * d + 1 for k, d in _zip(kernel, dilations)]
        begins, ends = pads[: len(ones)], pads[len(ones) :]
        if auto_pad.startswith("SAME"):
            total = [max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in _zip(X.shape[2:], strides, reach)]
            begins = [t // 2 if auto_pad == "SAME_UPPER" else (t + 1) // 2 for t in total]
            ends = [t - b for t, b in _zip(total, begins)]
        padded = np.pad(X, [(0, 0), (0, 0), *_zip(begins, ends)])
        shape = [(n - r) // s + 1 for n, r, s in _zip(padded.shape[2:], reach, strides)]
        columns = np.empty((*X.shape[:2], *kernel, *shape), X.dtype)
        for place, met in _places(kernel, dilations, strides, shape):
            columns[_of_image(*place)] = padded[_of_image(*met)]
        rows = W.reshape(group, len(W) // group, -1)
        Y = rows @ columns.reshape(len(X), group, rows.shape[2], -1)
        Y = Y.reshape(len(X), len(W), *shape)
        return (Y if B is None else Y + B.reshape(-1, *ones),)


def _crop(full: list[int], same: list[int], attributes: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return where a transposed convolution's result begins within the full one, and its shape."""
    auto_pad, shape = attributes["auto_pad"], attributes["output_shape"]
    pads = attributes["pads"] or [0] * (2 * len(full))
    if shape is None and not auto_pad.startswith("SAME"):
        begins, ends = pads[: len(full)], pads[len(full) :]
        return begins, [n - b - e for n, b, e in _zip(full, begins, ends)]
    shape = shape or same
    total = [max(0, n - wanted) for n, wanted in _zip(full, shape)]
    return [t // 2 if auto_pad == "SAME_UPPER" else (t + 1) // 2 for t in total], list(shape)
