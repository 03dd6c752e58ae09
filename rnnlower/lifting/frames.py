"""The frame of a recurrence: the inputs, states and outputs of the steps of a Loop or Scan."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH, LoopSignature, State
from rnnlower.graph.operator_kinds import RANDOM, VIEWS
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.symbols import SIZE_TYPES, combine_sizes
from rnnlower.graph.walk import is_read, look_through, look_through_identities, producer_of
from rnnlower.lifting.affine_forms import NotLiftableError

LAYOUT = VIEWS | {"Concat", "Slice", "Transpose"}
"""Operators that compute nothing with the elements."""
_COUNTING = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that hold every count."""


@dataclasses.dataclass(frozen=True)
class Series:
    """A tensor with one element per step, which the steps read or write.

    Attributes:
        inner: The element in the step.
        axis: The axis of time.
        reverse: Whether the last element comes first.
        keeps_axis: Whether an element keeps the axis of time, with size 1.
        window: The start and end of the elements that are read, unless all are read.
    """

    inner: ir.Value
    outer: ir.Value
    axis: int
    reverse: bool
    keeps_axis: bool = False
    window: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Frame:
    """The frame of a step.

    Attributes:
        node: The node, or the If that runs it only for a nonempty sequence.
        inputs: The tensors that the steps read, element by element.
        outputs: The tensors that the steps write, element by element.
        aliases: Values of the step that stand for values of the graph around it.
        unchanged: What is read of states that never change after the last step, with their initial values.
        going: Conditions of the step that hold for rows that have not ended, with the lengths of the rows.
        has_gaps: Whether rows skip steps by any condition, and H is read at the steps they skip.
    """

    node: ir.Node
    inputs: Sequence[Series]
    states: Sequence[State]
    outputs: Sequence[Series]
    aliases: Mapping[ir.Value, ir.Value]
    unchanged: Sequence[tuple[ir.Value, ir.Value]]
    going: Mapping[ir.Value, ir.Value] = dataclasses.field(default_factory=dict)
    has_gaps: bool = False


def count_steps(facts: Facts, frame: Frame) -> int | None:
    """Return the number of steps, if it is known."""
    for series in frame.inputs:
        dims = facts.dims(series.outer)
        start, end = series.window or (0, None if dims is None else dims[series.axis])
        if isinstance(end, int):
            return end - start
    return None


def scan_frame(facts: Facts, node: ir.Node, owner: ir.Node | None) -> Frame:
    """Return the frame of a Scan; `owner` is the node in whose subgraph it lies.

    Raises:
        NotLiftableError: The Scan has a batch axis of its own, or omits outputs.
    """
    if facts.opset < FIRST_SCAN_WITHOUT_BATCH:
        raise NotLiftableError("a Scan of opset 8 has a batch axis of its own")
    scan = LoopSignature(node)
    body, count = scan.body, scan.count
    if (len(node.inputs), len(node.outputs)) != (len(body.inputs), len(body.outputs)):
        raise NotLiftableError("its node and its body have different numbers of inputs or outputs")
    ends, anchor = _enclosing_if(facts, node, owner)
    inputs = []
    for inner, outer, axis, direction in zip(
        body.inputs[count:], node.inputs[count:], scan.input_axes, scan.input_backward, strict=True
    ):
        assert outer is not None
        inputs.append(Series(inner, outer, axis % _rank(facts, outer), bool(direction)))
    outputs = [
        Series(inner, outer, axis if axis >= 0 else axis + _rank(facts, inner) + 1, bool(direction))
        for inner, outer, axis, direction in zip(
            scan.stacked, ends[count:], scan.output_axes, scan.output_backward, strict=True
        )
    ]
    states, aliases, unchanged = find_states(scan, ends[:count])
    return Frame(anchor, inputs, states, outputs, aliases, unchanged)


def _rank(facts: Facts, value: ir.Value) -> int:
    dims = facts.dims(value)
    if dims is None:
        raise NotLiftableError(f"the rank of {value.name!r} is not known")
    return len(dims)


