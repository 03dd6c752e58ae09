"""Knowledge of a value: the position of time in it, its contents and shapes; the errors if time is lost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from rnnlower.graph.evaluation import Array
from rnnlower.graph.facts import Facts
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import default_opset, ints_of_attribute_or_input, operand
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

    def require_unfolded(self, what: str) -> None:
        """Refuse an axis that has other elements than frames; `what` the operator does along it."""
        if self.is_folded:
            raise CoupledError(f"{what} an axis in which time is folded")

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


def facts_about(model: ir.Model, sample: Sample) -> Facts:
    """Return the facts about a model whose inputs have the shapes of a sample."""
    facts = Facts(model, declared=True)
    for value in model.graph.inputs:
        if (shape := sample.shape(value)) is not None:
            facts.assume(value, shape)
    return facts


class Contents:
    """The contents and shapes of the values of a model, twice.

    Args:
        model: The model; it is not changed.
        sample: The time axes of the inputs, and sizes.

    Attributes:
        opset: The version of the default domain.
        whole, part: The facts about the model for the whole sequence, and for one chunk.
        longer: The facts for a longer sequence, if the length is dynamic: numbers may agree by chance.
    """

    def __init__(self, model: ir.Model, sample: Sample) -> None:
        self.model, self.sample = model, sample
        self.opset = default_opset(model)
        self.whole, self.part = facts_about(model, sample), Facts(model, declared=True)
        self.longer = Facts(model, declared=True) if self.has_dynamic_length else self.whole
        # The values of known content; true if it depends on the length.
        self._is_sized: dict[ir.Value, bool] = {}

    @property
    def has_dynamic_length(self) -> bool:
        """True if the length of the sequence is dynamic in the model."""
        inputs = {value.name: value for value in self.model.graph.inputs}
        shapes = [(inputs[name].shape, axis) for name, axis in self.sample.axes.items()]
        return any(shape is not None and not isinstance(shape[axis], int) for shape, axis in shapes)

    def depends_on_length(self, value: ir.Value | None) -> bool:
        """Return whether a content depends on the length: a chunk's differs from the whole sequence's."""
        return value is not None and self._is_sized.get(value, False)

    def is_fixed(self, value: ir.Value | None) -> bool:
        """Return whether positions are the same at any length: where an example ends they do by chance."""
        return self.has_dynamic_length and not self.depends_on_length(value)

    def shape(self, node: ir.Node, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input for the whole sequence."""
        return self._known_shape(operand(node, index), "an input")

    def result_shape(self, node: ir.Node) -> tuple[int, ...]:
        """Return the shape of the first output for the whole sequence."""
        return self._known_shape(node.outputs[0], "a result")

    def _known_shape(self, value: ir.Value | None, what: str) -> tuple[int, ...]:
        shape = self.shape_of(value)
        if shape is None:
            remedy = opset_remedy() if self.opset < MODERN_OPSET else shapes_remedy()
            raise CoupledError(f"has {what} of unknown shape", remedy)
        return shape

    def shape_of(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a value for the whole sequence."""
        shape = self.whole.shape(value)
        return None if shape is None or None in shape else shape  # type: ignore[return-value]

    def content(self, value: ir.Value | None) -> Array | None:
        """Return the content of a value for the whole sequence, if it follows from constants and sizes."""
        if value is None or (value.producer() is not None and value not in self._is_sized):
            return None
        return self.whole.constant(value)

    def chunk_content(self, value: ir.Value | None) -> Array | None:
        """Return the content of a value for a chunk, if it follows from constants and sizes."""
        return self.part.constant(value) if self.depends_on_length(value) else self.content(value)

    def ints(self, node: ir.Node, name: str, index: int) -> tuple[list[int], list[int]] | None:
        """Return integers for the sequence and for a chunk: an attribute, or in newer versions an input."""
        unknown = CoupledError(f"takes its {name} from an unsupported computation")
        whole = ints_of_attribute_or_input(node, name, index, self.content, unknown)
        chunk = ints_of_attribute_or_input(node, name, index, self.chunk_content, unknown)
        if whole is None or chunk is None:
            return None
        value = operand(node, index)
        longer = self.longer.constant(value) if self.depends_on_length(value) else whole
        if longer is None or any(a == b != c for a, b, c in zip(whole, chunk, [*longer], strict=True)):
            raise unknown
        return whole, chunk

    def lengths(self, value: ir.Value | None, track: Track) -> Iterator[tuple[Track, list[int]]]:
        """Yield a track at each length of the whole sequence, and the integers of a value there, if known."""
        lengths = [(self.whole, self.sample), (self.longer, self.sample.longer)]
        for facts, sample in lengths[: 1 + self.has_dynamic_length]:
            content = facts.constant(value)
            if content is not None:
                yield track.with_(sample=sample), content.reshape(-1).tolist()

    def require_same_ints(self, node: ir.Node, name: str, index: int, but: int | None = None) -> None:
        """Refuse integers that differ between the sequence and a chunk, except for one of them."""
        pairs = zip(*(self.ints(node, name, index) or ([], [])), strict=True)
        if any(whole != chunk and place != but for place, (whole, chunk) in enumerate(pairs)):
            raise CoupledError(f"takes {name} of another axis than time from the number of time steps")

    def axes(self, node: ir.Node, index: int = 1) -> list[int] | None:
        """Return the axes that an operator works on, counted from the start, if they are given."""
        given, rank = self.ints(node, "axes", index), len(self.shape(node))
        if given is not None and given[0] != given[1]:
            raise CoupledError("takes its axes from the number of time steps")
        return None if given is None else [axis % rank for axis in given[0]]

    def dtype(self, value: ir.Value | None) -> ir.DataType:
        """Return the type of a value."""
        return self.whole.dtype(value) or ir.DataType.FLOAT
