"""The emitter: each operator in the form of the opset, and the forms for runtimes that lack one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.workbench import Workbench

from rnnlower.errors import MissingOperatorError, OpsetError

X = np.arange(12, dtype=np.float32).reshape(2, 6)
BASIC = ("Add", "Concat", "Identity", "MatMul", "Mul", "Reshape", "Slice", "Transpose")


@pytest.mark.parametrize("sizes", [[2, 2, 2], [1, 2, 3], [6]])
@pytest.mark.parametrize(("opset", "ops"), [(7, None), (13, None), (18, None), (17, BASIC), (7, BASIC)])
def test_split_gives_parts_of_the_given_sizes(
    opset: int, ops: tuple[str, ...] | None, sizes: list[int]
) -> None:
    bench = Workbench(opset, ops)
    parts = bench.e.split(bench.input("x", X.shape), sizes, axis=1)
    assert ("Split" in bench.emitted) is (ops is None and len(sizes) > 1)
    found = bench.compute(parts, x=X)
    for part, expected in zip(found, np.split(X, np.cumsum(sizes)[:-1], axis=1), strict=True):
        np.testing.assert_array_equal(part, expected)


@pytest.mark.parametrize("ops", [None, BASIC])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("opset", [7, 11])
def test_gemm_multiplies_by_the_transposed_weight(
    opset: int, bias: bool, ops: tuple[str, ...] | None
) -> None:
    weight, addend = np.eye(3, 6, dtype=np.float32) + 1, np.arange(3, dtype=np.float32)
    bench = Workbench(opset, ops)
    c = bench.weight("c", addend) if bias else None
    product = bench.e.gemm(bench.input("x", X.shape), bench.weight("w", weight), c)
    assert bench.emitted[0] == ("Gemm" if ops is None else "MatMul")
    (found,) = bench.compute([product], x=X)
    np.testing.assert_array_equal(found, X @ weight.T + (addend if bias else 0))


def test_a_constant_is_transposed_once() -> None:
    bench = Workbench(17, BASIC)
    x, weight = bench.input("x", X.shape), bench.weight("w", np.ones((3, 6), np.float32))
    for _ in range(2):
        bench.e.gemm(x, weight, None)
    assert bench.emitted == ["MatMul", "MatMul"]
    assert bench.e.nodes[0].inputs[1] is bench.e.nodes[1].inputs[1]


@pytest.mark.parametrize(("opset", "count"), [(9, 4), (9, None), (11, None)])
def test_arange_counts_from_0(opset: int, count: int | None) -> None:
    bench = Workbench(opset)
    size = bench.input("n", [1], ir.DataType.INT64)
    numbers = bench.e.arange(size if count is None else count)
    numbers.type = ir.TensorType(ir.DataType.INT32)
    (found,) = bench.compute([numbers], n=np.array([4], np.int64))
    assert found.dtype == np.int32
    assert found.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("rows", [0, 2])
def test_reshape_keeps_sizes_of_zero(rows: int) -> None:
    bench = Workbench(14)
    x = bench.input("x", ["n", "m"])
    value = bench.e.reshape(x, [1, bench.e.dim(x, 0), bench.e.dim(x, 1)])
    (found,) = bench.compute([value], x=np.zeros((rows, 3), np.float32))
    assert found.shape == (1, rows, 3)


def test_axes_are_added_and_removed_by_reshape_where_the_runtime_has_nothing_else() -> None:
    bench = Workbench(17, BASIC)
    wide = bench.e.unsqueeze(bench.input("x", X.shape), 0, [1, *X.shape])
    narrow = bench.e.squeeze(wide, 0, X.shape)
    assert bench.emitted == ["Reshape", "Reshape"]
    wide_found, narrow_found = bench.compute([wide, narrow], x=X)
    assert (wide_found.shape, narrow_found.shape) == ((1, 2, 6), (2, 6))


def test_positions_at_run_time_need_opset_10() -> None:
    bench = Workbench(9)
    with pytest.raises(OpsetError) as caught:
        bench.e.slice(bench.input("x", X.shape), [bench.input("n", [1], ir.DataType.INT64)], [2], [0])
    assert (caught.value.opset, caught.value.operator) == (10, "Slice")


def test_a_missing_operator_is_named_with_what_needs_it() -> None:
    bench = Workbench(17, BASIC)
    with pytest.raises(MissingOperatorError, match=r"Softsign needs Abs.*lacks"):
        bench.e.op("Softsign", bench.input("x", X.shape))
