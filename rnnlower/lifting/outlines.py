"""The steps of a line: each is compared with the cells once, and those that repeat it by their outlines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.symbols import UNKNOWN
from rnnlower.lifting.affine_forms import Atoms, NotLiftableError
from rnnlower.lifting.cell_search import match_cell
from rnnlower.lifting.chains import Leaves
from rnnlower.lifting.equations import Cell
from rnnlower.lifting.row_masks import match_where
from rnnlower.recurrent.node import Semantics
from rnnlower.recurrent.operators import FLOAT_TYPES


class Outline:
    """An outline of a step. Steps of equal outlines have equal forms, and values of equal numbers in them.

    Args:
        evaluator: The evaluator of the step, which has evaluated nothing yet.
        contents: The contents of constants, of all steps.

    Attributes:
        evaluator: The evaluator of the step.
        entries: The computation of each value, by the numbers of those that it reads.
        numbers: The number of each value.
    """

    def __init__(self, evaluator: Leaves, contents: dict[ir.Value, object]) -> None:
        self.evaluator, self._contents = evaluator, contents
        self._states = frozenset(evaluator.known)
        self._unknown: dict[object, int] = {}
        self.entries: list[object] = []
        self.numbers: dict[ir.Value, int] = {}

    def add(self, value: ir.Value | None) -> int:
        """Add a value, and all from which it is computed; return its number."""
        if value is None:
            return -1
        if value not in self.numbers:
            entry = self._entry(value)
            self.numbers[value] = len(self.numbers)
            self.entries.append(entry)
        return self.numbers[value]

    def _entry(self, value: ir.Value) -> tuple[object, ...]:
        facts, node = self.evaluator.facts, value.producer()
        size = self._sizes(value), facts.type(value)
        if value in self._states:
            return ("state", *size)
        array = self.evaluator.constant(value)
        if array is not None:
            if value not in self._contents:
                self._contents[value] = (array.shape, array.dtype.str, array.tobytes())
            return ("constant", self._contents[value])
        if node is None or not self.evaluator.is_computed(value):
            is_number = facts.dtype(value) in FLOAT_TYPES
            return ("given", *size, None if is_number else value)
        inputs = tuple(self.add(each) for each in node.inputs)
        attributes = tuple((name, _hashable(each)) for name, each in sorted(node.attributes.items()))
        return (node.domain, node.op_type, attributes, inputs, node.outputs.index(value), *size)

    def _sizes(self, value: ir.Value) -> tuple[object, ...] | None:
        """Return the sizes of a value; those that are not known have numbers, which other steps have too."""
        dims = self.evaluator.facts.dims(value)
        return dims and tuple(
            ("unknown", self._unknown.setdefault(dim, len(self._unknown)))
            if isinstance(dim, ir.SymbolicDim) and str(dim.value).startswith(UNKNOWN)
            else dim
            for dim in dims
        )


def _hashable(attribute: ir.Attr) -> object:
    value = attribute.value
    if isinstance(value, list | tuple):
        return tuple(value)
    return value if isinstance(value, int | float | str) else id(value)


class StepMatcher:
    """A reader of the steps of a line.

    Args:
        facts: The facts about the model.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ.
        tags: The axes of H.
        shape: Its shape, with 1 for rows.
    """

    def __init__(self, facts: Facts, semantics: Semantics, tags: Sequence[str], shape: Sequence[int]) -> None:
        self._facts, self._semantics, self._tags, self._shape = facts, semantics, tags, shape
        self._contents: dict[ir.Value, object] = {}
        # By outline: the numbers of what H reads; the cell, and the numbers of what the whole step reads.
        self._read: dict[object, list[int]] = {}
        self._cells: dict[object, tuple[Cell, list[int]]] = {}

    def leaves(self, old: ir.Value, new: ir.Value, region: set[ir.Value]) -> list[ir.Value]:
        """Return what a step from an old H to a new one reads, in the order of evaluation.

        Raises:
            NotLiftableError: An operator is not part of any cell.
        """
        return self._read_by(self._outline(old, region), bare_state(self._facts, new, old, region)[0])

    def match(
        self,
        old: ir.Value,
        new: Sequence[ir.Value],
        region: set[ir.Value],
        place: int | None,
        *,
        is_repeated: bool = False,
    ) -> tuple[Cell, list[ir.Value], list[ir.Value]]:
        """Return the cell of a step, what the step reads, and its old states.

        Args:
            old: The old H.
            new: The new states, H first.
            region: The values that depend on the old states.
            place: The position of the old C among what H reads; ``None``: there is none.
            is_repeated: Whether only cells that are known are looked for.

        Raises:
            NotLiftableError: It is not the step of a cell.
        """
        outline = self._outline(old, region)
        bare = [bare_state(self._facts, new[0], old, region)[0]]
        leaves = self._read_by(outline, bare[0])
        if place is not None:
            if place >= len(leaves):
                raise NotLiftableError("its steps differ")
            bare.append(bare_state(self._facts, new[1], leaves[place], region)[0])
            outline.add(bare[1])
        states = [old, *([] if place is None else [leaves[place]])]
        key = (*outline.entries, place, *(outline.numbers[value] for value in bare))
        if key not in self._cells:
            if is_repeated:
                raise NotLiftableError("its steps differ")
            self._cells[key] = self._evaluated(outline, states, bare)
        cell, numbers = self._cells[key]
        values = list(outline.numbers)
        return cell, [values[number] for number in numbers], states

    def _outline(self, state: ir.Value, region: set[ir.Value]) -> Outline:
        atoms = Atoms()
        given = {state: atoms.variables(self._shape, self._tags)}
        return Outline(Leaves(self._facts, atoms, state, region, given), self._contents)

    def _read_by(self, outline: Outline, hidden: ir.Value) -> list[ir.Value]:
        outline.add(hidden)
        values, key = list(outline.numbers), tuple(outline.entries)
        if key not in self._read:
            outline.evaluator.form(hidden)
            self._read[key] = [outline.numbers[leaf] for leaf in outline.evaluator.leaves]
        return [values[number] for number in self._read[key]]

    def _evaluated(
        self, outline: Outline, old: Sequence[ir.Value], new: Sequence[ir.Value]
    ) -> tuple[Cell, list[int]]:
        """Return the cell of a step, and the numbers of what the step reads."""
        evaluator = outline.evaluator
        forms = [evaluator.form(value).flatten() for value in new]
        starts = [int(form.ids.flat[0]) for form in evaluator.leaves.values()]
        states = [evaluator.atoms.block(int(evaluator.known[value].ids.flat[0])) for value in old]
        if len({*(block.size for block in states), *(form.constant.size for form in forms)}) != 1:
            raise NotLiftableError("its states have different sizes")
        cell = match_cell(evaluator.atoms, states, forms, self._semantics)
        W = {starts.index(start): weights for start, weights in cell.W.items()}
        return dataclasses.replace(cell, W=W), [outline.numbers[leaf] for leaf in evaluator.leaves]


def bare_state(
    facts: Facts, value: ir.Value, old: ir.Value | None, region: AbstractSet[ir.Value]
) -> tuple[ir.Value, ir.Value | None]:
    """Return a new state without the choice between it and the old one, and the condition."""
    mask, bare, kept = match_where(value)
    zero = facts.constant(kept)
    is_old = kept is old or (old is None and zero is not None and not zero.any())
    # What depends on the input is ThresholdedRelu.
    return (bare, mask) if is_old and mask not in region else (value, None)
