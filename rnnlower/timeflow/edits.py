"""The edits that make a graph take one chunk per call."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnnlower.graph.evaluation import Array
from rnnlower.recurrent.node import ResolvedNode

Start = float | Array
"""The initial value of a state: one number everywhere, or an array."""


@dataclasses.dataclass(frozen=True)
class Cached:
    """Precede an input by the last elements of the previous chunks.

    Attributes:
        node, index: The input, or an output of the model where there is no node.
        axis: The axis of time there.
        cache: How many elements of it are kept.
        drop: How many elements at the end of both the node does not take.
        start: What is kept at first.
        shape: Shape of what is kept; ``None`` where the size of a dimension is not known.
        value: What the state is of, which names it.
        dtype: Its type.
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
    shape: tuple[int | str | None, ...]
    value: ir.Value
    dtype: ir.DataType
    calls: int = 0
    repeats: str = ""
    repeated: int = 0


@dataclasses.dataclass(frozen=True)
class Carried:
    """Move the states of a recurrent node to inputs and outputs of the model.

    Attributes:
        resolved: The node.
        name: Its name.
        starts: For each state that becomes an input, its initial value.
        kept: For each state that is an input of the model already, that input, and the output of the model
            that holds the final state, if there is one.
        shape: Shape of a state.
        dtype: Its type.
        calls: Number of calls before the first real frame; until then nothing is kept.
    """

    resolved: ResolvedNode
    name: str
    starts: dict[str, Start]
    kept: dict[str, tuple[ir.Value, ir.Value | None]]
    shape: tuple[int | str | None, ...]
    dtype: ir.DataType
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class Summed:
    """Continue a cumulative sum from chunk to chunk."""

    node: ir.Node
    axis: int
    shape: tuple[int | str | None, ...]
    dtype: ir.DataType
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class Replaced:
    """Replace an input by a constant, or remove it."""

    node: ir.Node
    index: int
    array: Array | None


@dataclasses.dataclass(frozen=True)
class SetAttribute:
    """Set an attribute to another list of integers."""

    node: ir.Node
    name: str
    value: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Bypassed:
    """Replace a node by one of its inputs."""

    node: ir.Node
    index: int


Edit = Bypassed | Cached | Carried | Replaced | SetAttribute | Summed
