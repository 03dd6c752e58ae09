"""--dequantize: DynamicQuantizeLSTM as an LSTM with dequantized weights."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save
from support.judge import STRATEGIES, all_nodes, run
from support.quantized_models import QuantizedLstm, draw, lowered_quantized
from support.quantized_oracle import dequantized

from rnnlower.passes import DequantizeRecurrentPass

STATES = ("B", "initial_h", "initial_c")
CASES = {
    "defaults": QuantizedLstm(),
    "per column": QuantizedLstm(per_column=True, direction="bidirectional", optional=(*STATES, "P")),
    "uint8": QuantizedLstm(signed=False, batch=3, lengths=(4, 2, 5), direction="reverse", optional=STATES),
    "opset 11": QuantizedLstm(opset=11, direction="bidirectional"),
    "weights at run time": QuantizedLstm(
        weights_at_run_time=True, per_column=True, direction="bidirectional"
    ),
}


def check_against_oracle(config: QuantizedLstm, strategy: str) -> None:
    result = lowered_quantized(config, strategy, dequantize=True)
    assert not {"DynamicQuantizeLSTM", "LSTM"} & {node.op_type for node in all_nodes(result)}
    expected = dequantized(config.all_attributes, config.values())
    for name, value in run(result, config.feeds()).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5, err_msg=f"{name} of {config}")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_the_result_agrees_with_the_float_operator(config: QuantizedLstm, strategy: str) -> None:
    check_against_oracle(config, strategy)


@pytest.mark.parametrize("seed", range(6))
def test_random_nodes_agree_with_the_float_operator(seed: int) -> None:
    config = draw(np.random.default_rng(100 + seed))
    check_against_oracle(config, STRATEGIES[seed % 3])


def test_the_pass_keeps_the_integers() -> None:
    model = ir.from_proto(QuantizedLstm(per_column=True, direction="bidirectional").build())
    assert DequantizeRecurrentPass()(model).modified
    assert [node.op_type for node in model.graph] == [
        *["DequantizeLinear", "DequantizeLinear", "Concat"] * 2,
        "LSTM",
    ]
    floats = ir.from_proto(QuantizedLstm().build())
    DequantizeRecurrentPass(keep_integers=False)(floats)
    assert [node.op_type for node in floats.graph] == ["LSTM"]
    assert not DequantizeRecurrentPass()(floats).modified


def test_the_file_does_not_grow() -> None:
    config = QuantizedLstm(hidden_size=64, input_size=64, steps=20)
    source = config.build().ByteSize()
    assert lowered_quantized(config, "scan", dequantize=True).ByteSize() < 1.2 * source
    assert lowered_quantized(config, "scan", dequantize=True, opset=11).ByteSize() < 4.5 * source


def test_a_target_without_integers_gets_floats(tmp_path: pathlib.Path) -> None:
    model = save(QuantizedLstm().build(), tmp_path)
    out = tmp_path / "out.onnx"
    command("lower", model, "-o", out, "--target", "primitive", "--dequantize")
    assert "DequantizeLinear" not in {node.op_type for node in all_nodes(onnx.load(out))}
    # What is quantized is not what is not: 8 bits are seen.
    command("verify", model, out, code=1)
    command("verify", model, out, "--dequantize")


def test_only_the_chosen_nodes_are_dequantized(tmp_path: pathlib.Path) -> None:
    """The others stay, and are verified as they are."""
    model = QuantizedLstm().build()
    (first,) = model.graph.node
    second = model.graph.node.add()
    second.CopyFrom(first)
    second.name = "second"
    second.output[:] = [f"{name}_2" if name else "" for name in first.output]
    for output in [*model.graph.output]:
        copy = model.graph.output.add()
        copy.CopyFrom(output)
        copy.name += "_2"
    out = tmp_path / "out.onnx"
    command("scan", save(model, tmp_path), "-o", out, "--dequantize", "--node", "sec*")
    left = {node.name for node in all_nodes(onnx.load(out)) if node.op_type == "DynamicQuantizeLSTM"}
    assert left == {first.name}


def test_a_dequantized_node_can_be_streamed(tmp_path: pathlib.Path) -> None:
    """What rounds all steps of X by one range couples them; the float operator does not."""
    model, out = save(QuantizedLstm().build(), tmp_path), tmp_path / "out.onnx"
    refused = command("stream", model, "-o", out, code=3)
    assert "--dequantize" in refused.stderr
    command("stream", model, "-o", out, "--dequantize", "--strategy", "unroll", "--gates", "separate")
    assert "MatMulInteger" not in {node.op_type for node in all_nodes(onnx.load(out))}
    command("stream", model, "-o", out, "--gates", "separate", code=2)


def test_bench_compares_with_the_dequantized_source(tmp_path: pathlib.Path) -> None:
    model = save(QuantizedLstm().build(), tmp_path)
    result = command("bench", model, "--dequantize", "--runs", "2", "--strategy", "scan", "--json").json
    assert {variant["name"]: variant["status"] for variant in result["variants"]} == {
        "native": "timed",
        "scan": "timed",
    }
