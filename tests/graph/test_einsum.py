"""The equation of an Einsum."""

from __future__ import annotations

import pytest

from rnnlower.graph.einsum import einsum_terms


@pytest.mark.parametrize(
    ("equation", "terms", "result"),
    [
        ("bij, jk -> bik", ["bij", "jk"], "bik"),
        ("bij,jk->", ["bij", "jk"], ""),
        ("zij,ja", ["zij", "ja"], "aiz"),
        ("ii", ["ii"], ""),
        ("ij,", ["ij", ""], "ij"),
        ("...i,ij->...j", [], ""),
    ],
)
def test_the_result_has_each_index_that_occurs_once(equation: str, terms: list[str], result: str) -> None:
    assert einsum_terms(equation) == (terms, result)


@pytest.mark.parametrize(
    ("equation", "ranks", "terms", "result"),
    [
        ("...i,ij->...j", (3, 2), ["abi", "ij"], "abj"),
        ("...ia, ...ja", (4, 4), ["bcia", "bcja"], "bcij"),
        ("...i,ij->...j", (1, None), ["i", "ij"], "j"),
        ("...i,ij->...j", (None, 2), [], ""),
        ("...i,...i->...", (3, 2), [], ""),
        ("...i->i", (3,), [], ""),
    ],
)
def test_an_ellipsis_is_spelled_out(
    equation: str, ranks: tuple[int | None, ...], terms: list[str], result: str
) -> None:
    assert einsum_terms(equation, ranks) == (terms, result)
