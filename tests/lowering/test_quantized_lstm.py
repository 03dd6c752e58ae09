"""com.microsoft.DynamicQuantizeLSTM, exactly, in integer products around the float cell."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import onnx
import pytest
from support.cli_helpers import rnnlower as rnnlower_command
from support.cli_helpers import save
from support.judge import STRATEGIES, interface
from support.quantized_models import QuantizedLstm, draw, lowered_quantized, run_single
from support.quantized_oracle import exact

import rnnlower

STATES = ("B", "initial_h", "initial_c")
CASES = {
    "defaults": QuantizedLstm(),
    "uint8": QuantizedLstm(signed=False, optional=STATES),
    "per column": QuantizedLstm(per_column=True, direction="bidirectional", optional=STATES),
    "uint8 per column": QuantizedLstm(signed=False, per_column=True, direction="bidirectional"),
    "one step": QuantizedLstm(steps=1, input_size=1, optional=()),
    "coupled": QuantizedLstm(attributes={"input_forget": 1, "clip": 0.3}, optional=STATES),
    "batch": QuantizedLstm(batch=3, optional=STATES),
    "lengths": QuantizedLstm(batch=3, lengths=(4, 2, 0), direction="bidirectional", optional=STATES),
    "lengths without Y": QuantizedLstm(batch=3, lengths=(5, 2, 3), optional=STATES, outputs=("Y_h",)),
    "dynamic": QuantizedLstm(
        steps=50, batch=2, lengths=(50, 7), direction="reverse", dynamic=True, hidden_size=64
    ),
    "weights at run time": QuantizedLstm(weights_at_run_time=True, direction="bidirectional"),
}
TOLERANCE = 2e-6
"""For sums in another order; a value that is then rounded to another step of 8 bits is off by far more."""


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_result_is_bit_identical_to_the_kernel(config: QuantizedLstm, strategy: str) -> None:
    result = lowered_quantized(config, strategy)
    expected = run_single(config.build(), config.feeds())
    found = run_single(result, config.feeds())
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    if strategy != "unroll":
        assert interface(result) == interface(config.build())


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_oracle_agrees_with_the_kernel(config: QuantizedLstm) -> None:
    config = dataclasses.replace(config, bits=7 if config.signed else 8)
    expected = run_single(config.build(), config.feeds())
    found = exact(config.all_attributes, config.values(), config.outputs)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize("seed", range(12))
def test_random_nodes_agree_with_the_kernel(seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = draw(rng)
    expected = run_single(config.build(), config.feeds())
    found = run_single(lowered_quantized(config, STRATEGIES[seed % 3]), config.feeds())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=TOLERANCE, err_msg=f"{name} of {config}")


def test_peepholes_differ_by_the_order_of_three_summands() -> None:
    config = QuantizedLstm(optional=("B", "P"), steps=1)
    expected = run_single(config.build(), config.feeds())
    for name, value in run_single(lowered_quantized(config, "scan"), config.feeds()).items():
        np.testing.assert_allclose(value, expected[name], atol=TOLERANCE)


def test_several_steps_in_an_iteration() -> None:
    config = QuantizedLstm(steps=7, batch=2, lengths=(7, 3), direction="bidirectional", dynamic=True)
    expected = run_single(config.build(), config.feeds())
    found = run_single(lowered_quantized(config, "scan", unroll_factor=3), config.feeds())
    np.testing.assert_array_equal(found["Y"], expected["Y"])


def test_integers_stay_integers() -> None:
    config = QuantizedLstm(hidden_size=64, input_size=64, steps=20)
    result = rnnlower.scan(config.build())
    assert result.ByteSize() < 1.15 * config.build().ByteSize()


def test_the_second_of_two_layers_knows_its_length() -> None:
    config = QuantizedLstm(steps=4, input_size=8)
    model = config.build()
    second = onnx.NodeProto()
    second.CopyFrom(model.graph.node[0])
    second.name, second.input[0] = "second", "x"
    del second.output[:]
    second.output.append("Z")
    axis = onnx.numpy_helper.from_array(np.array([1]), "axis")
    model.graph.initializer.append(axis)
    model.graph.node.append(onnx.helper.make_node("Squeeze", ["Y", "axis"], ["x"]))
    model.graph.node.append(second)
    model.graph.output.append(onnx.helper.make_tensor_value_info("Z", onnx.TensorProto.FLOAT, [4, 1, 1, 8]))
    del model.graph.value_info[:]
    result = rnnlower.unroll(model)
    expected = run_single(model, config.feeds())
    np.testing.assert_array_equal(run_single(result, config.feeds())["Z"], expected["Z"])


def test_inspect_shows_the_domain() -> None:
    (node,) = rnnlower.inspect(QuantizedLstm(direction="bidirectional").build())
    assert (node.domain, node.op_type, node.direction) == (
        "com.microsoft",
        "DynamicQuantizeLSTM",
        "bidirectional",
    )
    assert (node.input_size, node.hidden_size, node.seq_len, node.dtype) == (6, 8, 5, "float32")
    assert node.inputs[-1] == "R_zero_point"


@pytest.mark.parametrize("opset", [13, 21])
def test_convert_keeps_the_node(opset: int) -> None:
    config = QuantizedLstm()
    converted = rnnlower.convert(config.build(), opset=opset)
    assert isinstance(converted, onnx.ModelProto)
    assert [node.op_type for node in converted.graph.node] == ["DynamicQuantizeLSTM"]
    np.testing.assert_array_equal(
        run_single(converted, config.feeds())["Y"], run_single(config.build(), config.feeds())["Y"]
    )


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("W_scale", np.ones(2, np.float32), "input W_scale has shape"),
        ("W", np.zeros((1, 6, 32), np.float32), "input W has type FLOAT; it must be INT8 or UINT8"),
        ("R_zero_point", np.zeros(1, np.uint8), "inputs R and R_zero_point differ in type"),
        ("W_zero_point", np.full((1, 32), 3, np.int8), "input W_zero_point has a number for each column"),
    ],
)
def test_what_the_kernel_refuses_is_refused(name: str, array: np.ndarray, words: str) -> None:
    model = QuantizedLstm().build()
    kept = [tensor for tensor in model.graph.initializer if tensor.name != name]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, onnx.numpy_helper.from_array(array, name)])
    with pytest.raises(rnnlower.InvalidModelError, match=words.replace("[", r"\[")):
        rnnlower.scan(model)


@pytest.mark.parametrize("strategy", ["scan", "loop"])
def test_the_command_verifies_the_result(tmp_path: pathlib.Path, strategy: str) -> None:
    config = QuantizedLstm(batch=2, lengths=(5, 2), direction="bidirectional", dynamic=True, optional=STATES)
    onnx.save(config.build(), tmp_path / "model.onnx")
    run = rnnlower_command(strategy, tmp_path / "model.onnx", "-o", tmp_path / "out.onnx", "--json")
    assert run.json["verification"]["equal"]
    assert [output["max_abs"] for output in run.json["verification"]["outputs"]] == [0, 0, 0]
    assert run.json["nodes"][0]["op_type"] == "DynamicQuantizeLSTM"


def test_a_target_keeps_it_or_lacks_integer_products(tmp_path: pathlib.Path) -> None:
    model = save(QuantizedLstm().build(), tmp_path)
    kept = rnnlower_command("lower", model, "-o", tmp_path / "out.onnx", "--target", "onnxruntime", "--json")
    assert [node["op_type"] for node in kept.json["kept"]] == ["DynamicQuantizeLSTM"]
    lacking = rnnlower_command("lower", model, "-o", tmp_path / "no.onnx", "--target", "primitive", code=3)
    assert "integer arithmetic needs DynamicQuantizeLinear, which target primitive lacks" in lacking.stderr
    assert "--dequantize" in lacking.stderr
