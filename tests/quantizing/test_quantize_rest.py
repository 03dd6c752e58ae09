"""`quantize`: what is around the recurrence, by onnxruntime's tool."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from long_memory import LongMemory, recordings
from onnx import TensorProto, helper, numpy_helper

import rnnlower
from rnnlower.quantizing import measuring, quantization
from rnnlower.quantizing.measuring import MeasuredOutput


def surrounded(*lines: str, constants: dict[str, np.ndarray], output: str) -> onnx.ModelProto:
    """Two layers of 16 units, with nodes behind whose result is `output`."""
    model = LongMemory("GRU", 16, layers=2).build()
    model.graph.node.extend(map(onnx.parser.parse_node, lines))
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"behind_{number}"
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, ["T", 1, None]))
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("activations", ["int8", "int16", "uint16"])
def test_a_relu_stays_next_to_its_quantizers(activations: str) -> None:
    """A runtime that leaves quantizers out would compute without it."""
    weights = {"w": np.random.default_rng(0).normal(size=(12, 12)).astype(np.float32)}
    lines = ("positive = Relu (scores)", "result = MatMul (positive, w)")
    source = surrounded(*lines, constants=weights, output="result")
    result, report = rnnlower.quantize.with_report(
        source, calibration={"X": recordings(4, 40)}, activations=activations, verify=True
    )
    assert "Relu" in [node.op_type for node in result.graph.node]
    assert report.sqnr > 30


@pytest.mark.parametrize("saturates", [False, True])
def test_a_default_session_that_saturates_is_a_warning(
    saturates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ratio is no fault of the file where the processor has no exact products of uint8 and int8."""
    for module in (measuring, quantization):
        monkeypatch.setattr(module, "products_saturate", lambda: saturates)
    monkeypatch.setattr(quantization, "measure", lambda *_: [MeasuredOutput("scores", 36.7, None, 15.8)])
    _, report = rnnlower.quantize.with_report(
        LongMemory("GRU", 16).build(), calibration={"X": recordings(4, 40)}, verify=True
    )
    assert report.sqnr == (36.7 if saturates else 15.8)
    assert [str(each) for each in report.warnings] == [
        "the model: output 'scores' has 15.8 dB in onnxruntime's default session here; its products of uint8 "
        'and int8 saturate on this processor (x86 without VNNI). For such a processor, activations="int16" '
        "keeps the accuracy"
    ] * saturates


def test_positions_are_not_rounded() -> None:
    """A logarithm of a rounded distance may be infinite, and no index."""
    constants = {
        "zero": np.array(0, np.int64),
        "one": np.array(1, np.int64),
        "factor": np.float32(2.5),
        "table": np.random.default_rng(0).normal(size=(400, 12)).astype(np.float32),
    }
    lines = (
        "sizes = Shape (scores)",
        "steps = Gather (sizes, zero)",
        "end = Add (steps, one)",
        "distance = Range (one, end, one)",
        f"far = Cast <to = {TensorProto.FLOAT}> (distance)",
        "small = Log (far)",
        "bucket = Mul (small, factor)",
        f"index = Cast <to = {TensorProto.INT64}> (bucket)",
        "rows = Gather (table, index)",
        "bias = Unsqueeze (rows, axis)",
        "result = Add (scores, bias)",
    )
    source = surrounded(*lines, constants=constants, output="result")
    result, report = rnnlower.quantize.with_report(
        source, calibration={"X": recordings(4, 40)}, activations="int8", verify=True
    )
    (multiply,) = (node for node in result.graph.node if "bucket" in node.output)
    assert list(multiply.input) == ["small", "factor"]
    assert report.sqnr > 25


_SPLIT = {"halves": np.array([0, 2, 6], np.int64), "whole": np.array([0, 1, 12], np.int64)}
_IN_FLOATS = {
    # It has too few scales for the bias.
    "a transposed convolution in groups": (
        (
            "parts = Reshape (scores, halves)",
            "wide = ConvTranspose <group = 2, pads = [1, 1]> (parts, filters, shifts)",
            "result = Reshape (wide, whole)",
        ),
        {"filters": (2, 2, 3), "shifts": (4,)},
        {**_SPLIT, "whole": np.array([0, 1, 24], np.int64)},
    ),
    # It takes a row of its scales for one number.
    "a norm over several axes": (
        (
            "parts = Reshape (scores, halves)",
            "even = LayerNormalization <axis = -2> (parts, factors, shifts)",
            "result = Reshape (even, whole)",
        ),
        {"factors": (2, 6), "shifts": (2, 6)},
        _SPLIT,
    ),
    # It gives the rows the scales of the product's channels, and the result does not run.
    "an embedding that is tied to a product": (
        (
            "sizes = Shape (scores)",
            "steps = Gather (sizes, zero)",
            "rows = Gather (table, steps)",
            "given = Reshape (scores, flat)",
            "sums = Add (given, rows)",
            "products = Gemm <transB = 1> (sums, table)",
            "result = Reshape (products, whole)",
        ),
        {"table": (400, 12)},
        {
            "zero": np.array([0], np.int64),
            "flat": np.array([-1, 12], np.int64),
            "whole": np.array([-1, 1, 400], np.int64),
        },
    ),
}
"""Nodes on which onnxruntime's tool fails: their lines, the shapes of their weights, and other constants."""


@pytest.mark.parametrize("name", _IN_FLOATS)
def test_what_the_tool_fails_on_stays_in_floats(name: str) -> None:
    lines, shapes, constants = _IN_FLOATS[name]
    rng = np.random.default_rng(0)
    weights = {each: rng.normal(size=shape).astype(np.float32) for each, shape in shapes.items()}
    source = surrounded(*lines, constants=weights | constants, output="result")
    report = rnnlower.quantize.with_report(source, calibration={"X": recordings(4, 40)}, verify=True)[1]
    assert report.sqnr > 25


@pytest.mark.parametrize("line", ["Add (scores, scores)", "Concat <axis = 2> (scores, scores)"])
def test_a_sum_and_joined_values_have_headroom(line: str) -> None:
    source = surrounded(f"result = {line}", constants={}, output="result")
    data = {"X": recordings(8, 40)}
    narrow, wide = (
        rnnlower.quantize(source, calibration=data, activations="int16", headroom=headroom)
        for headroom in (1.0, 2.0)
    )
    assert scale_of_output(wide) == pytest.approx(2 * scale_of_output(narrow))


def scale_of_output(model: onnx.ModelProto) -> float:
    name = model.graph.output[0].name
    (last,) = (node for node in model.graph.node if name in node.output)
    (scale,) = (each for each in model.graph.initializer if each.name == last.input[1])
    return float(numpy_helper.to_array(scale))


def test_a_model_whose_rest_is_a_sum_is_quantized_as_a_whole() -> None:
    source = LongMemory("GRU", 16).build()
    source.graph.node.append(helper.make_node("Add", ["Y", "Y"], ["twice"], name="sum"))
    del source.graph.output[:]
    source.graph.output.append(helper.make_tensor_value_info("twice", TensorProto.FLOAT, ["T", 1, 1, 16]))
    result = rnnlower.quantize(source, calibration={"X": recordings(8, 40)}, activations="int16")
    (sum_,) = (node for node in result.graph.node if node.name == "sum")
    producers = {node.output[0]: node.op_type for node in result.graph.node}
    assert [producers[name] for name in sum_.input] == ["DequantizeLinear"] * 2


def test_an_infinite_result_has_no_signal() -> None:
    noise = measuring.Noise()
    noise.add(np.ones(8, np.float32), np.full(8, np.inf, np.float32), None)
    assert noise.sqnr == -np.inf
