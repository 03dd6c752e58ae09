"""Masks: rows whose sequence has ended, by Where, by slices or by products."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.workbench import Workbench

from rnnlower.lowering.masks import emit_less, emit_where, emit_where_else_zero, is_always_false

THEN = np.arange(1, 9, dtype=np.float32).reshape(4, 2)
OTHERWISE = -THEN
HOLDS = np.array([[True], [True], [False], [True]])
BASIC = ("Add", "Cast", "Clip", "Concat", "Identity", "Mul", "Slice", "Sub")
WITH_WHERE = (*BASIC, "Less", "Where")


@pytest.mark.parametrize("holds", [HOLDS, HOLDS & False, HOLDS | True])
@pytest.mark.parametrize("ops", [WITH_WHERE, BASIC])
@pytest.mark.parametrize("known", [True, False])
def test_rows_are_selected_by_the_mask(known: bool, ops: tuple[str, ...], holds: np.ndarray) -> None:
    bench = Workbench(17, ops)
    then, otherwise = bench.input("a", THEN.shape), bench.input("b", THEN.shape)
    dtype = bool if "Where" in ops else np.float32
    feeds = {"a": THEN, "b": OTHERWISE}
    if known:
        condition = bench.weight("c", holds.astype(dtype))
    else:
        condition = bench.input("c", holds.shape, ir.DataType.from_numpy(np.dtype(dtype)))
        feeds["c"] = holds.astype(dtype)
    rows = emit_where(bench.e, condition, then, otherwise)
    zeroed = emit_where_else_zero(bench.e, condition, then)
    assert is_always_false(condition) is (known and not holds.any())
    found = bench.compute([rows, zeroed], **feeds)
    np.testing.assert_array_equal(found[0], np.where(holds, THEN, OTHERWISE))
    np.testing.assert_array_equal(found[1], np.where(holds, THEN, 0))


def test_products_instead_of_where_are_noted() -> None:
    bench = Workbench(17, BASIC)
    condition = bench.input("c", [4, 1])
    emit_where(bench.e, condition, bench.input("a", THEN.shape), bench.input("b", THEN.shape))
    (note,) = bench.e.notes
    assert "own has no Where" in note


@pytest.mark.parametrize("ops", [WITH_WHERE, BASIC])
def test_comparison_of_integers(ops: tuple[str, ...]) -> None:
    bench = Workbench(17, ops)
    condition = emit_less(bench.e, *(bench.input(name, [3], ir.DataType.INT32) for name in "ab"))
    condition.type = ir.TensorType(ir.DataType.BOOL if "Where" in ops else ir.DataType.FLOAT)
    a, b = np.array([0, 2, 5], np.int32), np.array([1, 2, 3], np.int32)
    assert bench.compute([condition], a=a, b=b)[0].astype(bool).tolist() == [True, False, False]
