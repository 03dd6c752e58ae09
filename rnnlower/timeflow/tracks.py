"""Time in a value: the axis and the position of its frames, and errors where it cannot be followed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.graph.walk import dim_name
from rnnlower.wording import call, option


class CoupledError(Exception):
    """A node couples time steps.

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

    A sequence of n time steps has ``(n + offset) // stride`` frames. The axis has ``outer * frames * inner``
    elements: more than frames if a Reshape has folded other axes into it. Frame ``j`` of the whole sequence
    leaves the stream ``lag`` frames late. Frames that are late by a negative number are not part of the
    stream at all: the first ``-lag`` frames, which are all ``fill``.

    Attributes:
        axis: The axis.
        sample: The lengths of the whole sequence and of a chunk.
        stride: The number of time steps from one frame to the next.
        offset: The number of time steps that the sequence is longer here.
        outer, inner: The sizes folded in before and after the frames.
        lag: The number of frames by which the stream is late.
        fill: The value before the stream.
    """

    axis: int
    sample: Sample
    stride: int = 1
    offset: int = 0
    outer: int = 1
    inner: int = 1
    lag: int = 0
    fill: float = 0.0

    @property
    def frames(self) -> int:
        """The frames of the whole sequence."""
        return self.frames_of(self.sample.steps)

    @property
    def chunk(self) -> int:
        """The frames of a chunk."""
        return max(self.sample.chunk // self.stride, 1)

    @property
    def tail(self) -> int:
        """The number of additional frames at the end of the whole sequence."""
        return self.offset // self.stride

    @property
    def size(self) -> int:
        """The size of the axis for the whole sequence."""
        return self.outer * self.frames * self.inner

    @property
    def chunk_size(self) -> int:
        """The size of the axis for a chunk."""
        return self.outer * self.chunk * self.inner

    @property
    def is_folded(self) -> bool:
        """True if the axis has other elements than frames."""
        return (self.outer, self.inner) != (1, 1)

    def frames_of(self, length: int) -> int:
        """Return the frames of a sequence of this many time steps."""
        return (length + self.offset) // self.stride

    def runs_with(self, other: Track, axis: int | None = None) -> bool:
        """Return whether another value has its frames in the same places; ``axis``: its own axis here."""
        return (self.axis, self.outer, self.inner, self.chunk) == (
            other.axis if axis is None else axis,
            other.outer,
            other.inner,
            other.chunk,
        )

    def with_(self, **changes: object) -> Track:
        """Return the same track with other attributes."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def at(self, axis: int) -> Track:
        """Return the same track on another axis."""
        return self.with_(axis=axis)

    def longer(self, frames: int) -> Track:
        """Return the track of a sequence with more frames, or fewer."""
        return self.with_(offset=self.offset + frames * self.stride)


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
            dim if isinstance(dim, int) and dim >= 0 else self.sizes.get(dim_name(dim) or "", self.sizes[""])
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
