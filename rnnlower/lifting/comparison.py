"""The comparison of forms and of polynomials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rnnlower.lifting.affine_forms import AffineForm, Atoms, Monomial, Polynomial


def are_equivalent(atoms: Atoms, pairs: Iterable[tuple[AffineForm, AffineForm]]) -> bool:
    """Return whether the two forms of each pair are equal, where activations of equal arguments are equal."""
    keys: dict[int, int] = {}
    names: dict[object, int] = {}

    def key(atom: int) -> int:
        if atom not in keys:
            block = atoms.block(atom)
            content: object = atom
            if block.kind == "function" and block.form is not None:
                content = (block.function, terms(block.form, atom - block.start))
            keys[atom] = names.setdefault(content, len(names))
        return keys[atom]

    def terms(form: AffineForm, place: int) -> object:
        found: dict[object, float] = {}
        for monomial, coef in atoms.polynomial(form, place).items():
            term = tuple(sorted(map(key, monomial)))
            found[term] = found.get(term, 0.0) + coef
        return frozenset((term, float(f"{coef:.6g}")) for term, coef in found.items() if coef)

    return all(
        one.constant.shape == other.constant.shape
        and all(terms(one, j) == terms(other, j) for j in range(one.constant.size))
        for one, other in ([form.flatten().simplify() for form in pair] for pair in pairs)
    )


def is_close(first: Mapping[Monomial, float], second: Mapping[Monomial, float]) -> bool:
    """Return whether two polynomials are equal, up to the rounding of their coefficients."""
    keys = {*first, *second}
    return all(math.isclose(first.get(key, 0.0), second.get(key, 0.0), rel_tol=1e-6) for key in keys)


def divide(key: Monomial, atom: int) -> Monomial:
    """Divide a product of atoms by one of them."""
    place = key.index(atom)
    return (*key[:place], *key[place + 1 :])


def drop_zeros(polynomial: Polynomial) -> Polynomial:
    """Drop the terms whose coefficients cancel."""
    return {key: value for key, value in polynomial.items() if abs(value) > 1e-9}
