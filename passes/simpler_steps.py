"""The body of a Loop or Scan in simpler operators, which lifting knows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH, LoopSignature
from rnnlower.graph.names import NameSource
from rnnlower.graph.rewiring import remove_orphans, replace_with_values, take_place_of
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.walk import LocatedNode, ancestors, display_name, is_read, look_through_identities
from rnnlower.lifting.frames import is_same_value
from rnnlower.lifting.loops import step_slices
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.passes.joined_values import Joined, concat_of, is_view, joined_parts, read_slices
from rnnlower.passes.row_choices import has_other_choices, write_choices
from rnnlower.passes.simpler_control_flow import CarriedState, replace_loop, take_branches


def has_simpler_steps(facts: Facts, node: ir.Node) -> bool:
    """Return whether the body of a Loop or Scan may be made simpler."""
    body = node.attributes["body"].as_graph()
    if node.op_type == "Scan" and facts.opset < FIRST_SCAN_WITHOUT_BATCH:
        return False
    return (
        any(each.op_type == "If" for each in body)
        or any(True for _ in _growing_states(facts, node))
        or any(True for _ in _read_ends(facts, node))
        or any(True for _ in _joined_states(facts, node))
        or _equal_states(facts, node) is not None
        or _turned_state(node) is not None
        or (node.op_type == "Loop" and bool(step_slices(facts, node)))
        or has_other_choices(facts, body, node)
    )


def simplify_steps(facts: Facts, names: NameSource, located: LocatedNode) -> LocatedNode:
    """Make the body of a Loop or Scan simpler; return what is in its place.

    Elements of an iteration are taken by a Gather, whose result has a size that is known; branches are taken
    where these sizes decide; what is concatenated to one state is carried as a state for each part; what is
    transposed at the start and back at the end is carried in between; what elements are appended to comes
    before them only after the last iteration, and its last element is a state where the body reads that; and
    masks choose values by Where, for rows that go on. States that are always equal are one.
    """
    node = located.node
    body = node.attributes["body"].as_graph()
    for reader, series, at, is_position in step_slices(facts, node) if node.op_type == "Loop" else ():
        starts = reader.inputs[1]
        assert starts is not None
        with Emitters(facts.model, names=names).before(reader) as e:
            place = starts if facts.dims(starts) == (1,) else e.slice(starts, [at], [at + 1], [0])
            element = place if is_position else e.op("Gather", series.outer, place, axis=series.axis)
        replace_with_values(reader, [element])
    for inner, outer in _invariants(node):
        for user, at in inner.uses():
            user.replace_input_with(at, outer)
    while (equal := _equal_states(facts, node)) is not None:
        node = _merge(Emitters(facts.model, names=names), node, *equal)
    write_choices(facts, names, body, node)
    while (read := next(_read_ends(facts, node), None)) is not None:
        node = _carry_last(facts, names, node, *read)
        facts.forget()
    for index, axis, is_last in list(_growing_states(facts, node)):
        _start_empty(Emitters(facts.model, names=names), node, index, axis, is_last=is_last)
    while True:
        facts.forget()
        taken = take_branches(facts, body)
        joined = next(_joined_states(facts, node), None)
        turned = _turned_state(node)
        if joined is not None:
            node = _separate(facts, names, node, joined)
        elif turned is not None:
            node = _turn(facts, names, node, *turned)
        elif not taken:
            return dataclasses.replace(located, node=node)


def _invariants(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield each state that never changes and is read, with what it starts with."""
    loop = LoopSignature(node)
    for before, after, start in zip(loop.before, loop.after, node.inputs[loop.first_input :], strict=False):
        if start is not None and look_through_identities(after) is before and before.uses():
            yield before, start


def _equal_states(facts: Facts, node: ir.Node) -> tuple[int, int] | None:
    """Return the indices of two states that are equal at first and, if they are, after a step as well."""
    loop = LoopSignature(node)
    starts = node.inputs[loop.first_input :]
    states = enumerate(zip(loop.before, loop.after, starts, strict=False))
    for (index, (before, after, start)), (other, given) in itertools.combinations(states, 2):
        is_zero = facts.is_zero(start) and facts.is_zero(given[2])
        dims = facts.dims(start)
        if (
            (dims is not None and dims == facts.dims(given[2]) if is_zero else start is given[2])
            and facts.type(start) == facts.type(given[2])
            and is_same_value(facts, after, given[1], (before, given[0]))
        ):
            return index, other
    return None


