"""The edits that make a graph take one chunk per call."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnnlower.graph.evaluation import Array

Start = float | Array
"""The initial value of a state: one number everywhere, or an array."""


Dims = tuple[int | str | None, ...]
"""The sizes of a state as its shape declares them; ``None`` where the size of a dimension is not known."""


@dataclasses.dataclass(frozen=True)
class Edit:
    """An edit of the graph."""


@dataclasses.dataclass(frozen=True)
class CacheInput(Edit):
    """The last elements of the previous chunks, prepended to an input.

    Attributes:
        node, index: The input, or an output of the model where there is no node.
        axis: The axis of time there.
        cache: Number of elements kept.
        drop: Number of trailing elements, of both, that the node does not read.
        start: What is kept at first.
        shape: Shape of what is kept.
        value: What the state is of, which names it.
        calls: Number of calls before the first real frame; until then nothing is kept.
        repeats: Whether frames of the first chunk are the last ones before it: the next ones in reversed
            order (``reflect``), the first one (``edge``), or none ("").
        repeated: The number of these.
    """

    node: ir.Node | None
    index: int
    axis: int
    cache: int
    drop: int
    start: Start
    shape: Dims
    value: ir.Value
    dtype: ir.DataType
    calls: int = 0
    repeats: str = ""
    repeated: int = 0


@dataclasses.dataclass(frozen=True)
class HoldState(Edit):
    """A state of a node, moved to an input and an output of the model.

    Attributes:
        index, output: Where it takes and gives the state.
        name: What the state is named after.
        start: Its initial value, if it becomes an input.
        kept: The input of the model that it is already, and the output of the model that holds the final
            state, if there is one.
        calls: Number of calls before the first real frame; until then nothing is kept.
    """

    node: ir.Node
    index: int
    output: int
    name: str
    start: Start
    kept: tuple[ir.Value, ir.Value | None] | None
    shape: Dims
    dtype: ir.DataType
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class ContinueSum(Edit):
    """A cumulative sum, continued from chunk to chunk."""

    node: ir.Node
    axis: int
    shape: Dims
    dtype: ir.DataType
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class ContinuePositions(Edit):
    """Positions, continued from chunk to chunk.

    Attributes:
        node: A Range over the steps; or, where there is a table, the node that takes rows of it.
        index: The input that is the table.
        axis: The axis of the rows.
        chunk: The frames of a chunk.
        table: A row for each position.
        holds: The position from which the rows of each chunk are the same, if there is one.
        step: The difference of neighbors in the Range.
        dtype: The type of the Range.
        count: The vector that holds the frames of a chunk of any length, and the place in it.
    """

    node: ir.Node
    index: int
    axis: int
    chunk: int = dataclasses.field(compare=False)
    table: ir.Value | Array | None = None
    holds: int | None = None
    step: int = 1
    dtype: ir.DataType = ir.DataType.INT64
    count: tuple[ir.Value, int] | None = None


@dataclasses.dataclass(frozen=True)
class BlankFrames(Edit):
    """A constant in the place of the frames before the first real one.

    Attributes:
        node, index: The input.
        axis, rank: The axis of time there, and the number of axes.
        late: The frames before the first one.
        chunk: The frames of a chunk.
        fill: The number.
    """

    node: ir.Node
    index: int
    axis: int
    rank: int
    late: int
    chunk: int = dataclasses.field(compare=False)
    fill: float
    dtype: ir.DataType


@dataclasses.dataclass(frozen=True)
class OverlapAdd(Edit):
    """The sum of shifted frames, in the place of a node that adds up overlapping ones.

    Attributes:
        node, index: The frames. Those of the last chunk that reach into this one come first.
        axis: Their axis. That of their elements is the next one, or folded into it.
        frames: The frames of a chunk.
        kernel, hop: The elements of a frame, and from one frame to the next.
        is_folded: Whether the elements are folded into the axis of the frames.
        shape: The sizes of the other axes; ``None`` where one is not known.
    """

    node: ir.Node
    index: int
    axis: int
    frames: int
    kernel: int
    hop: int
    is_folded: bool
    shape: tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class ReplaceInput(Edit):
    """A constant in the place of an input, or nothing."""

    node: ir.Node
    index: int
    array: Array | None


@dataclasses.dataclass(frozen=True)
class SetAttribute(Edit):
    """Another list of integers for an attribute."""

    node: ir.Node
    name: str
    value: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class BypassNode(Edit):
    """One of a node's inputs, in the place of the node."""

    node: ir.Node
    index: int
