"""What has to be done to a graph so that it takes one chunk a call."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnnlower.recurrent.node import ResolvedNode
from rnnlower.streaming.facts import Array

__all__ = [
    "Bypassed",
    "Cached",
    "Carried",
    "Edit",
    "Replaced",
    "SetAttribute",
    "Start",
    "Summed",
    "WithoutInput",
]

Start = float | Array
"""How a state starts: one number everywhere, or an array."""


@dataclasses.dataclass(frozen=True)
class Cached:
    """An input is preceded by the last elements of the chunks before.

    Attributes:
        node, index: The input, or an output of the model where there is no node.
        axis: The axis of time there.
        cache: How many elements of it are kept.
        drop: How many elements at the end of both the node does not take.
        start: What is kept at first.
        shape: Shape of what is kept; ``None`` where the size of a dimension is not known.
        value: What the state is of, which names it.
        dtype: Its type.
        calls: How many calls pass before the first real frame comes; until then nothing is kept.
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


@dataclasses.dataclass(frozen=True)
class Carried:
    """A recurrent node whose states come from outside and go there.

    Attributes:
        resolved: The node.
        name: What it is called.
        starts: For each state that becomes an input how it starts.
        kept: For each state that is an input of the model already that input, and the output of the model
            that holds it in the end, if there is one.
        shape: Shape of a state.
        dtype: Its type.
        calls: How many calls pass before the first real frame comes; until then nothing is kept.
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
    """A cumulative sum that goes on from chunk to chunk."""

    node: ir.Node
    axis: int
    shape: tuple[int | str | None, ...]
    dtype: ir.DataType
    calls: int = 0


@dataclasses.dataclass(frozen=True)
class Replaced:
    """An input becomes a constant."""

    node: ir.Node
    index: int
    array: Array


@dataclasses.dataclass(frozen=True)
class SetAttribute:
    """An attribute gets another list of integers."""

    node: ir.Node
    name: str
    value: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Bypassed:
    """A node gives way to one of its inputs."""

    node: ir.Node
    index: int


@dataclasses.dataclass(frozen=True)
class WithoutInput:
    """An optional input goes."""

    node: ir.Node
    index: int


Edit = Bypassed | Cached | Carried | Replaced | SetAttribute | Summed | WithoutInput