def _merge(emitters: Emitters, node: ir.Node, kept: int, dropped: int) -> ir.Node:
    """Replace a Loop or Scan by one without a state that is equal to another one; return that."""
    loop, end = LoopSignature(node), node.outputs[dropped]
    if is_read(end):
        e = emitters.at(display_name(node), ir.DataType.FLOAT)
        take_place_of(e.op("Identity", node.outputs[kept]), end)
        e.insert_after(node)
    loop.before[dropped].replace_all_uses_with(loop.before[kept], replace_graph_outputs=True)
    after = LoopSignature(node).after
    old, new = (look_through_identities(after[at]) for at in (dropped, kept))
    other = replace_loop(node, [dropped], {})
    # Not what the other one is computed from, as its Identity is.
    if old.producer() in loop.body and old not in ancestors(new):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    remove_orphans([after[dropped], old])
    return other


def _growing_states(facts: Facts, node: ir.Node) -> Iterator[tuple[int, int, bool]]:
    """Yield the states, not empty at first, to which a body only appends an element.

    Each is an index, an axis and whether the element comes last.
    """
    loop = LoopSignature(node)
    for index, (before, after) in enumerate(zip(loop.before, loop.after, strict=True)):
        writer, dims = concat_of(after), facts.dims(node.inputs[loop.first_input + index])
        if writer is None or not dims or before not in writer.inputs or len(writer.inputs) != 2:
            continue
        axis = writer.attributes.get_int("axis", 0) % len(dims)
        reads = [len(each.uses()) + loop.body.outputs.count(each) for each in (before, after)]
        if reads == [1, 1] and dims[axis] != 0:
            yield index, axis, writer.inputs[0] is before


def _read_ends(facts: Facts, node: ir.Node) -> Iterator[tuple[int, int, ir.Value, list[ir.Node]]]:
    """Yield the states, not empty at first, to which a body appends an element and whose last one it reads.

    Each is an index, an axis, the element and what reads the last one.
    """
    loop = LoopSignature(node)
    for index, (before, after) in enumerate(zip(loop.before, loop.after, strict=True)):
        writer, dims = concat_of(after), facts.dims(node.inputs[loop.first_input + index])
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
    names: NameSource,
    node: ir.Node,
    index: int,
    axis: int,
    element: ir.Value,
    readers: Sequence[ir.Node],
) -> ir.Node:
    """Replace a Loop or Scan by one that carries the last element of a state, too; return that."""
    start = node.inputs[LoopSignature(node).first_input + index]
    assert start is not None
    with Emitters(facts.model, names=names).before(node) as e:
        state = _new_state(
            facts, names, node, index, e.slice(start, [-1], [np.iinfo(np.int64).max], [axis]), element
        )
    wholes = [whole for reader in readers if (whole := reader.inputs[0]) is not None]
    for reader in readers:
        reader.replace_input_with(0, state.before)
    remove_orphans(wholes)
    return replace_loop(node, [], {}, [state])


def _start_empty(emitters: Emitters, node: ir.Node, index: int, axis: int, *, is_last: bool) -> None:
    """Let a state to which a body appends start empty, and join it to what it started with afterward."""
    loop, end = LoopSignature(node), node.outputs[index]
    start = node.inputs[loop.first_input + index]
    assert start is not None
    with emitters.before(node) as e:
        node.replace_input_with(loop.first_input + index, e.slice(start, [0], [0], [axis]))
    for value in (loop.before[index], loop.after[index]):
        value.shape = None
    if not is_read(end):
        return
    e, readers = emitters.at(display_name(node), ir.DataType.FLOAT), list(end.uses())
    whole = e.concat([start, end] if is_last else [end, start], axis)
    take_place_of(whole, end, emitters.names.fresh(f"{end.name}/appended"), readers)
    end.shape = None
    e.insert_after(node)


def _joined_states(facts: Facts, node: ir.Node) -> Iterator[Joined]:
    loop = LoopSignature(node)
    for index, after in enumerate(loop.after):
        writer = concat_of(look_through_identities(after))
        if writer is not None and writer.graph is loop.body:
            yield from joined_parts(facts, writer, facts.dims(node.inputs[loop.first_input + index]), index)


