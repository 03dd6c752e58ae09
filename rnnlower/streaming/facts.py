"""Facts about a value, collected while the time axis is followed through a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from rnnlower.wording import call, option

Array = NDArray[np.generic]
Content = tuple[Array, Array]
"""The content of a value: for the whole sequence, and for one chunk."""


class CoupledError(Exception):
    """A node couples time steps, so the model cannot be streamed.

    Args:
        problem: Why.
        remedy: What the user can do, if anything.
        node: The node.

    Attributes:
        also: Other nodes of which the same is true.
    """

    def __init__(self, problem: str, remedy: str = "", node: ir.Node | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.node = node
        self.also: list[ir.Node] = []


class ChunkError(CoupledError):
    """A node takes several frames at a time, and the chunk is not a multiple of them.

    Args:
        at: The node.
        problem: Why.
        steps: The time steps of which a chunk must be a multiple.
    """

    def __init__(self, at: ir.Node, problem: str, steps: int) -> None:
        super().__init__(problem, node=at)
        self.at = at
        self.steps = steps


@dataclasses.dataclass(frozen=True)
class Track:
    """The position of a value's frames.

    The axis has ``outer * frames * inner`` elements: more than frames if a Reshape has folded other axes
    into it. Frame ``j`` of the whole sequence leaves the stream ``lag`` frames late. Frames that are late by
    a negative number are not part of the stream at all: the first ``-lag`` frames, which are all ``fill``.

    Attributes:
        axis: The axis.
        frames: Frames of the whole sequence.
        chunk: Frames of a chunk.
        outer, inner: The sizes folded in before and after the frames.
        lag: The number of frames by which the stream is late.
        tail: The number of additional frames at the end of the whole sequence.
        fill: The value before the stream.
    """

    axis: int
    frames: int
    chunk: int
    outer: int = 1
    inner: int = 1
    lag: int = 0
    tail: int = 0
    fill: float = 0.0

    @property
    def size(self) -> int:
        """The size of the axis for the whole sequence."""
        return self.outer * self.frames * self.inner

    @property
    def chunk_size(self) -> int:
        """The size of the axis for a chunk."""
        return self.outer * self.chunk * self.inner

    def at(self, axis: int) -> Track:
        """Return the same track on another axis."""
        return dataclasses.replace(self, axis=axis)

    def with_(self, **changes: object) -> Track:
        """Return the same track with other attributes."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Fact:
    """Facts about a value.

    Attributes:
        shape: Its shape for the whole sequence.
        track: The position of its frames, if it has any.
        latest: Whether it follows from the stream without a time axis: a final state, the last frame.
            A chunk's is that of the sequence up to its end.
        content: Its content, if that is small and follows from constants and sizes.
    """

    shape: tuple[int, ...] | None = None
    track: Track | None = None
    latest: bool = False
    content: Content | None = None

    @property
    def streams(self) -> bool:
        """True if it follows from the stream."""
        return self.track is not None or self.latest

    @property
    def is_sized(self) -> bool:
        """True if its content depends on the length: it differs between a chunk and the whole sequence."""
        return self.content is not None and not _same(*self.content)

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """Its shape for a chunk."""
        if self.shape is None or self.track is None:
            return self.content[1].shape if self.content is not None else self.shape
        axis = self.track.axis
        return (*self.shape[:axis], self.track.chunk_size, *self.shape[axis + 1 :])


@dataclasses.dataclass(frozen=True)
class Sample:
    """Example numbers for everything that the model leaves dynamic.

    Attributes:
        axes: The time axis of each input that has one.
        steps: Time steps of the whole sequence.
        chunk: Time steps of a chunk.
        sizes: Sizes of the other symbolic dimensions, by name; of nameless ones under "".
    """

    axes: Mapping[str, int]
    steps: int
    chunk: int
    sizes: Mapping[str, int]

    def shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the shape of a graph input for the whole sequence."""
        if value.shape is None:
            return None
        shape = [
            dim if isinstance(dim, int) and dim >= 0 else self.sizes.get(_name(dim), self.sizes[""])
            for dim in value.shape
        ]
        if value.name is not None and value.name in self.axes:
            shape[self.axes[value.name]] = self.steps
        return tuple(shape)

    def named(self, size: int) -> int | str | None:
        """Return the size as a shape may declare it: a number, the name of a dimension, or neither."""
        for name, own in self.sizes.items():
            if own > 1 and size % own == 0:
                return (name if size == own else f"{size // own}*{name}") if name else None
        return size


def _name(dim: object) -> str:
    return (dim.value or "") if isinstance(dim, ir.SymbolicDim) else ""


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def fix_batch() -> str:
    """Return the remedy if time comes after a batch axis."""
    return f"fix the batch at 1 ({option('dim')}, {option('input-shape')})"


def fix_shapes() -> str:
    """Return the remedy if a shape is not known."""
    return f"fix dynamic dimensions other than time ({option('dim')}, {option('input-shape')})"


MODERN_OPSET = 7
"""The first opset with today's broadcasting, of which onnx infers all shapes."""


def newer_opset() -> str:
    """Return the remedy if an operator is too old to be followed."""
    return f"convert the model to opset {MODERN_OPSET} or higher first ({call('convert', opset=17)})"


def number(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else int(attribute.value)


def numbers(node: ir.Node, name: str) -> tuple[int, ...] | None:
    """Return an attribute that is a list of integers."""
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else tuple(int(each) for each in attribute.value)


def text(node: ir.Node, name: str, default: str) -> str:
    """Return a text attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None or attribute.is_ref() else str(attribute.value)
