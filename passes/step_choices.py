"""Choices between new and old states as a Where, the new one if the row goes on.

Steps multiply masks, ``m * new + (1 - m) * old`` or ``old + m * (new - old)``, add what Wheres keep, or ask
which rows have ended, ``Where(t >= n, old, new)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import LoopSignature
from rnnlower.graph.names import NameSource
from rnnlower.graph.operator_kinds import REARRANGING
from rnnlower.graph.rewiring import remove_orphans, replace_with_values, take_place_of
from rnnlower.graph.symbols import SIZE_TYPES
from rnnlower.graph.walk import producer_of, reachable, required_input
from rnnlower.lifting.frames import is_same_value, skip_casts
from rnnlower.lifting.row_masks import truth_of_mask, zeroing_mask
from rnnlower.lowering.emitter import Emitters
from rnnlower.passes.removing import is_removable, passed_on

_SINCE = 9
"""The first version of ONNX that has Where."""
_MOVING_CONDITIONS = {*REARRANGING, "Expand", "Gather", "Slice"}
"""Operators that move the elements of a condition."""
_OPPOSITES = {"GreaterOrEqual": "Less", "LessOrEqual": "Greater"}
"""Comparisons, and those that hold where they do not."""


def has_other_choices(facts: Facts, graph: ir.Graph, node: ir.Node | None = None) -> bool:
    """Return whether a graph chooses in other ways than by a Where of rows that go on.

    With the Loop or Scan whose body the graph is, choices among its results count, too.
    """
    found = (
        _needless(facts, graph),
        _repeated(facts, graph),
        _choices(facts, graph),
        _inverted(facts, graph, node),
        _inverted_inputs(facts, node),
    )
    return any(True for each in found for _ in each) or bool(_cast_conditions(facts, graph))


def write_choices(facts: Facts, names: NameSource, graph: ir.Graph, node: ir.Node | None = None) -> None:
    """Write sums of what a mask keeps, and products with the same mask, as Where of rows that go on.

    A Where of a constant condition is what it chooses, and a Cast to its own type what it reads.
    """
    emitters = Emitters(facts.model, names=names)
    for find in (_needless, _repeated):
        for needless, kept in find(facts, graph):
            replace_with_values(needless, [kept])
    for scan, index in list(_inverted_inputs(facts, node)):
        _turn_input(facts, emitters, scan, index)
    written: dict[ir.Value, ir.Value] = {}
    conditions: dict[ir.Value, ir.Value] = {}
    sources: dict[ir.Value, ir.Value] = {}
    for total, mask, *values in list(_choices(facts, graph)):
        condition = mask
        if facts.dtype(mask) != ir.DataType.BOOL:
            condition = conditions[mask] = _move(facts, emitters, sources, mask, _before_cast)
        with emitters.before(total) as e:
            chosen = e.op("Where", condition, *(written.get(value, value) for value in values))
        written[total.outputs[0]] = chosen
        _replace(total, chosen)
    conditions |= _cast_conditions(facts, graph)
    for mask, condition in conditions.items():
        _write_products(facts, emitters, graph, mask, condition)
    for choice in [each for each in graph if _is_choice(facts, each)]:
        # Choices by a condition and by its opposite are alike, then those that keep the first are turned.
        if inverse := producer_of(choice.inputs[0], "Not"):
            _exchange(choice, required_input(inverse))
            remove_orphans(inverse.outputs)
    turned: dict[ir.Value, ir.Value] = {}
    inverted = list(_inverted(facts, graph, node))
    ended = [given for each in inverted if (given := each.inputs[0]) is not None]
    for choice, condition in zip(inverted, ended, strict=True):
        going = _move(facts, emitters, turned, condition, partial(_opposite, facts, emitters))
        _exchange(choice, going)
    remove_orphans(ended)


def _write_products(
    facts: Facts, emitters: Emitters, graph: ir.Graph, mask: ir.Value, condition: ir.Value
) -> None:
    """Write products of states with a mask, or with 1 - mask, as choices between them and zeros."""
    chosen_by = [node for node, index in condition.uses() if index == 0 and _is_choice(facts, node)]
    states = {value for node in chosen_by for value in (*node.inputs[1:], *node.outputs)}
    for factor, is_kept in [(mask, True), *((rest, False) for rest in _rests(facts, mask))]:
        for reader, index in factor.uses():
            value = reader.inputs[1 - index] if reader.op_type == "Mul" and not reader.domain else None
            dtype = facts.dtype(value)
            if value in states and dtype is not None and reader.graph is graph:
                with emitters.before(reader) as e:
                    pair = value, e.constant(np.zeros((), dtype.numpy()))
                    chosen = e.op("Where", condition, *(pair if is_kept else pair[::-1]))
                _replace(reader, chosen)


def _needless(facts: Facts, graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield each Where of a constant condition and each Cast to its own type, with the input they return."""
    for node in list(graph):
        kept = passed_on(node, facts) if node.op_type in ("Cast", "Where") else None
        if kept is not None and is_removable(node, kept):
            yield node, kept