def find_states(
    loop: LoopSignature, ends: Sequence[ir.Value]
) -> tuple[list[State], dict[ir.Value, ir.Value], list[tuple[ir.Value, ir.Value]]]:
    """Return the states; of those that never change, what stands for the initial value inside and after.

    Args:
        loop: The signature of the Loop or Scan.
        ends: What holds the final states for the graph around it.
    """
    if {len(loop.states), len(ends)} != {loop.count}:
        raise NotLiftableError("its inputs, body and outputs have different numbers of states")
    states, aliases, unchanged = [], {}, []
    for state, end in zip(loop.states, ends, strict=True):
        if state.is_invariant:
            aliases[state.before] = state.start
            if is_read(end):
                unchanged.append((end, state.start))
        elif is_read(state.before) or is_read(end):
            states.append(dataclasses.replace(state, end=end))
    return states, aliases, unchanged


def _enclosing_if(facts: Facts, node: ir.Node, owner: ir.Node | None) -> tuple[Sequence[ir.Value], ir.Node]:
    """Return the outputs and the If of a Scan that runs only for a nonempty sequence, or else its own."""
    graph = node.graph
    if (
        graph is None
        or owner is None
        or owner.op_type != "If"
        or owner.domain
        or graph is not owner.attributes["then_branch"].as_graph()
        or len(graph) != 1
    ):
        return node.outputs, node
    positive, scan = positive_value(facts, owner.inputs[0]), LoopSignature(node)
    if not any(is_axis_size(facts, positive, value, axis) for value, axis in scan.scanned):
        return node.outputs, node
    other = owner.attributes["else_branch"].as_graph()
    starts = dict(zip(node.outputs, node.inputs, strict=False))
    outer: dict[ir.Value, ir.Value] = {}
    for out, result, nothing in zip(owner.outputs, graph.outputs, other.outputs, strict=True):
        if result not in node.outputs or result in outer:
            return node.outputs, node
        is_state = node.outputs.index(result) < scan.count
        is_same = (
            is_same_value(facts, nothing, starts[result]) if is_state else _is_empty(facts, nothing, scan)
        )
        if not is_same:
            return node.outputs, node
        outer[result] = out
    return [outer.get(out, out) for out in node.outputs], owner


def _is_empty(facts: Facts, value: ir.Value, scan: LoopSignature) -> bool:
    """Return whether a value has no elements whenever the sequence of a Scan has none."""
    lengths = [dims[axis] for each, axis in scan.scanned if (dims := facts.dims(each)) is not None]
    return any(dim is not None and dim in (0, *lengths) for dim in facts.dims(value) or ())


def is_same_value(
    facts: Facts,
    first: ir.Value | None,
    second: ir.Value | None,
    given: tuple[ir.Value, ir.Value] | None = None,
) -> bool:
    """Return whether two values are the same, or computed by the same operators from the same values.

    Two other values may be `given` as the same.
    """
    pending, seen = [(first, second)], {*(() if given is None else (given, given[::-1]))}
    while pending:
        one, other = (None if each is None else look_through_identities(each) for each in pending.pop())
        if one is other or (one, other) in seen:
            continue
        seen.add((one, other))
        a, b = facts.constant(one), facts.constant(other)
        if a is not None and b is not None:
            if a.dtype != b.dtype or not np.array_equal(a, b):
                return False
            continue
        if one is None or other is None:
            return False
        node, like = one.producer(), other.producer()
        if (
            node is None
            or like is None
            or node.op_type in RANDOM
            or (node.domain, node.op_type, len(node.inputs)) != (like.domain, like.op_type, len(like.inputs))
            or node.outputs.index(one) != like.outputs.index(other)
            or dict(node.attributes) != dict(like.attributes)
        ):
            return False
        pending += zip(node.inputs, like.inputs, strict=True)
    return True


