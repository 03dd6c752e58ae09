"""Operators on signals, expressed by products with constants: STFT, DFT, and Col2Im, which adds frames.

A transform of a known length is a product with a matrix of sines and cosines, in which real and imaginary
parts alternate on both axes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array
from rnnlower.lowering.fallbacks.arithmetic import Fallback

if TYPE_CHECKING:
    from rnnlower.lowering.emitter import Emitter, RuntimeDim

_MAX_ELEMENTS = 2**25
"""The number of elements above which a constant is out of proportion: a transform of 4,096 samples has it."""


def _in_float32(form: Callable[..., ir.Value | None]) -> Fallback:
    """Return a form that computes in float32 for halves, which would lose what sums of many products need."""

    @functools.wraps(form)
    def wide(e: Emitter, x: ir.Value, *inputs: ir.Value | None, **attributes: Any) -> ir.Value | None:
        if e.dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            return form(e, x, *inputs, **attributes)
        made = form(e.with_dtype(ir.DataType.FLOAT), e.cast(x, ir.DataType.FLOAT), *inputs, **attributes)
        return made if made is None else e.cast(made, e.dtype)

    return wide


@_in_float32
def _dft(
    e: Emitter,
    x: ir.Value,
    dft_length: ir.Value | None = None,
    axis_of: ir.Value | None = None,
    *,
    axis: int = -2,
    inverse: int = 0,
    onesided: int = 0,
) -> ir.Value | None:
    """Emit one product; until opset 19 the axis is an attribute."""
    shape, length, place = e.shape(x), e.content(dft_length), e.content(axis_of)
    if shape is None or (place is None) != (axis_of is None) or (length is None) != (dft_length is None):
        return None
    axis = (axis if place is None else int(place)) % len(shape)
    size, parts = shape[axis], shape[-1]
    if size is None or parts is None or axis == len(shape) - 1 or (onesided and parts != 1 + inverse):
        return None
    count = int(length) if length is not None else 2 * (size - 1) if onesided and inverse else size
    kept = min(size, count)
    if not kept or kept * count * parts * 2 > _MAX_ELEMENTS:
        return None
    # Runtimes do not agree on a spectrum that is not half of this length.
    if onesided and inverse and size != count // 2 + 1:
        return None
    matrix = _dft_matrix(count, kept, parts, inverse=bool(inverse), onesided=bool(onesided))
    last = [*(place for place in range(len(shape) - 1) if place != axis), axis, len(shape) - 1]
    if kept < size:
        x = e.slice(x, [0], [kept], [axis])
    if axis != len(shape) - 2:
        x = e.transpose(x, last)
    rows = [e.dim(x, place) if (dim := shape[old]) is None else dim for place, old in enumerate(last[:-2])]
    made = _product(e, e.reshape(x, [*rows, kept * parts]), matrix)
    made = e.reshape(made, [*rows, matrix.shape[1] // (width := _part_count(inverse, onesided)), width])
    return made if axis == len(shape) - 2 else e.transpose(made, np.argsort(last).tolist())


def _part_count(inverse: int, onesided: int) -> int:
    """Return the number of parts of a result: an inverse transform of half a spectrum is real."""
    return 1 if inverse and onesided else 2


def _dft_matrix(count: int, kept: int, parts: int, *, inverse: bool, onesided: bool) -> Array:
    """Return the matrix of a transform of `count` elements, of which the first `kept` are not zero.

    Half a spectrum stands for a whole one: each element but the first, and that in the middle of an even
    number, has a conjugate.
    """
    half = count // 2 + 1
    results = half if onesided and not inverse else count
    # The remainder is exact, and keeps the angles small.
    angles = np.arange(kept)[:, None] * np.arange(results) % count * (2 * np.pi / count)
    real, imaginary = np.cos(angles), np.sin(angles) * (1 if inverse else -1)
    if inverse:
        weights = np.full((kept, 1), 1 / count)
        if onesided:
            weights[1 : (count + 1) // 2] *= 2
        real, imaginary = real * weights, imaginary * weights
    # For each part of an element, its share in each part of a result.
    shares = np.array([[real, imaginary], [-imaginary, real]])[:parts, : _part_count(inverse, onesided)]
    matrix: Array = shares.transpose(2, 0, 3, 1).reshape(kept * parts, -1)
    return matrix


def _product(e: Emitter, x: ir.Value, matrix: Array) -> ir.Value:
    return e.op("MatMul", x, e.constant(matrix.astype(e.dtype.numpy())))


@_in_float32
def _stft(
    e: Emitter,
    signal: ir.Value,
    frame_step: ir.Value,
    window: ir.Value | None = None,
    frame_length: ir.Value | None = None,
    *,
    onesided: int = 1,
) -> ir.Value | None:
    """Emit a convolution whose stride is the step, or, where it has no kernel, frames by a Gather."""
    shape, step = e.shape(signal), e.content(frame_step)
    form, given = e.content(window), e.content(frame_length)
    if shape is None or step is None:
        return None
    if (form is None) != (window is None) or (given is None) != (frame_length is None):
        return None
    length = int(given) if given is not None else shape[1] if form is None else form.size
    # onnxruntime takes a real signal without the axis of its parts, too.
    parts, size, hop = shape[2] if len(shape) == 3 else 1, shape[1], int(step)
    if length is None or parts is None or (onesided and parts != 1) or hop < 1:
        return None
    if (form is not None and form.size != length) or length * length * parts * 2 > _MAX_ELEMENTS:
        return None
    matrix = _dft_matrix(length, length, parts, inverse=False, onesided=bool(onesided))
    if form is not None:
        matrix *= form.astype(np.float64).repeat(parts)[:, None]
    frames = None if size is None else (size - length) // hop + 1
    if frames is not None and frames < 1:
        return None
    batch = e.dim(signal, 0) if shape[0] is None else shape[0]
    if e.dtype == ir.DataType.DOUBLE and frames is not None:
        places = hop * np.arange(frames)[:, None] + np.arange(length)
        cut = e.op("Gather", signal, e.constant(places), axis=1)
        made = _product(e, e.reshape(cut, [batch, frames, length * parts]), matrix)
    else:
        samples = e.dim(signal, 1) if size is None else size
        whole = signal if len(shape) == 3 else e.reshape(signal, [batch, samples, 1])
        made = _emit_convolution(e, whole, matrix.reshape(length, parts, -1), hop)
    count = e.dim(made, 1) if frames is None else frames
    return e.reshape(made, [batch, count, matrix.shape[1] // 2, 2])


def _emit_convolution(e: Emitter, signal: ir.Value, kernel: Array, hop: int) -> ir.Value:
    """Emit the frames' products with a kernel: samples, parts, results."""
    weights = e.constant(np.ascontiguousarray(kernel.transpose(2, 1, 0), e.dtype.numpy()))
    signal = e.transpose(signal, [0, 2, 1])
    made = e.op("Conv", signal, weights, kernel_shape=[len(kernel)], strides=[hop])
    return e.transpose(made, [0, 2, 1])


