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
