"""Forms: equations that are equal have equal forms, however they are spelled as operators."""

from __future__ import annotations

import numpy as np
import pytest

from rnnlower.lifting.affine_forms import (
    Atoms,
    Form,
    NotLiftableError,
    add_forms,
    concat_forms,
    constant_form,
    multiply_matrix,
)
from rnnlower.lifting.layout_rules import reshape_form
from rnnlower.recurrent.node import Activation

RNG = np.random.default_rng(0)


def minus(first: Form, second: Form) -> Form:
    return add_forms(first, second.scale(np.array(-1.0), second.tags), first.tags)


def polynomials(atoms: Atoms, form: Form) -> list[dict[tuple[int, ...], float]]:
    flat = form.flatten().simplify()
    return [atoms.polynomial(flat, place) for place in range(flat.constant.size)]


def test_the_two_spellings_of_a_gru_are_one_polynomial() -> None:
    atoms = Atoms()
    tags = ("B", "")
    h, x = (atoms.variables((1, 3), tags) for _ in "hx")
    z = atoms.apply(Activation("Sigmoid"), x)
    n = atoms.apply(Activation("Tanh"), add_forms(x, h, tags))
    one = constant_form(np.ones((1, 3)))
    kept = atoms.multiply(minus(one, z), n, tags)
    long = add_forms(kept, atoms.multiply(z, h, tags), tags)
    short = add_forms(n, atoms.multiply(z, minus(h, n), tags), tags)
    assert polynomials(atoms, long) == polynomials(atoms, short)


def test_a_product_with_a_matrix_is_that_of_the_coefficients() -> None:
    atoms = Atoms()
    x = atoms.variables((1, 3), ("B", ""))
    first, second = RNG.normal(size=(3, 4)), RNG.normal(size=(4, 2))
    twice = multiply_matrix(multiply_matrix(x, first), second)
    at_once = multiply_matrix(x, first @ second)
    np.testing.assert_allclose(twice.coefs, at_once.coefs)
    assert (twice.ids == at_once.ids).all()


def test_parts_of_a_join_are_the_parts() -> None:
    atoms = Atoms()
    x, y = (atoms.variables((1, 2), ("B", "")) for _ in "xy")
    together = concat_forms([x, y], 1, ("B", ""))
    part = together.rearrange(lambda array: array[:, 2:], ("B", ""))
    assert polynomials(atoms, part) == polynomials(atoms, y)


def test_what_cancels_out_is_gone() -> None:
    atoms = Atoms()
    x = atoms.variables((1, 3), ("B", ""))
    assert minus(x, x).is_constant


def test_rows_do_not_become_features() -> None:
    x = Atoms().variables((1, 4), ("B", ""))
    assert reshape_form(x, (2, 4), (1, 2, 4)).tags == ("", "B", "")
    with pytest.raises(NotLiftableError, match="rows"):
        reshape_form(x, (2, 4), (4, 2))


def test_time_and_rows_are_joined_and_taken_apart() -> None:
    x = Atoms().variables((1, 1, 4), ("T", "B", ""))
    flat = reshape_form(x, (5, 2, 4), (10, 4))
    assert flat.tags == ("TB", "")
    assert reshape_form(flat, (10, 4), (5, 2, 2, 2)).tags == ("T", "B", "", "")
