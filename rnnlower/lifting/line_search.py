"""Straight lines of cells: the steps of a recurrence, written one after another."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import ancestors, look_through, producer_of, reachable
from rnnlower.lifting.affine_forms import AffineForm, Atoms, NotLiftableError
from rnnlower.lifting.cell_search import tagged_shape
from rnnlower.lifting.chains import MAX_OPERATORS, PRODUCTS, candidate_ends, dependents, producer_index
from rnnlower.lifting.equations import CellParameters, are_equivalent
from rnnlower.lifting.frames import LAYOUT
from rnnlower.lifting.line_steps import (
    Line,
    LineStep,
    StepEvaluator,
    StepMatcher,
    find_source,
    preceding_element,
    unmask_state,
)
from rnnlower.lifting.row_masks import match_where
from rnnlower.recurrent.node import Semantics

_OF_GATES = frozenset(("Gemm", "MatMul", "Sigmoid", "Tanh"))
"""Operators between an old C and a new one that only gates have."""
_GROWTH = 3
"""The most operators of a last step whose end is not known, as a multiple of those of the step before."""
_READS_AFTER_H = 1
"""The number of operators after the new H that may read the old C, as the Where of C does."""


def match_line(facts: Facts, graph: ir.Graph, chain: Sequence[ir.Value], semantics: Semantics) -> Line:
    """Return the line whose states are the values of a chain.

    Raises:
        NotLiftableError: The steps are not those of one cell.
    """
    if len(chain) > 1:
        are_alike = len({facts.dims(value) for value in chain[1:]}) == 1
        try:
            line = _LineMatcher(facts, graph, chain, semantics).line()
        except NotLiftableError:
            if are_alike:
                raise
        else:
            if are_alike or len(line.steps) > 1:
                return line
        raise NotLiftableError(
            "its states may have different sizes, as where axes of the same size have different names"
        )
    for end in candidate_ends(facts, graph, chain[0]):
        try:
            line = _LineMatcher(facts, graph, chain, semantics, end).line()
        except NotLiftableError:
            continue
        if len(line.steps) > 1 or line.cell.op_type != "RNN" or _is_external(facts, chain[0]):
            return line
    raise NotLiftableError("its only step is not that of a cell")


def _is_external(facts: Facts, state: ir.Value) -> bool:
    """Return whether a state comes from outside: only then is an activation of two products an RNN."""
    origin = look_through(state, {*LAYOUT, "Gather", "Split"})
    return origin.producer() is None and facts.constant(state) is None


class _LineMatcher:
    """A matcher of a chain to the steps of a line.

    Args:
        chain: The states that are multiplied by the weights.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ.
        end: The last state, if it is known but not multiplied by the weights; otherwise it is searched for.
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
        # Zeros may be several constants, or one for H and C: `_FirstStep` tells which states they are.
        chain = chain[1:] if len(chain) > 2 and facts.is_zero(chain[0]) else chain
        self._facts, self._chain = facts, list(chain)
        self._order = {node: number for number, node in enumerate(graph)}
        # C may be computed after H, up to the next H.
        self._regions = [
            dependents(self._order, value, self._last_index(k)) for k, value in enumerate(chain[:-1])
        ]
        self.tags, self.shape = tagged_shape(facts, chain[-1])
        self._matcher = StepMatcher(facts, semantics, self.tags, self.shape)

    def line(self) -> Line:
        """Match the steps; return the line."""
        chain = self._chain
        leaves = [self._find_leaves(k) for k in range(len(chain) - 1)]
        c_index = self._find_c_index(leaves)
        dims = [[self._facts.dims(leaf) for leaf in each] for each in leaves[:2]]
        # A first step that reads zeros has fewer operators, and is matched last.
        first = 0 if dims[0] == dims[-1] else 1
        # The states that the steps read. Nothing reads the last H; the last C is unknown.
        states = [
            [h] if c_index is None else [h, each[c_index]]
            for h, each in zip(chain[first:-1], leaves[first:], strict=True)
        ]
        if c_index is None:
            states.append([chain[-1]])
        cell, steps = self._match_steps(first, states, c_index)
        line = Line(cell, steps, states[0], self.tags, self.shape)
        region, before = self._regions[first], chain[0] if first else None
        longer = _FirstStep(self._facts, self._order, line, c_index, states[0], before, region).prepend()
        if longer is None and first:
            raise NotLiftableError("its first step is not that of a cell")
        return longer or line

    def _match_steps(
        self, first: int, states: Sequence[Sequence[ir.Value]], c_index: int | None
    ) -> tuple[CellParameters, list[LineStep]]:
        """Match the steps between known states; then search for those whose new states are not known."""
        chain, steps = self._chain, list[LineStep]()
        cell: CellParameters | None = None
        for k, (_, new) in enumerate(itertools.pairwise(states), first):
            found, leaves, old = self._matcher.match(chain[k], new, self._regions[k], c_index)
            cell = found.unify_with(cell)
            steps.append(_make_step(self._facts, leaves, new, old, self._regions[k]))
        for k in range(first + len(steps), len(chain) - self._is_end_known):
            last = steps[-1].new if steps else states[0]
            match = self._find_next_step(k, cell, c_index, None if c_index is None else last[1])
            if match is not None:
                cell, step = match
                steps.append(step)
            elif k < len(chain) - 1 or not steps:
                raise NotLiftableError("its last step is not that of a cell")
        assert cell is not None
        return cell, steps

    def _find_c_index(self, leaves: Sequence[Sequence[ir.Value]]) -> int | None:
        """Return the index of C among the leaves of each step; ``None`` without C."""
        found = {
            index
            for region, each in zip(self._regions, leaves[1:], strict=False)
            for index, leaf in enumerate(each)
            if leaf in region
        }
        if len(found) > 1 or any(len(each) != len(leaves[-1]) for each in leaves[1:]):
            raise NotLiftableError("its steps differ, or carry more than two states")
        if len(leaves) == 1 and len(leaves[0]) > 1:
            return self._find_cell_state(leaves[0])
        return found.pop() if found else None

    def _find_leaves(self, k: int) -> list[ir.Value]:
        """Return the leaves of a step, in the order of evaluation."""
        leaves = self._leaves(k)
        # With peepholes C is read twice: by itself, and in sums with inputs.
        if k:
            old = [leaf for leaf in leaves if leaf in self._regions[k - 1]]
        elif len(self._regions) > 1 and self._regions[0].isdisjoint(self._leaves(1)):
            # No later step reads a C: an input may be read by itself and in sums, too.
            return leaves
        else:
            wide = [leaf for leaf in leaves if (self._facts.dims(leaf) or ())[-1:] == self.shape[-1:]]
            old = [
                leaf for leaf in wide if any(leaf in ancestors(each) for each in leaves if each is not leaf)
            ]
        first = min(old, key=lambda leaf: producer_index(self._order, leaf), default=None)
        if first is None or (k and len(old) == 1):
            return leaves
        self._regions[k] |= dependents(self._order, first, self._last_index(k))
        return self._leaves(k)

    def _last_index(self, k: int) -> int:
        """Return the index of the last operator that may belong to a step."""
        return producer_index(self._order, self._chain[min(k + 2, len(self._chain) - 1)])

    def _find_cell_state(self, leaves: Sequence[ir.Value]) -> int | None:
        """Return the index of C among the leaves, by trial: a line of one step does not show it."""
        size, known = self.shape[-1], ancestors(self._chain[0])
        # C of a first step that reads zeros is an ancestor of its H.
        for c_index, leaf in sorted(enumerate(leaves), key=lambda each: each[1] not in known):
            shape = self._facts.shape(leaf)
            if shape is not None and shape[-1] == size:
                try:
                    if self._find_next_step(0, None, c_index, leaf) is not None:
                        return c_index
                except NotLiftableError:
                    continue
        return None

    def _leaves(self, k: int) -> list[ir.Value]:
        return self._matcher.leaves(self._chain[k], self._chain[k + 1], self._regions[k])

    def _find_next_step(
        self, k: int, cell: CellParameters | None, c_index: int | None, c: ir.Value | None
    ) -> tuple[CellParameters, LineStep] | None:
        """Search for the step after a state whose new states, or the new C, are not known."""
        end = self._chain[k + 1] if k + 1 < len(self._chain) else None
        start = producer_index(self._order, self._chain[k])
        if end is None:
            before = max(producer_index(self._order, self._chain[k - 1]), 0)
            most = start + max(_GROWTH * (start - before), MAX_OPERATORS)
        else:
            most = producer_index(self._order, end)
        region = dependents(self._order, self._chain[k], most)
        if c is not None:
            region |= dependents(self._order, c, most)
        nodes = [node for node, index in self._order.items() if start <= index <= most]
        ordered = [out for node in nodes for out in node.outputs if out in region]
        shape = self._facts.dims(self._chain[k])
        candidates = [value for value in ordered if self._facts.dims(value) == shape]
        cells = [each for each in candidates if c is not None and _is_carried(c, each)]
        for is_repeated, h, new_c in itertools.product(
            (True, False), [end] if end is not None else candidates, cells if c_index is not None else [None]
        ):
            unmasked = [h] if new_c is None else [h, new_c]
            try:
                found, leaves, old = self._matcher.match(
                    self._chain[k], unmasked, region, c_index, is_repeated=is_repeated
                )
                found = found.unify_with(cell)
            except NotLiftableError:
                continue
            new = [_find_choice(*pair) for pair in zip(unmasked, old, strict=True)]
            return found, _make_step(self._facts, leaves, new, old, region)
        return None


