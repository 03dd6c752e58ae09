"""Chains of values that are multiplied by the same weights, each depending on the one before."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import VIEWS
from rnnlower.graph.walk import look_through, producer_of, reachable
from rnnlower.lifting.symbolic_evaluation import STEP_RULES

PRODUCTS = ("Gemm", "MatMul")
_PRODUCTS_IN_LINES = (*PRODUCTS, "Conv", "Einsum", "Mul")
"""Products with weights that make lines: of each unit alone, or of groups of units, too."""
_VIEWS = VIEWS | {"Expand", "Tile", "Transpose"}
"""Operators that may be between a state and its product with such weights."""
MAX_OPERATORS = 60
"""The most operators of a step whose end is not known."""
_ACTIVATIONS = ("Sigmoid", "Tanh")
_MAX_ACTIVATIONS = 2
"""The most of them, one after the other, between an old H and a new one: a gate and the output of an LSTM."""


def find_chains(facts: Facts, graph: ir.Graph) -> Iterator[tuple[list[ir.Value], bool]]:
    """Yield the values that are multiplied by the same constant weights, each depending on the one before.

    The second of each pair says whether they are likely states: other layers share weights by unit, too.

    A value whose weights occur once is a chain of one. If it joins parts (``Concat(x, h)``), so is each of
    them, as one may be the state.
    """
    order = {node: number for number, node in enumerate(graph)}
    groups: dict[tuple[str, tuple[int, ...], bytes], dict[ir.Value, None]] = collections.defaultdict(dict)
    for node in _products(graph):
        value, given = node.inputs[:2]
        if node.op_type not in PRODUCTS and facts.constant(given) is None:
            value, given = given, value
        weights = facts.constant(given)
        if weights is None or value is None or weights.dtype.kind in "biu":
            continue
        is_plain = node.op_type in PRODUCTS and weights.ndim == 2
        if is_plain or weights.size > 1:
            key = (node.op_type, weights.shape, weights.tobytes())
            groups[key][value if is_plain else look_through(value, _VIEWS)] = None
    seen: set[tuple[ir.Value, ...]] = set()
    for (op_type, shape, _), group in sorted(groups.items(), key=lambda each: each[0][0] not in PRODUCTS):
        if len(group) == 1 and (op_type not in PRODUCTS or len(shape) != 2):
            continue
        values = sorted(group, key=lambda value: producer_index(order, value))
        if len(values) > 1:
            found = [_state_parts(order, values)]
        else:
            join = producer_of(values[0], "Concat")
            parts = () if join is None else join.inputs
            found = [values, *([part] for part in parts if part is not None)]
        for chain in found:
            if tuple(chain) in seen:
                continue
            seen.add(tuple(chain))
            pairs = itertools.pairwise(chain)
            if all(b in dependents(order, a, producer_index(order, b)) for a, b in pairs):
                yield chain, op_type in PRODUCTS
            else:
                yield from ((part, op_type in PRODUCTS) for part in _split_chain(order, chain))


def _split_chain(order: Iterable[ir.Node], values: Sequence[ir.Value]) -> list[list[ir.Value]]:
    """Return chains of values, each of which depends on no later one than that before it.

    Lines may share their weights, as those of a layer that is applied to several sequences.
    """
    places: dict[ir.Value | None, int] = {value: place for place, value in enumerate(values)}
    before: dict[ir.Value | None, int] = {}
    for node in order:
        latest = max((places.get(each, before.get(each, -1)) for each in node.inputs), default=-1)
        before |= dict.fromkeys(node.outputs, latest)
    chains: dict[int, list[ir.Value]] = {}
    for place, value in enumerate(values):
        chains[place] = [*chains.pop(before.get(value, -1), []), value]
    return [chain for chain in chains.values() if len(chain) > 1]


def _products(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the products whose weights are not computed from elements of the graph's inputs."""
    varying = {value for value in graph.inputs if not value.is_initializer()}
    for node in graph:
        if node.op_type in _PRODUCTS_IN_LINES and not node.domain and not varying.issuperset(node.inputs[:2]):
            yield node
        if node.op_type not in ("Shape", "Size") and not varying.isdisjoint(node.inputs):
            varying.update(node.outputs)


def candidate_ends(facts: Facts, graph: ir.Graph, state: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that may be the state after a step, the last one first."""
    order = {node: number for number, node in enumerate(graph)}
    most = MAX_OPERATORS + min((order[node] for node, _ in state.uses() if node in order), default=0)
    region, nodes, dims = dependents(order, state, most), [*order][: most + 1], facts.dims(state)
    outside, depths = set[ir.Value | None](), dict[ir.Value | None, int]()
    for node in nodes:
        if node.domain or node.op_type not in STEP_RULES or not outside.isdisjoint(node.inputs):
            outside |= region.intersection(node.outputs)
        else:
            before = max((depths.get(value, 0) for value in node.inputs), default=0)
            depth = before + (node.op_type in _ACTIVATIONS)
            depths |= dict.fromkeys(region.intersection(node.outputs), depth)
    for node in reversed(nodes):
        for out in node.outputs:
            if depths.get(out, _MAX_ACTIVATIONS + 1) <= _MAX_ACTIVATIONS and facts.dims(out) == dims:
                yield out


def _state_parts(order: Mapping[ir.Node, int], values: list[ir.Value]) -> list[ir.Value]:
    """Return the states among the parts of joined values: the part that depends on the value before."""
    nodes = [node for value in values if (node := producer_of(value, "Concat")) is not None]
    if len(nodes) < len(values):
        return values
    depending = dependents(order, values[0], producer_index(order, values[1]))
    places = [place for place, given in enumerate(nodes[1].inputs) if given in depending]
    if len(places) != 1 or len({len(node.inputs) for node in nodes}) != 1:
        return values
    return [given for node in nodes if (given := node.inputs[places[0]]) is not None]


def producer_index(order: Mapping[ir.Node, int], value: ir.Value) -> int:
    """Return the index of a value's producer among the operators of a graph; -1 without one."""
    producer = value.producer()
    return -1 if producer is None else order.get(producer, -1)


def dependents(order: Mapping[ir.Node, int], start: ir.Value, most: int) -> set[ir.Value]:
    """Return the values that depend on one, up to the operator of an index."""

    def following(value: ir.Value) -> list[ir.Value]:
        return [out for node, _ in value.uses() if order.get(node, most + 1) <= most for out in node.outputs]

    return {*reachable([start], following)} - {start}
