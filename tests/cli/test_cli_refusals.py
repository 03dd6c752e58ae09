"""Refusals of the command line: exit code 3 and the node's name, before anything is written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.cli_helpers import rnnlower, save
from support.forking import python
from support.judge import STRATEGIES
from support.small_models import FORMALS, info, model_of, recurrent_model, weights

Spoil = Callable[[onnx.ModelProto], None]


def refused(path: Path, *words: str, strategy: str = "scan", options: tuple[str, ...] = ()) -> None:
    """Lower the file, which must end with code 3 and a message with these words, and leave nothing behind."""
    before = sorted(path.parent.iterdir())
    run = rnnlower(strategy, path, "-o", path.parent / "out.onnx", *options, code=3)
    assert run.stdout == ""
    assert len(run.stderr.strip().splitlines()) == 1
    for word in words:
        assert word.lower() in run.stderr.lower()
    assert sorted(path.parent.iterdir()) == before


def cell_with(op_type: str, **attributes: object) -> onnx.ModelProto:
    inputs = {"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    constants = weights(op_type, directions=directions)
    return recurrent_model(op_type, constants=constants, inputs=inputs, opset=14, **attributes)


_ATTRIBUTES = {
    "unknown": (
        "LSTM",
        {"color": 1},
        "'color'; LSTM-14 has activation_alpha, activation_beta, activations, "
        "clip, direction, hidden_size, input_forget, layout\n",
    ),
    "of_another_operator": ("LSTM", {"linear_before_reset": 1}, "'linear_before_reset'"),
    "of_an_older_version": ("GRU", {"output_sequence": 1}, "'output_sequence'"),
    "of_another_type": ("LSTM", {"clip": "high"}, "'clip'"),
    "unknown_activation": ("LSTM", {"activations": ["Sigmoid", "Swish", "Tanh"]}, "'Swish'"),
    "rnn_minds_the_case": ("RNN", {"activations": ["tanh"]}, "'tanh'"),
    "too_few_activations": ("LSTM", {"activations": ["Sigmoid", "Tanh"]}, "it must have 3"),
    "too_many_activations": ("GRU", {"activations": ["Sigmoid", "Tanh", "Tanh"]}, "it must have 2"),
    "activations_of_one_direction": (
        "LSTM",
        {"direction": "bidirectional", "activations": ["Sigmoid", "Tanh", "Tanh"]},
        "it must have 6",
    ),
    "clip_0_lstm": ("LSTM", {"clip": 0.0}, "attribute clip is 0.0"),
    "clip_0_gru": ("GRU", {"clip": 0.0}, "attribute clip is 0.0"),
    "clip_negative": ("LSTM", {"clip": -1.0}, "attribute clip is -1.0"),
    "direction": ("LSTM", {"direction": "sideways"}, "'sideways'"),
    "foward_is_gru_1_only": ("GRU", {"direction": "foward"}, "'foward'"),
    "layout": ("LSTM", {"layout": 2}, "layout is 2"),
    "hidden_size": ("LSTM", {"hidden_size": 5}, "hidden_size 5"),
    "hidden_size_0": ("LSTM", {"hidden_size": 0}, "hidden_size is 0"),
}


@pytest.mark.parametrize(("op_type", "attributes", "word"), _ATTRIBUTES.values(), ids=_ATTRIBUTES)
def test_an_attribute_that_is_not_supported_is_refused(
    op_type: str, attributes: dict[str, object], word: str, tmp_path: Path
) -> None:
    path = save(cell_with(op_type, **attributes), tmp_path)
    refused(path, f"{op_type} node 'cell'", word)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_refuses(strategy: str, tmp_path: Path) -> None:
    refused(save(cell_with("LSTM", color=1), tmp_path), "'color'", strategy=strategy)


_SHAPES = {
    "W_rows": {"W": (1, 15, 3)},
    "W_directions": {"W": (2, 16, 3)},
    "W_features": {"W": (1, 16, 2)},
    "W_rank": {"W": (16, 3)},
    "R_rows": {"R": (1, 12, 4)},
    "R_columns": {"R": (1, 16, 3)},
    "B": {"B": (1, 16)},
    "B_rank": {"B": (32,)},
    "P": {"P": (1, 8)},
    "sequence_lens": {"sequence_lens": (3,)},
    "initial_h_batch": {"initial_h": (1, 3, 4)},
    "initial_h_directions": {"initial_h": (2, 2, 4)},
    "initial_c_width": {"initial_c": (1, 2, 5)},
}


@pytest.mark.parametrize("shapes", _SHAPES.values(), ids=_SHAPES)
def test_a_constant_of_a_wrong_shape_is_refused(shapes: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    constants = weights("LSTM")
    for name, shape in shapes.items():
        constants[name] = np.zeros(shape, np.int32 if name == "sequence_lens" else np.float32)
    inputs = {"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}
    (name,) = shapes
    said = "W takes 2" if name == "W" and shapes[name][-1] == 2 else f"input {name} "
    refused(save(recurrent_model(constants=constants, inputs=inputs), tmp_path), "LSTM node 'cell'", said)


@pytest.mark.parametrize(
    ("steps", "lengths", "said"),
    [
        (5, [9, 2], "sequence_lens has 9; lengths go from 0 to 5, the time steps of X"),
        (5, [5, -1], "sequence_lens has -1"),
        ("T", [5, -1], "sequence_lens has -1; lengths go from 0\n"),
    ],
)
def test_sequence_lens_outside_of_the_sequence_are_refused(
    steps: int | str, lengths: list[int], said: str, tmp_path: Path
) -> None:
    constants = weights("LSTM") | {"sequence_lens": np.array(lengths, np.int32)}
    inputs = {"X": (onnx.TensorProto.FLOAT, [steps, 2, 3])}
    path = save(recurrent_model(constants=constants, inputs=inputs), tmp_path)
    refused(path, "LSTM node 'cell'", said, strategy="scan")


@pytest.mark.parametrize("name", ["X", "W", "R"])
@pytest.mark.parametrize("end", [False, True], ids=["empty", "cut"])
def test_missing_input(name: str, end: bool, tmp_path: Path) -> None:
    model = cell_with("LSTM")
    inputs = model.graph.node[0].input
    index = FORMALS.index(name)
    if end:
        del inputs[index:]
    else:
        inputs[index] = ""
    refused(
        save(model, tmp_path), "LSTM node 'cell'", f"input {name} is missing" if not end else "is missing"
    )


def _bfloat16_at_14(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        tensor.data_type, tensor.raw_data = (
            onnx.TensorProto.BFLOAT16,
            tensor.raw_data[: len(tensor.raw_data) // 2],
        )
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.BFLOAT16


def _uint8(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8


def _mixed(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (
            _bfloat16_at_14,
            "BFLOAT16, which LSTM-14 lacks; cast to float32, or change the model's opset: LSTM",
        ),
        (_uint8, "UINT8, which LSTM-14 lacks; it takes FLOAT16, FLOAT, DOUBLE"),
        (_mixed, "inputs differ in type"),
    ],
    ids=["bf16", "uint8", "mixed"],
)
def test_a_tensor_of_a_wrong_type_is_refused(spoil: Spoil, word: str, tmp_path: Path) -> None:
    model = cell_with("LSTM")
    spoil(model)
    refused(save(model, tmp_path), "LSTM node 'cell'", word)


def test_too_many_inputs_and_outputs(tmp_path: Path) -> None:
    model = cell_with("GRU")
    model.graph.node[0].output.append("Y_c")
    refused(save(model, tmp_path), "has 3 outputs")
    model = cell_with("GRU")
    model.graph.node[0].input.extend(["", "", "X"])
    refused(save(model, tmp_path), "has 7 inputs")


def _reads_nothing(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[3] = "nowhere"


def _gives_nothing(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def _branch_reads_nothing(model: onnx.ModelProto) -> None:
    result = info("result", onnx.TensorProto.FLOAT, None)
    branches = {
        name: helper.make_graph([helper.make_node("Neg", [read], ["result"])], name, [], [result])
        for name, read in (("then_branch", "X"), ("else_branch", "nowhere"))
    }
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "condition"))
    model.graph.node.append(helper.make_node("If", ["condition"], ["taken"], **branches))


def _twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Neg", ["X"], ["nowhere"]))
    model.graph.node.append(helper.make_node("Abs", ["X"], ["nowhere"]))


def _circle(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Neg", ["nowhere_else"], ["nowhere"]))
    model.graph.node.append(helper.make_node("Abs", ["nowhere"], ["nowhere_else"]))


@pytest.mark.parametrize("spoil", [_reads_nothing, _gives_nothing, _branch_reads_nothing, _twice, _circle])
def test_missing_or_repeated_value_names_and_cycles_are_refused(spoil: Spoil, tmp_path: Path) -> None:
    model = cell_with("LSTM")
    spoil(model)
    word = "cycle" if spoil is _circle else "'nowhere'"
    refused(save(model, tmp_path), "model.onnx", word)


def test_the_command_prints_one_line_of_error(tmp_path: Path) -> None:
    model = cell_with("LSTM")
    _reads_nothing(model)
    paths = [str(save(model, tmp_path)), "-o", str(tmp_path / "out.onnx")]
    command = [python(), "-m", "rnnlower", "scan", *paths]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 3
    assert run.stdout == ""
    assert run.stderr.startswith("rnnlower: error: ")
    assert run.stderr.count("\n") == 1


def _random_bytes(model: bytes) -> bytes:
    return np.random.default_rng(0).bytes(len(model))


@pytest.mark.parametrize("strategy", [*STRATEGIES, "convert"])
@pytest.mark.parametrize(
    "spoil",
    [
        _random_bytes,
        lambda model: model[:-40],
        lambda model: model[:10],
        lambda _: b"",
        lambda _: b"no model\n",
    ],
    ids=["random", "truncated", "beginning", "empty", "text"],
)
def test_a_file_that_is_no_model_is_refused(
    spoil: Callable[[bytes], bytes], strategy: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(spoil(cell_with("LSTM").SerializeToString()))
    refused(path, "model.onnx", strategy=strategy, options=("--opset", "17"))


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_other_commands_refuse_too(command: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model\n")
    run = rnnlower(command, path, *[path] * (command == "verify"), code=3)
    assert "model.onnx" in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize("command", [*STRATEGIES, "inspect", "verify", "convert"])
def test_missing_file_and_folder(command: str, tmp_path: Path) -> None:
    for path in (tmp_path / "absent.onnx", tmp_path):
        arguments: list[object] = [path]
        if command == "verify":
            arguments += [path]
        elif command != "inspect":
            arguments += ["-o", tmp_path / "out.onnx", "--opset", 17]
        assert path.name in rnnlower(command, *arguments, code=3).stderr


def test_initializer_with_too_few_bytes(tmp_path: Path) -> None:
    model = cell_with("LSTM")
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "B")
    tensor.raw_data = tensor.raw_data[:-4]
    refused(save(model, tmp_path), "'B'", "124 bytes")


def test_initializer_without_type(tmp_path: Path) -> None:
    model = cell_with("LSTM")
    model.graph.initializer[0].data_type = onnx.TensorProto.UNDEFINED
    refused(save(model, tmp_path), "'W' has no known element type")


@pytest.mark.parametrize("strategy", ["scan", "convert"])
def test_constant_whose_numbers_are_of_another_type(strategy: str, tmp_path: Path) -> None:
    model = cell_with("LSTM")
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.DOUBLE, dims=[1], uint64_data=[1])
    model.graph.node.append(helper.make_node("Constant", [], ["c"], name="odd", value=tensor))
    refused(save(model, tmp_path), "Constant node 'odd'", strategy=strategy, options=("--opset", "17"))


@pytest.mark.parametrize("strategy", ["scan", "convert"])
@pytest.mark.parametrize("text", [b"Oddly", b"doubt", b"oddest"], ids=["op_type", "doc_string", "value"])
def test_text_that_is_no_utf_8(text: bytes, strategy: str, tmp_path: Path) -> None:
    model = cell_with("LSTM")
    model.graph.node.add(op_type="Oddly", domain="custom", input=["X"], output=["oddest"], doc_string="doubt")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(text, b"\xe6" + text[1:]))
    refused(path, "utf-8", strategy=strategy, options=("--opset", "17"))


@pytest.mark.parametrize("opset", [29, 99])
def test_future_opset(opset: int, tmp_path: Path) -> None:
    model = cell_with("LSTM")
    model.opset_import[0].version = opset
    refused(save(model, tmp_path), f"opset {opset}", "--opset 28")


def test_function_attribute_that_no_call_sets(tmp_path: Path) -> None:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"])
    node.attribute.add(name="hidden_size", ref_attr_name="hidden", type=onnx.AttributeProto.INT)
    node.attribute.add(name="clip", ref_attr_name="bound", type=onnx.AttributeProto.FLOAT)
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        "local", "Cell", ["x", "w", "r"], ["y"], [node], opsets, ["hidden", "bound"]
    )
    call = helper.make_node("Cell", ["X", "W", "R"], ["Y"], domain="local", hidden=5)
    constants = weights("LSTM")
    del constants["B"]
    model = model_of(
        [call],
        [info("X", onnx.TensorProto.FLOAT, [5, 2, 3])],
        [info("Y", onnx.TensorProto.FLOAT, None)],
        constants,
        functions=[function],
        extra_domains=["local"],
    )
    refused(save(model, tmp_path), "hidden_size 5")


def test_no_remedy_is_named_that_would_not_help(tmp_path: Path) -> None:
    """What shape X gets comes at run time: no shape of an input says it."""
    model = recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, [None])})
    model.graph.input.append(helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, [3]))
    model.graph.node[0].input[0] = "shaped"
    model.graph.node.insert(0, helper.make_node("Reshape", ["X", "sizes"], ["shaped"]))
    said = rnnlower("unroll", save(model, tmp_path), "-o", tmp_path / "out.onnx", code=3).stderr
    assert "--input-shape" not in said
    assert "rnnlower scan" in said


def test_every_remedy_for_an_unknown_rank_helps(tmp_path: Path) -> None:
    model = cell_with("LSTM")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    path, out = save(model, tmp_path), tmp_path / "out.onnx"
    np.savez(tmp_path / "given.npz", X=np.ones((5, 2, 3), np.float32))
    remedies = {
        "--inputs": ("--inputs", tmp_path / "given.npz"),
        "--no-verify": ("--no-verify",),
        "--input-shape X:2,3,4": ("--input-shape", "X:5,2,3"),
    }
    for command in (("scan", path), ("loop", path), ("convert", path, "--opset", 15)):
        said = rnnlower(*command, "-o", out, code=4).stderr
        assert "input 'X' has no known rank" in said
        for remedy, options in remedies.items():
            assert remedy in said
            if command[0] != "convert" or remedy != "--input-shape X:2,3,4":
                rnnlower(*command, "-o", out, *options)
