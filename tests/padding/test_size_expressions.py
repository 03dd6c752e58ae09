"""Expressions of the metadata give the sizes that they stand for."""

from __future__ import annotations

import pytest

from rnnlower.padding.sizes import NoRuleError, Size
from rnnlower.verification.pad_procedure import evaluate_size


@pytest.mark.parametrize("most", [13, 512, 2000])
@pytest.mark.parametrize(
    ("factor", "offset", "divisor", "outer", "rest"),
    [
        (1, 0, 1, 1, 0),
        (1, 1, 2, 1, 0),
        (1, -400, 160, 1, 1),
        (320, 0, 1, 1, 0),
        (300, -20, 1, 1, 0),
        (1, 79, 80, 320, 0),
        (3, 1, 2, 1, 0),
        (2, -7, 3, 1, 0),
        (1, 0, 320, 1, 0),
        (1, 7, 8, 256, 4),
        (441, 0, 160, 1, 0),
    ],
)
def test_an_expression_gives_the_size(
    most: int, factor: int, offset: int, divisor: int, outer: int, rest: int
) -> None:
    least = max(1, -offset // factor)
    most = max(most, 2 * least)
    size = Size.of("T", most).affine(factor, offset, divisor).affine(outer, rest)
    text = size.expression(least)
    found = [evaluate_size(text, {"T": length}) for length in range(least, most + 1)]
    assert found == [*size.table[least:]]


@pytest.mark.parametrize("multiple", [2, 8, 48])
def test_sizes_of_multiples_are_simple(multiple: int) -> None:
    whole = Size.of("T", 3 * multiple, multiple)
    assert whole.expression(multiple, multiple) == "T"
    assert whole.affine(divisor=multiple).expression(multiple, multiple) == f"T // {multiple}"
    assert whole.affine(2).expression(multiple, multiple) == "2 * T"
    assert whole.table[multiple + 1] == multiple


def test_a_rest_is_not_lost_below_zero() -> None:
    size = Size.of("T", 32).affine(1, -5, 5)
    with pytest.raises(NoRuleError, match="no expression"):
        size.affine(4, 2).expression()
    text = size.affine(4, 2).expression(5)
    assert [evaluate_size(text, {"T": length}) for length in range(5, 33)] == [*size.affine(4, 2).table[5:]]


def test_a_size_that_is_no_quotient_has_no_expression() -> None:
    size = Size.of("T", 20)
    with pytest.raises(NoRuleError, match="no expression"):
        size.with_table(each**2 for each in size.table).expression()