def _repeated(facts: Facts, graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield each Where that chooses what another has chosen, and each repeated Not, with the first result.

    Keras keeps the last output and the state of a row that skips a step: they are the same, from zeros on.
    """
    known: dict[tuple[object, ...], ir.Value] = {}
    for node in list(graph):
        dims = facts.dims(node.outputs[0]) if node.op_type == "Where" and not node.domain else None
        if producer_of(node.outputs[0], "Not"):
            key: tuple[object, ...] = (node.inputs[0],)
        elif dims is not None and None not in dims and _is_choice(facts, node):
            values = (0 if facts.is_zero(value) else value for value in node.inputs[1:])
            key = (node.inputs[0], *values, *dims)
        else:
            continue
        kept = known.setdefault(key, node.outputs[0])
        if kept is not node.outputs[0]:
            yield node, kept


def _inverted_inputs(facts: Facts, scan: ir.Node | None) -> Iterator[tuple[ir.Node, int]]:
    """Yield a Scan with the index of each input that is true for rows that have ended."""
    if scan is not None and scan.op_type == "Scan":
        loop = LoopSignature(scan)
        for index in range(loop.count, len(loop.body.inputs)):
            uses = loop.body.inputs[index].uses()
            is_read = uses and _is_inverted(facts, scan.inputs[index])
            if is_read or any(not place and _keeps_first(facts, use) for use, place in uses):
                yield scan, index


def _turn_input(facts: Facts, emitters: Emitters, scan: ir.Node, index: int) -> None:
    """Let a Scan that reads ``ended`` read ``Not(ended)``, and its body undo that with another Not."""
    body, outer = LoopSignature(scan).body, required_input(scan, index)
    going = _move(facts, emitters, {}, outer, partial(_opposite, facts, emitters))
    scan.replace_input_with(index, going)
    remove_orphans([outer])
    inner = body.inputs[index]
    readers = list(inner.uses())
    with emitters.before(body[0]) as e:
        take_place_of(e.op("Not", inner), inner, emitters.names.fresh(f"{inner.name}/going"), readers)


def _inverted(facts: Facts, graph: ir.Graph, node: ir.Node | None) -> Iterator[ir.Node]:
    """Yield each Where whose condition is true for rows that have ended, such as ``t >= lengths``."""
    following = reachable(
        node.outputs if node else (), lambda value: [out for user, _ in value.uses() for out in user.outputs]
    )
    after = {use.node: None for value in following for use in value.uses()}
    for each in itertools.chain(graph, after) if facts.opset >= _SINCE else ():
        if _is_choice(facts, each):
            keeps = _keeps_first(facts, each) if each.graph is graph else None
            if keeps or (keeps is None and _is_inverted(facts, each.inputs[0])):
                yield each


def _keeps_first(facts: Facts, node: ir.Node) -> bool | None:
    """Return whether the first value that a node chooses from is the old state; ``None`` if it is not known.

    Old states are zeros, inputs, and results of another choice.
    """
    if not _is_choice(facts, node) or facts.constant(node.inputs[0]) is not None:
        return None
    producers = [(value, None if value is None else value.producer()) for value in node.inputs[1:]]
    first, second = (
        facts.is_zero(value) or producer is None or _is_choice(facts, producer)
        for value, producer in producers
    )
    return None if first == second else first


def _is_choice(facts: Facts, node: ir.Node) -> bool:
    """Return whether a Where may choose between states.

    One with a constant other than 0 does not: it may be the mask of an attention.
    """
    if node.op_type != "Where" or node.domain:
        return False
    filled = [facts.constant(value) for value in node.inputs[1:]]
    return all(constant is None or not constant.any() for constant in filled)


def _cast_conditions(facts: Facts, graph: ir.Graph) -> dict[ir.Value, ir.Value]:
    """Return the conditions of choices by what they were cast to, which may be multiplied."""
    conditions = {each.inputs[0]: None for each in graph if _is_choice(facts, each)}
    casts = (use.node for each in conditions if each is not None for use in each.uses())
    return {
        cast.outputs[0]: condition
        for cast in casts
        if (condition := cast.inputs[0]) and truth_of_mask(facts, cast.outputs[0]) is condition
    }


def _is_inverted(facts: Facts, condition: ir.Value | None) -> bool:
    """Return whether a condition is moved from a Not, or from a comparison that has an opposite."""
    condition = None if condition is None else skip_casts(facts, condition)
    node = None if condition is None else condition.producer()
    if node is None or node.domain or facts.constant(condition) is not None:
        return False
    if node.op_type in _MOVING_CONDITIONS:
        return _is_inverted(facts, node.inputs[0])
    return node.op_type == "Not" or _has_opposite(facts, node)


def _has_opposite(facts: Facts, node: ir.Node) -> bool:
    """Return whether a comparison has an opposite; that of numbers which may be NaN has none."""
    return node.op_type in _OPPOSITES and facts.dtype(node.inputs[0]) in SIZE_TYPES


def _opposite(facts: Facts, emitters: Emitters, condition: ir.Value) -> ir.Value:
    """Return what holds where a condition does not."""
    node, graph = condition.producer(), condition.graph
    if node is not None and node.op_type == "Not":
        return required_input(node)
    e = emitters.at(f"{condition.name}/going", ir.DataType.BOOL)
    if node is not None and _has_opposite(facts, node):
        going = e.op(_OPPOSITES[node.op_type], *node.inputs)
    else:
        going = e.op("Not", condition)
    if node is not None:
        e.insert_after(node)
    elif graph is not None:
        e.insert_before(graph[0])
    return going


def _exchange(choice: ir.Node, condition: ir.Value) -> None:
    """Let a Where choose the other value where this condition holds."""
    for place, other in enumerate((condition, *choice.inputs[:0:-1])):
        choice.replace_input_with(place, other)


def _before_cast(mask: ir.Value) -> ir.Value:
    node = mask.producer()
    assert node is not None
    return required_input(node)


def _rests(facts: Facts, mask: ir.Value) -> list[ir.Value]:
    """Return the values that are 1 - mask."""
    near = [out for node, _ in mask.uses() for out in node.outputs]
    further = [out for value in near for node, _ in value.uses() for out in node.outputs]
    return [value for value in dict.fromkeys((*near, *further)) if _subtracted(facts, value) is mask]


def _replace(node: ir.Node, chosen: ir.Value) -> None:
    """Replace a node by a Where of its name: reasons for which a line stays are about the model as it was."""
    names, choice = (node.name, node.outputs[0].name), chosen.producer()
    replace_with_values(node, [chosen])
    assert choice is not None
    choice.name, chosen.name = names


def _choices(facts: Facts, graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Value, ir.Value, ir.Value]]:
    """Yield each choice between two values that is no Where, with its mask, new and old value."""
    for node in graph if facts.opset >= _SINCE else ():
        found = _find_choice(facts, node.outputs[0])
        if found is not None:
            yield node, *found


def _find_choice(facts: Facts, value: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value] | None:
    """Return a mask, what a value is where it holds, and what it is elsewhere.

    The value is ``m a + (1 - m) b``, ``b + m (a - b)``, ``b - m (b - a)``, or a Where of two that are the
    same choice, as of PyTorch's lerp.
    """
    node = producer_of(value, "Add", "Sub", "Where")
    if node is None:
        return None
    first, second = (required_input(node, place) for place in (-2, -1))
    if node.op_type == "Where":
        shapes = [facts.dims(each) for each in (value, first, second)]
        if None in shapes or shapes[1:] != shapes[:-1] or not producer_of(second, "Add", "Sub"):
            return None
        found = _find_choice(facts, second)
        return found if producer_of(first, "Add", "Sub") and found == _find_choice(facts, first) else None
    is_sum = node.op_type == "Add"
    for other, term in [(first, second), (second, first)][: 1 + is_sum]:
        for mask, holds, kept in _masked(facts, term):
            # What masks are multiplied by may be masks.
            for another, is_held, old in _masked(facts, other) if is_sum else ():
                if is_held != holds and is_same_value(facts, another, mask):
                    return (mask, kept, old) if holds else (mask, old, kept)
            difference = producer_of(kept, "Sub")
            if difference is not None and difference.inputs[is_sum] is other:
                new = required_input(difference, 1 - is_sum)
                return (mask, new, other) if holds else (mask, other, new)
    return None


def _masked(facts: Facts, value: ir.Value | None) -> Iterator[tuple[ir.Value, bool, ir.Value]]:
    """Yield a mask, whether it holds where a value is kept that is zero elsewhere, and the value kept."""
    found = [(mask, True, kept) for mask, kept in _factors(value)]
    if (choice := producer_of(value, "Where")) is not None:
        for kept, is_going in ((required_input(choice, 1), True), (required_input(choice, 2), False)):
            mask = zeroing_mask(facts, choice, kept, is_going=is_going)
            found += [] if mask is None else [(mask, is_going, kept)]
    for mask, holds, kept in found:
        while True:
            inverse = producer_of(mask, "Not")
            origin = _subtracted(facts, mask) if inverse is None else inverse.inputs[0]
            if origin is not None:
                mask, holds = origin, not holds
            elif (cast := producer_of(mask, "Cast")) and facts.dtype(cast.inputs[0]) == ir.DataType.BOOL:
                mask = required_input(cast)
            else:
                break
        if facts.dtype(mask) == ir.DataType.BOOL or truth_of_mask(facts, mask) is not None:
            yield mask, holds, kept


def _factors(value: ir.Value | None) -> list[tuple[ir.Value, ir.Value]]:
    """Return the factors of a product in both orders."""
    node = producer_of(value, "Mul")
    if node is None:
        return []
    first, second = required_input(node), required_input(node, 1)
    return [(first, second), (second, first)]


def _subtracted(facts: Facts, value: ir.Value) -> ir.Value | None:
    """Return the value of which a value is 1 minus that, in its shape."""
    node = producer_of(value, "Add", "Sub")
    if node is None:
        return None
    first, second = node.inputs
    if node.op_type == "Add":
        first, second = (first, second) if facts.constant(first) is not None else (second, first)
        negated = producer_of(second, "Neg")
        second = None if negated is None else negated.inputs[0]
    one, dims = facts.constant(first), facts.dims(second)
    is_one = one is not None and bool((one == 1).all())
    return second if is_one and dims is not None and facts.dims(value) == dims else None


def _move(
    facts: Facts,
    emitters: Emitters,
    known: dict[ir.Value, ir.Value],
    value: ir.Value,
    origin: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """Move another condition as one is moved: that of the operator which moves no elements."""
    value = skip_casts(facts, value)
    node = value.producer()
    if value not in known and node is not None and node.op_type in _MOVING_CONDITIONS:
        moved = _move(facts, emitters, known, required_input(node), origin)
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        with emitters.before(node) as e:
            known[value] = e.op(node.op_type, moved, *node.inputs[1:], **attributes)
    elif value not in known:
        known[value] = origin(value)
    return known[value]
