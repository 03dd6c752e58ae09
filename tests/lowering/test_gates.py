"""--gates: the number of products in a step."""

from __future__ import annotations

import collections

import numpy as np
import onnx
import pytest
from support.judge import run
from support.quantizing import Network

import rnnlower

STEPS = 3


def count_products(model: onnx.ModelProto) -> int:
    counts = collections.Counter(node.op_type for node in model.graph.node)
    return counts["Gemm"] + counts["MatMul"] - 1  # the linear layer behind


@pytest.mark.parametrize(
    ("op_type", "gates", "of_input", "of_state"),
    [("LSTM", "separate", 4, 4), ("LSTM", "fused", 1, 1), ("GRU", "separate", 3, 3), ("GRU", "fused", 2, 1)],
)
def test_gates_decides_the_number_of_products_in_a_step(
    op_type: str, gates: str, of_input: int, of_state: int
) -> None:
    network = Network(op_type, steps=STEPS, features=5, hidden_size=8, layers=1)
    result = rnnlower.unroll(network.build(), gates=gates)
    # Without an initial state, the first step has no product with it.
    assert count_products(result) == of_input + (STEPS - 1) * of_state
    expected = run(network.build(), network.inputs(1, STEPS))
    np.testing.assert_allclose(run(result, network.inputs(1, STEPS))["scores"], expected["scores"], atol=1e-6)


@pytest.mark.parametrize("gates", ["separate", "fused"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_scan_with_each_number_of_products_is_equal(op_type: str, gates: str) -> None:
    network = Network(op_type, steps="T", features=5, hidden_size=8, layers=2)
    result = rnnlower.scan(network.build(), gates=gates)
    inputs = network.inputs(1, 6)
    np.testing.assert_allclose(
        run(result, inputs)["scores"], run(network.build(), inputs)["scores"], atol=1e-6
    )


def test_no_constant_of_zeros_at_the_first_step() -> None:
    result = rnnlower.unroll(Network(steps=STEPS, features=5, hidden_size=8).build(), gates="separate")
    floats = [t for t in result.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    assert all(np.any(onnx.numpy_helper.to_array(tensor)) for tensor in floats)


def test_the_reset_gate_multiplies_product_and_bias_apart() -> None:
    """A product that a bias widens has a coarser range."""
    result = rnnlower.unroll(Network("GRU", steps=STEPS, layers=1).build(), gates="separate")
    of_state = [node for node in result.graph.node if node.op_type == "Gemm" and len(node.input) == 2]
    assert len(of_state) == STEPS - 1


@pytest.mark.parametrize(("target", "of_state"), [("axera", 3), ("primitive", 2)])
def test_the_target_decides_the_number_of_products(target: str, of_state: int) -> None:
    network = Network("GRU", steps=STEPS, features=5, hidden_size=8, layers=1)
    assert count_products(rnnlower.lower(network.build(), target=target)) == of_state + (STEPS - 1) * of_state
    fused = rnnlower.lower(network.build(), target=target, gates="fused")
    assert count_products(fused) == 2 + (STEPS - 1)


def test_another_value_of_gates_is_refused() -> None:
    with pytest.raises(rnnlower.OptionError, match="must be one of auto, fused, separate"):
        rnnlower.scan(Network(steps=2).build(), gates="joined")  # type: ignore[arg-type]