def _is_carried(old: ir.Value, new: ir.Value) -> bool:
    """Return whether a sum reads an old C otherwise than by a gate."""

    def operands(value: ir.Value) -> Sequence[ir.Value | None]:
        node = value.producer()
        return () if value is old or node is None or node.op_type in _OF_GATES else node.inputs

    return producer_of(new, "Add", "Sum") is not None and old in reachable([new], operands)


@dataclasses.dataclass(frozen=True)
class _FirstStep:
    """The step before a line, which has fewer operators because its states are zeros.

    Attributes:
        order: The indices of the operators of the graph.
        line: The line without the step.
        c_index: The index of the old C among the leaves of a step.
        new: The initial states of the line, which are the new states of the step.
        h: The old H; ``None`` for zeros.
        region: The values that depend on the new H.
    """

    facts: Facts
    order: Mapping[ir.Node, int]
    line: Line
    c_index: int | None
    new: Sequence[ir.Value]
    h: ir.Value | None
    region: set[ir.Value]

    def prepend(self) -> Line | None:
        """Return the line with the step prepended, if there is one."""
        if any(self.facts.constant(value) is not None for value in self.new):
            return None
        cells = (None, *self._constant_states()) if self.c_index is not None else (None,)
        return next(filter(None, map(self._prepend_with, cells)), None)

    def _constant_states(self) -> list[ir.Value]:
        """Return the constants that may be the old cell state."""
        start = -1 if self.h is None else producer_index(self.order, self.h)
        end = producer_index(self.order, self.new[0]) + _READS_AFTER_H
        nodes = [node for node, index in self.order.items() if start <= index <= end]
        read = dict.fromkeys(v for node in nodes if node.op_type in ("Mul", "Where") for v in node.inputs)
        dims = self.facts.dims(self.new[0])
        return [v for v in read if v and self.facts.dims(v) == dims and self.facts.constant(v) is not None]

    def _prepend_with(self, c: ir.Value | None) -> Line | None:
        """Return the line with the step, whose old C is a constant, or if ``None`` a leaf or zeros."""
        facts, line, steps, new = self.facts, self.line, self.line.steps, self.new
        leaves = itertools.zip_longest(steps[0].leaves, steps[1].leaves if len(steps) > 1 else ())
        pairs = [pair for number, pair in enumerate(leaves) if number != self.c_index]
        inputs, before = [leaf for leaf, _ in pairs], [preceding_element(*pair) for pair in pairs]
        known_inputs = [leaf for leaf in before if leaf is not None]
        atoms = Atoms()
        known = {value: atoms.variables(line.shape, line.tags) for value in (self.h, c) if value is not None}
        most = producer_index(self.order, new[0])
        region = set[ir.Value]().union(
            *(dependents(self.order, value, most) for value in (*known_inputs, *known))
        )
        next_inputs = () if len(known_inputs) == len(before) else inputs
        evaluator = StepEvaluator(facts, atoms, new[0], region, known, next_inputs)
        try:
            for leaf in known_inputs:
                evaluator.add_leaf(leaf)
            forms = [evaluator.form(value) for value in self._unmasked_states(region)]
        except NotLiftableError:
            return None
        rest = [leaf for leaf in evaluator.leaves if leaf not in known_inputs]
        candidates = zip(before, inputs, strict=True)
        x = [read for own, like in candidates if (read := own or _take_similar(rest, like)) is not None]
        if len(x) < len(inputs) or len(rest) > (self.c_index is not None and c is None):
            return None
        c = rest[0] if rest else c
        compared = zip((*x, c or new[-1]), (*inputs, new[-1]), strict=True)
        if any(facts.dims(one) != facts.dims(other) for one, other in compared):
            return None
        old = [self.h] if self.c_index is None else [self.h, c]
        if not self._matches_next_step(evaluator, dict(zip(inputs, x, strict=True)), old, forms):
            return None
        if self.c_index is not None:
            x.insert(self.c_index, c or x[0])
        first = _make_step(facts, x, new, old, region)
        return dataclasses.replace(line, steps=[first, *steps], starts=old)

    def _unmasked_states(self, region: set[ir.Value]) -> list[ir.Value]:
        """Return the new states before the Where that keeps old ones."""
        unmasked = [unmask_state(self.facts, self.new[0], self.h, region)[0]]
        for value in self.new[1:]:
            mask, chosen, kept = match_where(value)
            # The old C is not known yet.
            unmasked.append(value if {mask, kept} & region else chosen)
        return unmasked

    def _matches_next_step(
        self,
        evaluator: StepEvaluator,
        x: Mapping[ir.Value, ir.Value],
        old: Sequence[ir.Value | None],
        forms: Sequence[AffineForm],
    ) -> bool:
        """Return whether the next step computes the same from what this one reads."""
        following = self.line.steps[0]
        given = {like: evaluator.known[leaf] for like, leaf in x.items()}
        states = [self.new[0], *([] if self.c_index is None else [following.leaves[self.c_index]])]
        for state, start, form in zip(states, old, forms, strict=True):
            zero = form.scale(0.0).simplify()
            given[state] = zero if start is None else evaluator.known[start]
        again = StepEvaluator(self.facts, evaluator.atoms, self.new[0], self.region, given)
        try:
            expected = [again.form(value) for value in following.unmasked]
        except NotLiftableError:
            return False
        return not again.leaves and are_equivalent(evaluator.atoms, zip(forms, expected, strict=True))


