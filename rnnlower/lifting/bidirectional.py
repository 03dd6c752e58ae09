"""Two lifted nodes of opposite directions that read the same sequence become one bidirectional node."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource
from rnnlower.graph.rewiring import remove_orphans
from rnnlower.graph.walk import ancestors, operand
from rnnlower.lifting.emission import EmittedNode, emit_node
from rnnlower.lifting.frames import is_same_value
from rnnlower.lifting.lifted_nodes import Lifted
from rnnlower.lowering.emitter import Emitters
from rnnlower.recurrent.node import KEEPS_INITIAL

_LENGTHS, _INITIAL = 4, (5, 6)
"""The positions of the inputs."""


def join_directions(facts: Facts, names: NameSource, lifted: Sequence[Lifted]) -> list[Lifted]:
    """Join pairs of lifted nodes into bidirectional ones; return all nodes that are left."""
    left = list(lifted)
    for one, other in itertools.permutations(lifted, 2):
        if one in left and other in left and _can_join(facts, one.emitted, other.emitted):
            emitted = _join(facts, names, (one.emitted, other.emitted))
            left[left.index(one)] = Lifted(emitted, one.partial_report)
            left.remove(other)
    return left


def _can_join(facts: Facts, one: EmittedNode, other: EmittedNode) -> bool:
    first, second = one.node, other.node
    cells = [dataclasses.replace(cell, activations=()) for cell in (*one.cells, *other.cells)]
    directions = [node.attributes.get_string("direction", "forward") for node in (first, second)]
    return (
        directions == ["forward", "reverse"]
        and cells[0] == cells[1]
        and cells[0].hidden_size == cells[1].hidden_size
        and first.graph is second.graph is not None
        and is_same_value(facts, first.inputs[0], second.inputs[0])
        and is_same_value(facts, operand(first, _LENGTHS), operand(second, _LENGTHS))
        and {*first.outputs}.isdisjoint(ancestors(second.outputs[0]))
        and {*second.outputs}.isdisjoint(ancestors(first.outputs[0]))
    )


def _join(facts: Facts, names: NameSource, pair: tuple[EmittedNode, EmittedNode]) -> EmittedNode:
    """Replace two nodes by a bidirectional one."""
    nodes = [emitted.node for emitted in pair]
    graph, name = nodes[0].graph, nodes[0].name or nodes[0].op_type
    assert graph is not None
    dtype = facts.dtype(nodes[0].inputs[0])
    assert dtype is not None
    e = Emitters(facts.model, names=names).at(name, dtype)
    cells = [cell for emitted in pair for cell in emitted.cells]
    given: list[ir.Value | None] = [nodes[0].inputs[0], operand(nodes[0], _LENGTHS)]
    for place in _INITIAL[: len(nodes[0].outputs) - 1]:
        states = [operand(node, place) for node in nodes]
        known = next((value for value in states if value is not None), None)
        if known is None:
            given.append(None)
            continue
        dims = enumerate(facts.shape(known) or (None, None, None))
        sizes = [e.dim(known, axis) if dim is None else dim for axis, dim in dims]
        given.append(e.concat([e.zeros(sizes) if value is None else value for value in states], 0))
    node = emit_node(e, cells, "bidirectional", given, name)
    if marks := [each.meta[KEEPS_INITIAL] for each in nodes if KEEPS_INITIAL in each.meta]:
        node.meta[KEEPS_INITIAL] = any(marks)
    Y = e.split(node.outputs[0], [1, 1], 1)
    halves = [Y, *(e.split(value, [1, 1], 0) for value in node.outputs[1:])]
    graph.extend(e.nodes)
    for place, half in enumerate(halves):
        for direction, value in enumerate(half):
            old = nodes[direction].outputs[place]
            old.replace_all_uses_with(value)
            facts.transfer(old, value)
    remove_orphans(out for old in nodes for out in old.outputs)
    node.name = name
    for half in halves:
        remove_orphans(half)
    graph.sort()
    return EmittedNode(node, cells, Y[0], [half[0] for half in halves[1:]])