def _separate(facts: Facts, names: NameSource, node: ir.Node, joined: Joined) -> ir.Node:
    """Replace a Loop or Scan by one with a state for each part of a joined one; return that."""
    loop, emitters = LoopSignature(node), Emitters(facts.model, names=names)
    before, start = loop.before[joined.index], node.inputs[loop.first_input + joined.index]
    assert start is not None
    carried = []
    with emitters.before(node) as e:
        for (first, last), value in zip(joined.bounds, joined.parts, strict=True):
            part = e.slice(start, [first], [last], [joined.axis])
            part = e.with_axes("Squeeze", part, [joined.axis]) if joined.is_new else part
            carried.append(_new_state(facts, names, node, joined.index, part, value))
    parts = [state.before for state in carried]
    while views := [use.node for use in before.uses() if use.idx == 0 and is_view(facts, use.node)]:
        replace_with_values(views[0], [before])
    for reader in [use.node for use in before.uses() if use.idx == 0]:
        read_slices(facts, emitters, reader, joined, parts)
    return _replace_state(emitters, node, joined.index, carried, joined.join)


def _turned_state(node: ir.Node) -> tuple[int, list[int]] | None:
    """Return the index of a state that a body transposes at its start and back at its end, and how back."""
    loop = LoopSignature(node)
    for index, (before, after) in enumerate(zip(loop.before, loop.after, strict=True)):
        writer = after.producer()
        perm = None if writer is None else _perm(writer)
        if perm and any(_perm(use.node) == [*map(perm.index, range(len(perm)))] for use in before.uses()):
            return index, perm
    return None


def _perm(node: ir.Node) -> list[int] | None:
    if node.domain or node.op_type != "Transpose":
        return None
    return [*node.attributes.get_ints("perm", ())]


def _turn(facts: Facts, names: NameSource, node: ir.Node, index: int, perm: Sequence[int]) -> ir.Node:
    """Replace a Loop or Scan by one whose state is as its body transposes it; return that."""
    loop, emitters = LoopSignature(node), Emitters(facts.model, names=names)
    before, start = loop.before[index], node.inputs[loop.first_input + index]
    writer, back = loop.after[index].producer(), [*map(perm.index, range(len(perm)))]
    assert start is not None
    assert writer is not None
    assert writer.inputs[0] is not None
    with emitters.before(node) as e:
        state = _new_state(facts, names, node, index, e.transpose(start, back), writer.inputs[0])
    for reader in [use.node for use in before.uses() if _perm(use.node) == back]:
        replace_with_values(reader, [state.before])
    return _replace_state(emitters, node, index, [state], lambda e, values: e.transpose(values[0], perm))


def _new_state(
    facts: Facts, names: NameSource, node: ir.Node, index: int, start: ir.Value, value: ir.Value
) -> CarriedState:
    """Return a state that a value of the body becomes, in place of another one or of a part of it."""
    loop = LoopSignature(node)
    old = loop.before[index], value, node.outputs[index]
    before, after, end = (ir.Value(name=names.fresh(f"{each.name}/part")) for each in old)
    before.type = after.type = facts.type(node.inputs[loop.first_input + index])
    loop.body.append(ir.node("Identity", [value], outputs=[after], name=names.fresh("Identity")))
    return CarriedState(start, before, after, end)


def _replace_state(
    emitters: Emitters,
    node: ir.Node,
    index: int,
    states: Sequence[CarriedState],
    join: Callable[[Emitter, Sequence[ir.Value]], ir.Value],
) -> ir.Node:
    """Replace a Loop or Scan by one with other states for one; what still reads that one joins them."""
    loop, end = LoopSignature(node), node.outputs[index]
    before, after = loop.before[index], loop.after[index]
    if is_read(before):
        with emitters.before(loop.body[0]) as e:
            joined = join(e, [state.before for state in states])
            before.replace_all_uses_with(joined, replace_graph_outputs=True)
    if is_read(end):
        e = emitters.at(display_name(node), ir.DataType.FLOAT)
        take_place_of(join(e, [state.end for state in states]), end)
        e.insert_after(node)
    other = replace_loop(node, [index], {}, states)
    remove_orphans([after])
    return other
