"""The comparison of a step's equations with those of LinearAttention.

With a state ``S[.., k, v]``, whose axes may be in any order, a step is ::

    S' = d S + w (v - r (k . d S)) k^T        d: a positive factor for each row, or one for all rows
    o  = q . S'

A step may read the old state instead, and add products without the state to what it reads.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import State
from rnnlower.graph.operator_kinds import VIEWS
from rnnlower.graph.walk import is_read, producer_of
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.attention_reads import Product, Read, StateReader, indices_of, split_off
from rnnlower.lifting.frames import Frame, skip_casts
from rnnlower.lifting.product_sums import Factor, Term
from rnnlower.lifting.products import ProductReader

_KEEPING_SIGNS = VIEWS | {"Expand", "Slice", "Transpose"}
_POSITIVE = ("Exp", "Sigmoid", "Softplus")
_MAX_COMBINED = 8
"""The deepest nesting of operators that combine decays."""
_COMBINING = ("Add", "Div", "Mul", "Pow", "Sum")
"""Operators whose results are not negative if their operands are not."""


@dataclasses.dataclass(frozen=True)
class FoundAttention:
    """A LinearAttention that was found in a step.

    Attributes:
        axes: The indices of the state's axes of size greater than 1.
        key_axis, value_axis: The axes of keys and values among them; values of size 1 have none.
        decay: The factor of the old state; ``None``: 1.
        beta: The rate; ``None``: there is none.
        read: The product of the state with the query; ``None`` if only the last state is read.
        products: The reader that has the sizes of indices.
    """

    state: State
    axes: tuple[int, ...]
    key_axis: int
    value_axis: int | None
    decay: Product | None
    key: Product
    value: Product
    beta: Product | None
    read: Read | None
    products: ProductReader

    @property
    def is_read_before(self) -> bool:
        """Return whether the state is read before it changes."""
        return self.read is not None and self.read.state is self.state.before


def has_matrix_state(facts: Facts, frame: Frame) -> bool:
    """Return whether a state of a step has two or more axes of static size greater than 1.

    Of several states, one must have three axes: those of an LSTM have two.
    """
    shapes = [facts.dims(state.before) or () for state in frame.states]
    matrices = [dims for dims in shapes if sum(isinstance(dim, int) and dim > 1 for dim in dims) > 1]
    return any(len(dims) > 2 for dims in matrices) or (len(shapes) == 1 and bool(matrices))


def find_attentions(facts: Facts, frame: Frame, body: ir.Graph) -> list[FoundAttention]:
    """Return the LinearAttentions that a step computes, each before those whose inputs depend on it.

    Raises:
        NotLiftableError: It computes something else.
    """
    if any(facts.dtype(state.start) != ir.DataType.FLOAT for state in frame.states):
        raise NotLiftableError("its state is not float32, in which a LinearAttention computes")
    readers = [ProductReader(facts, body, [state.before], frame.aliases) for state in frame.states]
    pairs = [*zip(frame.states, readers, strict=True)]
    results = [series.inner for series in frame.outputs if is_read(series.outer)]
    found = []
    for state, products in sorted(
        pairs, key=lambda pair: sum(pair[0].after in own.dependent for own in readers)
    ):
        others = [
            (each, own) for each, own in pairs if each is not state and each.after in products.dependent
        ]
        if any(state.after in own.dependent for _, own in others):
            raise NotLiftableError("its states depend on each other")
        read = [*results, *(each.after for each, _ in others)]
        found.append(_find_attention(facts, frame, state, products, read))
    if all(each.value_axis is None for each in found):
        # Alone, heads with values of size 1 are slower than the steps as they are.
        raise NotLiftableError("its state has no axis of values")
    return found


def _find_attention(
    facts: Facts, frame: Frame, state: State, products: ProductReader, results: Iterable[ir.Value]
) -> FoundAttention:
    after = skip_casts(facts, state.after)
    given = products.read(state.before).terms[0]
    result = products.read(after)
    if result.dims != products.dims(state.before):
        raise NotLiftableError("its state changes its shape")
    terms = [_align_axes(term, given) for term in result.terms]
    names = tuple(index for axis in given.axes for index in axis)
    update = _classify_terms(terms, state.before)
    reader = StateReader(products, state.before, after, names)
    reads = {read.value: read for value in results for read in reader.find(value)}
    if len(reads) > 1:
        raise NotLiftableError("its state is read more than once")
    outer = {series.inner: series.outer for series in frame.inputs}
    factors = split_off(update.kept, state.before)[1]
    if update.kept.coef <= 0 or not all(_is_positive(facts, value, outer) for value, _ in factors):
        raise NotLiftableError("the factor of its state may be negative")
    for read in reads.values():
        return _match_terms(state, products, names, update, read)
    if not is_read(state.end):
        raise NotLiftableError("nothing is read of its state")
    return _match_last(state, products, names, update)


def _align_axes(term: Term, state: Term) -> Term:
    """Return a term with the indices of the state on its axes."""
    names = {}
    for own, axis in zip(term.axes, state.axes, strict=True):
        if len(own) > 1:
            raise NotLiftableError("axes of its state are merged")
        if own:
            names[own[0]] = axis
    clash = {index: index for axis in state.axes for index in axis if index not in names}
    if any(index in clash for index in term.indices - {*names}):
        raise NotLiftableError("its state is transposed in each step")
    return term.rename(names)


class _Update(NamedTuple):
    """The terms that keep the state, that correct it along the key, and that do not have it."""

    kept: Term
    correction: Term | None
    added: Term


def _classify_terms(terms: Iterable[Term], state: ir.Value) -> _Update:
    kept: list[Term] = []
    correction: list[Term] = []
    added: list[Term] = []
    for term in terms:
        if not term.coef:
            continue
        count = sum(value is state for value, _ in term.factors)
        if count > 1:
            raise NotLiftableError("its state is multiplied by itself")
        place = added if not count else correction if term.summed else kept
        place.append(term)
    if len(kept) != 1 or len(correction) > 1 or len(added) != 1:
        raise NotLiftableError("its update is not one decay, at most one correction and one addition")
    return _Update(kept[0], correction[0] if correction else None, added[0])


def _subtract(factors: Counter[Factor], parts: Counter[Factor], what: str) -> Counter[Factor]:
    """Subtract factors; they must all be there."""
    if parts - factors:
        raise NotLiftableError(f"{what} differs from that of a LinearAttention")
    return factors - parts


def _make_product(coef: float, factors: Counter[Factor]) -> Product:
    return Product(coef, tuple(factors.elements()))


def _match_terms(
    state: State, products: ProductReader, names: tuple[int, ...], update: _Update, read: Read | int
) -> FoundAttention:
    """Compare an update with those of LinearAttention, by what is read of the state or the axis of keys."""
    kept, correction, added = update
    key_axis, query = (read, ()) if isinstance(read, int) else (read.key_axis, read.query.factors)
    own, factors = split_off(kept, state.before)
    if own != names:
        raise NotLiftableError("its state is moved in each step")
    decay = Counter(factors)
    if added.summed:
        raise NotLiftableError("what is added to its state is a sum")
    writes = Counter(added.factors)
    key = Counter({factor: n for factor, n in writes.items() if key_axis in indices_of(factor)})
    rest = writes - key
    rates, coef = Counter[Factor](), 1.0
    if correction is not None:
        rates, coef, extra = _match_correction(
            correction, kept, state.before, names, key_axis, key, decay, rest
        )
        key, rest = key + extra, rest - extra
    value_axis = _find_value_axis(names, key_axis, products, [*key, *rates, *decay, *query])
    value = _subtract(rest, rates, "the rate of what is added")
    return FoundAttention(
        state,
        names,
        key_axis,
        value_axis,
        _make_product(kept.coef, decay) if decay or kept.coef != 1 else None,
        _make_product(1.0, key),
        _make_product(added.coef / coef, value),
        None if correction is None else _make_product(coef, rates),
        None if isinstance(read, int) else read,
        products,
    )


def _match_last(
    state: State, products: ProductReader, names: tuple[int, ...], update: _Update
) -> FoundAttention:
    """Return the LinearAttention of which only the last state is read, along whichever axis."""
    found, errors = [], []
    for key_axis in names:
        try:
            found.append(_match_terms(state, products, names, update, key_axis))
        except NotLiftableError as error:
            errors.append(error)
    if not found:
        raise errors[-1]
    return min(found, key=lambda each: each.value_axis is None)


def _match_correction(
    correction: Term,
    kept: Term,
    state: ir.Value,
    names: tuple[int, ...],
    key_axis: int,
    key: Counter[Factor],
    decay: Counter[Factor],
    rest: Counter[Factor],
) -> tuple[Counter[Factor], float, Counter[Factor]]:
    """Return the factors and the coefficient of beta, and factors of heads that belong to the key."""
    own, factors = split_off(correction, state)
    moved = [(a, b) for a, b in zip(own, names, strict=True) if a != b]
    if len(moved) != 1 or moved[0][1] != key_axis or correction.summed != {moved[0][0]}:
        raise NotLiftableError("its state is not corrected along the axis of its keys")
    inner = moved[0][0]
    back = {inner: (key_axis,)}
    read_factors = Term(1.0, tuple(factor for factor in factors if inner in indices_of(factor)), ()).rename(
        back
    )
    reading = Counter(read_factors.factors)
    writing = Counter(factor for factor in factors if key_axis in indices_of(factor))
    rates = Counter(f for f in factors if not indices_of(f) & {inner, key_axis})
    own_decay = Counter({f: n for f, n in decay.items() if key_axis in indices_of(f)})
    reading = _subtract(reading, own_decay, "the decay of what is corrected")
    rates = _subtract(rates, decay - own_decay, "the decay of what is corrected")
    if not (reading == writing == key):
        raise NotLiftableError("its state is not corrected by the key that is added")
    extra = rates - rest
    return _subtract(rates, extra + extra, "the rate"), -correction.coef / kept.coef, extra


def _find_value_axis(
    names: tuple[int, ...], key_axis: int, products: ProductReader, factors: Iterable[Factor]
) -> int | None:
    """Return the last axis that all rows of the state have in common; without one, values are of size 1."""
    used = {index for factor in factors for index in indices_of(factor)}
    free = [axis for axis in names if axis != key_axis and axis not in used]
    value_axes = free[-1:]
    if not all(isinstance(products.sizes[axis], int) for axis in (key_axis, *value_axes)):
        raise NotLiftableError("the sizes of its state are not known")
    others = [axis for axis in names if axis not in (key_axis, *value_axes)]
    if len(others) > 2:
        raise NotLiftableError("its state has too many axes")
    if sum(isinstance(products.sizes[axis], str) for axis in others) > 1:
        raise NotLiftableError("the number of its heads is not known")
    return value_axes[0] if value_axes else None


def _is_positive(
    facts: Facts, value: ir.Value, outer: Mapping[ir.Value, ir.Value], depth: int = _MAX_COMBINED
) -> bool:
    """Return whether no element of a value is negative; `outer` maps elements of a step to their series."""
    value = outer.get(value, value)
    while (view := producer_of(value, *_KEEPING_SIGNS)) is not None and view.inputs[0] is not None:
        value = outer.get(view.inputs[0], view.inputs[0])
    constant, node = facts.constant(value), value.producer()
    if constant is not None:
        return bool((constant >= 0).all())
    if node is None or node.domain or not depth:
        return False
    operands = [*filter(None, node.inputs)]
    if node.op_type == "Sub":
        whole, part = facts.constant(operands[0]), producer_of(operands[1], "Sigmoid")
        return whole is not None and bool((whole >= 1).all()) and part is not None
    # A product may be of several decays, and one may have a lower bound: a + (1 - a) * sigmoid(x).
    operands = operands[:1] if node.op_type == "Pow" else operands
    are_positive = (_is_positive(facts, each, outer, depth - 1) for each in operands)
    if node.op_type == "Max":
        return any(are_positive)
    return node.op_type in _POSITIVE or (node.op_type in _COMBINING and all(are_positive))
