"""Weights: constants that nothing else reads are cut beforehand, any others by nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.workbench import Workbench

from rnnlower.graph.initializers import mark_trained
from rnnlower.lowering.weights import Weights, compute_type_of, private_weights

W = np.arange(48, dtype=np.float32).reshape(2, 6, 4)
B = np.arange(24, dtype=np.float32).reshape(2, 12)


@pytest.mark.parametrize("private", [True, False])
def test_matrix_cuts_the_rows_of_a_direction(private: bool) -> None:
    bench = Workbench()
    weight = bench.weight("W", W)
    rows = Weights({weight} if private else (), ir.DataType.FLOAT).of(bench.e, 1).matrix(weight, 2, 5)
    assert bench.emitted == ([] if private else ["Slice", "Squeeze"])
    np.testing.assert_array_equal(bench.compute([rows])[0], W[1, 2:5])


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("direction", [0, 1])
def test_the_sum_of_both_biases(direction: int, private: bool) -> None:
    bench = Workbench()
    bias = bench.weight("B", B)
    weights = Weights({bias} if private else (), ir.DataType.FLOAT)
    total = weights.of(bench.e, direction).bias_sum(bias, 2, 4, 6)
    # The row is taken last: QNN adds wrong numbers where two Slices take the second row.
    assert bench.emitted == ([] if private else ["Slice", "Slice", "Add", "Slice", "Squeeze"])
    np.testing.assert_array_equal(bench.compute([total])[0], B[direction, 2:4] + B[direction, 8:10])


def test_a_weight_that_is_an_input_is_cut_at_run_time() -> None:
    bench = Workbench()
    weight = bench.input("W", W.shape)
    rows = Weights((), ir.DataType.FLOAT).of(bench.e, None).matrices(weight, 0, 3, [6, 4])
    np.testing.assert_array_equal(bench.compute([rows], W=W)[0], W[:, :3].reshape(6, 4))


def test_layouts_of_weights_in_memory() -> None:
    bench = Workbench()
    first, second = bench.weight("W", W), bench.weight("R", W + 1)
    weights = Weights({first, second}, ir.DataType.FLOAT).of(bench.e, 0)
    assert weights.in_memory(first, second)
    turned = weights.transposed(second, 1, 3)
    both = weights.joined(first, second, 1, 3)
    assert bench.emitted == []
    found = bench.compute([turned, both])
    np.testing.assert_array_equal(found[0], (W[0, 1:3] + 1).T)
    np.testing.assert_array_equal(found[1], np.concatenate([W[0, 1:3], W[0, 1:3] + 1], axis=1))


@pytest.mark.parametrize("other", ["reader", "trained", "input", "none"])
def test_weights_that_may_be_cut(other: str) -> None:
    bench = Workbench()
    x, weight, recurrent = bench.input("X", [3, 2, 4]), bench.weight("W", W), bench.weight("R", W)
    node = ir.Node("", "RNN", [x, weight, recurrent])
    if other == "reader":
        ir.Node("", "Neg", [weight])
    if other == "input":
        bench.model.graph.inputs.append(weight)
    if other == "trained":
        mark_trained(weight)
    found = private_weights([node])
    assert found == ({weight, recurrent} if other == "none" else {recurrent})


def test_the_type_of_the_arithmetic() -> None:
    float16, bfloat16, single, double = (
        ir.DataType.FLOAT16,
        ir.DataType.BFLOAT16,
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
    )
    assert [compute_type_of(float16), compute_type_of(bfloat16), compute_type_of(double)] == [
        float16,
        single,
        double,
    ]
    assert [compute_type_of(float16, single), compute_type_of(double, single)] == [single, double]
