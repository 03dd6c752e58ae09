"""Straight lines of cells: the steps of a recurrence, written one after another."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.lifting.analysis import row_tags
from rnnlower.lifting.cells import Cell, match_cell
from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.evaluation import Evaluator
from rnnlower.lifting.forms import Atoms, Block, Form, is_like
from rnnlower.recurrent.node import Semantics

_PRODUCTS = ("Gemm", "MatMul")
_PASSED = ("Add", "Identity", "Mul", "Sub")
"""Operators through which a step reaches the input that it multiplies."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a straight line.

    Attributes:
        leaves: What it reads, in the order of evaluation.
        new: The new states, H first.
    """

    leaves: Sequence[ir.Value]
    new: Sequence[ir.Value]


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


class _Leaves(Evaluator):
    """An evaluator of one step: what does not depend on the old state is given."""

    def __init__(
        self, facts: Facts, atoms: Atoms, region: set[ir.Value], known: dict[ir.Value, Form]
    ) -> None:
        super().__init__(facts, atoms, known)
        self._region = region
        self.leaves: dict[ir.Value, Form] = {}

    def _evaluate(self, value: ir.Value) -> None:
        if value in self._region or self._is_passed(value):
            super()._evaluate(value)
            return
        tags, shape = row_tags(self.facts, value)
        self.known[value] = self.leaves[value] = self.atoms.given(value, shape, tags)

    def _is_passed(self, value: ir.Value) -> bool:
        producer = value.producer()
        if producer is None or producer.domain:
            return False
        constants = [self.constant(each) is not None for each in producer.inputs]
        if producer.op_type in _PRODUCTS:
            return constants[1] and not constants[0]
        return producer.op_type in _PASSED and any(constants)


def find_chains(facts: Facts, graph: ir.Graph) -> Iterator[list[ir.Value]]:
    """Yield the values that constant weights multiply one after another, each depending on the one before."""
    order = {node: number for number, node in enumerate(graph)}
    groups: dict[object, dict[ir.Value, None]] = collections.defaultdict(dict)
    for node in graph:
        if node.op_type not in _PRODUCTS or node.domain or node.inputs[0] is None:
            continue
        weights = facts.constant(node.inputs[1])
        if weights is not None and weights.ndim == 2 and facts.constant(node.inputs[0]) is None:
            key = (node.op_type, weights.shape, weights.tobytes())
            groups[key][node.inputs[0]] = None
    seen: set[tuple[ir.Value, ...]] = set()
    for group in groups.values():
        values = sorted(group, key=lambda value: order.get(value.producer(), -1))  # type: ignore[arg-type]
        if len(values) < 2 or tuple(values) in seen:
            continue
        seen.add(tuple(values))
        if all(b in _region(order, a, b) for a, b in itertools.pairwise(values)):
            yield values


def _region(order: dict[ir.Node, int], start: ir.Value, end: ir.Value | None, most: int = 0) -> set[ir.Value]:
    """Return the values that depend on one, up to the computation of another one."""
    producer = None if end is None else end.producer()
    limit = most if producer is None else order.get(producer, -1)
    found: set[ir.Value] = set()
    pending = [start]
    while pending:
        for node, _ in pending.pop().uses():
            if order.get(node, limit + 1) <= limit:
                new = [out for out in node.outputs if out not in found]
                found.update(new)
                pending += new
    return found


def match_line(facts: Facts, graph: ir.Graph, chain: Sequence[ir.Value], semantics: Semantics) -> Line:
    """Return the line whose states are the values of a chain.

    Raises:
        NotLiftableError: The steps are not those of one cell.
    """
    return _Matching(facts, graph, chain, semantics).line()


class _Matching:
    def __init__(
        self, facts: Facts, graph: ir.Graph, chain: Sequence[ir.Value], semantics: Semantics
    ) -> None:
        self._facts, self._chain, self._semantics = facts, list(chain), semantics
        self._order = {node: number for number, node in enumerate(graph)}
        self._nodes = list(graph)
        self._regions = [_region(self._order, a, b) for a, b in itertools.pairwise(chain)]
        self.tags, self.shape = row_tags(facts, chain[0])

    def line(self) -> Line:
        chain = self._chain
        first = self._leaves(0)
        inner = [self._leaves(k) for k in range(1, len(chain) - 1)]
        places = {
            place
            for k, leaves in enumerate(inner, 1)
            for place, leaf in enumerate(leaves)
            if leaf in self._regions[k - 1]
        }
        if len(places) > 1 or any(len(leaves) != len(first) for leaves in inner):
            raise NotLiftableError("its steps differ, or carry more than two states")
        place = places.pop() if places else None
        if not inner and len(first) > 1:
            place = self._place_of_c(first)
        everything = [first, *inner]
        cells = [] if place is None else [leaves[place] for leaves in everything]
        matched = None
        steps: list[Step] = []
        for k in range(len(chain) - 2 + (place is None)):
            new = [chain[k + 1]] if place is None else [chain[k + 1], cells[k + 1]]
            cell, leaves = self._match(k, self._regions[k], new, place)
            matched = self._same(matched, cell)
            steps.append(Step(leaves, new))
        for k in range(len(steps), len(chain)):
            found = self._next(k, matched, place, None if k == len(chain) - 1 else chain[k + 1])
            if found is None:
                raise NotLiftableError("its last step is not that of a cell")
            matched, step = found
            steps.append(step)
        assert matched is not None
        starts: list[ir.Value | None] = [chain[0], *(cells[:1])]
        folded = self._folded(steps[0], steps[1], place, starts) if len(steps) > 1 else None
        if folded is not None:
            steps.insert(0, folded)
            starts = [None for _ in starts]
        return Line(matched, steps, starts, self.tags, self.shape)

    def _place_of_c(self, leaves: Sequence[ir.Value]) -> int | None:
        """Return the position of the cell state in a line of so few steps that it cannot be seen."""
        size = self.shape[-1]
        for place, leaf in enumerate(leaves):
            shape = self._facts.shape(leaf)
            if shape is not None and shape[-1] == size:
                try:
                    if self._next(0, None, place, self._chain[1]) is not None:
                        return place
                except NotLiftableError:
                    continue
        return None

    def _evaluator(self, k: int, region: set[ir.Value]) -> tuple[_Leaves, Block]:
        atoms = Atoms()
        h = atoms.given(self._chain[k], self.shape, self.tags)
        return _Leaves(self._facts, atoms, region, {self._chain[k]: h}), atoms.block(int(h.ids.flat[0]))

    def _leaves(self, k: int) -> list[ir.Value]:
        evaluator, _ = self._evaluator(k, self._regions[k])
        evaluator.form(self._chain[k + 1])
        return list(evaluator.leaves)

    def _match(
        self, k: int, region: set[ir.Value], new: Sequence[ir.Value], place: int | None
    ) -> tuple[Cell, list[ir.Value]]:
        evaluator, h = self._evaluator(k, region)
        forms = [evaluator.form(value).flat() for value in new]
        leaves = list(evaluator.leaves)
        if place is not None and place >= len(leaves):
            raise NotLiftableError("its steps differ")
        starts = [int(form.ids.flat[0]) for form in evaluator.leaves.values()]
        states = [h] if place is None else [h, evaluator.atoms.block(starts[place])]
        if len({*(block.size for block in states), *(form.constant.size for form in forms)}) != 1:
            raise NotLiftableError("its states have different sizes")
        cell = match_cell(evaluator.atoms, states, forms, self._semantics)
        W = {starts.index(start): weights for start, weights in cell.W.items()}
        return dataclasses.replace(cell, W=W), leaves

    def _same(self, cell: Cell | None, other: Cell) -> Cell:
        if cell is None:
            return other
        if cell.op_type != other.op_type:
            raise NotLiftableError("its steps are of different cells")
        one = dataclasses.astuple(dataclasses.replace(cell, W={}, R=0, B=0, P=None))  # type: ignore[arg-type]
        two = dataclasses.astuple(dataclasses.replace(other, W={}, R=0, B=0, P=None))  # type: ignore[arg-type]
        pairs = [(cell.R, other.R), (cell.B, other.B), *((cell.W[key], other.W.get(key)) for key in cell.W)]
        if (cell.P is None) != (other.P is None):
            raise NotLiftableError("its steps have different weights")
        pairs += [] if cell.P is None else [(cell.P, other.P)]
        same = all(
            b is not None and a.shape == b.shape and np.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in pairs
        )
        if one != two or not same or {*cell.W} != {*other.W}:
            raise NotLiftableError("its steps have different weights")
        return cell

    def _next(
        self, k: int, cell: Cell | None, place: int | None, end: ir.Value | None
    ) -> tuple[Cell, Step] | None:
        """Return the step behind a state whose new states are not known."""
        start = self._order.get(self._chain[k].producer(), 0)  # type: ignore[arg-type]
        before = self._order.get(self._chain[k - 1].producer(), 0) if k else 0  # type: ignore[arg-type]
        most = start + 3 * max(start - before, 20) if end is None else self._order[end.producer()]  # type: ignore[index]
        region = _region(self._order, self._chain[k], None, most)
        ordered = [out for node in self._nodes[start : most + 1] for out in node.outputs if out in region]
        shape = self._facts.dims(self._chain[k])
        alike = [value for value in ordered if self._facts.dims(value) == shape]
        makers = ("Add", "Sum", "Where") if place is not None else ()
        cells = [v for v in alike if v.producer() is not None and v.producer().op_type in makers]  # type: ignore[union-attr]
        for h in [end] if end is not None else alike:
            for c in cells if place is not None else [None]:
                try:
                    made, leaves = self._match(k, region, [h] if c is None else [h, c], place)
                    return self._same(cell, made), Step(leaves, [h] if c is None else [h, c])
                except NotLiftableError:
                    continue
        return None

    def _folded(
        self, step: Step, after: Step, place: int | None, starts: Sequence[ir.Value | None]
    ) -> Step | None:
        """Return the step in front of the first one, if it is one whose old states are zero."""
        if any(start is None or self._facts.constant(start) is not None for start in starts):
            return None
        values = [start for start in starts if start is not None]
        inputs = [leaf for number, leaf in enumerate(step.leaves) if number != place]
        makers = {made for leaf in inputs if (made := leaf.producer()) is not None}
        evaluator = _Folded(self._facts, Atoms(), makers)
        foreseen = [_before(leaf, after) for leaf, after in zip(step.leaves, after.leaves, strict=True)]
        foreseen = [leaf for number, leaf in enumerate(foreseen) if number != place]
        if None not in foreseen:
            for leaf in foreseen:
                assert leaf is not None
                evaluator.give(leaf)
        try:
            forms = [evaluator.form(value) for value in values]
        except NotLiftableError:
            return None
        leaves = list(evaluator.leaves)
        if [self._facts.dims(leaf) for leaf in leaves] != [self._facts.dims(leaf) for leaf in inputs]:
            return None
        known = dict(zip(inputs, evaluator.leaves.values(), strict=True))
        zero = [constant(form) for form in forms]
        known[self._chain[0]] = zero[0]
        if place is not None:
            known[step.leaves[place]] = zero[1]
        region = self._regions[0]
        again = _Leaves(self._facts, evaluator.atoms, region, known)
        try:
            expected = [again.form(value) for value in step.new]
        except NotLiftableError:
            return None
        same = all(is_like(evaluator.atoms, a, b) for a, b in zip(forms, expected, strict=True))
        if again.leaves or not same:
            return None
        if place is not None:
            leaves.insert(place, leaves[0])
        return Step(leaves, values)


def constant(form: Form) -> Form:
    """Return zeros in the shape of a form."""
    return form.scaled(np.array(0.0), form.tags).merged()


class _Folded(Evaluator):
    """An evaluator of a step whose old states are zero; it reads what the other steps read."""

    def __init__(self, facts: Facts, atoms: Atoms, makers: set[ir.Node]) -> None:
        super().__init__(facts, atoms, {})
        self._makers = makers
        self._sources = {(node.op_type, node.inputs[0]) for node in makers}
        self.leaves: dict[ir.Value, Form] = {}

    def _evaluate(self, value: ir.Value) -> None:
        producer = value.producer()
        is_leaf = producer is None or (producer.op_type, producer.inputs[0]) in self._sources
        if is_leaf:
            self.give(value)
        else:
            super()._evaluate(value)

    def give(self, value: ir.Value) -> None:
        """Take a value as given."""
        tags, shape = row_tags(self.facts, value)
        self.known[value] = self.leaves[value] = self.atoms.given(value, shape, tags)


def _before(leaf: ir.Value, after: ir.Value) -> ir.Value | None:
    """Return what a step would read in front of two that read these parts of one Split."""
    node = leaf.producer()
    if node is None or node.op_type != "Split" or after.producer() is not node:
        return None
    first, second = (list(node.outputs).index(value) for value in (leaf, after))
    place = 2 * first - second
    return node.outputs[place] if 0 <= place < len(node.outputs) else None
