"""Steps between the values of a chain: what they read, whether one equals another, and their cell."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import RESHAPING
from rnnlower.graph.slicing import Part, cut_parts
from rnnlower.graph.symbols import UNKNOWN
from rnnlower.graph.walk import look_through, producer_of
from rnnlower.lifting.affine_forms import AffineForm, Atoms, NotLiftableError
from rnnlower.lifting.cell_search import as_vector, match_cell, tagged_shape
from rnnlower.lifting.chains import PRODUCTS
from rnnlower.lifting.equations import CellParameters
from rnnlower.lifting.frames import skip_casts
from rnnlower.lifting.row_masks import match_where
from rnnlower.lifting.symbolic_evaluation import Evaluator, check_depth
from rnnlower.recurrent.node import Semantics
from rnnlower.recurrent.operators import FLOAT_TYPES

_TRANSPARENT = ("Add", "BatchNormalization", "Identity", "Mul", "Sub")
"""Operators that may be between an input and its product with weights."""


@dataclasses.dataclass(frozen=True)
class LineStep:
    """A step of a straight line.

    Attributes:
        leaves: The values that it reads, in the order of evaluation.
        new: The new states, H first, as the next step reads them.
        mask: The condition that is true for rows that have not ended; ``None`` if none has ended.
        unmasked: The new states before the Where that keeps old ones.
    """

    leaves: Sequence[ir.Value]
    new: Sequence[ir.Value]
    mask: ir.Value | None
    unmasked: Sequence[ir.Value]


@dataclasses.dataclass(frozen=True)
class Line:
    """A straight line.

    Attributes:
        cell: The cell; the keys of its inputs are indices of leaves.
        starts: The initial states; ``None`` for zeros.
        tags: The axes of H.
        shape: Its shape, with 1 for rows.
    """

    cell: CellParameters
    steps: Sequence[LineStep]
    starts: Sequence[ir.Value | None]
    tags: tuple[str, ...]
    shape: tuple[int, ...]


class StepEvaluator(Evaluator):
    """An evaluator of one step, for which values that do not depend on the old state are leaves.

    Args:
        facts, atoms, known: As in `Evaluator`.
        state: A state of the line.
        region: The values that depend on the old state.
        next_inputs: The inputs of the next step, if those of this one are not known: then only values
            from the same sources are leaves.
    """

    def __init__(
        self,
        facts: Facts,
        atoms: Atoms,
        state: ir.Value,
        region: set[ir.Value],
        known: Mapping[ir.Value, AffineForm],
        next_inputs: Sequence[ir.Value] = (),
    ) -> None:
        super().__init__(facts, atoms, known)
        self._region, self._sources = region, {find_source(leaf) for leaf in next_inputs}
        self.row_dims |= {dim for dim in (facts.dims(state) or ())[:-1] if dim != 1}
        self.leaves: dict[ir.Value, AffineForm] = {}

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """Return a constant, unless it is computed from the first state."""
        is_number = self.facts.dtype(value) in FLOAT_TYPES
        return None if value in self._region and is_number else super().constant(value)

    def _evaluate(self, value: ir.Value) -> None:
        if self._sources:
            is_leaf = value.producer() is None or find_source(value) in self._sources
        else:
            is_leaf = not self.is_computed(value)
        if is_leaf:
            self.add_leaf(value)
        else:
            super()._evaluate(value)

    def add_leaf(self, value: ir.Value) -> None:
        """Make a value a leaf: a tensor of variables."""
        tags, shape = tagged_shape(self.facts, value)
        self.known[value] = self.leaves[value] = self.atoms.variables(shape, tags)

    def is_computed(self, value: ir.Value | None) -> bool:
        """Return whether the step computes a value, from the old state or as an input times weights."""
        producer = None if value is None else value.producer()
        if value in self._region:
            return True
        if producer is None or producer.domain:
            return False
        if producer.op_type in ("Slice", "Split"):
            dims, whole = self.facts.dims(value) or (), self.facts.dims(producer.inputs[0]) or ()
            is_part = dims[:-1] == whole[:-1] and dims[-1:] != whole[-1:]
            return is_part and (self.is_computed(producer.inputs[0]) or self._is_element(producer.inputs[0]))
        constants = [self.constant(each) is not None for each in producer.inputs]
        if producer.op_type in PRODUCTS:
            return constants[1] and not constants[0]
        return producer.op_type in _TRANSPARENT and any(constants)

    def _is_element(self, value: ir.Value | None) -> bool:
        """Return whether a value is cut from one that has the same features, as a time step is."""
        view = None if value is None else look_through(value)
        node = None if view is None else producer_of(view, "Gather", "Slice", "Split")
        dims = self.facts.dims(view) or ()
        return node is not None and () != dims[-1:] == (self.facts.dims(node.inputs[0]) or ())[-1:]


def find_source(value: ir.Value) -> tuple[str, ir.Value | None]:
    """Return the type and the input of the operator that computes a value, views aside."""
    base = look_through(value)
    producer = base.producer()
    if producer is None or not producer.inputs:
        return "", base
    return producer.op_type, producer.inputs[0]


def find_origin(facts: Facts, leaf: ir.Value) -> Part | None:
    """Return the tensor that a value was cut from, and where; refuse a place from an unknown end."""
    view = leaf
    while (source := skip_casts(facts, look_through(view, RESHAPING))) is not view:
        view = source
    node, dims = view.producer(), facts.dims(view)
    parts = [] if node is None else cut_parts(node, facts)
    if node is None or dims is None or not parts:
        return None
    found = parts[node.outputs.index(view)]
    if found.start < 0:
        raise NotLiftableError("the length of an input is not known")
    if not isinstance(found.size, int):
        return None
    if node.op_type == "Split" and look_through(found.whole) is found.whole:
        outer = find_origin(facts, found.whole)
        if outer is not None and outer.axis == found.axis and outer.keeps_axis:
            found = dataclasses.replace(outer, start=outer.start + found.start, size=found.size)
    if facts.dims(leaf) == dims:
        return found
    is_squeezed = found.keeps_axis and (*dims[: found.axis], *dims[found.axis + 1 :]) == facts.dims(leaf)
    return dataclasses.replace(found, keeps_axis=False) if is_squeezed and found.size == 1 else None


def preceding_element(leaf: ir.Value, after: ir.Value | None) -> ir.Value | None:
    """Return the part of a Split before two consecutive ones, or the other one of two."""
    node = producer_of(leaf, "Split")
    if node is None:
        return None
    if after is None and len(node.outputs) == 2:
        return node.outputs[1 - node.outputs.index(leaf)]
    if after is None or after.producer() is not node:
        return None
    first, second = (node.outputs.index(value) for value in (leaf, after))
    place = 2 * first - second
    return node.outputs[place] if 0 <= place < len(node.outputs) else None


class ValueNumbering:
    """The value numbering of a step: values with equal entries and numbers have equal forms.

    Args:
        evaluator: The evaluator of the step, which has evaluated nothing yet.
        contents: The contents of constants, shared by all steps.

    Attributes:
        entries: How each value is computed from those with smaller numbers.
    """

    def __init__(self, evaluator: StepEvaluator, contents: dict[ir.Value, object]) -> None:
        self.evaluator, self._contents = evaluator, contents
        self._states = frozenset(evaluator.known)
        self._unknown: dict[object, int] = {}
        self.entries: list[object] = []
        self.numbers: dict[ir.Value, int] = {}

    def add(self, value: ir.Value | None, depth: int = 0) -> int:
        """Number a value, and those from which it is computed; return its number.

        Raises:
            NotLiftableError: They are nested too deeply for a step.
        """
        if value is None:
            return -1
        if value not in self.numbers:
            check_depth(depth)
            entry = self._entry(value, depth)
            self.numbers[value] = len(self.numbers)
            self.entries.append(entry)
        return self.numbers[value]

    def _entry(self, value: ir.Value, depth: int) -> tuple[object, ...]:
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
        inputs = tuple(self.add(each, depth + 1) for each in node.inputs)
        attributes = tuple((name, _hashable(each)) for name, each in sorted(node.attributes.items()))
        return (node.domain, node.op_type, attributes, inputs, node.outputs.index(value), *size)

    def _sizes(self, value: ir.Value) -> tuple[object, ...] | None:
        """Return the sizes of a value; unknown sizes are numbered, so that steps can be compared."""
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
    """A matcher of steps to cells, which remembers the steps it has seen.

    Args:
        semantics: Which one to follow where onnxruntime and the ONNX spec differ.
        tags: The axes of H.
        shape: Its shape, with 1 for rows.
    """

    def __init__(self, facts: Facts, semantics: Semantics, tags: Sequence[str], shape: Sequence[int]) -> None:
        self._facts, self._semantics, self._tags, self._shape = facts, semantics, tags, shape
        self._contents: dict[ir.Value, object] = {}
        # By entries: the numbers of the leaves of H; the cell, and the numbers of the leaves of the step.
        self._leaves: dict[object, list[int]] = {}
        self._cells: dict[object, tuple[CellParameters, list[int]]] = {}

    def leaves(self, old: ir.Value, new: ir.Value, region: set[ir.Value]) -> list[ir.Value]:
        """Return the leaves of a step from an old H to a new one, in the order of evaluation.

        Raises:
            NotLiftableError: An operator is not part of any cell.
        """
        return self._find_leaves(
            self._number_values(old, region), unmask_state(self._facts, new, old, region)[0]
        )

    def match(
        self,
        old: ir.Value,
        new: Sequence[ir.Value],
        region: set[ir.Value],
        c_index: int | None,
        *,
        is_repeated: bool = False,
    ) -> tuple[CellParameters, list[ir.Value], list[ir.Value]]:
        """Return the cell of a step, its leaves and its old states.

        Args:
            old: The old H.
            new: The new states, H first.
            region: The values that depend on the old states.
            c_index: The index of the old C among the leaves of H; ``None``: there is none.
            is_repeated: Whether to return only cells that were found before.

        Raises:
            NotLiftableError: It is not the step of a cell.
        """
        numbering = self._number_values(old, region)
        unmasked = [unmask_state(self._facts, new[0], old, region)[0]]
        leaves = self._find_leaves(numbering, unmasked[0])
        if c_index is not None:
            if c_index >= len(leaves):
                raise NotLiftableError("its steps differ")
            unmasked.append(unmask_state(self._facts, new[1], leaves[c_index], region)[0])
            numbering.add(unmasked[1])
        states = [old, *([] if c_index is None else [leaves[c_index]])]
        key = (*numbering.entries, c_index, *(numbering.numbers[value] for value in unmasked))
        if key not in self._cells:
            if is_repeated:
                raise NotLiftableError("its steps differ")
            self._cells[key] = self._match_cell(numbering, states, unmasked)
        cell, numbers = self._cells[key]
        values = list(numbering.numbers)
        return cell, [values[number] for number in numbers], states

    def _number_values(self, state: ir.Value, region: set[ir.Value]) -> ValueNumbering:
        atoms = Atoms()
        given = {state: atoms.variables(self._shape, self._tags)}
        return ValueNumbering(StepEvaluator(self._facts, atoms, state, region, given), self._contents)

    def _find_leaves(self, numbering: ValueNumbering, hidden: ir.Value) -> list[ir.Value]:
        numbering.add(hidden)
        values, key = list(numbering.numbers), tuple(numbering.entries)
        if key not in self._leaves:
            numbering.evaluator.form(hidden)
            self._leaves[key] = [numbering.numbers[leaf] for leaf in numbering.evaluator.leaves]
        return [values[number] for number in self._leaves[key]]

    def _match_cell(
        self, numbering: ValueNumbering, old: Sequence[ir.Value], new: Sequence[ir.Value]
    ) -> tuple[CellParameters, list[int]]:
        """Return the cell of a step, and the numbers of its leaves."""
        evaluator = numbering.evaluator
        forms = [as_vector(evaluator.form(value)) for value in new]
        starts = [int(form.ids.flat[0]) for form in evaluator.leaves.values()]
        states = [evaluator.atoms.block(int(evaluator.known[value].ids.flat[0])) for value in old]
        if len({*(block.size for block in states), *(form.constant.size for form in forms)}) != 1:
            raise NotLiftableError("its states have different sizes")
        cell = match_cell(evaluator.atoms, states, forms, self._semantics)
        W = {starts.index(start): weights for start, weights in cell.W.items()}
        return dataclasses.replace(cell, W=W), [numbering.numbers[leaf] for leaf in evaluator.leaves]


def unmask_state(
    facts: Facts, value: ir.Value, old: ir.Value | None, region: AbstractSet[ir.Value]
) -> tuple[ir.Value, ir.Value | None]:
    """Return a new state before the Where that keeps the old one, and the condition."""
    mask, unmasked, kept = match_where(value)
    is_old = kept is old or (old is None and facts.is_zero(kept))
    # A condition that depends on the step is that of a ThresholdedRelu.
    return (unmasked, mask) if is_old and mask not in region else (value, None)
