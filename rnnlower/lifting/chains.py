"""Chains of values that the same weights multiply, and the steps between them."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import passed, reached
from rnnlower.lifting.affine_forms import Atoms, Form
from rnnlower.lifting.cell_search import tagged_shape
from rnnlower.lifting.equations import Cell
from rnnlower.lifting.symbolic_evaluation import STEP_RULES, Evaluator
from rnnlower.recurrent.operators import FLOAT_TYPES

PRODUCTS = ("Gemm", "MatMul")
MOST = 60
"""The most operators of a step whose end is not known."""
_PASSED = ("Add", "Identity", "Mul", "Sub")
"""Operators through which a step reaches the input that it multiplies."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a straight line.

    Attributes:
        leaves: What it reads, in the order of evaluation.
        new: The new states, H first, as the next step reads them.
        mask: The condition of the rows that have not ended; ``None`` if no row has.
        bare: The new states without the choice between them and the old ones.
    """

    leaves: Sequence[ir.Value]
    new: Sequence[ir.Value]
    mask: ir.Value | None
    bare: Sequence[ir.Value]


@dataclasses.dataclass(frozen=True)
class Line:
    """A straight line.

    Attributes:
        cell: The cell, whose inputs are the positions of the leaves.
        steps: The steps.
        starts: The initial states; ``None`` for zeros.
        tags: The axes of H.
        shape: Its shape, with 1 for rows.
    """

    cell: Cell
    steps: Sequence[Step]
    starts: Sequence[ir.Value | None]
    tags: tuple[str, ...]
    shape: tuple[int, ...]


class Leaves(Evaluator):
    """An evaluator of one step: what does not depend on the old state is given.

    Args:
        facts: The facts about the model.
        atoms: The atoms.
        state: A state of the line.
        region: What depends on the old state.
        known: The forms of some values.
        like: What the next step reads, if the inputs of this one cannot be foreseen: what comes from the
            same is given, and nothing else.
    """

    def __init__(
        self,
        facts: Facts,
        atoms: Atoms,
        state: ir.Value,
        region: set[ir.Value],
        known: Mapping[ir.Value, Form],
        like: Sequence[ir.Value] = (),
    ) -> None:
        super().__init__(facts, atoms, known)
        self._region, self._sources = region, {source_of(leaf) for leaf in like}
        self.row_dims |= {dim for dim in (facts.dims(state) or ())[:-1] if dim != 1}
        self.leaves: dict[ir.Value, Form] = {}

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """Return the content of a value that never changes, unless it follows from the first state."""
        is_number = self.facts.dtype(value) in FLOAT_TYPES
        return None if value in self._region and is_number else super().constant(value)

    def _evaluate(self, value: ir.Value) -> None:
        if self._sources:
            is_given = value.producer() is None or source_of(value) in self._sources
        else:
            is_given = not self.is_computed(value)
        if is_given:
            self.give(value)
        else:
            super()._evaluate(value)

    def give(self, value: ir.Value) -> None:
        """Take a value as given."""
        tags, shape = tagged_shape(self.facts, value)
        self.known[value] = self.leaves[value] = self.atoms.variables(shape, tags)

    def is_computed(self, value: ir.Value | None) -> bool:
        """Return whether the step computes a value: from the old state, or by weights from an input."""
        producer = None if value is None else value.producer()
        if value in self._region:
            return True
        if producer is None or producer.domain:
            return False
        if producer.op_type in ("Slice", "Split"):
            dims, whole = self.facts.dims(value) or (), self.facts.dims(producer.inputs[0]) or ()
            is_part = dims[:-1] == whole[:-1] and dims[-1:] != whole[-1:]
            return is_part and self.is_computed(producer.inputs[0])
        constants = [self.constant(each) is not None for each in producer.inputs]
        if producer.op_type in PRODUCTS:
            return constants[1] and not constants[0]
        return producer.op_type in _PASSED and any(constants)


def source_of(value: ir.Value) -> tuple[str, ir.Value | None]:
    """Return the operator that takes what a value is a view of from another one, and the other one."""
    base = passed(value)
    producer = base.producer()
    if producer is None or not producer.inputs:
        return "", base
    return producer.op_type, producer.inputs[0]


def find_chains(facts: Facts, graph: ir.Graph) -> Iterator[list[ir.Value]]:
    """Yield the values that constant weights multiply one after another, each depending on the one before.

    Weights that occur once yield one value, and each part of it, which may be a state that an input joins.
    """
    order = {node: number for number, node in enumerate(graph)}
    groups: dict[object, dict[ir.Value, None]] = collections.defaultdict(dict)
    for node in _products(graph):
        weights = facts.constant(node.inputs[1])
        if weights is not None and weights.ndim == 2 and node.inputs[0] is not None:
            key = (node.op_type, weights.shape, weights.tobytes())
            groups[key][node.inputs[0]] = None
    seen: set[tuple[ir.Value, ...]] = set()
    for group in groups.values():
        values = sorted(group, key=lambda value: position(order, value))
        if len(values) > 1:
            found = [_parts(order, values)]
        else:
            maker = values[0].producer()
            parts = maker.inputs if maker is not None and maker.op_type == "Concat" else ()
            found = [values, *([part] for part in parts if part is not None)]
        for chain in found:
            if tuple(chain) not in seen:
                seen.add(tuple(chain))
                if all(b in depending_on(order, a, b) for a, b in itertools.pairwise(chain)):
                    yield chain


def _products(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the products whose weights do not follow from elements of the graph's inputs."""
    varying = {value for value in graph.inputs if not value.is_initializer()}
    for node in graph:
        if node.op_type in PRODUCTS and not node.domain and node.inputs[1] not in varying:
            yield node
        if node.op_type not in ("Shape", "Size") and not varying.isdisjoint(node.inputs):
            varying.update(node.outputs)


