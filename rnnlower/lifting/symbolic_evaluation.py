"""The evaluation of operators on forms instead of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Dim
from rnnlower.graph.facts import Facts
from rnnlower.lifting.affine_forms import AffineForm, Atoms, NotLiftableError, constant_form
from rnnlower.lifting.layout_rules import LAYOUT_RULES
from rnnlower.lifting.step_rules import RULES

STEP_RULES = {**RULES, **LAYOUT_RULES}
"""The rule for each operator that may be part of a step."""
_DEEPEST = 100
"""The deepest nesting of operators in a step; two layers of cells in one body nest about 50."""


class Evaluator:
    """An evaluator of values as forms.

    Args:
        facts: The facts about the model.
        atoms: The atoms.
        known: The forms of some values; others are added when they are evaluated.
        aliases: Values that stand for other values, such as states that never change.
        direction: The index of the evaluated direction, if an axis holds two.
        is_step: Whether constants with two matrices have one for each direction.
        steps: The number of time steps, if it is known.
    """

    def __init__(
        self,
        facts: Facts,
        atoms: Atoms,
        known: Mapping[ir.Value, AffineForm],
        aliases: Mapping[ir.Value, ir.Value] | None = None,
        *,
        direction: int | None = None,
        is_step: bool = False,
        steps: int | None = None,
    ) -> None:
        self.facts, self.atoms, self.direction, self.steps = facts, atoms, direction, steps
        self.known = dict(known)
        self.row_dims = {
            dims[axis]
            for value, form in known.items()
            for axis, tag in enumerate(form.tags)
            if tag == "B" and (dims := facts.dims(value)) is not None
        }
        self._depth = 0
        self._part = direction if is_step else None
        self._aliases = aliases or {}

    def form(self, value: ir.Value | None) -> AffineForm:
        """Return the form of a value.

        Raises:
            NotLiftableError: An operator on the way is not part of any cell.
        """
        assert value is not None
        value = self._aliases.get(value, value)
        if value not in self.known:
            constant = self.constant(value)
            if constant is not None:
                self.known[value] = self._fold_rows(constant)
            else:
                self._evaluate_nested(value)
        form = self.known[value]
        if self._part is not None and "D" in form.tags and (form.tags[0] != "D" or len(form.tags) != 3):
            raise NotLiftableError("a step moves the axis of its directions")
        return form

    def _evaluate_nested(self, value: ir.Value) -> None:
        if self._depth > _DEEPEST:
            raise NotLiftableError(f"a step is nested more than {_DEEPEST} operators deep")
        self._depth += 1
        try:
            self._evaluate(value)
        finally:
            self._depth -= 1

    def _fold_rows(self, array: np.ndarray) -> AffineForm:
        """Return the form of a constant; rows that are all equal become one, tagged as rows."""
        tags = [""] * array.ndim
        for axis, size in enumerate(array.shape[:-1]):
            row = array.take([0], axis) if size > 1 and size in self.row_dims else array
            if row is not array and (array == row).all():
                array, tags[axis] = row, "B"
        return dataclasses.replace(constant_form(array), tags=tuple(tags))

    def expand(self, form: AffineForm, before: Sequence[Dim] | None, value: ir.Value) -> AffineForm:
        """Broadcast a form to the shape of a value; an axis of equal rows stays one row, tagged as rows.

        Raises:
            NotLiftableError: The shape is not known, or has other rows than the step.
        """
        after = self.dims(value)
        if before is None or after is None:
            raise NotLiftableError("a step reads a tensor whose shape is not known")
        front = len(after) - len(before)
        shape, tags = [1] * front + [*form.shape], [""] * front + [*form.tags]
        for axis, (old, new) in enumerate(zip((*(1 for _ in range(front)), *before), after, strict=True)):
            if old == 1 and new in self.row_dims and new != 1 and axis < len(after) - 1:
                tags[axis] = "B"
            elif old == 1 and isinstance(new, int):
                shape[axis] = new
            elif new is None or old != new:
                raise NotLiftableError("a step reads a tensor whose shape is not known")
        return dataclasses.replace(form.broadcast_to(tuple(shape)), tags=tuple(tags))

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """Return a constant, cut to the evaluated direction if it has two."""
        array = None if value is None else self.facts.constant(self._aliases.get(value, value))
        if array is not None and self._part is not None and array.ndim == 3 and len(array) == 2:
            return array[self._part : self._part + 1]
        return array

    def dims(self, value: ir.Value) -> Sequence[Dim] | None:
        """Return the sizes of a value."""
        return self.facts.dims(self._aliases.get(value, value))

    def _evaluate(self, value: ir.Value) -> None:
        node = value.producer()
        if node is None:
            raise NotLiftableError(
                f"a step reads {value.name!r}, which is neither constant nor an element of a sequence"
            )
        rule = None if node.domain else STEP_RULES.get(node.op_type)
        if rule is None:
            raise NotLiftableError(f"{node.op_type} is not part of a cell")
        for out, form in zip(node.outputs, rule(self, node), strict=False):
            self.known[out] = form
