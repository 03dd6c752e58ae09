"""The reading of a matrix state in a step: products of the state with queries."""

from __future__ import annotations

import contextlib
import dataclasses

import onnx_ir as ir

from rnnlower.graph.walk import look_through_identities
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.product_sums import Factor, Term
from rnnlower.lifting.products import ProductReader


@dataclasses.dataclass(frozen=True)
class Product:
    """A product of tensors of a step; their axes are those of the state."""

    coef: float
    factors: tuple[Factor, ...]


@dataclasses.dataclass(frozen=True)
class Read:
    """A value of the step: the product of a state with a query.

    Attributes:
        state: The state, before or after the step.
        axes: The axes of the value: those of the state, and one of queries if there are several per head.
        key_axis: The axis of the state that the product sums over.
        added: What is added to the product; each sums over one index at most.
    """

    value: ir.Value
    state: ir.Value
    query: Product
    axes: tuple[int, ...]
    key_axis: int
    added: tuple[Term, ...] = ()


class StateReader:
    """A reader of what a step reads of its state.

    Args:
        products: The reader of the step, of which the old state is a factor.
        names: The indices of the state.
    """

    def __init__(
        self, products: ProductReader, before: ir.Value, after: ir.Value, names: tuple[int, ...]
    ) -> None:
        self._products, self._names = products, names
        self._readers = {after: products.with_states([after]), before: products}
        self._found: dict[ir.Value, list[Read]] = {}

    def find(self, value: ir.Value) -> list[Read]:
        """Return the products with a state from which a value is computed.

        Raises:
            NotLiftableError: A state is read in another way.
        """
        value = look_through_identities(value)
        if value not in self._found:
            self._found[value] = self._find(value)
        return self._found[value]

    def _find(self, value: ir.Value) -> list[Read]:
        states = (state for state, reader in self._readers.items() if value in reader.dependent)
        if (state := next(states, None)) is None:
            return []
        if value is state:
            raise NotLiftableError("the whole state of each step is read")
        try:
            return [self._read(value, state)]
        except NotLiftableError:
            producer = value.producer()
            assert producer is not None
            try:
                if state in producer.inputs:
                    raise
                found = [read for each in producer.inputs if each is not None for read in self.find(each)]
                return [*dict.fromkeys(found)]
            except NotLiftableError:
                # Not all that it is computed from are products: it may be one to which others are added.
                with contextlib.suppress(NotLiftableError):
                    return [self._read(value, state, is_sum=True)]
                raise

    def _read(self, value: ir.Value, state: ir.Value, *, is_sum: bool = False) -> Read:
        given, names = self._readers[state].read(value), self._names
        terms = [term for term in given.terms if any(each is state for each, _ in term.factors)]
        others = [term for term in given.terms if term not in terms]
        if len(terms) != 1 or (others and not is_sum):
            raise NotLiftableError("what is read of its state is a sum")
        (term,) = terms
        if sum(each is state for each, _ in term.factors) != 1:
            raise NotLiftableError("the state is multiplied by itself")
        own, factors = split_off(term, state)
        if any(each in self._products.dependent for each, _ in factors):
            raise NotLiftableError("its state is read more than once")
        term = term.rename({index: (name,) for index, name in zip(own, names, strict=True)})
        _, factors = split_off(term, state)
        summed = term.summed
        if len(summed) != 1 or not summed <= {*names}:
            raise NotLiftableError("the state is not read along one axis")
        (key_axis,) = summed
        axes = tuple(index for axis in term.axes for index in axis)
        if any(not axis and size != 1 for axis, size in zip(term.axes, given.dims, strict=True)):
            raise NotLiftableError("what is read of its state is broadcast")
        if {*names} - {key_axis} - {*axes} or len({*axes} - {*names}) > 1 or not term.coef:
            raise NotLiftableError("what is read of its state has other axes")
        added = tuple(self._align(other, term) for other in others if other.coef)
        return Read(value, state, Product(term.coef, tuple(factors)), axes, key_axis, added)

    def _align(self, added: Term, read: Term) -> Term:
        """Return what is added to a product with the state, with the indices of that on its axes."""
        names = {index: (self._products.index(self._products.sizes[index]),) for index in added.indices}
        added = added.rename(names)
        pairs = [(own, axis) for own, axis in zip(added.axes, read.axes, strict=True) if own]
        is_other = any(len(own) != 1 or len(axis) != 1 for own, axis in pairs) or len(added.summed) > 1
        is_other |= any(isinstance(self._products.sizes[index], str) for index in added.summed)
        if is_other or any(each in self._products.dependent for each, _ in added.factors):
            raise NotLiftableError("what is added to what is read of its state has other axes")
        return added.rename({own[0]: axis for own, axis in pairs})


def split_off(term: Term, value: ir.Value) -> tuple[tuple[int, ...], list[Factor]]:
    """Return the indices of a factor of a term, and the other factors."""
    (own,) = (axes for each, axes in term.factors if each is value)
    rest = [(each, axes) for each, axes in term.factors if each is not value]
    return tuple(index for axis in own for index in axis), rest


def indices_of(factor: Factor) -> set[int]:
    """Return the indices on the axes of a factor."""
    return {index for axis in factor[1] for index in axis}
