"""The body of a Loop or Scan in simpler operators, which lifting knows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH, LoopSignature, State
from rnnlower.graph.names import NameSource
from rnnlower.graph.rewiring import remove_orphans, replace_with_values, take_place_of
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.walk import (
    LocatedNode,
    ancestors,
    display_name,
    is_read,
    look_through_identities,
    producer_of,
    required_input,
)
from rnnlower.lifting.frames import is_same_value
from rnnlower.lifting.loops import step_slices
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.passes.joined_values import Joined, is_view, joined_parts, read_slices
from rnnlower.passes.simpler_control_flow import replace_loop, take_branches
from rnnlower.passes.step_choices import has_other_choices, write_choices


def has_simpler_steps(facts: Facts, node: ir.Node) -> bool:
    """Return whether the body of a Loop or Scan may be made simpler."""
    loop = LoopSignature(node)
    if (node.op_type == "Scan" and facts.opset < FIRST_SCAN_WITHOUT_BATCH) or len(loop.states) < loop.count:
        return False
    return (
        any(each.op_type == "If" for each in loop.body)
        or any(True for _ in _changes(facts, node))
        or (node.op_type == "Loop" and bool(step_slices(facts, node)))
        or has_other_choices(facts, loop.body, node)
    )


def simplify_steps(facts: Facts, names: NameSource, located: LocatedNode) -> LocatedNode:
    """Make the body of a Loop or Scan simpler; return what is in its place.

    Elements of an iteration are taken by a Gather, whose result has a size that is known. States that never
    change are read from outside. Masks choose values by Where, for rows that go on. Then states are written
    in simpler ways (`_changes`), and branches are taken where sizes decide, until neither is possible.
    """
    node, emitters = located.node, Emitters(facts.model, names=names)
    body = node.attributes["body"].as_graph()
    for reader, series, at, is_position in step_slices(facts, node) if node.op_type == "Loop" else ():
        starts = required_input(reader, 1)
        with emitters.before(reader) as e:
            place = starts if facts.dims(starts) == (1,) else e.slice(starts, [at], [at + 1], [0])
            element = place if is_position else e.op("Gather", series.outer, place, axis=series.axis)
        replace_with_values(reader, [element])
    for state in LoopSignature(node).states:
        for user, at in state.before.uses() if state.is_invariant else ():
            user.replace_input_with(at, state.start)
    write_choices(facts, names, body, node)
    while True:
        facts.forget()
        if take_branches(facts, body):
            continue
        change = next(_changes(facts, node), None)
        if change is None:
            return dataclasses.replace(located, node=node)
        node = change(emitters)


def _changes(facts: Facts, node: ir.Node) -> Iterator[Callable[[Emitters], ir.Node]]:
    """Yield what replaces a Loop or Scan by one with simpler states, and returns that.

    Of two states that are always equal, one stays. If a body appends an element to what a state was, the last
    element is a state of its own where the body reads it, and the rest starts empty: what it was comes before
    the elements after the last iteration. The parts of a state that a body joins are states of their own. A
    state that a body transposes at its start and back at its end is carried as it is in between.
    """
    for pair in _equal_states(facts, node):
        yield partial(_merge, node, *pair)
    for read in _read_ends(facts, node):
        yield partial(_carry_last, facts, node, *read)
    for index, axis, is_last in _growing_states(facts, node):
        yield partial(_start_empty, node, index, axis, is_last)
    for joined in _joined_states(facts, node):
        yield partial(_separate, facts, node, joined)
    for index, perm in _turned_states(node):
        yield partial(_turn, facts, node, index, perm)


def _equal_states(facts: Facts, node: ir.Node) -> Iterator[tuple[int, int]]:
    """Yield the indices of states that are equal at first and, if they are, after a step as well."""
    for (index, state), (other, given) in itertools.combinations(enumerate(LoopSignature(node).states), 2):
        is_zero = facts.is_zero(state.start) and facts.is_zero(given.start)
        dims = facts.dims(state.start)
        if (
            (dims is not None and dims == facts.dims(given.start) if is_zero else state.start is given.start)
            and facts.type(state.start) == facts.type(given.start)
            and is_same_value(facts, state.after, given.after, (state.before, given.before))
        ):
            yield index, other


def _merge(node: ir.Node, kept: int, dropped: int, emitters: Emitters) -> ir.Node:
    loop = LoopSignature(node)
    one, other = loop.states[kept], loop.states[dropped]
    if is_read(other.end):
        e = emitters.at(display_name(node), ir.DataType.FLOAT)
        take_place_of(e.op("Identity", one.end), other.end)
        e.insert_after(node)
    other.before.replace_all_uses_with(one.before, replace_graph_outputs=True)
    # The body may return its inputs.
    one, other = (LoopSignature(node).states[index] for index in (kept, dropped))
    new, old = look_through_identities(one.after), look_through_identities(other.after)
    result = replace_loop(node, [dropped], {})
    # Not what the other one is computed from, as its Identity is.
    if old.producer() in loop.body and old not in ancestors(new):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    remove_orphans([other.after, old])
    return result


def _growing_states(facts: Facts, node: ir.Node) -> Iterator[tuple[int, int, bool]]:
    """Yield the states, not empty at first, to which a body only appends an element.

    Each is an index, an axis and whether the element comes last.
    """
    loop = LoopSignature(node)
    for index, state in enumerate(loop.states):
        writer, dims = producer_of(state.after, "Concat"), facts.dims(state.start)
        if writer is None or not dims or state.before not in writer.inputs or len(writer.inputs) != 2:
            continue
        axis = writer.attributes.get_int("axis", 0) % len(dims)
        reads = [len(each.uses()) + loop.body.outputs.count(each) for each in (state.before, state.after)]
        if reads == [1, 1] and dims[axis] != 0:
            yield index, axis, writer.inputs[0] is state.before


def _read_ends(facts: Facts, node: ir.Node) -> Iterator[tuple[int, int, ir.Value, list[ir.Node]]]:
    """Yield the states, not empty at first, to which a body appends an element and whose last one it reads.

    Each is an index, an axis, the element and what reads the last one.
    """
    for index, state in enumerate(LoopSignature(node).states):
        writer, dims, before = producer_of(state.after, "Concat"), facts.dims(state.start), state.before
        if writer is None or not dims or writer.inputs[0] is not before or len(writer.inputs) != 2:
            continue
        axis, element = writer.attributes.get_int("axis", 0) % len(dims), writer.inputs[1]
        size, given = dims[axis], facts.dims(element)
        views = [use.node for use in before.uses() if is_view(facts, use.node)]
        wholes = [before, *(view.outputs[0] for view in views)]
        readers = [use.node for whole in wholes for use in whole.uses() if use.node not in (writer, *views)]
        if (
            element not in (None, before)
            and (isinstance(size, int) and size > 0 and given is not None and given[axis] == 1)
            and readers
            and all(_reads_last(facts, reader, axis, len(dims)) for reader in readers)
            and not any(whole.is_graph_output() for whole in wholes)
        ):
            yield index, axis, element, readers


def _reads_last(facts: Facts, reader: ir.Node, axis: int, rank: int) -> bool:
    """Return whether a node reads the last element on an axis."""
    if reader.op_type == "Gather" and not reader.domain:
        place = facts.constant(reader.inputs[1])
        is_last = place is not None and place.size == 1 and bool((place == -1).all())
        return is_last and reader.attributes.get_int("axis", 0) % rank == axis
    cuts = [cut for cut in axis_slices(reader, facts.constant) or () if not cut.is_whole()]
    own = [cut.axis % rank == axis and (cut.start, cut.step) == (-1, 1) and cut.is_to_end() for cut in cuts]
    return own == [True]


def _carry_last(
    facts: Facts,
    node: ir.Node,
    index: int,
    axis: int,
    element: ir.Value,
    readers: Sequence[ir.Node],
    emitters: Emitters,
) -> ir.Node:
    start = LoopSignature(node).states[index].start
    with emitters.before(node) as e:
        last = e.slice(start, [-1], [np.iinfo(np.int64).max], [axis])
    state = _new_state(facts, emitters, node, index, last, element)
    wholes = [whole for reader in readers if (whole := reader.inputs[0]) is not None]
    for reader in readers:
        reader.replace_input_with(0, state.before)
    remove_orphans(wholes)
    return replace_loop(node, [], {}, [state])


def _start_empty(node: ir.Node, index: int, axis: int, is_last: bool, emitters: Emitters) -> ir.Node:
    loop = LoopSignature(node)
    state = loop.states[index]
    with emitters.before(node) as e:
        node.replace_input_with(loop.first_input + index, e.slice(state.start, [0], [0], [axis]))
    for value in (state.before, state.after):
        value.shape = None
    if is_read(state.end):
        e, readers = emitters.at(display_name(node), ir.DataType.FLOAT), list(state.end.uses())
        whole = e.concat([state.start, state.end] if is_last else [state.end, state.start], axis)
        take_place_of(whole, state.end, emitters.names.fresh(f"{state.end.name}/appended"), readers)
        state.end.shape = None
        e.insert_after(node)
    return node


def _joined_states(facts: Facts, node: ir.Node) -> Iterator[Joined]:
    loop = LoopSignature(node)
    for index, state in enumerate(loop.states):
        writer = producer_of(look_through_identities(state.after), "Concat")
        if writer is not None and writer.graph is loop.body:
            yield from joined_parts(facts, writer, facts.dims(state.start), index)


def _separate(facts: Facts, node: ir.Node, joined: Joined, emitters: Emitters) -> ir.Node:
    whole = LoopSignature(node).states[joined.index]
    carried = []
    with emitters.before(node) as e:
        for (first, last), value in zip(joined.bounds, joined.parts, strict=True):
            part = e.slice(whole.start, [first], [last], [joined.axis])
            part = e.with_axes("Squeeze", part, [joined.axis]) if joined.is_new else part
            carried.append(_new_state(facts, emitters, node, joined.index, part, value))
    parts = [state.before for state in carried]
    while views := [use.node for use in whole.before.uses() if use.idx == 0 and is_view(facts, use.node)]:
        replace_with_values(views[0], [whole.before])
    for reader in [use.node for use in whole.before.uses() if use.idx == 0]:
        read_slices(facts, emitters, reader, joined, parts)
    return _replace_state(emitters, node, joined.index, carried, joined.join)


def _turned_states(node: ir.Node) -> Iterator[tuple[int, list[int]]]:
    """Yield the index of each state that a body transposes at its start and back at its end, and how back."""
    for index, state in enumerate(LoopSignature(node).states):
        writer = producer_of(state.after, "Transpose")
        perm = [] if writer is None else _perm(writer)
        if perm and any(_perm(use.node) == _inverse(perm) for use in state.before.uses()):
            yield index, perm


def _perm(node: ir.Node) -> list[int]:
    is_transpose = node.op_type == "Transpose" and not node.domain
    return [*node.attributes.get_ints("perm", ())] if is_transpose else []


def _inverse(perm: Sequence[int]) -> list[int]:
    return [*map(perm.index, range(len(perm)))]


def _turn(facts: Facts, node: ir.Node, index: int, perm: Sequence[int], emitters: Emitters) -> ir.Node:
    turned = LoopSignature(node).states[index]
    writer, back = turned.after.producer(), _inverse(perm)
    assert writer is not None
    with emitters.before(node) as e:
        start = e.transpose(turned.start, back)
    state = _new_state(facts, emitters, node, index, start, required_input(writer))
    for reader in [use.node for use in turned.before.uses() if _perm(use.node) == back]:
        replace_with_values(reader, [state.before])
    return _replace_state(emitters, node, index, [state], lambda e, values: e.transpose(values[0], perm))


def _new_state(
    facts: Facts, emitters: Emitters, node: ir.Node, index: int, start: ir.Value, value: ir.Value
) -> State:
    """Return a state that a value of the body becomes, in place of another one or of a part of it."""
    loop, names = LoopSignature(node), emitters.names
    old = loop.states[index]
    before, after, end = (names.fresh(f"{each.name}/part") for each in (old.before, value, old.end))
    state = State(start, *(ir.Value(name=name) for name in (before, after, end)))
    state.before.type = state.after.type = facts.type(old.start)
    loop.body.append(ir.node("Identity", [value], outputs=[state.after], name=names.fresh("Identity")))
    return state


def _replace_state(
    emitters: Emitters,
    node: ir.Node,
    index: int,
    states: Sequence[State],
    join: Callable[[Emitter, Sequence[ir.Value]], ir.Value],
) -> ir.Node:
    """Replace a Loop or Scan by one with other states for one; what still reads that one joins them."""
    loop = LoopSignature(node)
    old = loop.states[index]
    if is_read(old.before):
        with emitters.before(loop.body[0]) as e:
            joined = join(e, [state.before for state in states])
            old.before.replace_all_uses_with(joined, replace_graph_outputs=True)
    if is_read(old.end):
        e = emitters.at(display_name(node), ir.DataType.FLOAT)
        take_place_of(join(e, [state.end for state in states]), old.end)
        e.insert_after(node)
    other = replace_loop(node, [index], {}, states)
    remove_orphans([old.after])
    return other