def find_ends(facts: Facts, graph: ir.Graph, state: ir.Value) -> Iterator[ir.Value]:
    """Yield the values that may be the state after a step, the last one first."""
    order = {node: number for number, node in enumerate(graph)}
    most = MOST + min((order[node] for node, _ in state.uses() if node in order), default=0)
    region, outside = depending_on(order, state, None, most), set[ir.Value | None]()
    for node in [*order][: most + 1]:
        if node.domain or node.op_type not in STEP_RULES or not outside.isdisjoint(node.inputs):
            outside |= region.intersection(node.outputs)
    dims, inside = facts.dims(state), region - outside
    for node in reversed([*order][: most + 1]):
        yield from (out for out in node.outputs if out in inside and facts.dims(out) == dims)


def _parts(order: Mapping[ir.Node, int], values: list[ir.Value]) -> list[ir.Value]:
    """Return what of joined values depends on the value before: the states, which inputs are joined to."""
    nodes = [node for value in values if (node := value.producer()) is not None]
    if len(nodes) < len(values) or any(node.op_type != "Concat" for node in nodes):
        return values
    depending = depending_on(order, values[0], values[1])
    places = [place for place, given in enumerate(nodes[1].inputs) if given in depending]
    if len(places) != 1 or len({len(node.inputs) for node in nodes}) != 1:
        return values
    return [given for node in nodes if (given := node.inputs[places[0]]) is not None]


def position(order: Mapping[ir.Node, int], value: ir.Value) -> int:
    """Return the place of a value's producer among the operators of a graph; -1 without one."""
    producer = value.producer()
    return -1 if producer is None else order.get(producer, -1)


def depending_on(
    order: Mapping[ir.Node, int], start: ir.Value, end: ir.Value | None, most: int = 0
) -> set[ir.Value]:
    """Return the values that depend on one, up to the computation of another one."""
    producer = None if end is None else end.producer()
    limit = most if producer is None else order.get(producer, -1)

    def following(value: ir.Value) -> list[ir.Value]:
        return [
            out for node, _ in value.uses() if order.get(node, limit + 1) <= limit for out in node.outputs
        ]

    return {*reached([start], following)} - {start}


def element_before(leaf: ir.Value, after: ir.Value | None) -> ir.Value | None:
    """Return what a step would read before two that read these parts of one Split, or before one of two."""
    node = leaf.producer()
    if node is None or node.op_type != "Split":
        return None
    if after is None and len(node.outputs) == 2:
        return node.outputs[1 - node.outputs.index(leaf)]
    if after is None or after.producer() is not node:
        return None
    first, second = (node.outputs.index(value) for value in (leaf, after))
    place = 2 * first - second
    return node.outputs[place] if 0 <= place < len(node.outputs) else None
