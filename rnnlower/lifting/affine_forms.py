"""Tensors as affine forms: each element is a sum of atoms with coefficients, plus a constant.

An atom is a variable (an element of the input or of a state), an activation of a form, a product of atoms, or
the name of a longer form. Equal equations have equal forms, whichever operators compute them.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rnnlower.recurrent.node import Activation

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Monomial = tuple[int, ...]
Polynomial = dict[Monomial, float]
"""The coefficient of each product of atoms; the key of the constant is empty."""

_MAX_TERMS = 3
"""The most terms of a sum that is multiplied out; a longer sum gets a name first."""


class NotLiftableError(Exception):
    """A recurrence that cannot be lifted; the message says why, as the reason in a note."""


@dataclasses.dataclass(frozen=True, eq=False)
class AffineForm:
    """A tensor whose elements are sums.

    Attributes:
        ids: The atoms of each element, ``[count, *shape]``, or ``[count, 1, ...]`` if all have the same ones.
        coefs: Their coefficients, ``[count, *shape]``.
        constant: The constants, of the tensor's shape.
        tags: For each axis ``""``, or a letter for one that stands for any number of rows or time steps, and
            has the size 1 here.
    """

    ids: Ids
    coefs: Floats
    constant: Floats
    tags: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, with 1 for the axes that have a tag."""
        return self.constant.shape

    @property
    def is_constant(self) -> bool:
        """True if there are no atoms."""
        return not self.coefs.any()

    @property
    def is_shared(self) -> bool:
        """True if all elements have the same atoms."""
        return self.ids.size == len(self.ids)

    def rearrange(self, function: Callable[[np.ndarray], np.ndarray], tags: Sequence[str]) -> AffineForm:
        """Return the form with its elements rearranged by an array function, such as a transposition.

        The function is applied to the constants, and to the coefficients and atoms of each term.
        """
        constant = function(self.constant)
        coefs = np.empty((len(self.coefs), *constant.shape))
        for number, each in enumerate(self.coefs):
            coefs[number] = function(each)
        if self.is_shared:
            ids = self.ids.reshape(-1, *(1 for _ in constant.shape))
        else:
            ids = np.empty((len(self.ids), *constant.shape), np.int64)
            for number, row in enumerate(self.ids):
                ids[number] = function(np.broadcast_to(row, self.shape))
        return AffineForm(ids, coefs, constant, tuple(tags))

    def reshape(self, shape: Sequence[int], tags: Sequence[str]) -> AffineForm:
        """Return the form in another shape."""
        return self.rearrange(lambda array: array.reshape(shape), tags)

    def transpose(self, perm: Sequence[int]) -> AffineForm:
        """Permute the axes."""
        return self.rearrange(lambda array: array.transpose(perm), [self.tags[axis] for axis in perm])

    def scale(self, factor: float | Floats, tags: Sequence[str] | None = None) -> AffineForm:
        """Multiply the form by a constant; the tags stay unless others are given."""
        wide = self.broadcast_to(broadcast_shape(self.shape, np.shape(factor)))
        return AffineForm(wide.ids, wide.coefs * factor, wide.constant * factor, tuple(tags or wide.tags))

    def broadcast_to(self, shape: tuple[int, ...]) -> AffineForm:
        """Return the form broadcast to a shape; its tags become those of the last axes."""
        front = len(shape) - len(self.shape)
        tags = ("",) * front + self.tags
        lead = (1,) * front
        coefs = self.coefs.reshape(len(self.coefs), *lead, *self.shape)
        ids = self.ids.reshape(len(self.ids), *lead, *self.ids.shape[1:])
        wide = np.broadcast_to(coefs, (len(coefs), *shape))
        if not self.is_shared:
            ids = np.broadcast_to(ids, wide.shape)
        return AffineForm(ids, wide, np.broadcast_to(self.constant, shape), tags)

    def flatten(self) -> AffineForm:
        """Return the form as a vector."""
        return self.rearrange(lambda array: array.reshape(-1), ("",))

    def take(self, axis: int, part: slice | np.ndarray) -> AffineForm:
        """Return a part of the form along one axis."""
        index = (*(slice(None) for _ in range(axis)), part)
        return self.rearrange(lambda array: array[index], self.tags)

    def simplify(self) -> AffineForm:
        """Combine equal atoms of an element, and drop terms that are zero everywhere."""
        if self.is_shared:
            ids, coefs = self.ids.reshape(-1), self.coefs
            if (np.diff(ids) <= 0).any():
                ids, where = np.unique(ids, return_inverse=True)
                coefs = np.zeros((len(ids), *self.shape))
                np.add.at(coefs, where.reshape(-1), self.coefs)
            used = coefs.any(axis=tuple(range(1, coefs.ndim)))
            ids, coefs = ids[used], coefs[used]
            return AffineForm(ids.reshape(-1, *(1 for _ in self.shape)), coefs, self.constant, self.tags)
        order = np.argsort(self.ids, axis=0, kind="stable")
        ids = np.take_along_axis(self.ids, order, axis=0)
        coefs = np.take_along_axis(self.coefs, order, axis=0)
        for number in range(1, len(ids)):
            same = ids[number] == ids[number - 1]
            coefs[number] += np.where(same, coefs[number - 1], 0)
            coefs[number - 1] = np.where(same, 0, coefs[number - 1])
        # Nonzero terms move to the front.
        order = np.argsort(coefs == 0, axis=0, kind="stable")
        ids, coefs = np.take_along_axis(ids, order, axis=0), np.take_along_axis(coefs, order, axis=0)
        used = coefs.any(axis=tuple(range(1, coefs.ndim)))
        return AffineForm(ids[used], coefs[used], self.constant, self.tags)