def positive_value(facts: Facts, condition: ir.Value | None) -> ir.Value | None:
    """Return the value that a condition compares with 0: it holds exactly if the value is positive."""
    producer = None if condition is None else producer_of(look_through(condition), "Less", "Greater")
    if producer is None:
        return None
    zero, value = producer.inputs[:: -1 if producer.op_type == "Greater" else 1]
    nothing = facts.constant(zero)
    return value if nothing is not None and not nothing.any() else None


def same_number(value: ir.Value) -> ir.Value:
    """Return the value at the start of a chain of views and of Casts that change no count."""
    value = look_through(value, VIEWS - {"Cast"})
    node = producer_of(value, "Cast")
    if node is None or node.attributes.get_int("to", 0) not in _COUNTING:
        return value
    return value if node.inputs[0] is None else same_number(node.inputs[0])


def is_axis_size(
    facts: Facts, value: ir.Value | None, tensor: ir.Value | None, axis: int, less: int = 0
) -> bool:
    """Return whether a value is the size of an axis, minus a number."""
    dims, sizes = facts.dims(tensor), None if value is None else facts.sizes(same_number(value))
    if dims is None or sizes is None or sizes.size != 1:
        return False
    (size,), whole = sizes.flat, dims[axis]
    return size is not None and size == (combine_sizes(operator.sub, whole, less) if less else whole)


def counts_along(
    facts: Facts, value: ir.Value | None, axis: int, aliases: Mapping[ir.Value, ir.Value]
) -> bool:
    """Return whether a value counts the elements of one of its axes: 0, 1, 2, ..."""
    value = None if value is None else aliases.get(value, value)
    dims, constant = facts.dims(value), facts.constant(value)
    if value is None or not dims or axis >= len(dims):
        return False
    if constant is not None:
        numbers = np.arange(constant.shape[axis]).reshape(-1, *(1 for _ in dims[axis + 1 :]))
        return bool((constant == numbers).all())
    producer = value.producer()
    if producer is None or producer.domain or producer.inputs[0] is None:
        return False
    if producer.op_type == "Range":
        start, step = (facts.constant(producer.inputs[k]) for k in (0, 2))
        return start is not None and step is not None and (start.item(), step.item()) == (0, 1)
    source, given = producer.inputs[0], facts.dims(producer.inputs[0]) or ()
    cuts, more = axis_slices(producer, facts.constant), len(dims) - len(given)
    if producer.op_type == "Expand":
        is_kept = axis >= more and given[axis - more] == dims[axis]
        return is_kept and counts_along(facts, source, axis - more, aliases)
    is_wide = producer.op_type != "Cast" or facts.dtype(value) in SIZE_TYPES
    is_whole = cuts is not None and all(cut.is_whole() for cut in cuts)
    if not is_whole and not (producer.op_type in VIEWS and is_wide):
        return False
    if is_whole or given == dims[:-1]:
        return counts_along(facts, source, axis, aliases)
    # The only axis with elements stays the only one.
    places, axes = ([place for place, size in enumerate(each) if size != 1] for each in (given, dims))
    return axes == [axis] and len(places) == 1 and counts_along(facts, source, places[0], aliases)


def is_first_step_size(facts: Facts, lengths: ir.Value, place: int) -> bool:
    """Return whether one of some joined lengths is 1, or 0 if there are no steps: the size of ``x[0:1]``."""
    joined = producer_of(lengths, "Concat")
    value = None if joined is None else joined.inputs[place]
    shape = None if value is None else producer_of(look_through(value, VIEWS | {"Slice"}), "Shape")
    if shape is None or shape.inputs[0] is None:
        return False
    return axis_slices(shape.inputs[0].producer(), facts.constant) == [(0, 1, 0, 1)]


def skip_casts(facts: Facts, value: ir.Value) -> ir.Value:
    """Return the value before Identity nodes, and Casts to the type that it already has."""
    value = look_through_identities(value)
    node = producer_of(value, "Cast")
    source = None if node is None else node.inputs[0]
    if source is None or facts.dtype(source) is None or facts.dtype(source) != facts.dtype(value):
        return value
    return skip_casts(facts, source)
