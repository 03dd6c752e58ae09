"""Declared rows: one symbol for the values of all steps."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from rnnlower.lowering.declaring import declare_rows, symbol_of_rows
from support.workbench import Workbench


def test_results_of_two_operands_are_declared() -> None:
    bench = Workbench()
    e, x = bench.e, bench.input("x", ["N", 6])
    product = e.gemm(x, bench.weight("w", np.ones((8, 6), np.float32)), None)
    first, second = e.split(product, [3, 5], axis=1)
    total = e.op("Add", e.op("Tanh", first), e.op("Sigmoid", first))
    wide = e.op("Mul", second, e.scalar(2.0))
    turned = e.op("Add", e.transpose(total, [1, 0]), e.scalar(1.0))
    declare_rows(e.nodes, {x: 6}, "N", ir.DataType.FLOAT)
    shapes = {value: None if value.shape is None else str(value.shape) for value in (x, total, wide, turned)}
    assert shapes == {x: "[N,6]", total: "[N,3]", wide: "[N,5]", turned: None}
    assert total.dtype == ir.DataType.FLOAT


def test_the_symbol_of_the_rows() -> None:
    bench = Workbench()
    x = bench.input("x", [3, "N", 4])
    assert [symbol_of_rows(x, axis) for axis in (0, 1, 5)] == [None, "N", None]