def broadcast_shape(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the result of an operator that broadcasts.

    Raises:
        NotLiftableError: The shapes cannot be broadcast.
    """
    try:
        return np.broadcast_shapes(first, second)
    except ValueError:
        raise NotLiftableError("the shapes in a step do not match") from None


def constant_form(array: np.ndarray) -> AffineForm:
    """Return the form of a constant tensor."""
    values = np.asarray(array, np.float64)
    none = np.zeros((0, *values.shape))
    return AffineForm(none.astype(np.int64), none, values, ("",) * values.ndim)


def broadcast_tags(*forms: AffineForm) -> tuple[str, ...]:
    """Return the tags of the result of an operator that broadcasts.

    Raises:
        NotLiftableError: The tags of an axis differ.
    """
    rank = max(len(form.tags) for form in forms)
    columns = zip(*(("",) * (rank - len(form.tags)) + form.tags for form in forms), strict=True)
    tags = [{*column} - {""} for column in columns]
    if any(len(each) > 1 for each in tags):
        raise NotLiftableError("a step combines different rows or time steps")
    return tuple(next(iter(each), "") for each in tags)


def concat_forms(forms: Sequence[AffineForm], axis: int, tags: Sequence[str]) -> AffineForm:
    """Concatenate forms along an axis."""
    sizes = {tuple(size for at, size in enumerate(form.shape) if at != axis) for form in forms}
    if len(sizes) != 1:
        raise NotLiftableError("the shapes in a step do not match")
    count = max(len(form.ids) for form in forms)
    constant = np.concatenate([form.constant for form in forms], axis)
    ids, coefs = [], []
    for form in forms:
        missing = count - len(form.ids)
        rows = np.broadcast_to(form.ids, form.coefs.shape)
        ids.append(np.concatenate([rows, np.zeros((missing, *form.shape), np.int64)]))
        coefs.append(np.concatenate([form.coefs, np.zeros((missing, *form.shape))]))
    return AffineForm(np.concatenate(ids, axis + 1), np.concatenate(coefs, axis + 1), constant, tuple(tags))


def add_forms(first: AffineForm, second: AffineForm) -> AffineForm:
    """Add two forms."""
    tags = broadcast_tags(first, second)
    shape = broadcast_shape(first.shape, second.shape)
    pair = [form.broadcast_to(shape) for form in (first, second)]
    constant = pair[0].constant + pair[1].constant
    coefs = np.concatenate([form.coefs for form in pair])
    if all(form.is_shared for form in pair):
        ids = np.concatenate([form.ids.reshape(-1, *(1 for _ in shape)) for form in pair])
    else:
        ids = np.concatenate([np.broadcast_to(form.ids, form.coefs.shape) for form in pair])
    return AffineForm(ids, coefs, constant, tags).simplify()


def multiply_matrix(form: AffineForm, matrix: Floats) -> AffineForm:
    """Multiply a form, along its last axis, by a constant matrix."""
    lead = form.shape[:-1]
    if int(np.prod(lead)) != 1 or form.tags[-1]:
        raise NotLiftableError("a product combines several rows of a state")
    if form.shape[-1] != len(matrix):
        raise NotLiftableError("the shapes in a step do not match")
    vector = form.flatten().simplify()
    tags = form.tags
    shape = (*lead, matrix.shape[1])
    constant = (vector.constant @ matrix).reshape(shape)
    if vector.is_shared:
        coefs, ids = vector.coefs @ matrix, vector.ids.reshape(-1)
    elif len(vector.ids) == 1 and len({*(ids := vector.ids.reshape(-1)).tolist()}) == len(ids):
        coefs = vector.coefs.reshape(-1, 1) * matrix
    else:
        rows = np.broadcast_to(vector.ids, vector.coefs.shape)
        ids, where = np.unique(rows.reshape(-1), return_inverse=True)
        dense = np.zeros((len(ids), vector.shape[0]))
        columns = np.broadcast_to(np.arange(vector.shape[0]), rows.shape)
        np.add.at(dense, (where.reshape(-1), columns.reshape(-1)), vector.coefs.reshape(-1))
        coefs = dense @ matrix
    return AffineForm(
        ids.reshape(-1, *(1 for _ in shape)), coefs.reshape(-1, *shape), constant, tags
    ).simplify()


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive atoms: the elements of one tensor.

    Attributes:
        kind: ``variable``, ``function``, ``product`` or ``form``.
        form: For functions their arguments, for forms the sums that the atoms name, both as vectors.
        function: The activation, with the parameters that cannot be moved into weights.
    """

    start: int
    size: int
    kind: str
    form: AffineForm | None = None
    function: Activation | None = None


class Atoms:
    """The atoms of one analysis."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._starts: list[int] = []
        self._products: dict[Monomial, int] = {}
        self._factors: dict[int, Monomial] = {}
        self._is_compound: dict[int, bool] = {}  # Whether an atom is a product or a named sum.
        self._count = 0

    def _new(self, size: int, kind: str, **fields: object) -> Block:
        block = Block(self._count, size, kind, **fields)  # type: ignore[arg-type]
        self._blocks.append(block)
        self._starts.append(self._count)
        self._count += size
        return block

    def variables(self, shape: Sequence[int], tags: Sequence[str]) -> AffineForm:
        """Return a tensor of new variables."""
        return _block_form(self._new(int(np.prod(shape)), "variable"), shape, tags)

    def apply(self, function: Activation, form: AffineForm) -> AffineForm:
        """Apply an activation to each element."""
        argument = form.simplify()
        block = self._new(argument.constant.size, "function", form=argument.flatten(), function=function)
        return _block_form(block, form.shape, form.tags)

    def multiply(self, first: AffineForm, second: AffineForm) -> AffineForm:
        """Multiply two tensors elementwise."""
        tags = broadcast_tags(first, second)
        first, second = first.simplify(), second.simplify()
        for one, other in ((first, second), (second, first)):
            if one.is_constant:
                return other.scale(one.constant, tags).simplify()
        shape = broadcast_shape(first.shape, second.shape)
        first, second = (self._name_long_sums(form).broadcast_to(shape) for form in (first, second))
        total = constant_form(first.constant * second.constant)
        for one, factor in ((first, second.constant), (second, first.constant)):
            without_constant = dataclasses.replace(one, constant=np.zeros(one.shape))
            total = add_forms(total, without_constant.scale(factor, tags))
        for left in range(len(first.ids)):
            for right in range(len(second.ids)):
                pairs = np.stack(
                    np.broadcast_arrays(first.ids[left], second.ids[right], first.constant)[:2]
                ).reshape(2, -1)
                ids = np.array([self._product_atom(int(a), int(b)) for a, b in pairs.T], np.int64)
                coefs = first.coefs[left] * second.coefs[right]
                one = AffineForm(ids.reshape(1, *shape), coefs[np.newaxis], np.zeros(shape), tags)
                total = add_forms(total, one)
        return dataclasses.replace(total, tags=tags)

    def _name_long_sums(self, form: AffineForm) -> AffineForm:
        if len(form.ids) <= _MAX_TERMS:
            return form
        block = self._new(form.constant.size, "form", form=form.flatten())
        return _block_form(block, form.shape, form.tags)

    def _product_atom(self, first: int, second: int) -> int:
        monomial = tuple(sorted((*self.factors(first), *self.factors(second))))
        if monomial not in self._products:
            number = self._new(1, "product").start
            self._products[monomial], self._factors[number] = number, monomial
        return self._products[monomial]

    def factors(self, atom: int) -> Monomial:
        """Return the factors of a product, or the atom itself if it is none."""
        return self._factors.get(atom, (atom,))

    def block(self, atom: int) -> Block:
        """Return the block of an atom."""
        return self._blocks[bisect.bisect_right(self._starts, atom) - 1]

    def kind(self, atom: int) -> str:
        """Return the kind of an atom's block."""
        return self.block(atom).kind

    def arguments(self, atoms: Sequence[int]) -> AffineForm:
        """Return the arguments of atoms that are functions, as a vector."""
        parts = []
        for block, run in itertools.groupby(atoms, self.block):
            assert block.form is not None
            places = [atom - block.start for atom in run]
            parts.append(block.form.rearrange(lambda array, at=places: array[at], ("",)))  # type: ignore[misc]
        return parts[0] if len(parts) == 1 else concat_forms(parts, 0, ("",))

    def as_activations(self, form: AffineForm) -> tuple[list[int], float] | None:
        """Return the atoms of a form whose elements are activations times one factor, and the factor."""
        form = form.simplify()
        if len(form.ids) != 1 or form.constant.any():
            return None
        factors = {float(coef) for coef in form.coefs.flat}
        atoms = [int(atom) for atom in np.broadcast_to(form.ids, form.coefs.shape).flat]
        if len(factors) != 1 or any(self.block(atom).function is None for atom in atoms):
            return None
        return atoms, factors.pop()

    def polynomial(self, form: AffineForm, element: int) -> Polynomial:
        """Return an element of a vector as a polynomial, with named sums expanded."""
        found: Polynomial = {}
        if form.constant[element]:
            found[()] = float(form.constant[element])
        numbers = np.flatnonzero(form.coefs[:, element])
        ids = form.ids[numbers, 0 if form.is_shared else element]
        for atom, coef in zip(ids.tolist(), form.coefs[numbers, element].tolist(), strict=True):
            if atom not in self._is_compound:
                self._is_compound[atom] = self.kind(atom) in ("form", "product")
            if self._is_compound[atom]:
                self._expand_into(found, self.factors(atom), coef)
            else:
                found[(atom,)] = found.get((atom,), 0.0) + coef
        return {key: value for key, value in found.items() if value}

    def expand(self, atom: int, coef: float) -> Polynomial:
        """Return an atom times a coefficient as a polynomial, with named sums expanded."""
        found: Polynomial = {}
        self._expand_into(found, self.factors(atom), coef)
        return found

    def _expand_into(self, found: Polynomial, factors: Monomial, coef: float) -> None:
        for number, atom in enumerate(factors):
            block = self.block(atom)
            if block.kind == "form":
                assert block.form is not None
                rest = (*factors[:number], *factors[number + 1 :])
                for inner, factor in self.polynomial(block.form, atom - block.start).items():
                    self._expand_into(found, tuple(sorted((*inner, *rest))), factor * coef)
                return
        found[factors] = found.get(factors, 0.0) + coef


def _block_form(block: Block, shape: Sequence[int], tags: Sequence[str]) -> AffineForm:
    ids = np.arange(block.start, block.start + block.size).reshape(1, *shape)
    return AffineForm(ids, np.ones(ids.shape), np.zeros(tuple(shape)), tuple(tags))