class _Blocks(NamedTuple):
    """The blocks that a Col2Im adds, and the image that they make."""

    image: list[int]
    block: list[int]
    batch: RuntimeDim
    channels: int
    pads: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]


def _col2im(
    emit: Callable[[Emitter, ir.Value, _Blocks], ir.Value | None],
    e: Emitter,
    x: ir.Value,
    image_shape: ir.Value,
    block_shape: ir.Value,
    *,
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
) -> ir.Value | None:
    """Emit a form of Col2Im, if its sizes are known."""
    image, block, shape = e.content(image_shape), e.content(block_shape), e.shape(x)
    if image is None or block is None or shape is None or shape[1] is None:
        return None
    batch, sizes, ones = e.dim(x, 0) if shape[0] is None else shape[0], block.tolist(), [1] * block.size
    channels = shape[1] // math.prod(sizes)
    given = pads or [0] * (2 * block.size), strides or ones, dilations or ones
    return emit(e, x, _Blocks(image.tolist(), sizes, batch, channels, *given))


def _emit_frame_sum(e: Emitter, x: ir.Value, blocks: _Blocks) -> ir.Value | None:
    """Emit the sum of shifted frames, for an image of one row.

    Frames are cut into parts of the stride, which are rows of the result: a part is late by its number.
    """
    image, block, batch, channels, pads, strides, dilations = blocks
    if e.dtype in (ir.DataType.BOOL, ir.DataType.STRING):
        return None
    rank = len(image)
    others = [axis for axis in range(rank) if (image[axis], block[axis]) != (1, 1)] or [rank - 1]
    axis, *more = others
    if more or dilations[axis] != 1 or sum(pads) != pads[axis] + pads[axis + rank]:
        return None
    kernel, hop, left, size = block[axis], strides[axis], pads[axis], image[axis]
    count = (size + left + pads[axis + rank] - kernel) // hop + 1
    parts, outer = -(-kernel // hop), [batch, channels]
    x = e.transpose(e.reshape(x, [*outer, kernel, count]), [0, 1, 3, 2])
    if kernel < parts * hop:
        x = _emit_padded(e, x, 3, 0, parts * hop - kernel)
    first, end = left // hop, -(-(left + size) // hop)
    shifted = []
    for part in range(parts):
        start, stop = max(first - part, 0), min(end - part, count)
        if start < stop:
            piece = e.slice(x, [start, part * hop], [stop, (part + 1) * hop], [2, 3])
            shifted.append(_emit_padded(e, piece, 2, start - (first - part), end - part - stop))
    if not shifted:
        return None
    total = functools.reduce(lambda sum_, piece: e.op("Add", sum_, piece), shifted)
    total = e.reshape(total, [*outer, (end - first) * hop])
    if (end - first) * hop != size:
        total = e.slice(total, [left - first * hop], [left - first * hop + size], [2])
    return e.reshape(total, [*outer, *image])


def _emit_padded(e: Emitter, x: ir.Value, axis: int, before: int, after: int) -> ir.Value:
    """Emit zeros before and after a value of four axes."""
    if not before and not after:
        return x
    pads = [0] * 8
    pads[axis], pads[axis + 4] = before, after
    return e.op("Pad", x, e.integers(*pads), since=11)


def _emit_block_sum(e: Emitter, x: ir.Value, blocks: _Blocks) -> ir.Value | None:
    """Emit a transposed convolution that puts each element of a block into its place."""
    image, block, batch, channels, pads, strides, dilations = blocks
    rank, elements = len(image), math.prod(block)
    if not e.dtype.is_floating_point() or channels * elements * elements > _MAX_ELEMENTS:
        return None
    rest = [
        image[axis] + pads[axis] + pads[axis + rank] - dilations[axis] * (block[axis] - 1) - 1
        for axis in range(rank)
    ]
    grid = [size // stride + 1 for size, stride in zip(rest, strides, strict=True)]
    weights = np.tile(np.eye(elements, dtype=e.dtype.numpy()), (channels, 1)).reshape(-1, 1, *block)
    return e.op(
        "ConvTranspose",
        e.reshape(x, [batch, channels * elements, *grid]),
        e.constant(weights),
        group=channels,
        kernel_shape=block,
        strides=list(strides),
        dilations=list(dilations),
        pads=list(pads),
        output_padding=[size % stride for size, stride in zip(rest, strides, strict=True)],
    )


SIGNALS: Mapping[str, Sequence[Fallback]] = {
    "Col2Im": [functools.partial(_col2im, form) for form in (_emit_frame_sum, _emit_block_sum)],
    "DFT": [_dft],
    "STFT": [_stft],
}