def _make_step(
    facts: Facts,
    leaves: Sequence[ir.Value],
    new: Sequence[ir.Value],
    old: Sequence[ir.Value | None],
    region: AbstractSet[ir.Value],
) -> LineStep:
    """Make a step; its states must have the same mask."""
    chosen = [unmask_state(facts, *pair, region) for pair in zip(new, old, strict=True)]
    pairs = zip(new, [mask for _, mask in chosen], strict=True)
    read = {mask for value, mask in pairs if mask is not None or not _is_internal(value)}
    if len(read) > 1:
        raise NotLiftableError("the states of a row do not end at the same time")
    return LineStep(leaves, new, read.pop() if read else None, [unmasked for unmasked, _ in chosen])


def _is_internal(value: ir.Value) -> bool:
    """Return whether a new C is read only within its step, as at the end of a line."""
    return not value.is_graph_output() and all(
        node.op_type not in ("Where", *PRODUCTS, "Concat") for node, _ in value.uses()
    )


def _find_choice(value: ir.Value, old: ir.Value) -> ir.Value:
    """Return the Where that keeps the old state in place of a new one, or the new one if there is none."""
    read_in = (node.outputs[0] for node, _ in value.uses())
    return next((out for out in read_in if match_where(out)[1:] == (value, old)), value)


def _take_similar(rest: list[ir.Value], like: ir.Value) -> ir.Value | None:
    """Pop a value from a list, preferably one that has the same source as another."""
    places = [index for index, value in enumerate(rest) if find_source(value) == find_source(like)]
    return rest.pop(places[0] if places else 0) if rest else None
