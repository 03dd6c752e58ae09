"""The frame of a Loop: which elements its counters read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.iterations import iterations
from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.frames import VIEWS, Frame, Series, State, is_size, passed, root, states_of


@dataclasses.dataclass(frozen=True)
class _Index:
    """A position that moves with the iterations: ``slope * iteration + offset``, or that plus a value."""

    slope: int
    offset: int
    value: ir.Value | None = None


def loop_frame(facts: Facts, node: ir.Node, owner: ir.Node | None) -> Frame:
    """Return the frame of a Loop; `owner` is the node in whose subgraph it lies.

    Raises:
        NotLiftableError: Its steps are not one for each element of a series.
    """
    body = node.attributes["body"].as_graph()
    count = len(node.inputs) - 2
    states, aliases = states_of(
        body.inputs[2:], body.outputs[1 : 1 + count], node.inputs[2:], node.outputs[:count]
    )
    steps = iterations(facts, node)
    if steps is None:
        _require_no_condition(facts, node)
    counters = _Counters(facts, body, states)
    given = []
    for reader in body:
        if reader.op_type != "Gather" or reader.domain:
            continue
        index = counters.index(reader.inputs[1])
        outer = aliases.get(reader.inputs[0], reader.inputs[0])  # type: ignore[arg-type]
        if index is not None and index.slope and outer is not None:
            given.append(_series(facts, node, reader, outer, index, steps))
    made = [
        Series(inner, outer, 0, False)
        for inner, outer in zip(body.outputs[1 + count :], node.outputs[count:], strict=True)
    ]
    rest = [state for state in states if state.before not in counters.known]
    for state in states:
        end = state.end
        if state not in rest and end is not None and (end.uses() or end.is_graph_output()):
            raise NotLiftableError(f"the counter {end.name!r} is read behind the Loop")
    return Frame("loop", node, given, rest, made, aliases)


def _require_no_condition(facts: Facts, node: ir.Node) -> None:
    """Refuse a Loop that may end before its trip count."""
    body = node.attributes["body"].as_graph()
    first = node.inputs[1] if len(node.inputs) > 1 else None
    for value in (first, root(body.outputs[0])):
        constant = facts.constant(value)
        if value is not None and value is not body.inputs[1] and (constant is None or not constant.all()):
            raise NotLiftableError("its number of iterations is not known")


def _series(
    facts: Facts, node: ir.Node, reader: ir.Node, outer: ir.Value, index: _Index, steps: int | None
) -> Series:
    dims = facts.dims(outer)
    if dims is None:
        raise NotLiftableError(f"the rank of {outer.name!r} is not known")
    axis = reader.attributes.get_int("axis", 0) % len(dims)
    place = facts.dims(reader.inputs[1])
    if place is None or len(place) > 1:
        raise NotLiftableError("a step reads several elements of a series")
    if index.slope == 1:
        is_whole = index.value is None and index.offset == 0
    else:
        last = index.value is None and index.offset == (steps or 0) - 1
        is_whole = index.slope == -1 and (last or _is_last(facts, index, outer, axis))
    fits = dims[axis] == steps if steps is not None else is_size(facts, node.inputs[0], outer, axis)
    type_ = facts.type(outer)
    if isinstance(type_, ir.TensorType) and type_.dtype == ir.DataType.BOOL:
        # A mask may be longer than the series; what it says is looked at later.
        fits = True
    if not is_whole or not fits:
        raise NotLiftableError(f"the steps do not read every element of {outer.name!r}, one after another")
    return Series(reader.outputs[0], outer, axis, index.slope < 0, is_kept=len(place) == 1)


def _is_last(facts: Facts, index: _Index, outer: ir.Value, axis: int) -> bool:
    """Return whether an offset is the position of the last element."""
    producer = None if index.value is None else passed(index.value).producer()
    if producer is None or producer.op_type not in ("Sub", "Add") or index.offset:
        return False
    step = facts.constant(producer.inputs[1])
    expected = 1 if producer.op_type == "Sub" else -1
    return (
        step is not None
        and bool((step == expected).all())
        and is_size(facts, producer.inputs[0], outer, axis)
    )


class _Counters:
    """The values of a body that count its iterations."""

    def __init__(self, facts: Facts, body: ir.Graph, states: Sequence[State]) -> None:
        self._facts, self._body = facts, body
        self._own = {*body.inputs, *(out for node in body for out in node.outputs)}
        self.known: dict[ir.Value, _Index] = {}
        number = body.inputs[0]
        counters: dict[ir.Value, _Index] = {}
        for state in states:
            start = facts.constant(state.start)
            step = self._step(state)
            if (
                start is not None
                and start.size == 1
                and np.issubdtype(start.dtype, np.integer)
                and step is not None
            ):
                counters[state.before] = _Index(step, int(start.reshape(-1)[0]))
        self.known = counters
        self._number = number

    def _step(self, state: State) -> int | None:
        """Return by how much a state grows in each iteration."""
        producer = root(state.after).producer()
        if producer is None or producer.op_type not in ("Add", "Sub"):
            return None
        first, second = producer.inputs
        if producer.op_type == "Add" and second is state.before:
            first, second = second, first
        step = self._facts.constant(second)
        if first is not state.before or step is None or step.size != 1:
            return None
        number = int(step.reshape(-1)[0])
        return -number if producer.op_type == "Sub" else number

    def index(self, value: ir.Value | None) -> _Index | None:
        """Return the position that a value is, if it moves evenly."""
        if value is None:
            return None
        constant = self._facts.constant(value)
        if constant is not None:
            return _Index(0, int(constant.reshape(-1)[0])) if constant.size == 1 else None
        if value is self._number:
            return _Index(1, 0)
        if value in self.known:
            return self.known[value]
        if value not in self._own:
            return _Index(0, 0, value)
        producer = value.producer()
        if producer is None or producer.domain:
            return None
        if producer.op_type in VIEWS:
            return self.index(producer.inputs[0])
        if producer.op_type in ("Add", "Sub"):
            first, second = (self.index(each) for each in producer.inputs)
            return None if first is None or second is None else _combined(first, second, producer.op_type)
        return None


def _combined(first: _Index, second: _Index, op_type: str) -> _Index | None:
    sign = -1 if op_type == "Sub" else 1
    if second.value is not None and (sign < 0 or first.value is not None):
        return None
    value = first.value or second.value
    return _Index(first.slope + sign * second.slope, first.offset + sign * second.offset, value)
