"""Lowered models through onnxruntime's quantization: it finds their products, and the result runs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from support.judge import recurrent_left, run
from support.quantizing import Network, dynamic, products, static

import rnnlower

SMALL = {"features": 8, "hidden_size": 16, "layers": 1}
STEPS = 6


def calibration(network: Network) -> Iterator[dict[str, np.ndarray]]:
    return (network.inputs(seed, STEPS) for seed in range(16))


def errors(network: Network, quantized: onnx.ModelProto) -> np.ndarray:
    """Return of the scores, in units of their standard deviation, on inputs within the calibrated ranges."""
    inputs = list(calibration(network))
    right = np.array([run(network.build(), each)["scores"] for each in inputs])
    return (np.array([run(quantized, each)["scores"] for each in inputs]) - right) / right.std()


@pytest.mark.parametrize(("op_type", "groups"), [("LSTM", 2), ("GRU", 2), ("RNN", 1)])
@pytest.mark.parametrize("steps", [STEPS, "T"], ids=["unrolled", "Scan"])
def test_quantize_dynamic_finds_every_product(op_type: str, groups: int, steps: int | str) -> None:
    network = Network(op_type, steps=steps, **SMALL)
    lowered = rnnlower.lower(network.build(), target="ort-quantization")
    assert isinstance(lowered, onnx.ModelProto)
    assert recurrent_left(lowered) == []
    quantized = dynamic(lowered)
    # A group of gates has one product for X and one a step for H, the first of which an unrolled graph
    # goes without. Behind them stands the linear layer.
    expected = groups * (STEPS if steps == STEPS else 2) + 1
    assert products(quantized) == (expected, expected)
    assert np.abs(errors(network, quantized)).max() < 0.2


@pytest.mark.parametrize("target", ["ort-quantization", None], ids=["MatMul", "Gemm"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_quantize_static_finds_every_product_of_an_unrolled_graph(op_type: str, target: str | None) -> None:
    network = Network(op_type, steps=STEPS, **SMALL)
    model = network.build()
    lowered = rnnlower.unroll(model) if target is None else rnnlower.lower(model, target=target)
    assert isinstance(lowered, onnx.ModelProto)
    quantized = static(lowered, calibration(network), ["MatMul", "Gemm"])
    assert products(quantized) == (2 * STEPS + 1, 2 * STEPS + 1)
    assert np.abs(errors(network, quantized)).max() < 0.3


def test_quantize_static_leaves_a_native_node_as_it_is() -> None:
    network = Network("LSTM", steps=STEPS, **SMALL)
    assert products(static(network.build(), calibration(network))) == (1, 2)


def test_a_quantized_model_is_smaller() -> None:
    network = Network("LSTM", steps="T", features=32, hidden_size=64)
    lowered = rnnlower.lower(network.build(), target="ort-quantization")
    assert isinstance(lowered, onnx.ModelProto)
    assert dynamic(lowered).ByteSize() < 0.35 * lowered.ByteSize()
