"""Sizes at many lengths are those that onnx_ir evaluates one by one."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from rnnlower.graph.size_tables import size_table


@pytest.mark.parametrize(
    "text",
    [
        "T",
        "3*T - 7",
        "floor(T/4) + 2",
        "2 - floor(-T/5 - 3/5)",
        "-Mod(floor(T/8) + 4, 10) + floor(T/8) + 19",
        "floor(-Mod(floor(T/8) + 4, 10)/5 + floor(T/8)/5 + 14/5)",
        "Max(7, T, 2*T - 20)",
        "Min(floor(T/2), 9) * (T + 1)",
        "Mod(-T, 4) + T",
        "floor(T/3 - 5/2)",
    ],
)
def test_a_table_holds_what_is_evaluated_at_each_length(text: str) -> None:
    size = ir.SymbolicDim(text)
    assert size_table(size, "T", 60) == [size.evaluate({"T": length}) for length in range(61)]


@pytest.mark.parametrize("text", ["T + S", "S", "T/2", "T**2", "sqrt(T)"])
def test_what_is_not_evaluated_has_no_table(text: str) -> None:
    assert size_table(ir.SymbolicDim(text), "T", 9) is None


def test_an_unknown_size_has_no_table() -> None:
    assert size_table(ir.SymbolicDim(None), "T", 9) is None
