"""The reading of a step with a matrix state: its values as sums of products, by a rule for each operator."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.einsum import product_terms
from rnnlower.graph.evaluation import Array
from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import reduced_axes
from rnnlower.graph.walk import captured_values, ints_of_attribute_or_input, node_label, operand
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.product_sums import (
    Axis,
    Size,
    Sum,
    Term,
    broadcast_sizes,
    group_axes,
    rename_axes,
)

_MAX_STEP_OPERATORS = 150
"""The number of operators of a step up to which it is read recursively."""


class ProductReader:
    """A reader of a step's values as sums of products.

    Values that do not depend on a state are factors themselves, unless they are products or views.

    Args:
        states: Values that are factors themselves.
        aliases: Values of the step that stand for values of the graph around it.
    """

    def __init__(
        self, facts: Facts, body: ir.Graph, states: Iterable[ir.Value], aliases: Mapping[ir.Value, ir.Value]
    ) -> None:
        if sum(node.op_type != "Constant" for node in body) > _MAX_STEP_OPERATORS:
            raise NotLiftableError(f"its step has more than {_MAX_STEP_OPERATORS} operators")
        self._facts, self.body, self._aliases = facts, body, aliases
        self._own = {out for node in body for out in node.outputs}
        self._states = frozenset(states)
        self._fresh = itertools.count()
        self.sizes: dict[int, Size] = {}
        self._known: dict[ir.Value, Sum] = {}
        self.dependent = {*self._states}
        """The values that depend on a state."""
        for node in body:
            if self.dependent & {*node.inputs, *captured_values(node)}:
                self.dependent |= {*node.outputs}

    def with_states(self, states: Iterable[ir.Value]) -> ProductReader:
        """Return a reader with other states and the same indices."""
        other = ProductReader(self._facts, self.body, states, self._aliases)
        other.sizes, other._fresh = self.sizes, self._fresh
        return other

    def read(self, value: ir.Value) -> Sum:
        """Return a value as a sum of products.

        Raises:
            NotLiftableError: An operator is not linear in the state.
        """
        if value not in self._known:
            self._known[value] = self._read(value)
        return self._known[value]

    def _read(self, value: ir.Value) -> Sum:
        if value in self._states:
            return self._tensor(value)
        constant = self._constant(value)
        if constant is not None and constant.size == 1:
            return Sum(
                (Term(float(constant.reshape(-1)[0]), (), ((),) * constant.ndim),), (1,) * constant.ndim
            )
        producer = value.producer() if value in self._own else None
        rule = None if producer is None or producer.domain else _RULES.get(producer.op_type)
        if value in self.dependent:
            if producer is None or rule is None:
                what = "a value" if producer is None else node_label(producer)
                raise NotLiftableError(f"{what} is not linear in the state")
            return rule(self, producer)
        if producer is None or rule is None or producer.op_type in _SUMS:
            return self._tensor(value)
        try:
            found = rule(self, producer)
        except NotLiftableError:
            return self._tensor(value)
        is_product = len(found.terms) == 1 and not found.terms[0].summed
        return found if is_product else self._tensor(value)

    def _tensor(self, value: ir.Value) -> Sum:
        dims = self.dims(value)
        axes = tuple(() if dim == 1 else (self.index(dim),) for dim in dims)
        return Sum((Term(1.0, ((value, axes),), axes),), dims)

    def dims(self, value: ir.Value | None) -> tuple[Size, ...]:
        """Return the sizes of a value.

        Raises:
            NotLiftableError: A size is not known.
        """
        dims = None if value is None else self._facts.dims(self._aliases.get(value, value))
        sizes = [dim.value if isinstance(dim, ir.SymbolicDim) else dim for dim in dims or ()]
        known = tuple(size for size in sizes if size is not None)
        if value is None or dims is None or len(known) < len(sizes):
            raise NotLiftableError(f"the shape of {value.name if value else ''!r} is not known")
        return known

    def index(self, size: Size) -> int:
        """Return a new index."""
        index = next(self._fresh)
        self.sizes[index] = size
        return index

    def input_sum(self, node: ir.Node, number: int) -> Sum:
        value = operand(node, number)
        if value is None:
            raise NotLiftableError(f"{node_label(node)} has no input {number}")
        return self.read(value)

    def ints(self, node: ir.Node, name: str, number: int) -> list[int] | None:
        """Return integers that are an attribute or, in later opsets, an input."""
        unknown = NotLiftableError(f"the {name} of {node_label(node)} are not constant")
        return ints_of_attribute_or_input(node, name, number, self._constant, unknown)

    def _constant(self, value: ir.Value) -> Array | None:
        return self._facts.constant(self._aliases.get(value, value))

    def is_same_type(self, first: ir.Value | None, second: ir.Value) -> bool:
        one, other = self._facts.type(first), self._facts.type(second)
        return one is not None and other is not None and one.dtype == other.dtype

    def multiply(self, first: Sum, second: Sum) -> Sum:
        """Multiply two sums elementwise."""
        rank = max(len(first.dims), len(second.dims))
        first, second = first.pad_rank(rank), second.pad_rank(rank)
        terms = [
            self._multiply_terms(one, other, first.dims, second.dims)
            for one in first.terms
            for other in second.terms
        ]
        return Sum(tuple(terms), broadcast_sizes(first.dims, second.dims))

    def _multiply_terms(self, one: Term, other: Term, dims: Sequence[Size], others: Sequence[Size]) -> Term:
        other = other.rename({index: (self.index(self.sizes[index]),) for index in other.indices})
        for axis in range(len(dims)):
            a, b = one.axes[axis], other.axes[axis]
            if not a or not b or a == b:
                continue
            if dims[axis] != others[axis]:
                raise NotLiftableError("an axis of the state is broadcast")
            names = self._unify(a, b)
            one, other = one.rename(names), other.rename(names)
        axes = tuple(a or b for a, b in zip(one.axes, other.axes, strict=True))
        return Term(one.coef * other.coef, one.factors + other.factors, axes)

    def _unify(self, a: Axis, b: Axis) -> dict[int, Axis]:
        if len(b) == 1:
            return {b[0]: a}
        if len(a) == 1:
            return {a[0]: b}
        if [self.sizes[index] for index in a] != [self.sizes[index] for index in b]:
            raise NotLiftableError("axes are merged in different ways")
        return {old: (new,) for old, new in zip(b, a, strict=True)}

    def sum_axis(self, given: Sum, axis: int) -> Sum:
        """Sum over an axis, which is removed."""
        size, terms = given.dims[axis], []
        for term in given.terms:
            coef = term.coef
            if not term.axes[axis] and size != 1:
                if not isinstance(size, int):
                    raise NotLiftableError("equal elements are summed")
                coef *= size
            terms.append(Term(coef, term.factors, (*term.axes[:axis], *term.axes[axis + 1 :])))
        return Sum(tuple(terms), (*given.dims[:axis], *given.dims[axis + 1 :]))

    def reshape(self, given: Sum, dims: tuple[Size, ...]) -> Sum:
        """Reshape a sum: merge and split its axes."""
        return Sum(tuple(self._reshape_term(term, given.dims, dims) for term in given.terms), dims)

    def _reshape_term(self, term: Term, before: Sequence[Size], after: Sequence[Size]) -> Term:
        parts: list[Axis] = [() for _ in after]
        for sources, targets in group_axes(before, after):
            if [before[source] for source in sources] == [after[target] for target in targets]:
                for source, target in zip(sources, targets, strict=True):
                    parts[target] = term.axes[source]
                continue
            pending: list[int] = []
            for source in sources:
                pending += term.axes[source] or (self.index(before[source]),)
            for target in targets:
                size, parts[target] = 1, ()
                while size != after[target]:
                    index, wanted = pending.pop(0), after[target]
                    own = self.sizes[index]
                    assert isinstance(wanted, int)
                    assert isinstance(own, int)
                    if size * own > wanted:
                        first = wanted // size
                        if wanted % size or own % first:
                            raise NotLiftableError("a Reshape mixes axes")
                        split = self.index(first), self.index(own // first)
                        term, parts = term.rename({index: split}), [*rename_axes(parts, {index: split})]
                        pending.insert(0, split[1])
                        index, own = split[0], first
                    parts[target] += (index,)
                    size *= own
        return Term(term.coef, term.factors, tuple(parts))


ProductRule = Callable[[ProductReader, ir.Node], Sum]


def _cast(p: ProductReader, node: ir.Node) -> Sum:
    if not p.is_same_type(node.inputs[0], node.outputs[0]):
        raise NotLiftableError(f"{node_label(node)} rounds the state")
    return p.input_sum(node, 0)


def _div(p: ProductReader, node: ir.Node) -> Sum:
    divisor = p.input_sum(node, 1)
    if any(term.factors for term in divisor.terms) or not divisor.terms[0].coef:
        raise NotLiftableError(f"{node_label(node)} divides by a value that is not constant")
    return p.input_sum(node, 0).pad_rank(len(p.dims(node.outputs[0]))).scale(1 / divisor.terms[0].coef)


def _add(p: ProductReader, node: ir.Node) -> Sum:
    sums = [p.input_sum(node, number) for number in range(len(node.inputs))]
    if node.op_type == "Sub":
        sums[1] = sums[1].scale(-1.0)
    rank = max(len(each.dims) for each in sums)
    total, *rest = (each.pad_rank(rank) for each in sums)
    for each in rest:
        total = Sum(total.terms + each.terms, broadcast_sizes(total.dims, each.dims))
    return total


def _transpose(p: ProductReader, node: ir.Node) -> Sum:
    given = p.input_sum(node, 0)
    return given.permute(node.attributes.get_ints("perm", tuple(range(len(given.dims)))[::-1]))


def _reshape(p: ProductReader, node: ir.Node) -> Sum:
    return p.reshape(p.input_sum(node, 0), p.dims(node.outputs[0]))


def _expand(p: ProductReader, node: ir.Node) -> Sum:
    dims = p.dims(node.outputs[0])
    given = p.input_sum(node, 0).pad_rank(len(dims))
    return Sum(given.terms, broadcast_sizes(given.dims, dims))


def _reduce_sum(p: ProductReader, node: ir.Node) -> Sum:
    given = p.input_sum(node, 0)
    axes = reduced_axes(node, len(given.dims), p.ints(node, "axes", 1))
    for axis in sorted({*axes}, reverse=True):
        given = p.sum_axis(given, axis)
    return p.reshape(given, p.dims(node.outputs[0]))


def _gemm(p: ProductReader, node: ir.Node) -> Sum:
    total = _product(p, node).scale(node.attributes.get_float("alpha", 1.0))
    beta = node.attributes.get_float("beta", 1.0)
    if operand(node, 2) is None or not beta:
        return total
    added = p.input_sum(node, 2).pad_rank(2).scale(beta)
    return Sum(total.terms + added.terms, broadcast_sizes(total.dims, added.dims))


def _product(p: ProductReader, node: ir.Node) -> Sum:
    factors = [p.input_sum(node, n) for n in range(2 if node.op_type == "Gemm" else len(node.inputs))]
    ranks = [len(each.dims) for each in factors]
    if node.op_type != "Einsum" and min(ranks) < 2:
        raise NotLiftableError(f"{node_label(node)} multiplies a vector")
    operands, result = product_terms(node, ranks)
    if not operands or any(len(set(each)) != len(each) for each in (*operands, result)):
        raise NotLiftableError(f"{node_label(node)} has an equation that is not supported")
    labels = [*result, *sorted(set("".join(operands)) - {*result})]
    given = (
        factor.permute([names.index(each) if each in names else None for each in labels])
        for factor, names in zip(factors, operands, strict=True)
    )
    total = functools.reduce(p.multiply, given)
    for axis in range(len(labels) - 1, len(result) - 1, -1):
        total = p.sum_axis(total, axis)
    return total


_SUMS = ("Add", "Sub", "Sum")
_RULES: dict[str, ProductRule] = {
    **dict.fromkeys(_SUMS, _add),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Div": _div,
    "Expand": _expand,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _reshape),
    "Gemm": _gemm,
    "Identity": lambda p, node: p.input_sum(node, 0),
    **dict.fromkeys(("Einsum", "MatMul"), _product),
    "Mul": lambda p, node: p.multiply(p.input_sum(node, 0), p.input_sum(node, 1)),
    "Neg": lambda p, node: p.input_sum(node, 0).scale(-1.0),
    "ReduceSum": _reduce_sum,
    "Transpose": _transpose,
}
