"""Verification on a runtime that computes in float16: rounding is no difference, and a fault is one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.configs import Config
from support.faults import SOURCE_FAULTS

import rnnlower
from rnnlower.engines.catalog import Engine
from rnnlower.verification import runner, verifier
from rnnlower.verification.engine_choice import NumpyEngine
from rnnlower.verification.models import ParsedModel
from rnnlower.verification.rewritten_models import convert_floats

HALF = np.dtype(np.float16)
LSTM = Config(seq_length=20, batch_size=2, input_size=16, hidden_size=32, Y_h="graph", Y_c="graph")
NODES = {
    "LSTM": LSTM,
    "bidirectional LSTM": dataclasses.replace(LSTM, direction="bidirectional"),
    "GRU": dataclasses.replace(LSTM, op_type="GRU", Y_c="omitted"),
    "RNN": dataclasses.replace(LSTM, op_type="RNN", Y_c="omitted", seq_length=5),
}
Fault = Callable[[onnx.ModelProto], object]


class Device:
    """A runtime that evaluates every operator in float16, after a fault in the model."""

    fault: Fault = staticmethod(lambda model: None)

    def __init__(self, engine: Engine, model: onnx.ModelProto) -> None:
        own = onnx.ModelProto.FromString(model.SerializeToString())
        Device.fault(own)
        self._engine = NumpyEngine(convert_floats(ParsedModel("candidate", own, None), HALF), "ort")

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        with np.errstate(over="ignore"):
            outputs = self._engine.run({name: array.astype(HALF) for name, array in feeds.items()})
        return {name: array.astype(np.float32) for name, array in outputs.items()}

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Engine("half", "Half", precision="float16", version="1")
    monkeypatch.setattr(verifier, "find_engine", lambda name: half)
    monkeypatch.setattr(runner, "open_on", Device)


@pytest.mark.parametrize("name", NODES)
def test_rounding_to_float16_is_no_difference(name: str) -> None:
    source = NODES[name].build()
    result = rnnlower.verify(source, rnnlower.unroll(source), on="half")
    assert result, str(result)
    assert result.on is not None
    assert result.on.ran


@pytest.mark.parametrize("fault", ["a weight of R off by 5%", "a weight of W off by 5%", "direction flipped"])
def test_a_fault_in_the_graph_is_found_on_the_host(fault: str) -> None:
    source = LSTM.build()
    wrong = onnx.ModelProto.FromString(source.SerializeToString())
    assert SOURCE_FAULTS[fault](wrong, np.random.default_rng(0))
    result = rnnlower.verify(source, rnnlower.unroll(wrong), on="half")
    assert not result
    assert result.engines["candidate"] == "onnxruntime"
    assert result.on is None


def scaled(kind: str, factor: float) -> Fault:
    """Return a fault that scales the weights of one rank."""

    def edit(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype == np.float32 and array.ndim == {"weights": 2, "biases": 1}[kind]:
                tensor.CopyFrom(numpy_helper.from_array(array * np.float32(factor), tensor.name))

    return edit


def without_last(op_type: str) -> Fault:
    """Return a fault by which the last such node hands on its input."""

    def edit(model: onnx.ModelProto) -> None:
        node = [each for each in model.graph.node if each.op_type == op_type][-1]
        node.op_type = "Identity"

    return edit


@pytest.mark.parametrize(
    "fault",
    [scaled("weights", 1.05), scaled("biases", 0.0), without_last("Sigmoid"), without_last("Tanh")],
    ids=["products 5% off", "no biases", "no Sigmoid", "no Tanh"],
)
def test_a_fault_of_the_device_is_a_difference(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "fault", staticmethod(fault))
    source = LSTM.build()
    result = rnnlower.verify(source, rnnlower.unroll(source), on="half")
    assert not result
    assert result.on is not None
    assert not result.on.equal
    assert all(output.equal for output in result.outputs)


def test_inputs_that_overflow_in_float16_are_left_out() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 4] x) => (float[2, 4] y) {
            square = Mul (x, x)
            fourth = Mul (square, square)
            root = Sqrt (fourth)
            y = Div (square, root)
        }
    """)
    large = np.full((2, 4), 200, np.float32)
    assert not rnnlower.verify(model, model, on="half", inputs={"x": large})
    result = rnnlower.verify(model, model, on="half")
    assert result, str(result)


def test_inputs_on_which_rounding_decides_do_not_prove_equality(monkeypatch: pytest.MonkeyPatch) -> None:
    """That both graphs are the same in float64 says nothing of the device."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 4] x) => (float[2, 4] y) <float much = {10000}> {
            phase = Mul (x, much)
            y = Sin (phase)
        }
    """)
    inputs = {"x": np.linspace(1, 2, 8, dtype=np.float32).reshape(2, 4)}
    monkeypatch.setattr(Device, "fault", staticmethod(without_last("Sin")))
    assert not rnnlower.verify(model, model, on="half", inputs=inputs)
