"""Straight lines of cells: the steps of a recurrence, written one after another."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import passed, sources
from rnnlower.lifting.affine_forms import Atoms, Form, NotLiftableError
from rnnlower.lifting.cell_search import tagged_shape
from rnnlower.lifting.chains import (
    MOST,
    PRODUCTS,
    Leaves,
    Line,
    Step,
    depending_on,
    element_before,
    find_ends,
    position,
    source_of,
)
from rnnlower.lifting.comparison import are_equivalent
from rnnlower.lifting.equations import Cell
from rnnlower.lifting.frames import LAYOUT
from rnnlower.lifting.outlines import StepMatcher, bare_state
from rnnlower.lifting.row_masks import match_where
from rnnlower.recurrent.node import Semantics

_LONGER = 3
"""How many times as many operators as the step before the last step may have, if its end is not known."""
_AFTER_H = 1
"""How many operators after the new H may read the old C, as the choice of C does."""


def match_line(facts: Facts, graph: ir.Graph, chain: Sequence[ir.Value], semantics: Semantics) -> Line:
    """Return the line whose states are the values of a chain.

    Raises:
        NotLiftableError: The steps are not those of one cell.
    """
    if len(chain) > 1:
        return _Matching(facts, graph, chain, semantics).line()
    for end in find_ends(facts, graph, chain[0]):
        try:
            line = _Matching(facts, graph, chain, semantics, end).line()
        except NotLiftableError:
            continue
        if len(line.steps) > 1 or line.cell.op_type != "RNN" or _is_given(facts, chain[0]):
            return line
    raise NotLiftableError("its only step is not that of a cell")


def _is_given(facts: Facts, state: ir.Value) -> bool:
    """Return whether a state comes from outside: only then an activation of two products is an RNN."""
    origin = passed(state, {*LAYOUT, "Gather", "Split"})
    return origin.producer() is None and facts.constant(state) is None


class _Matching:
    """The comparison of a chain with a line of steps.

    Args:
        facts: The facts about the model.
        graph: The graph.
        chain: The states that the weights multiply.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ.
        end: The last state, if no weights multiply it and it is known; otherwise it is searched for.
    """

    def __init__(
        self,
        facts: Facts,
        graph: ir.Graph,
        chain: Sequence[ir.Value],
        semantics: Semantics,
        end: ir.Value | None = None,
    ) -> None:
        self._is_end_known = end is not None
        chain = chain if end is None else [*chain, end]
        # Zeros may be several constants, and those of H and C one: `_FirstStep` reads them as what they are.
        chain = chain[1:] if len(chain) > 2 and facts.is_zero(chain[0]) else chain
        self._facts, self._chain = facts, list(chain)
        self._order = {node: number for number, node in enumerate(graph)}
        # C may be finished after H, up to the next H.
        self._regions = [
            depending_on(self._order, value, None, self._limit(k)) for k, value in enumerate(chain[:-1])
        ]
        self.tags, self.shape = tagged_shape(facts, chain[-1])
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
            matched = cell.unify_with(matched)
            steps.append(_step(self._facts, leaves, new, old, self._regions[k]))
        for k in range(first + len(steps), len(chain) - self._is_end_known):
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
        new = [chain[first], *([cells[first]] if place is not None else [])]
        line = Line(matched, steps, new, self.tags, self.shape)
        region = self._regions[first]
        # A first step that reads zeros is written without them.
        before = _FirstStep(self._facts, self._order, line, place, new, chain[0] if first else None, region)
        longer = before.line_with_it()
        if longer is None and first:
            raise NotLiftableError("its first step is not that of a cell")
        return longer or line

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
        first = min(old, key=lambda leaf: position(self._order, leaf), default=None)
        if first is None or (k and len(old) == 1):
            return leaves
        self._regions[k] |= depending_on(self._order, first, None, self._limit(k))
        return self._leaves(k)

    def _limit(self, k: int) -> int:
        """Return the place of the last operator that may belong to a step."""
        return position(self._order, self._chain[min(k + 2, len(self._chain) - 1)])

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

    def _next(
        self, k: int, cell: Cell | None, place: int | None, end: ir.Value | None, c: ir.Value | None
    ) -> tuple[Cell, Step] | None:
        """Return the step after a state whose new states are not known."""
        start = position(self._order, self._chain[k])
        if end is None:
            before = max(position(self._order, self._chain[k - 1]), 0)
            most = start + max(_LONGER * (start - before), MOST)
        else:
            most = position(self._order, end)
        region = depending_on(self._order, self._chain[k], None, most)
        if c is not None:
            region |= depending_on(self._order, c, None, most)
        nodes = [node for node, place in self._order.items() if start <= place <= most]
        ordered = [out for node in nodes for out in node.outputs if out in region]
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
                found = found.unify_with(cell)
            except NotLiftableError:
                continue
            new = [_chosen(*pair) for pair in zip(bare, old, strict=True)]
            return found, _step(self._facts, leaves, new, old, region)
        return None


@dataclasses.dataclass(frozen=True)
class _FirstStep:
    """The step before those of a line, if it reads zeros, without which it has fewer operators.

    Attributes:
        facts: The facts about the model.
        order: The places of the operators of the graph.
        line: The line without the step.
        place: The position of the old cell state among what a step reads.
        new: The initial states of the line, which are the new states of the step.
        h: The old H; ``None`` for zeros.
        region: What depends on the new H.
    """

    facts: Facts
    order: Mapping[ir.Node, int]
    line: Line
    place: int | None
    new: Sequence[ir.Value]
    h: ir.Value | None
    region: set[ir.Value]

    def line_with_it(self) -> Line | None:
        """Return the line with the step in front, if there is one."""
        if any(self.facts.constant(value) is not None for value in self.new):
            return None
        cells = (None, *self._constants()) if self.place is not None else (None,)
        return next(filter(None, map(self._line_with, cells)), None)

    def _constants(self) -> list[ir.Value]:
        """Return the constants that may be the old cell state."""
        start = -1 if self.h is None else position(self.order, self.h)
        end = position(self.order, self.new[0]) + _AFTER_H
        nodes = [node for node, place in self.order.items() if start <= place <= end]
        read = dict.fromkeys(v for node in nodes if node.op_type in ("Mul", "Where") for v in node.inputs)
        dims = self.facts.dims(self.new[0])
        return [v for v in read if v and self.facts.dims(v) == dims and self.facts.constant(v) is not None]

    def _line_with(self, c: ir.Value | None) -> Line | None:
        """Return the line with the step, whose old cell state is this constant, or is read or left out."""
        facts, line, steps, new = self.facts, self.line, self.line.steps, self.new
        leaves = itertools.zip_longest(steps[0].leaves, steps[1].leaves if len(steps) > 1 else ())
        pairs = [pair for number, pair in enumerate(leaves) if number != self.place]
        inputs, before = [leaf for leaf, _ in pairs], [element_before(*pair) for pair in pairs]
        foreseen = [leaf for leaf in before if leaf is not None]
        atoms = Atoms()
        known = {value: atoms.variables(line.shape, line.tags) for value in (self.h, c) if value is not None}
        region = set[ir.Value]().union(
            *(depending_on(self.order, value, new[0]) for value in (*foreseen, *known))
        )
        like = () if len(foreseen) == len(before) else inputs
        evaluator = Leaves(facts, atoms, new[0], region, known, like)
        try:
            for leaf in foreseen:
                evaluator.give(leaf)
            forms = [evaluator.form(value) for value in self._bare(region)]
        except NotLiftableError:
            return None
        rest = [leaf for leaf in evaluator.leaves if leaf not in foreseen]
        places = zip(before, inputs, strict=True)
        x = [read for own, like in places if (read := own or _taken(rest, like)) is not None]
        if len(x) < len(inputs) or len(rest) > (self.place is not None and c is None):
            return None
        c = rest[0] if rest else c
        alike = zip((*x, c or new[-1]), (*inputs, new[-1]), strict=True)
        if any(facts.dims(one) != facts.dims(other) for one, other in alike):
            return None
        old = [self.h] if self.place is None else [self.h, c]
        if not self._is_followed(evaluator, dict(zip(inputs, x, strict=True)), old, forms):
            return None
        if self.place is not None:
            x.insert(self.place, c or x[0])
        first = _step(facts, x, new, old, region)
        return dataclasses.replace(line, steps=[first, *steps], starts=old)

    def _bare(self, region: set[ir.Value]) -> list[ir.Value]:
        """Return the new states without the choice between them and the old ones."""
        bare = [bare_state(self.facts, self.new[0], self.h, region)[0]]
        for value in self.new[1:]:
            mask, chosen, kept = match_where(value)
            # What C was before is not known yet.
            bare.append(value if {mask, kept} & region else chosen)
        return bare

    def _is_followed(
        self,
        evaluator: Leaves,
        x: Mapping[ir.Value, ir.Value],
        old: Sequence[ir.Value | None],
        forms: Sequence[Form],
    ) -> bool:
        """Return whether the next step computes the same, if it reads what this one reads."""
        following = self.line.steps[0]
        given = {like: evaluator.known[leaf] for like, leaf in x.items()}
        states = [self.new[0], *([] if self.place is None else [following.leaves[self.place]])]
        for state, start, form in zip(states, old, forms, strict=True):
            zero = form.scale(np.array(0.0), form.tags).simplify()
            given[state] = zero if start is None else evaluator.known[start]
        again = Leaves(self.facts, evaluator.atoms, self.new[0], self.region, given)
        try:
            expected = [again.form(value) for value in following.bare]
        except NotLiftableError:
            return False
        alike = (are_equivalent(evaluator.atoms, *pair) for pair in zip(forms, expected, strict=True))
        return not again.leaves and all(alike)


def _step(
    facts: Facts,
    leaves: Sequence[ir.Value],
    new: Sequence[ir.Value],
    old: Sequence[ir.Value | None],
    region: AbstractSet[ir.Value],
) -> Step:
    """Return a step, whose states must end at the same time."""
    chosen = [bare_state(facts, *pair, region) for pair in zip(new, old, strict=True)]
    pairs = zip(new, [mask for _, mask in chosen], strict=True)
    read = {mask for value, mask in pairs if mask is not None or not _is_inner(value)}
    if len(read) > 1:
        raise NotLiftableError("the states of a row do not end at the same time")
    return Step(leaves, new, read.pop() if read else None, [bare for bare, _ in chosen])


def _is_inner(value: ir.Value) -> bool:
    """Return whether only the step itself reads a new cell state, as at the end of a line."""
    return not value.is_graph_output() and all(
        node.op_type not in ("Where", *PRODUCTS, "Concat") for node, _ in value.uses()
    )


def _chosen(value: ir.Value, old: ir.Value) -> ir.Value:
    """Return the choice between a new state and the old one, if there is one."""
    read_in = (node.outputs[0] for node, _ in value.uses())
    return next((out for out in read_in if match_where(out)[1:] == (value, old)), value)


def _taken(rest: list[ir.Value], like: ir.Value) -> ir.Value | None:
    """Take a value out of a list, if possible one that comes from where another one does."""
    places = [place for place, value in enumerate(rest) if source_of(value) == source_of(like)]
    return rest.pop(places[0] if places else 0) if rest else None
