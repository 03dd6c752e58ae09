"""Layers of random stacks that cut overlapping frames, or add them: more rows of the table of layers."""

from __future__ import annotations

import math

import numpy as np

from support.stream_layers import FEATURES, Builder, layer


def _frames(b: Builder, x: str, hop: int, width: int) -> str:
    """Emit a causal transform of frames, ``[batch, width * FEATURES, frames]``, that a chunk has to fit."""
    b.multiple = math.lcm(b.multiple, b.stride * hop)
    channels = b.op("Transpose", x, perm=[0, 2, 1])
    weights = b.weights(width * FEATURES, FEATURES, width)
    return b.op("Conv", channels, weights, pads=[width - hop, 0], strides=[hop])


def _hop_and_width(b: Builder) -> tuple[int, int]:
    hop = [2, 5][b.rng.integers(2)]
    return hop, hop * int(b.rng.integers(1, 4)) - int(b.rng.integers(hop)) * int(b.rng.integers(2))


@layer()
def _overlap_transposed(b: Builder, x: str) -> str:
    hop, width = _hop_and_width(b)
    width = max(width, hop)
    y = _frames(b, x, hop, width)
    y = b.op(
        "ConvTranspose", y, b.weights(width * FEATURES, FEATURES, width), strides=[hop], pads=[0, width - hop]
    )
    return b.op("Transpose", y, perm=[0, 2, 1])


def _length_of(b: Builder, frames: str, hop: int, width: int) -> tuple[str, str]:
    """Return the number of frames, and the length of what they overlap to, as scalars."""
    count = b.op("Gather", b.op("Shape", frames), b.constant(np.int64(2)), axis=0)
    before = b.op("Mul", b.op("Sub", count, b.constant(np.int64(1))), b.constant(np.int64(hop)))
    return count, b.op("Add", before, b.constant(np.int64(width)))


@layer()
def _overlap_folded(b: Builder, x: str) -> str:
    """Add frames by Col2Im, and cut off what the last ones have more."""
    hop, width = _hop_and_width(b)
    width = max(width, hop)
    y = _frames(b, x, hop, width)
    _, length = _length_of(b, y, hop, width)
    sizes = b.op("Concat", b.ints(1), b.op("Reshape", length, b.ints(1)), axis=0)
    y = b.op("Col2Im", y, sizes, b.ints(1, width), strides=[1, hop])
    y = b.op("Squeeze", y, b.ints(2))
    y = b.op("Transpose", y, perm=[0, 2, 1])
    return b.op("Slice", y, b.ints(0), b.ints(hop - width), b.ints(1)) if width > hop else y


@layer()
def _overlap_scattered(b: Builder, x: str) -> str:
    """Add frames by ScatterND at computed places, time first."""
    hop, width = _hop_and_width(b)
    width = max(width, hop)
    y = _frames(b, x, hop, width)
    count, length = _length_of(b, y, hop, width)
    numbers = b.op("Range", b.constant(np.int64(0)), count, b.constant(np.int64(1)))
    firsts = b.op("Unsqueeze", b.op("Mul", numbers, b.constant(np.int64(hop))), b.ints(1))
    places = b.op("Add", firsts, b.constant(np.arange(width)[None]))
    places = b.op("Unsqueeze", b.op("Reshape", places, b.ints(-1)), b.ints(1))
    rows = b.op("Reshape", y, b.ints(0, FEATURES, width, -1))
    rows = b.op("Transpose", rows, perm=[3, 2, 0, 1])
    batch = b.op("Slice", b.op("Shape", x), b.ints(0), b.ints(1), b.ints(0))
    flat = b.op("Reshape", rows, b.op("Concat", b.ints(-1), batch, b.ints(FEATURES), axis=0))
    shape = b.op("Concat", b.op("Reshape", length, b.ints(1)), batch, b.ints(FEATURES), axis=0)
    y = b.op("ScatterND", b.op("ConstantOfShape", shape), places, flat, reduction="add")
    y = b.op("Transpose", y, perm=[1, 0, 2])
    return b.op("Slice", y, b.ints(0), b.ints(hop - width), b.ints(1)) if width > hop else y


@layer()
def _overlap_shifted(b: Builder, x: str) -> str:
    """Add the halves of frames, the second ones a hop later."""
    hop = [2, 5][b.rng.integers(2)]
    y = _frames(b, x, hop, 2 * hop)
    halves = b.op("Reshape", y, b.ints(0, FEATURES, 2, hop, -1))
    first, second = b.op(
        "Split", b.op("Transpose", halves, perm=[2, 0, 1, 4, 3]), b.ints(1, 1), outputs=2, axis=0
    )
    parts = []
    for half, pads in ((first, (0, 0, 0, 0, 0, hop)), (second, (0, 0, hop, 0, 0, 0))):
        row = b.op("Reshape", b.op("Squeeze", half, b.ints(0)), b.ints(0, FEATURES, -1))
        parts.append(b.op("Pad", row, b.ints(*pads)))
    total = b.op("Transpose", b.op("Add", *parts), perm=[0, 2, 1])
    return b.op("Slice", total, b.ints(0), b.ints(-hop), b.ints(1))


@layer()
def _gathered_frames(b: Builder, x: str) -> str:
    """Take frames by computed indices, and mix each to one step for a hop of one."""
    width = int(b.rng.integers(2, 5))
    padded = b.op("Pad", x, b.ints(0, width - 1, 0, 0, 0, 0))
    size = b.op("Gather", b.op("Shape", padded), b.constant(np.int64(1)), axis=0)
    count = b.op("Sub", size, b.constant(np.int64(width - 1)))
    numbers = b.op("Range", b.constant(np.int64(0)), count, b.constant(np.int64(1)))
    places = b.op("Add", b.op("Unsqueeze", numbers, b.ints(1)), b.constant(np.arange(width)[None]))
    frames = b.op("Gather", padded, places, axis=1)
    flat = b.op("Reshape", frames, b.ints(0, 0, width * FEATURES))
    return b.op("MatMul", flat, b.weights(width * FEATURES, FEATURES))
