"""`quantize` where values are all 0, almost 0, or unlike those of the recordings."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from long_memory import LongMemory, recordings
from onnx import numpy_helper
from support.judge import run
from support.streamed import model as model_of

import rnnlower
from rnnlower.errors import UnsupportedModelError


def decibels(wanted: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10(np.sum(wanted.astype(float) ** 2) / np.sum((got - wanted.astype(float)) ** 2)))


def set_weight(model: onnx.ModelProto, name: str, scale: float) -> None:
    (weight,) = (each for each in model.graph.initializer if each.name == name)
    array = scale * numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(array.astype(np.float32), name))


def test_recordings_of_one_step_do_not_fix_the_ranges_of_the_state() -> None:
    """A factor that was 0 had a range of a millionth."""
    source = LongMemory("GRU", 16, linear_before_reset=False).build()
    result, report = rnnlower.quantize.with_report(
        source, calibration={"X": recordings(20, 1)}, activations="int16", verify=True
    )
    (warning,) = (str(each) for each in report.warnings if "guess" in str(each))
    assert warning.startswith("node 'first': ")
    assert "'h product'" in warning
    inputs = {"X": recordings(1, 12)[0]}
    assert decibels(run(source, inputs)["Y"], run(result, inputs)["Y"]) > 30
    report = rnnlower.quantize.with_report(source, calibration={"X": recordings(4, 12)})[1]
    assert not report.warnings


def test_results_as_small_as_the_error_of_a_tanh_are_not_blamed_on_quantizers() -> None:
    source = model_of(
        "(float[T, 2, 1] X) => (float[T, 1, 2, 4] Y) { Y, h = RNN <hidden_size = 4> (X, W, R, B) }",
        W=(1, 4, 1),
        R=(1, 4, 4),
        B=(1, 8),
    )
    set_weight(source, "B", 1e-6)
    zeros = [{"X": np.zeros((5, 2, 1), np.float32)}] * 4
    assert rnnlower.quantize.with_report(source, calibration=zeros, verify=True)[1].outputs


def test_a_bias_beyond_32_bits_is_refused() -> None:
    """It was clipped to almost nothing."""
    source, data = LongMemory("LSTM", 8).build(), {"X": recordings(4, 6)}
    set_weight(source, "first.W", 1e-8)
    with pytest.raises(UnsupportedModelError, match=r"node 'first'.*bias of .* does not fit into 32 bits"):
        rnnlower.quantize(source, calibration=data, scheme="tflite")
    assert rnnlower.quantize.with_report(source, calibration=data, verify=True)[1].sqnr is not None


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_node_without_a_hidden_size(op_type: str) -> None:
    """onnxruntime's quantizer, which runs the model if there is more in it, has no kernel for the node."""
    source, data = LongMemory(op_type, 8, layers=2).build(), {"X": recordings(4, 6)}
    for node in source.graph.node:
        kept = [attribute for attribute in node.attribute if attribute.name != "hidden_size"]
        del node.attribute[:]
        node.attribute.extend(kept)
    sqnr = rnnlower.quantize.with_report(source, calibration=data, verify=True)[1].sqnr
    assert sqnr is not None
    assert sqnr > 20
