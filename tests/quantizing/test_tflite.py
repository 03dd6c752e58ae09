"""The scheme of TensorFlow Lite, against its arithmetic in integers."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from long_memory import LongMemory, recordings
from onnx import numpy_helper
from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

import rnnlower
from rnnlower.errors import OptionError, UnsupportedModelError


def saturated(values: np.ndarray, bits: int) -> np.ndarray:
    limit = 2 ** (bits - 1)
    return np.clip(np.rint(values), -limit, limit - 1).astype(np.int64)


def integer_lstm(source: onnx.ModelProto, scales: dict[str, dict], X: np.ndarray) -> np.ndarray:
    """Compute Y as unidirectional_sequence_lstm.cc does: ``[steps, units]``, dequantized."""
    W, R, B = (numpy_helper.to_array(each)[0].astype(float) for each in source.graph.initializer)
    units = R.shape[1]
    x_scale, h_scale, c_scale = (scales[role]["scale"] for role in "xhc")
    x_zero, h_zero = (scales[role]["zero_point"] for role in "xh")
    x = saturated(X[:, 0] / x_scale + x_zero, 8) - x_zero
    rows = [slice(index * units, (index + 1) * units) for index in range(4)]
    h, c = np.full(units, h_zero), np.zeros(units, np.int64)
    outputs = []
    for step in x:
        gates = []
        for gate in rows:
            sums = np.zeros(units, np.int64)
            for factor, weight, scale in ((step, W[gate], x_scale), (h - h_zero, R[gate], h_scale)):
                weight_scale = np.abs(weight).max() / 127
                product = np.rint(weight / weight_scale).astype(np.int64) @ factor
                if weight.shape[1] != units:
                    bias = (B.reshape(2, -1).sum(0))[gate]
                    product = product + np.rint(bias / (scale * weight_scale)).astype(np.int64)
                sums = saturated(sums + saturated(product * scale * weight_scale * 2**12, 16), 16)
            gates.append(sums / 2**12)
        i, o, f = (saturated(2**15 / (1 + np.exp(-gate)), 16) for gate in gates[:3])
        g = saturated(2**15 * np.tanh(gates[3]), 16)
        c = saturated(saturated(f * c / 2**15, 16) + saturated(i * g / 2**30 / c_scale, 16), 16)
        h = saturated(o * saturated(2**15 * np.tanh(c * c_scale), 16) / 2**30 / h_scale + h_zero, 8)
        outputs.append((h - h_zero) * h_scale)
    return np.array(outputs)


@pytest.mark.parametrize("strategy", ["scan", "unroll"])
def test_the_result_agrees_with_the_arithmetic_of_the_integer_kernel(strategy: str) -> None:
    source, data = LongMemory("LSTM", 24, 30).build(), recordings(8, 30)
    result, report = rnnlower.quantize.with_report(
        source, calibration={"X": data}, scheme="tflite", strategy=strategy, verify=True
    )
    literal = SessionOptions()
    literal.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    scales = {entry["role"]: entry for entry in report.scales}
    wanted = integer_lstm(source, scales, data[3])
    (got,) = InferenceSession(result.SerializeToString(), literal).run(None, {"X": data[3]})
    steps = np.rint((got[:, 0, 0] - wanted) / scales["h"]["scale"])
    # float32 rounds a few values to the other side.
    assert np.abs(steps).max() <= 1
    assert np.mean(steps != 0) < 0.01
    assert report.sqnr is not None
    assert report.sqnr > 30


def test_types_of_the_integer_kernel() -> None:
    source, data = LongMemory("LSTM", 8).build(), {"X": recordings(4, 20)}
    result, report = rnnlower.quantize.with_report(source, calibration=data, scheme="tflite")
    kinds = {entry["role"]: (entry["type"], entry["scale"]) for entry in report.scales}
    assert (kinds["x"][0], kinds["h"][0], kinds["c"][0]) == ("int8", "int8", "int16")
    assert kinds["h factor"] == kinds["h"]
    assert kinds["f*c"] == kinds["i*c~"] == kinds["c"]
    assert np.log2(kinds["c"][1]).is_integer()
    assert {kinds[role] for role in ("sum i", "h product", "x sum c")} == {("int16", 2**-12)}
    assert {kinds[role] for role in ("f Sigmoid", "g Tanh", "h Tanh")} == {("int16", 2**-15)}
    biases = [each for each in result.graph.initializer if each.data_type == onnx.TensorProto.INT32]
    assert len(biases) == 4


def test_peepholes_a_coupled_gate_and_two_directions() -> None:
    source = LongMemory("LSTM", 16, direction="bidirectional").build()
    node = source.graph.node[0]
    peepholes = np.random.default_rng(0).uniform(-0.3, 0.3, (2, 48)).astype(np.float32)
    source.graph.initializer.append(numpy_helper.from_array(peepholes, "P"))
    node.input.extend(["", "", "", "P"])
    node.attribute.append(onnx.helper.make_attribute("input_forget", 1))
    data = {"X": recordings(8, 30)}
    report = rnnlower.quantize.with_report(source, calibration=data, scheme="tflite", verify=True)[1]
    assert report.sqnr is not None
    assert report.sqnr > 30


@pytest.mark.parametrize("op_type", ["GRU", "RNN"])
def test_other_cells_are_refused(op_type: str) -> None:
    with pytest.raises(
        UnsupportedModelError, match=f"{op_type} node 'first': .*has no {op_type} in integers"
    ):
        rnnlower.quantize(
            LongMemory(op_type, 4).build(), calibration={"X": recordings(2, 3)}, scheme="tflite"
        )


@pytest.mark.parametrize(
    ("attribute", "value"), [("activations", ["Sigmoid", "Relu", "Tanh"]), ("clip", 3.0)]
)
def test_attributes_that_the_kernel_lacks_are_refused(attribute: str, value: object) -> None:
    source = LongMemory("LSTM", 4).build()
    source.graph.node[0].attribute.append(onnx.helper.make_attribute(attribute, value))
    with pytest.raises(UnsupportedModelError, match=f"node 'first': attribute {attribute}"):
        rnnlower.quantize(source, calibration={"X": recordings(2, 3)}, scheme="tflite")


def test_an_activation_type_is_refused_with_the_tflite_scheme() -> None:
    with pytest.raises(OptionError, match="integers of its own"):
        rnnlower.quantize(
            LongMemory("LSTM", 4).build(),
            calibration={"X": recordings(2, 3)},
            scheme="tflite",
            activations="int16",
        )
