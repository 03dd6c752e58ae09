"""Straight lines of cells: the steps of a recurrence, written one after another."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import sources
from rnnlower.lifting.affine_forms import Atoms, NotLiftableError
from rnnlower.lifting.cell_search import row_tags
from rnnlower.lifting.chains import (
    MOST,
    PRODUCTS,
    Leaves,
    Line,
    Step,
    depending_on,
    element_before,
    find_ends,
    source_of,
)
from rnnlower.lifting.comparison import is_like
from rnnlower.lifting.equations import Cell
from rnnlower.lifting.frames import LAYOUT
from rnnlower.lifting.outlines import StepMatcher, bare_state
from rnnlower.lifting.row_masks import choice_of
from rnnlower.recurrent.node import Semantics


def match_line(facts: Facts, graph: ir.Graph, chain: Sequence[ir.Value], semantics: Semantics) -> Line:
    """Return the line whose states are the values of a chain.

    Raises:
        NotLiftableError: The steps are not those of one cell.
    """
    if len(chain) > 1:
        return _Matching(facts, graph, chain, semantics).line()
    for end in find_ends(facts, graph, chain[0]):
        try:
            line = _Matching(facts, graph, [*chain, end], semantics).line()
        except NotLiftableError:
            continue
        if len(line.steps) > 1 or line.cell.op_type != "RNN" or _is_given(facts, chain[0]):
            return line
    raise NotLiftableError("its only step is not that of a cell")


def _is_given(facts: Facts, state: ir.Value) -> bool:
    """Return whether a state comes from outside: only then an activation of two products is an RNN."""
    value = state
    while (producer := value.producer()) is not None and producer.op_type in (*LAYOUT, "Gather", "Split"):
        value = producer.inputs[0] or value
    return producer is None and facts.constant(state) is None


class _Matching:
    def __init__(
        self, facts: Facts, graph: ir.Graph, chain: Sequence[ir.Value], semantics: Semantics
    ) -> None:
        # Zeros may be several constants, and those of H and C one: `_first` reads them as what they are.
        chain = chain[1:] if len(chain) > 2 and facts.is_zero(chain[0]) else chain
        self._facts, self._chain = facts, list(chain)
        self._order = {node: number for number, node in enumerate(graph)}
        # C may be finished after H, up to the next H.
        self._regions = [
            depending_on(self._order, value, None, self._limit(k)) for k, value in enumerate(chain[:-1])
        ]
        self.tags, self.shape = row_tags(facts, chain[-1])
        self._steps = StepMatcher(facts, semantics, self.tags, self.shape)

    def line(self) -> Line:
        """Return the line."""
        chain = self._chain
        reads = [self._reads(k) for k in range(len(chain) - 1)]
        places = {
            place
            for k, leaves in enumerate(reads[1:], 1)
            for place, leaf in enumerate(leaves)
            if leaf in self._regions[k - 1]
        }
        if len(places) > 1 or any(len(leaves) != len(reads[-1]) for leaves in reads[1:]):
            raise NotLiftableError("its steps differ, or carry more than two states")
        place = places.pop() if places else None
        if len(reads) == 1 and len(reads[0]) > 1:
            place = self._place_of_c(reads[0])
        dims = [[self._facts.dims(leaf) for leaf in leaves] for leaves in reads[:2]]
        first = 0 if dims[0] == dims[-1] else 1
        cells = {k: leaves[place] for k, leaves in enumerate(reads) if place is not None and k >= first}
        matched: Cell | None = None
        steps: list[Step] = []
        for k in range(first, len(chain) - 2 + (place is None)):
            new = [chain[k + 1]] if place is None else [chain[k + 1], cells[k + 1]]
            cell, leaves, old = self._steps.match(chain[k], new, self._regions[k], place)
            matched = cell.same_as(matched)
            steps.append(self._step(leaves, new, old, self._regions[k]))
        for k in range(first + len(steps), len(chain)):
            c = None if place is None else steps[-1].new[1] if steps else cells[k]
            found = self._next(k, matched, place, None if k == len(chain) - 1 else chain[k + 1], c)
            if found is None:
                if k == len(chain) - 1 and steps:
                    # A product reads the last state, too.
                    break
                raise NotLiftableError("its last step is not that of a cell")
            matched, step = found
            steps.append(step)
        assert matched is not None
        starts: list[ir.Value | None] = [chain[first], *([cells[first]] if place is not None else [])]
        # A first step that reads zeros is written without them.
        before = self._first(first, steps, place, starts, chain[0] if first else None)
        if before is not None:
            steps.insert(0, before[0])
            starts = before[1]
        elif first:
            raise NotLiftableError("its first step is not that of a cell")
        return Line(matched, steps, starts, self.tags, self.shape)

    def _reads(self, k: int) -> list[ir.Value]:
        """Return what a step reads, in the order of evaluation."""
        leaves = self._leaves(k)
        # C is read by itself, and in sums with inputs if there are peepholes.
        if k:
            old = [leaf for leaf in leaves if leaf in self._regions[k - 1]]
        else:
            old = [
                leaf for leaf in leaves if any(leaf in sources(each) for each in leaves if each is not leaf)
            ]
        first = min(old, key=lambda leaf: self._order.get(leaf.producer(), -1), default=None)  # type: ignore[arg-type]
        if first is None or (k and len(old) == 1):
            return leaves
        self._regions[k] |= depending_on(self._order, first, None, self._limit(k))
        return self._leaves(k)

    def _limit(self, k: int) -> int:
        """Return the place of the last operator that may belong to a step."""
        end = self._chain[min(k + 2, len(self._chain) - 1)].producer()
        assert end is not None
        return self._order[end]

    def _place_of_c(self, leaves: Sequence[ir.Value]) -> int | None:
        """Return the position of the cell state in a line of so few steps that it cannot be seen."""
        size, known = self.shape[-1], sources(self._chain[0])
        # That of a first step that reads zeros is part of its H.
        for place, leaf in sorted(enumerate(leaves), key=lambda each: each[1] not in known):
            shape = self._facts.shape(leaf)
            if shape is not None and shape[-1] == size:
                try:
                    if self._next(0, None, place, self._chain[1], leaf) is not None:
                        return place
                except NotLiftableError:
                    continue
        return None

    def _leaves(self, k: int) -> list[ir.Value]:
        return self._steps.leaves(self._chain[k], self._chain[k + 1], self._regions[k])

    def _step(
        self,
        leaves: Sequence[ir.Value],
        new: Sequence[ir.Value],
        old: Sequence[ir.Value | None],
        region: AbstractSet[ir.Value],
    ) -> Step:
        """Return a step, whose states must end at the same time."""
        chosen = [bare_state(self._facts, *pair, region) for pair in zip(new, old, strict=True)]
        read = {
            mask
            for value, (_, mask) in zip(new, chosen, strict=True)
            if mask is not None or not self._is_inner(value)
        }
        if len(read) > 1:
            raise NotLiftableError("the states of a row do not end at the same time")
        return Step(leaves, new, read.pop() if read else None, [bare for bare, _ in chosen])

    def _is_inner(self, value: ir.Value) -> bool:
        """Return whether only the step itself reads a new cell state, as at the end of a line."""
        return not value.is_graph_output() and all(
            node.op_type not in ("Where", *PRODUCTS, "Concat") for node, _ in value.uses()
        )

    def _next(
        self, k: int, cell: Cell | None, place: int | None, end: ir.Value | None, c: ir.Value | None
    ) -> tuple[Cell, Step] | None:
        """Return the step behind a state whose new states are not known."""
        start = self._order.get(self._chain[k].producer(), 0)  # type: ignore[arg-type]
        before = self._order.get(self._chain[k - 1].producer(), 0) if k else 0  # type: ignore[arg-type]
        most = start + 3 * max(start - before, MOST // 3) if end is None else self._order[end.producer()]  # type: ignore[index]
        region = depending_on(self._order, self._chain[k], None, most)
        if c is not None:
            region |= depending_on(self._order, c, None, most)
        ordered = [out for node in [*self._order][start : most + 1] for out in node.outputs if out in region]
        shape = self._facts.dims(self._chain[k])
        alike = [value for value in ordered if self._facts.dims(value) == shape]
        cells = [v for v in alike if (made := v.producer()) is not None and made.op_type in ("Add", "Sum")]
        for is_repeated, h, new_c in itertools.product(
            (True, False), [end] if end is not None else alike, cells if place is not None else [None]
        ):
            bare = [h] if new_c is None else [h, new_c]
            try:
                found, leaves, old = self._steps.match(
                    self._chain[k], bare, region, place, is_repeated=is_repeated
                )
                found = found.same_as(cell)
            except NotLiftableError:
                continue
            new = [_chosen(*pair) for pair in zip(bare, old, strict=True)]
            return found, self._step(leaves, new, old, region)
        return None

    def _first(
        self,
        k: int,
        steps: Sequence[Step],
        place: int | None,
        starts: Sequence[ir.Value | None],
        h: ir.Value | None,
    ) -> tuple[Step, list[ir.Value | None]] | None:
        """Return the step before the known ones, and its initial states, if some of its old states are zero.

        Args:
            k: The position of the old H of the first known step.
            steps: The known steps.
            place: The position of the old cell state among what a step reads.
            starts: Their initial states, which are the new states of the step.
            h: The old H; ``None`` for zeros.
        """
        new = [start for start in starts if start is not None]
        if len(new) < len(starts) or any(self._facts.constant(start) is not None for start in new):
            return None
        for c in [None, *self._constants(k)] if place is not None else [None]:
            found = self._first_with(k, steps, place, new, h, c)
            if found is not None:
                return found
        return None

    def _constants(self, k: int) -> list[ir.Value]:
        """Return the constants that may be the old cell state of a step."""
        dims = self._facts.dims(self._chain[k])
        start = self._order.get(self._chain[k - 1].producer(), 0) if k else 0  # type: ignore[arg-type]
        end = self._order.get(self._chain[k].producer(), 0)  # type: ignore[arg-type]
        read = {
            value: None
            for node in [*self._order][start : end + 2]
            if node.op_type in ("Mul", "Where")
            for value in node.inputs
        }
        return [
            value
            for value in read
            if value is not None
            and self._facts.dims(value) == dims
            and self._facts.constant(value) is not None
        ]

    def _first_with(
        self,
        k: int,
        steps: Sequence[Step],
        place: int | None,
        new: Sequence[ir.Value],
        h: ir.Value | None,
        c: ir.Value | None,
    ) -> tuple[Step, list[ir.Value | None]] | None:
        pairs = itertools.zip_longest(steps[0].leaves, steps[1].leaves if len(steps) > 1 else ())
        before = [element_before(*pair) for number, pair in enumerate(pairs) if number != place]
        inputs = [leaf for number, leaf in enumerate(steps[0].leaves) if number != place]
        atoms = Atoms()
        known = {value: atoms.given(self.shape, self.tags) for value in (h, c) if value is not None}
        foreseen = [leaf for leaf in before if leaf is not None]
        region: set[ir.Value] = set()
        for value in [*foreseen, *known]:
            region |= depending_on(self._order, value, self._chain[k])
        like = () if len(foreseen) == len(before) else inputs
        evaluator = Leaves(self._facts, atoms, new[0], region, known, like)
        bare = [bare_state(self._facts, new[0], h, region)[0]]
        for value in new[1:]:
            mask, chosen, kept = choice_of(value)
            # What C was before is not known yet.
            bare.append(value if {mask, kept} & region else chosen)
        try:
            for leaf in foreseen:
                evaluator.give(leaf)
            forms = [evaluator.form(value) for value in bare]
        except NotLiftableError:
            return None
        rest = [leaf for leaf in evaluator.leaves if leaf not in foreseen]
        x = [_taken(rest, like) if leaf is None else leaf for leaf, like in zip(before, inputs, strict=True)]
        if None in x or len(rest) > (place is not None and c is None):
            return None
        c = rest[0] if rest else c
        dims = [
            [self._facts.dims(leaf) for leaf in leaves if leaf is not None] for leaves in (x, inputs, [c])
        ]
        if dims[0] != dims[1] or (c is not None and dims[2][0] != self._facts.dims(new[-1])):
            return None
        old = [h, *([] if place is None else [c])]
        given = dict(zip(inputs, (evaluator.known[leaf] for leaf in x if leaf is not None), strict=True))
        states = [self._chain[k], *([] if place is None else [steps[0].leaves[place]])]
        for value, start, form in zip(states, old, forms, strict=True):
            zero = form.scaled(np.array(0.0), form.tags).merged()
            given[value] = zero if start is None else evaluator.known[start]
        again = Leaves(self._facts, atoms, new[0], self._regions[k], given)
        try:
            expected = [again.form(value) for value in steps[0].bare]
        except NotLiftableError:
            return None
        alike = (is_like(atoms, one, other) for one, other in zip(forms, expected, strict=True))
        if again.leaves or not all(alike):
            return None
        leaves = [leaf for leaf in x if leaf is not None]
        if place is not None:
            leaves.insert(place, c or leaves[0])
        return self._step(leaves, new, old, region), old


def _chosen(value: ir.Value, old: ir.Value) -> ir.Value:
    """Return the choice between a new state and the old one, if there is one."""
    read_in = (node.outputs[0] for node, _ in value.uses())
    return next((out for out in read_in if choice_of(out)[1:] == (value, old)), value)


def _taken(rest: list[ir.Value], like: ir.Value) -> ir.Value | None:
    """Take a value out of a list, if possible one that comes from where another one does."""
    places = [place for place, value in enumerate(rest) if source_of(value) == source_of(like)]
    return rest.pop(places[0] if places else 0) if rest else None
