"""`rnnlower stream`."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper
from support.cli_helpers import rnnlower, save
from support.configs import Config
from support.judge import recurrent_left
from support.places import MODELS

DENOISER = MODELS / "denoiser_gru.onnx"
STATES = {"gru_0_h_out": "gru_0_h_in", "gru_1_h_out": "gru_1_h_in"}


def test_a_model_becomes_a_step_model_with_states(tmp_path: Path) -> None:
    out = tmp_path / "step.onnx"
    result = rnnlower("stream", DENOISER, "-o", out, "--json").json
    assert result["states"] == STATES
    assert (result["chunk"], result["delay"]) == (1, 0)
    assert result["inputs"] == {"spectrum": 1}
    assert result["outputs"] == {"mask": 1}
    assert result["lowering"] is None
    assert result["verification"]["equal"]
    assert result["output"] == str(out)
    model = onnx.load(out)
    assert [value.name for value in model.graph.input] == ["spectrum", *STATES.values()]
    assert [value.name for value in model.graph.output] == ["mask", *STATES]


def test_the_tables_list_the_states(tmp_path: Path) -> None:
    said = rnnlower("stream", DENOISER, "-o", tmp_path / "step.onnx", "--chunk", "5", "--trials", "1").stdout
    assert "gru_0_h_out" in said
    assert "5 time steps a call: spectrum on axis 1, mask on axis 1" in said


def test_a_step_model_is_told_to_be_one(tmp_path: Path) -> None:
    config = Config(op_type="GRU", seq_length=1, initial_h="input", Y_h="graph")
    step = save(config.build(), tmp_path)
    run = rnnlower("stream", step, "-o", tmp_path / "out.onnx", "--state", "Y_h=initial_h")
    assert "the model takes one step per call already" in run.stderr
    assert "1 time step a call" in run.stdout.splitlines()


def test_recurrent_nodes_are_lowered_as_well(tmp_path: Path) -> None:
    out = tmp_path / "step.onnx"
    options = ("--trials", "1", "--on", "none")
    rnnlower("stream", DENOISER, "-o", out, "--strategy", "unroll", "--chunk", "2", "--trials", "1")
    assert not recurrent_left(onnx.load(out))
    rnnlower("stream", DENOISER, "-o", out, "--target", "tinygrad", *options)
    assert not recurrent_left(onnx.load(out))
    rnnlower("verify", DENOISER, out, "--trials", "1")


def test_a_lost_state_makes_the_verification_fail(tmp_path: Path) -> None:
    """A result that forgets is not equal, and the first value that shows it is named."""
    out, forgetful = tmp_path / "step.onnx", tmp_path / "forgetful.onnx"
    rnnlower("stream", DENOISER, "-o", out, "--trials", "1")
    model = onnx.load(out)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "gru_1_h_in":
                node.input[index] = "zeros"
    zeros = helper.make_tensor("zeros", onnx.TensorProto.FLOAT, [1, 1, 12], [0.0] * 12)
    model.graph.initializer.append(zeros)
    onnx.save(model, forgetful)
    result = rnnlower("verify", DENOISER, forgetful, "--trials", "2", "--json", code=1).json
    assert not result["equal"]
    assert result["outputs"][0]["worst_step"]
    assert "gru_1" in result["first_difference"]


def test_a_model_that_couples_time_steps_is_refused_and_not_written(tmp_path: Path) -> None:
    out = tmp_path / "step.onnx"
    run = rnnlower("stream", MODELS / "gru_two_layers_dynamic.onnx", "-o", out, "--json", code=3)
    assert run.json["error"]["kind"] == "UnsupportedModelError"
    assert "it begins with the last step" in run.json["error"]["message"]
    assert not out.exists()


def test_states_share_the_nameless_batch_of_the_input(tmp_path: Path) -> None:
    # Without hidden_size onnxruntime runs neither model, and the evaluator that does checks every size.
    config = Config(op_type="RNN", opset=7, hidden_size_given=False, Y_h="graph", x_dims="unknown")
    rnnlower("stream", save(config.build(), tmp_path), "-o", tmp_path / "stream.onnx")
    inputs = {value.name: value for value in onnx.load(tmp_path / "stream.onnx").graph.input}
    batches = {name: value.type.tensor_type.shape.dim[1].dim_param for name, value in inputs.items()}
    assert len(batches) == 2
    assert set(batches.values()) == {"X_dim_1"}
