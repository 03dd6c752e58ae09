"""The evaluation of operators on forms instead of numbers; the rules of those that rearrange elements."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Dim
from rnnlower.graph.facts import Facts, cover_axis
from rnnlower.graph.operator_kinds import source_axes
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.walk import ints_of_attribute_or_input, operand, required_input
from rnnlower.lifting.affine_forms import (
    AffineForm,
    Atoms,
    NotLiftableError,
    broadcast_tags,
    concat_forms,
    constant_form,
)
from rnnlower.lifting.frames import is_first_step_size
from rnnlower.lifting.step_rules import RULES

_DEEPEST = 100
"""The deepest nesting of operators in a step; two layers of cells in one body nest about 50."""
_REVERSED = {"T": "R", "R": "T"}
"""The tag of a reversed axis of time."""


def check_depth(depth: int) -> None:
    """Refuse a step whose operators are nested too deeply for a cell, and for Python.

    Raises:
        NotLiftableError: They are.
    """
    if depth > _DEEPEST:
        raise NotLiftableError(f"a step is nested more than {_DEEPEST} operators deep")


class Evaluator:
    """An evaluator of values as forms.

    Args:
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
        # A first state may have fewer axes: a zero, or one row for all.
        self.row_dims = {
            dim
            for value, form in known.items()
            for tag, dim in zip(reversed(form.tags), reversed(facts.dims(value) or ()), strict=False)
            if tag == "B"
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
        check_depth(self._depth)
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


Rule = Callable[[Evaluator, ir.Node], Sequence[AffineForm]]


def _transpose(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    form = e.form(node.inputs[0])
    perm = node.attributes.get_ints("perm", tuple(reversed(range(len(form.shape)))))
    return [form.transpose(perm)]


def _constant_ints(e: Evaluator, node: ir.Node, name: str, role: str) -> list[int] | None:
    unknown = NotLiftableError(f"the {role} of a {node.op_type} are not constant")
    return ints_of_attribute_or_input(node, name, 1, e.constant, unknown)


def _squeeze(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Remove or insert axes of size 1."""
    form, axes = e.form(node.inputs[0]), _constant_ints(e, node, "axes", "axes")
    if axes is None:
        sizes = e.dims(node.inputs[0])  # type: ignore[arg-type]
        tagged = [] if sizes is None else [dim for dim, tag in zip(sizes, form.tags, strict=True) if tag]
        if any(form.tags) and not (tagged and all(isinstance(dim, int) and dim > 1 for dim in tagged)):
            raise NotLiftableError("a Squeeze removes all axes of size 1, which are not known")
        axes = [axis for axis, size in enumerate(form.shape) if size == 1 and not form.tags[axis]]
    sources = source_axes(node, form.shape, axes)
    if any(tag and axis not in sources for axis, tag in enumerate(form.tags)):
        raise NotLiftableError("a step removes the batch axis")
    shape = [1 if axis is None else form.shape[axis] for axis in sources]
    return [form.reshape(shape, ["" if axis is None else form.tags[axis] for axis in sources])]


def _reshape(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    form = e.form(node.inputs[0])
    before, after = e.dims(node.inputs[0]), e.dims(node.outputs[0])  # type: ignore[arg-type]
    if before is None or after is None:
        raise NotLiftableError("the output shape of a Reshape is not known")
    return [reshape_form(form, before, after, e.row_dims)]


def reshape_form(
    form: AffineForm, before: Sequence[Dim], after: Sequence[Dim], rows: Collection[Dim] = ()
) -> AffineForm:
    """Reshape a form; rows and steps must not mix with features. `rows` are the sizes of axes of rows."""
    tagged = [axis for axis, tag in enumerate(form.tags) if tag]
    size = form.constant.size
    front = form.shape[: tagged[-1]] if tagged else ()
    if math.prod(front) == 1:
        for cut in range(len(after), -1, -1):
            tail = after[cut:]
            if not all(isinstance(dim, int) for dim in tail) or math.prod(tail) != size:  # type: ignore[arg-type]
                continue
            tags = _retag([(form.tags[axis], before[axis]) for axis in tagged], after[:cut], rows)
            if tags is not None:
                return form.reshape([*(1 for _ in tags), *tail], [*tags, *("" for _ in tail)])  # type: ignore[list-item]
    raise NotLiftableError("a Reshape mixes rows or time steps with features")


def _retag(tags: Sequence[tuple[str, Dim]], lead: Sequence[Dim], rows: Collection[Dim]) -> list[str] | None:
    """Return the tags of the first axes of a shape, or ``None`` if they are not the axes with these tags."""
    places = list(range(len(lead)))
    if len(lead) != len(tags):
        places = [axis for axis in places if lead[axis] != 1]
    names = [tag for tag, _ in tags]
    found = [""] * len(lead)
    if len(places) == len(tags):
        # One size may be unknown: it follows from the others.
        if sum(dim != lead[place] for place, (_, dim) in zip(places, tags, strict=True)) > 1:
            return None
        for place, (tag, _) in zip(places, tags, strict=True):
            found[place] = tag
        return found
    if names == ["T", "B"] and len(places) == 1:
        found[places[0]] = "TB"
        return found
    if names == ["TB"] and len(places) == 2 and lead[places[1]] in rows:
        found[places[0]], found[places[1]] = "T", "B"
        return found
    return None


def _concat(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    forms = [e.form(value) for value in node.inputs]
    tags = broadcast_tags(*forms)
    axis = node.attributes.get_int("axis", 0) % len(tags)
    if tags[axis]:
        raise NotLiftableError("a step concatenates rows")
    return [concat_forms(forms, axis, tags)]


def _pad(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate a Pad by zeros as a concatenation with them."""
    form, number = e.form(node.inputs[0]), operand(node, 2)
    pads = _constant_ints(e, node, "pads", "sizes")
    value = node.attributes.get_float("value", 0.0) if number is None else e.constant(number)
    if operand(node, 3) is not None or node.attributes.get_string("mode", "constant") != "constant":
        raise NotLiftableError("a step pads in another way than by zeros")
    if pads is None or min(pads) < 0 or value is None or np.any(value):
        raise NotLiftableError("a step pads in another way than by zeros")
    for axis, (before, after) in enumerate(zip(pads, pads[len(pads) // 2 :], strict=False)):
        if before or after:
            if form.tags[axis]:
                raise NotLiftableError("a step adds rows")
            shapes = ((*form.shape[:axis], size, *form.shape[axis + 1 :]) for size in (before, after))
            first, last = (constant_form(np.zeros(shape)) for shape in shapes)
            form = concat_forms([first, form, last], axis, form.tags)
    return [form]


def _take_part(form: AffineForm, axis: int, part: slice | np.ndarray) -> AffineForm:
    if form.tags[axis]:
        raise NotLiftableError("a step selects some of the rows")
    return form.take(axis, part)


def _split(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    form = e.form(node.inputs[0])
    axis = node.attributes.get_int("axis", 0) % len(form.shape)
    given = _constant_ints(e, node, "split", "sizes")
    if not given:
        part = -(-form.shape[axis] // len(node.outputs))
        given = [part] * len(node.outputs)
    ends = np.cumsum(given).tolist()
    return [_take_part(form, axis, slice(end - size, end)) for end, size in zip(ends, given, strict=True)]


def _slice(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    form = e.form(node.inputs[0])
    cuts = axis_slices(node, e.constant)
    if cuts is None:
        raise NotLiftableError("a step slices at positions that are not constant")
    dims = e.dims(node.inputs[0])  # type: ignore[arg-type]
    for cut in cuts:
        start, end, axis, step = cut
        axis %= len(form.shape)
        if form.tags[axis] and cut.is_whole(None if dims is None else dims[axis]):
            continue
        if form.tags[axis] in _REVERSED and start == -1 and step == -1 and end <= np.iinfo(np.int32).min:
            tags = [_REVERSED[tag] if each == axis else tag for each, tag in enumerate(form.tags)]
            form = dataclasses.replace(form, tags=tuple(tags))
            continue
        low = None if step < 0 and end < -form.shape[axis] else end
        form = _take_part(form, axis, slice(start, low, step))
    return [form]


def _gather(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    form, places = e.form(node.inputs[0]), e.constant(node.inputs[1])
    axis = node.attributes.get_int("axis", 0) % len(form.shape)
    if places is None or form.tags[axis]:
        raise NotLiftableError("a step gathers at indices that are not constant")
    tags = (*form.tags[:axis], *("" for _ in places.shape), *form.tags[axis + 1 :])
    return [form.rearrange(lambda array: np.take(array, places, axis), tags)]


def _reverse_sequence(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Reverse all steps, of all rows or of one of two directions."""
    form, dims = e.form(node.inputs[0]), e.dims(node.inputs[0])  # type: ignore[arg-type]
    time, batch = (node.attributes.get_int(f"{name}_axis", at) for name, at in (("time", 0), ("batch", 1)))
    lengths, tag = required_input(node, 1), form.tags[time]
    if tag not in _REVERSED or dims is None:
        raise NotLiftableError("a ReverseSequence runs over an axis other than time")
    tags = tuple(_REVERSED[tag] if axis == time else each for axis, each in enumerate(form.tags))
    if cover_axis(e.facts, lengths, node.inputs[0], time):
        return [dataclasses.replace(form, tags=tags)]
    given = e.facts.sizes(lengths)
    if e.direction is None or given is None or given.shape != (2,) or dims[batch] != 2:
        raise NotLiftableError("a ReverseSequence reverses only some of the steps")
    length = given[e.direction]
    if length in (dims[time], e.steps):
        form = dataclasses.replace(form, tags=tags)
    elif length not in (0, 1) and not is_first_step_size(e.facts, lengths, e.direction):
        raise NotLiftableError("a ReverseSequence reverses only some of the steps")
    if form.tags[batch] == "D":
        return [form]
    # The other direction is not known: new variables.
    part = form.take(batch, slice(e.direction, e.direction + 1))
    parts = [part if each == e.direction else e.atoms.variables(part.shape, part.tags) for each in range(2)]
    return [concat_forms(parts, batch, form.tags)]


LAYOUT_RULES: Mapping[str, Rule] = {
    "Concat": _concat,
    **dict.fromkeys(("Flatten", "Reshape"), _reshape),
    "Gather": _gather,
    "Pad": _pad,
    "ReverseSequence": _reverse_sequence,
    "Slice": _slice,
    "Split": _split,
    **dict.fromkeys(("Squeeze", "Unsqueeze"), _squeeze),
    "Transpose": _transpose,
}
"""The rule for each operator that rearranges elements."""

STEP_RULES = {**RULES, **LAYOUT_RULES}
"""The rule for each operator that may be part of a step."""
