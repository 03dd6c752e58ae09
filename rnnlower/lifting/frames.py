"""The frame of a recurrence: what a Loop or Scan does around its step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH, LoopSignature
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.walk import VIEWS, is_read, look_through, look_through_identities
from rnnlower.lifting.affine_forms import NotLiftableError

LAYOUT = frozenset(("Cast", "Concat", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"))
"""Operators that only move elements."""


@dataclasses.dataclass(frozen=True)
class Series:
    """A tensor of which a step takes one element, or which the steps fill.

    Attributes:
        inner: The element in the step.
        outer: The tensor.
        axis: The axis of time.
        reverse: Whether the last element comes first.
        is_kept: Whether an element keeps the axis of time, with the size 1.
        window: Where the elements that are read start and end, unless all are read.
    """

    inner: ir.Value
    outer: ir.Value
    axis: int
    reverse: bool
    is_kept: bool = False
    window: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class State:
    """A value that goes from step to step.

    Attributes:
        before: The value that a step gets.
        after: The value that it returns.
        start: The value of the first step.
        end: The last value, as the graph around the step reads it.
    """

    before: ir.Value
    after: ir.Value
    start: ir.Value
    end: ir.Value | None


@dataclasses.dataclass(frozen=True)
class Frame:
    """The frame of a step.

    Attributes:
        form: ``scan`` or ``loop``.
        node: The node, or the If that runs it where there are steps at all.
        given: What the steps read, element by element.
        states: What goes from step to step.
        made: What the steps fill, element by element.
        aliases: Values of the step that are values of the graph around it.
    """

    form: str
    node: ir.Node
    given: Sequence[Series]
    states: Sequence[State]
    made: Sequence[Series]
    aliases: Mapping[ir.Value, ir.Value]


def steps_of(facts: Facts, frame: Frame) -> int | None:
    """Return the number of steps, if it is known."""
    for series in frame.given:
        dims = facts.dims(series.outer)
        start, end = series.window or (0, None if dims is None else dims[series.axis])
        if isinstance(end, int):
            return end - start
    return None


def scan_frame(facts: Facts, node: ir.Node, owner: ir.Node | None) -> Frame:
    """Return the frame of a Scan; `owner` is the node in whose subgraph it lies.

    Raises:
        NotLiftableError: The Scan has a batch axis of its own.
    """
    if facts.opset < FIRST_SCAN_WITHOUT_BATCH:
        raise NotLiftableError("a Scan of opset 8 has a batch axis of its own")
    scan = LoopSignature(node)
    body, count = scan.body, scan.states
    outputs, anchor = _around(facts, node, owner)
    given = []
    for inner, outer, axis, direction in zip(
        body.inputs[count:], node.inputs[count:], scan.input_axes, scan.input_backward, strict=True
    ):
        assert outer is not None
        given.append(Series(inner, outer, axis % _rank(facts, outer), bool(direction)))
    made = [
        Series(inner, outer, axis if axis >= 0 else axis + _rank(facts, inner) + 1, bool(direction))
        for inner, outer, axis, direction in zip(
            scan.stacked, outputs[count:], scan.output_axes, scan.output_backward, strict=True
        )
    ]
    states, aliases = states_of(scan.before, scan.after, node.inputs[:count], outputs[:count])
    return Frame("scan", anchor, given, states, made, aliases)


def _rank(facts: Facts, value: ir.Value) -> int:
    dims = facts.dims(value)
    if dims is None:
        raise NotLiftableError(f"the rank of {value.name!r} is not known")
    return len(dims)


def states_of(
    before: Sequence[ir.Value],
    after: Sequence[ir.Value],
    starts: Sequence[ir.Value | None],
    ends: Sequence[ir.Value],
) -> tuple[list[State], dict[ir.Value, ir.Value]]:
    """Return the states, and those that never change, as aliases of what they are."""
    if len({len(each) for each in (before, after, starts, ends)}) > 1:
        raise NotLiftableError("its body and its outputs do not have the states that its inputs begin")
    states, aliases = [], {}
    for inner, result, start, end in zip(before, after, starts, ends, strict=True):
        if start is None:
            raise NotLiftableError(f"{inner.name!r} has no first value")
        if look_through_identities(result) is inner:
            if is_read(end):
                raise NotLiftableError(f"{end.name!r}, which never changes, is read after it")
            aliases[inner] = start
        else:
            states.append(State(inner, result, start, end))
    return states, aliases


def _around(facts: Facts, node: ir.Node, owner: ir.Node | None) -> tuple[Sequence[ir.Value], ir.Node]:
    """Return the outputs of a node as the graph reads them, and the If that runs it if there are steps."""
    graph = node.graph
    if (
        graph is None
        or owner is None
        or owner.op_type != "If"
        or owner.domain
        or graph is not owner.attributes["then_branch"].as_graph()
    ):
        return node.outputs, node
    if len(graph) != 1 or not _has_steps(facts, owner.inputs[0], node):
        return node.outputs, node
    other = owner.attributes["else_branch"].as_graph()
    starts = dict(zip(node.outputs, node.inputs, strict=False))
    outer: dict[ir.Value, ir.Value] = {}
    states = LoopSignature(node).states
    for out, result, nothing in zip(owner.outputs, graph.outputs, other.outputs, strict=True):
        if result not in node.outputs or result in outer:
            return node.outputs, node
        is_state = node.outputs.index(result) < states
        is_same = (
            look_through_identities(nothing) is starts[result]
            if is_state
            else _is_empty(facts, nothing, node)
        )
        if not is_same:
            return node.outputs, node
        outer[result] = out
    return [outer.get(out, out) for out in node.outputs], owner


def _has_steps(facts: Facts, condition: ir.Value | None, node: ir.Node) -> bool:
    """Return whether a condition is that the sequence of a Scan is not empty."""
    positive = positive_value(facts, condition)
    return any(is_size(facts, positive, value, axis) for value, axis in _scanned(node))


def _is_empty(facts: Facts, value: ir.Value, node: ir.Node) -> bool:
    """Return whether a value has no elements where the sequence of a Scan has none."""
    lengths = [dims[axis] for each, axis in _scanned(node) if (dims := facts.dims(each)) is not None]
    return any(dim is not None and dim in (0, *lengths) for dim in facts.dims(value) or ())


def _scanned(node: ir.Node) -> Sequence[tuple[ir.Value | None, int]]:
    """Return the tensors of which a Scan takes elements, each with its axis of time."""
    scan = LoopSignature(node)
    return [*zip(node.inputs[scan.states :], scan.input_axes, strict=True)]


def positive_value(facts: Facts, condition: ir.Value | None) -> ir.Value | None:
    """Return the value that is larger than 0 if a condition holds, and only then."""
    producer = None if condition is None else look_through(condition).producer()
    if producer is None or producer.op_type not in ("Less", "Greater"):
        return None
    zero, value = producer.inputs[:: -1 if producer.op_type == "Greater" else 1]
    nothing = facts.constant(zero)
    return value if nothing is not None and not nothing.any() else None


def is_full(facts: Facts, lengths: ir.Value, of: ir.Value | None, axis: int) -> bool:
    """Return whether lengths, one for each row, are all the size of an axis."""
    while (producer := look_through(lengths).producer()) is not None and producer.op_type in (
        "Expand",
        "Tile",
    ):
        if facts.constant(lengths) is not None or producer.inputs[0] is None:
            break
        lengths = producer.inputs[0]
    dims, sizes = facts.dims(of), facts.sizes(look_through(lengths))
    return dims is not None and sizes is not None and all(size == dims[axis] for size in sizes.flat)


def is_size(facts: Facts, value: ir.Value | None, of: ir.Value | None, axis: int, less: int = 0) -> bool:
    """Return whether a value is the size of an axis, or less than that by a number."""
    dims, sizes = facts.dims(of), None if value is None else facts.sizes(look_through(value))
    if dims is None or sizes is None or sizes.size != 1:
        return False
    (size,), whole = sizes.flat, dims[axis]
    return size is not None and whole is not None and size == (whole - less if less else whole)


def is_first(facts: Facts, lengths: ir.Value, place: int) -> bool:
    """Return whether one of some joined lengths is the size of the first step, which may not exist."""
    joined = lengths.producer()
    if joined is None or joined.op_type != "Concat":
        return False
    value = joined.inputs[place]
    shape = None if value is None else look_through(value, VIEWS | {"Slice"}).producer()
    if shape is None or shape.op_type != "Shape" or shape.inputs[0] is None:
        return False
    return axis_slices(shape.inputs[0].producer(), facts.constant) == [(0, 1, 0, 1)]
