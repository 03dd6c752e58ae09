"""The evaluation of operators on forms instead of numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.forms import Atoms, Form, Function, added, constant_form, joined, multiplied
from rnnlower.recurrent.operators import FLOAT_TYPES, SPEC_PARAMETERS

_TURNED = {"T": "R", "R": "T"}
"""The tag of an axis of time in the other direction."""

Dim = int | ir.SymbolicDim | None


class Evaluator:
    """An evaluator of values as forms.

    Args:
        facts: The facts about the model.
        atoms: The atoms.
        known: The forms of some values; those of others are added when they are asked for.
        aliases: Values that are others under another name, such as states that never change.
    """

    def __init__(
        self,
        facts: Facts,
        atoms: Atoms,
        known: Mapping[ir.Value, Form],
        aliases: Mapping[ir.Value, ir.Value] | None = None,
    ) -> None:
        self.facts, self.atoms = facts, atoms
        self.known = dict(known)
        self._aliases = aliases or {}

    def form(self, value: ir.Value | None) -> Form:
        """Return the form of a value.

        Raises:
            NotLiftableError: An operator on the way is not part of any cell.
        """
        assert value is not None
        value = self._aliases.get(value, value)
        if value not in self.known:
            constant = self.facts.constant(value)
            if constant is not None:
                self.known[value] = constant_form(constant)
            else:
                self._evaluate(value)
        return self.known[value]

    def constant(self, value: ir.Value | None) -> np.ndarray | None:
        """Return the content of a value that never changes."""
        return None if value is None else self.facts.constant(self._aliases.get(value, value))

    def dims(self, value: ir.Value) -> Sequence[Dim] | None:
        """Return the sizes of a value."""
        return self.facts.dims(self._aliases.get(value, value))

    def _evaluate(self, value: ir.Value) -> None:
        node = value.producer()
        if node is None:
            raise NotLiftableError(
                f"a step reads {value.name!r}, which is neither constant nor an element of a sequence"
            )
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is None:
            raise NotLiftableError(f"{node.op_type} is not part of a cell")
        for out, form in zip(node.outputs, rule(self, node), strict=False):
            self.known[out] = form


Rule = Callable[[Evaluator, ir.Node], Sequence[Form]]


def _tags(*forms: Form) -> tuple[str, ...]:
    """Return the tags of the result of an operator that broadcasts."""
    rank = max(len(form.tags) for form in forms)
    columns = zip(*(("",) * (rank - len(form.tags)) + form.tags for form in forms), strict=True)
    tags = [{*column} - {""} for column in columns]
    if any(len(each) > 1 for each in tags):
        raise NotLiftableError("a step combines different rows or time steps")
    return tuple(next(iter(each), "") for each in tags)


def _identity(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    return [e.form(node.inputs[0])]


def _cast(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    type_ = e.facts.type(node.inputs[0])
    if (
        type_ is None
        or type_.dtype not in FLOAT_TYPES
        or type_.dtype.value != node.attributes.get_int("to", 0)
    ):
        raise NotLiftableError("a step casts to another type")
    return [e.form(node.inputs[0])]


def _sum(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    total, *rest = (e.form(value) for value in node.inputs)
    for each in rest:
        total = added(total, each, _tags(total, each))
    return [total]


def _negative(form: Form) -> Form:
    return form.scaled(np.array(-1.0), form.tags)


def _sub(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    first, second = (e.form(value) for value in node.inputs)
    return [added(first, _negative(second), _tags(first, second))]


def _neg(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    return [_negative(e.form(node.inputs[0]))]


def _mul(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    first, second = (e.form(value) for value in node.inputs)
    return [e.atoms.product(first, second, _tags(first, second))]


def _div(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    first, second = (e.form(value) for value in node.inputs)
    if not second.is_constant or not second.constant.all():
        raise NotLiftableError("a step divides by a value that is not constant")
    return [first.scaled(1 / second.constant, _tags(first, second))]


def _gemm(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    form, weights = e.form(node.inputs[0]), e.constant(node.inputs[1])
    if weights is None or node.attributes.get_int("transA", 0) == 1:
        raise NotLiftableError("the weights of a step are not constant")
    matrix = weights.astype(np.float64) * node.attributes.get_float("alpha", 1.0)
    is_transposed = node.attributes.get_int("transB", 0) == 1
    made = multiplied(form, matrix.T if is_transposed else matrix)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = e.form(node.inputs[2])
        bias = bias.scaled(np.array(node.attributes.get_float("beta", 1.0)), bias.tags)
        made = added(made, bias, _tags(made, bias))
    return [made]


def _matmul(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    left, right = (e.constant(value) for value in node.inputs)
    if right is not None and right.ndim >= 2 and math.prod(right.shape[:-2]) == 1:
        form = e.form(node.inputs[0])
        front = max(right.ndim - max(len(form.shape), 2), 0)
        made = multiplied(form, right.reshape(right.shape[-2:]).astype(np.float64))
        return [made.broadcast((*(1 for _ in range(front)), *made.shape))]
    if left is not None and left.ndim == 2:
        column = e.form(node.inputs[1])
        if len(column.shape) == 2 and column.shape[1] == 1 and not column.tags[0]:
            row = column.moved(np.transpose, column.tags[::-1])
            made = multiplied(row, left.T.astype(np.float64))
            return [made.moved(np.transpose, made.tags[::-1])]
    raise NotLiftableError("the weights of a step are not constant")


def _transpose(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    form = e.form(node.inputs[0])
    perm = node.attributes.get_ints("perm", tuple(reversed(range(len(form.shape)))))
    return [form.moved(lambda array: array.transpose(perm), [form.tags[axis] for axis in perm])]


def _axes(e: Evaluator, node: ir.Node) -> list[int] | None:
    if "axes" in node.attributes:
        return list(node.attributes.get_ints("axes", ()))
    axes = e.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if axes is None else [int(axis) for axis in axes.reshape(-1)]


def _squeeze(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    form, axes = e.form(node.inputs[0]), _axes(e, node)
    if axes is None:
        sizes = e.dims(node.inputs[0])  # type: ignore[arg-type]
        tagged = [] if sizes is None else [dim for dim, tag in zip(sizes, form.tags, strict=True) if tag]
        if any(form.tags) and not (tagged and all(isinstance(dim, int) and dim > 1 for dim in tagged)):
            raise NotLiftableError("a Squeeze takes the axes that have size 1, which are not known")
        axes = [axis for axis, size in enumerate(form.shape) if size == 1 and not form.tags[axis]]
    axes = [axis % len(form.shape) for axis in axes]
    if any(form.tags[axis] for axis in axes):
        raise NotLiftableError("a step takes away the axis of the batch")
    tags = [tag for axis, tag in enumerate(form.tags) if axis not in axes]
    return [form.moved(lambda array: np.squeeze(array, tuple(axes)), tags)]


def _unsqueeze(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    form, axes = e.form(node.inputs[0]), _axes(e, node)
    if axes is None:
        raise NotLiftableError("the axes of an Unsqueeze are not constant")
    rank = len(form.shape) + len(axes)
    new = {axis % rank for axis in axes}
    old = iter(form.tags)
    tags = ["" if axis in new else next(old) for axis in range(rank)]
    return [form.moved(lambda array: np.expand_dims(array, tuple(new)), tags)]


def _reshape(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    form = e.form(node.inputs[0])
    before, after = e.dims(node.inputs[0]), e.dims(node.outputs[0])  # type: ignore[arg-type]
    if before is None or after is None:
        raise NotLiftableError("the shape that a Reshape gives is not known")
    return [reshaped(form, before, after)]


def reshaped(form: Form, before: Sequence[Dim], after: Sequence[Dim]) -> Form:
    """Return the form in another shape; rows and time steps must not mix with elements."""
    tagged = [axis for axis, tag in enumerate(form.tags) if tag]
    size = form.constant.size
    front = form.shape[: tagged[-1]] if tagged else ()
    if math.prod(front) == 1:
        for cut in range(len(after), -1, -1):
            tail = after[cut:]
            if not all(isinstance(dim, int) for dim in tail) or math.prod(tail) != size:  # type: ignore[arg-type]
                continue
            tags = _retagged([(form.tags[axis], before[axis]) for axis in tagged], after[:cut])
            if tags is not None:
                return form.reshaped([*(1 for _ in tags), *tail], [*tags, *("" for _ in tail)])  # type: ignore[list-item]
    raise NotLiftableError("a Reshape mixes rows or time steps with elements")


def _retagged(tags: Sequence[tuple[str, Dim]], lead: Sequence[Dim]) -> list[str] | None:
    """Return the tags of the first axes of a shape, or ``None`` if these axes are others."""
    places = list(range(len(lead)))
    if len(lead) != len(tags):
        places = [axis for axis in places if lead[axis] != 1]
    names = [tag for tag, _ in tags]
    found = [""] * len(lead)
    if len(places) == len(tags):
        for place, (tag, dim) in zip(places, tags, strict=True):
            if isinstance(dim, int) and isinstance(lead[place], int) and dim != lead[place]:
                return None
            found[place] = tag
        return found
    if names == ["T", "B"] and len(places) == 1:
        found[places[0]] = "TB"
        return found
    if names == ["TB"] and len(places) == 2:
        found[places[0]], found[places[1]] = "T", "B"
        return found
    return None


def _concat(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    forms = [e.form(value) for value in node.inputs]
    tags = _tags(*forms)
    axis = node.attributes.get_int("axis", 0) % len(tags)
    if tags[axis]:
        raise NotLiftableError("a step joins rows")
    return [joined(forms, axis, tags)]


def _cut(form: Form, axis: int, part: slice | np.ndarray) -> Form:
    if form.tags[axis]:
        raise NotLiftableError("a step takes some of the rows")
    index = (*(slice(None) for _ in range(axis)), part)
    return form.moved(lambda array: array[index], form.tags)


def _split(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    form = e.form(node.inputs[0])
    axis = node.attributes.get_int("axis", 0) % len(form.shape)
    sizes = e.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    given = list(node.attributes.get_ints("split", ())) if sizes is None else [int(size) for size in sizes]
    if not given:
        part = -(-form.shape[axis] // len(node.outputs))
        given = [part] * len(node.outputs)
    ends = np.cumsum(given).tolist()
    return [_cut(form, axis, slice(end - size, end)) for end, size in zip(ends, given, strict=True)]


def _slice(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    form = e.form(node.inputs[0])
    if "starts" in node.attributes:
        starts, ends = (node.attributes.get_ints(name, ()) for name in ("starts", "ends"))
        axes, steps = node.attributes.get_ints("axes", tuple(range(len(starts)))), (1,) * len(starts)
    else:
        given = [e.constant(value) for value in node.inputs[1:]]
        if any(one is None and value is not None for one, value in zip(given, node.inputs[1:], strict=True)):
            raise NotLiftableError("a step takes a part whose position is not constant")
        numbers = [None if one is None else tuple(int(each) for each in one.reshape(-1)) for one in given]
        numbers += [None] * (4 - len(numbers))
        assert numbers[0] is not None and numbers[1] is not None  # noqa: PT018
        starts, ends = numbers[0], numbers[1]
        axes, steps = numbers[2] or tuple(range(len(starts))), numbers[3] or (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= len(form.shape)
        if form.tags[axis] and start == 0 and step == 1 and end >= np.iinfo(np.int32).max:
            continue
        if form.tags[axis] in _TURNED and start == -1 and step == -1 and end <= np.iinfo(np.int32).min:
            tags = [_TURNED[tag] if each == axis else tag for each, tag in enumerate(form.tags)]
            form = dataclasses.replace(form, tags=tuple(tags))
            continue
        low = None if step < 0 and end < -form.shape[axis] else end
        form = _cut(form, axis, slice(start, low, step))
    return [form]


def _gather(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    form, places = e.form(node.inputs[0]), e.constant(node.inputs[1])
    axis = node.attributes.get_int("axis", 0) % len(form.shape)
    if places is None or form.tags[axis]:
        raise NotLiftableError("a step takes elements whose position is not constant")
    tags = (*form.tags[:axis], *("" for _ in places.shape), *form.tags[axis + 1 :])
    return [form.moved(lambda array: np.take(array, places, axis), tags)]


def _function(name: str) -> Rule:
    def rule(e: Evaluator, node: ir.Node) -> Sequence[Form]:
        known = SPEC_PARAMETERS.get(name)
        alpha, beta = (None, None) if known is None else (known.alpha, known.beta)
        alpha = alpha if alpha is None else node.attributes.get_float("alpha", alpha)
        beta = beta if beta is None else node.attributes.get_float("beta", beta)
        return [e.atoms.function(Function(name, alpha, beta), e.form(node.inputs[0]))]

    return rule


def _clip(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    bounds = [node.attributes.get_float(name, None) for name in ("min", "max")]
    for index, value in enumerate(node.inputs[1:3]):
        if value is not None:
            constant = e.constant(value)
            if constant is None:
                raise NotLiftableError("a step clips to bounds that are not constant")
            bounds[index] = float(constant.reshape(-1)[0])
    low, high = bounds
    return [
        _clipped(
            e, e.form(node.inputs[0]), -math.inf if low is None else low, math.inf if high is None else high
        )
    ]


def _clipped(e: Evaluator, form: Form, low: float, high: float) -> Form:
    """Return a form between bounds; a clip of a clip is one."""
    form = form.merged()
    if len(form.ids) == 1 and not form.constant.any() and (form.coefs == 1).all():
        blocks = {e.atoms.block(int(atom)) for atom in form.ids.flat}
        (block, *others) = blocks
        of = block.function
        if not others and of is not None and of.name == "Clip" and block.form is not None:
            assert of.alpha is not None and of.beta is not None  # noqa: PT018
            low, high = max(low, min(of.alpha, high)), min(high, max(of.beta, low))
            places = (form.ids - block.start).reshape(-1)
            inner = block.form.moved(lambda array: array[places], ("",))
            shape = form.shape
            form = inner.moved(lambda array: array.reshape(shape), form.tags)
    return e.atoms.function(Function("Clip", low, high), form)


def _bound(is_low: bool) -> Rule:
    def rule(e: Evaluator, node: ir.Node) -> Sequence[Form]:
        forms = sorted((e.form(value) for value in node.inputs), key=lambda form: form.is_constant)
        if len(forms) != 2 or not forms[1].is_constant or np.unique(forms[1].constant).size != 1:
            raise NotLiftableError(f"{node.op_type} of two values that change is not part of a cell")
        bound = float(forms[1].constant.flat[0])
        return [_clipped(e, forms[0], bound, math.inf) if is_low else _clipped(e, forms[0], -math.inf, bound)]

    return rule


def _log(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    """Evaluate ``log(1 + exp(x))``, which is Softplus."""
    form = e.form(node.inputs[0]).merged()
    if len(form.ids) == 1 and (form.constant == 1).all() and (form.coefs == 1).all():
        atoms = [int(atom) for atom in form.ids.flat]
        if all(e.atoms.block(atom).function == Function("Exp") for atom in atoms):
            shape, tags = form.shape, form.tags
            argument = e.atoms.argument(atoms).moved(lambda array: array.reshape(shape), tags)
            return [e.atoms.function(Function("Softplus"), argument)]
    raise NotLiftableError("Log is not part of a cell")


def _where(e: Evaluator, node: ir.Node) -> Sequence[Form]:
    """Evaluate ``x > alpha ? x : 0``, which is ThresholdedRelu."""
    condition, kept, other = node.inputs
    test = None if condition is None else condition.producer()
    if test is not None and test.op_type == "Greater" and test.inputs[0] is kept:
        threshold, rest = e.constant(test.inputs[1]), e.constant(other)
        if threshold is not None and threshold.size == 1 and rest is not None and not rest.any():
            function = Function("ThresholdedRelu", float(threshold.reshape(-1)[0]))
            return [e.atoms.function(function, e.form(kept))]
    raise NotLiftableError("Where is not part of a cell")


_FUNCTIONS = ("Elu", "Exp", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")

_RULES: Mapping[str, Rule] = {
    "Add": _sum,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Div": _div,
    "Flatten": _reshape,
    "Gather": _gather,
    "Gemm": _gemm,
    "Identity": _identity,
    "Log": _log,
    "MatMul": _matmul,
    "Max": _bound(True),
    "Min": _bound(False),
    "Mul": _mul,
    "Neg": _neg,
    "Reshape": _reshape,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _sub,
    "Sum": _sum,
    "ThresholdedRelu": _function("ThresholdedRelu"),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
    **{name: _function(name) for name in _FUNCTIONS},
}
"""The rule for each operator that may be part of a step."""
