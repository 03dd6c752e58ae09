"""The position of time in a value, and the errors raised where it cannot be followed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.graph.evaluation import Array
from rnnlower.graph.symbols import dim_name
from rnnlower.wording import call, option, time_axis

_LONGER = 479


class CoupledError(Exception):
    """A node couples time steps.

    Args:
        remedy: What the user can do, if anything.

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
    """A node takes several frames at a time, and the chunk is not a multiple of that number.

    Args:
        steps: The time steps of which a chunk must be a multiple.
        least: The least number of time steps of a chunk.
    """

    def __init__(self, at: ir.Node, problem: str, steps: int, least: int = 1) -> None:
        super().__init__(problem, node=at)
        self.at = at
        self.steps = steps
        self.least = least


@dataclasses.dataclass(frozen=True)
class Track:
    """The position of a value's frames.

    The number of frames follows from that of the time steps in stages of ``(n * factor + more) // stride``:
    windows with a stride take several frames for one, a transposed convolution makes several of one. The
    axis has ``outer * frames * inner`` elements: more than frames if a Reshape has folded other axes into
    it. Frame ``j`` of the whole sequence
    leaves the stream ``lag`` frames late. Frames that are late by a negative number are not part of the
    stream at all: the first ``-lag`` frames, which are all ``fill``.

    Attributes:
        axis: The axis.
        sample: The lengths of the whole sequence and of a chunk.
        stages: For each stage, ``(factor, more, stride)``.
        outer, inner: The sizes folded in before and after the frames.
        lag: The number of frames by which the stream is late.
        fill: The value before the stream; or which of the first frames of the stream is there, as modes of
            Pad: ``reflect`` (the next ones in reversed order) or ``edge`` (the first one).
    """

    axis: int
    sample: Sample
    stages: tuple[tuple[int, int, int], ...] = ((1, 0, 1),)
    outer: int = 1
    inner: int = 1
    lag: int = 0
    fill: float | str = 0.0

    @property
    def frames(self) -> int:
        """The frames of the whole sequence."""
        return self.frames_of(self.sample.steps)

    @property
    def chunk(self) -> int:
        """The frames of a chunk."""
        frames = self.sample.chunk
        for factor, _, stride in self.stages:
            frames = frames * factor // stride
        return max(frames, 1)

    @property
    def rate(self) -> float:
        """The frames of a time step."""
        return math.prod(factor for factor, _, _ in self.stages) / math.prod(each[2] for each in self.stages)

    @property
    def tail(self) -> int:
        """The number of additional frames at the end of the whole sequence."""
        return self.frames_of(0)

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

    @property
    def unfolded(self) -> Track:
        """The same track with frames of one element each, if no other axis is folded before the frames."""
        return (
            self if self.outer != 1 else self.resampled(self.inner).with_(inner=1, lag=self.lag * self.inner)
        )

    def frames_of(self, length: int) -> int:
        """Return the frames of a sequence of this many time steps."""
        for factor, more, stride in self.stages:
            length = (length * factor + more) // stride
        return length

    def require_end(self) -> None:
        """Refuse frames after the last one where the stream goes on, because the last ones were cut off."""
        if self.tail + self.lag < 0:
            raise CoupledError(
                "puts frames after the end of a sequence that was cut off before its last ones"
            )

    def is_aligned_with(self, other: Track) -> bool:
        """Return whether another value has its frames in the same places."""
        mine, its = ((each.axis, each.outer, each.inner, each.chunk) for each in (self, other))
        return mine == its

    def with_(self, **changes: object) -> Track:
        """Return the same track with other attributes."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]

    def at(self, axis: int) -> Track:
        """Return the same track on another axis."""
        return self.with_(axis=axis)

    def resampled(self, factor: int = 1, more: int = 0, stride: int = 1) -> Track:
        """Return the track of ``(frames * factor + more) // stride`` frames."""
        *before, (own, offset, wide) = self.stages
        if (factor, more, stride) == (1, 0, 1):
            return self
        if factor == 1:
            # Rounding down twice is rounding down once.
            last = [(own, offset + more * wide, wide * stride)]
        elif wide == 1:
            last = [(own * factor, offset * factor + more, stride)]
        else:
            last = [(own, offset, wide), (factor, more, stride)]
        return self.with_(stages=(*before, *last))


@dataclasses.dataclass(frozen=True)
class Scores:
    """Products of the query of each step, a row, with the key of each step, a column.

    Attributes:
        track: The frames of the rows.
        keys: The frames of the keys, where they enter the product.
        product: The product; its second input is the keys.
        calls: Number of calls before the first real frame.
        visible: For an example, whether a step, a row, looks at another one; ``None`` without a mask.
        masks: For each mask, the node and the input, what it holds, and what hides a step.
        outside: What the scores are for a step that is not visible, once that is known.
        window: The number of steps that are visible, once that is known.
    """

    track: Track
    keys: Track
    product: ir.Node
    calls: int
    visible: Array | None = None
    masks: tuple[tuple[ir.Node, int, Array, Array], ...] = ()
    outside: Array | None = None
    window: int = 0


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

    @property
    def longer(self) -> Sample:
        """The sample with a longer sequence.

        Only numbers that are the same at every multiple of a chunk agree for all three lengths.
        """
        return dataclasses.replace(self, steps=self.chunk * ((self.steps // self.chunk - 1) * _LONGER + 2))

    def named(self, size: int) -> int | str | None:
        """Return the size as a shape declares it: a number, a name, a product as in ``2*N``, or ``None``."""
        names: list[str] = []
        for name, own in self.sizes.items():
            while own > 1 and size and size % own == 0:
                names.append(name)
                size //= own
        if not names:
            return size
        return "*".join([*[str(size)] * (size > 1), *names]) if all(names) else None


def batch_remedy() -> str:
    """Return the remedy if time comes after a batch axis."""
    return f"fix the batch at 1 ({option('dim')}, {option('input-shape')})"


def misaligned_error(sample: Sample) -> CoupledError:
    """Return the error for values that are not over the same time, perhaps as their inputs are not."""
    named = [time_axis(name, axis) for name, axis in sample.axes.items()]
    remedy = f"if one input alone is the stream, name it ({' or '.join(named)})" if len(named) > 1 else ""
    return CoupledError("combines values whose time lies on different axes, or runs at another rate", remedy)


def shapes_remedy() -> str:
    """Return the remedy if a shape is not known."""
    return f"fix dynamic dimensions other than time ({option('dim')}, {option('input-shape')})"


def length_remedy() -> str:
    """Return the remedy if an exporter wrote sizes of one length."""
    return f"fix the length to that one ({option('input-shape')}), or export for any length"


MODERN_OPSET = 7
"""The first opset with today's broadcasting, of which onnx infers all shapes."""


def opset_remedy() -> str:
    """Return the remedy if an operator is too old to be followed."""
    return f"convert the model to opset {MODERN_OPSET} or higher first ({call('convert', opset=17)})"
