"""`rnnlower targets`, `check` and `lower`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from support.cli_helpers import rnnlower, save
from support.configs import Config
from support.judge import all_nodes, recurrent_left
from support.places import MODELS
from support.small_models import recurrent_model
from support.target_files import MINIMAL, write

from rnnlower.targets import find_target, target_names
from rnnlower.targets.fit import Misfit


def test_targets_lists_every_target_with_its_opsets() -> None:
    table = rnnlower("targets").stdout
    listed = {row["name"]: row for row in rnnlower("targets", "--json").json["targets"]}
    assert set(listed) == set(target_names())
    for name in target_names():
        assert f"\n{name} " in table
        assert listed[name]["opset"]["range"] == list(find_target(name).opset.range)


def test_verbose_check_lists_the_targets_that_have_an_operator(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> m (float[2] x) => (float[2] y) { y = Round (x) }'
    line = ("check", save(onnx.parser.parse_model(text), tmp_path), "--target", "axera")
    (misfit,) = rnnlower(*line, "--json", code=1).json["misfits"]
    listed = f"Round: {', '.join(misfit['alternatives'])} have it"
    assert listed in rnnlower(*line, "-v", code=1).stdout
    assert listed not in rnnlower(*line, code=1).stdout


def test_check_fails_before_the_lowering_and_passes_after_it(tmp_path: Path) -> None:
    model, out = MODELS / "lstm14_peephole.onnx", tmp_path / "out.onnx"
    before = rnnlower("check", model, "--target", "openvino", code=1)
    assert "openvino gets LSTM with input P silently wrong" in before.stdout
    assert "rnnlower lower --target openvino" in before.stdout
    rnnlower("lower", model, "-o", out, "--target", "openvino")
    assert "every node fits target openvino" in rnnlower("check", out, "--target", "openvino").stdout


def test_check_counts_adapted_nodes(tmp_path: Path) -> None:
    path = save(Config(op_type="GRU", opset=14, linear_before_reset=1, seq_length=50).build(), tmp_path)
    line = ("check", path, "--target", "opencv")
    after = rnnlower(*line, "--json", code=1).json["after_lower"]
    assert (len(after["lowered"]), len(after["adapted"]), len(after["kept"])) == (0, 1, 0)
    assert "lowers 0 recurrent nodes, adapts 1 and keeps 0" in rnnlower(*line, code=1).stderr


def test_check_names_a_target_file_as_it_was_given(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL)
    run = rnnlower("check", MODELS / "lstm14_peephole.onnx", "--target", path, code=1)
    assert f"rnnlower lower --target {path}" in run.stderr


def test_check_json_marks_guesses(tmp_path: Path) -> None:
    path = save(Config(opset=14, dtype="float16").build(), tmp_path)
    result = rnnlower("check", path, "--target", "onnx2c", "--json", code=1).json
    assert result["target"] == "onnx2c"
    assert result["fits"] is False
    (misfit,) = result["misfits"]
    assert set(misfit) == {field.name for field in dataclasses.fields(Misfit)}
    assert {guess["claim"] for guess in result["guesses"]} >= {"opset", "dtypes"}
    table = rnnlower("check", path, "--target", "onnx2c", code=1).stdout
    assert "a guess about onnx2c: opset" in table


def test_check_names_nodes_in_subgraphs(tmp_path: Path) -> None:
    run = rnnlower(
        "check", MODELS / "lstm13_in_if_in_if_captured.onnx", "--target", "tvm-relax", "--json", code=1
    )
    reasons = {(misfit["path"], misfit["op_type"]): misfit["reason"] for misfit in run.json["misfits"]}
    assert ("", "If") in reasons
    (path,) = (path for path, op_type in reasons if op_type == "LSTM")
    assert path.count("then_branch") + path.count("else_branch") == 2


def test_lower_gives_the_reason_for_each_node(out: Path) -> None:
    run = rnnlower("lower", MODELS / "lstm14_layout1.onnx", "-o", out, "--target", "onnxruntime")
    assert "LSTM LSTM_0: " in run.stdout
    result = rnnlower(
        "lower", MODELS / "lstm14_layout1.onnx", "-o", out, "--target", "onnxruntime", "--json"
    ).json
    assert result["target"] == "onnxruntime"
    assert result["nodes"][0]["reason"]
    assert result["kept"] == []
    kept = rnnlower("lower", MODELS / "lstm14_defaults.onnx", "-o", out, "--target", "onnxruntime", "--json")
    assert kept.json["nodes"] == []
    assert kept.json["kept"][0]["name"] == "LSTM_0"
    assert recurrent_left(onnx.load(out)) == ["LSTM"]


@pytest.mark.parametrize("name", sorted(set(target_names()) - {"sonnx"}))
def test_a_model_lowered_for_a_target_passes_its_check(out: Path, name: str) -> None:
    rnnlower("lower", MODELS / "lstm14_clip.onnx", "-o", out, "--target", name, "--trials", "1")
    lowered = onnx.load(out)
    first, last = find_target(name).opset.range
    assert first <= lowered.opset_import[0].version <= last
    rnnlower("check", out, "--target", name)


def test_opset_outside_of_the_range_is_wrong_usage(tmp_path: Path) -> None:
    run = rnnlower(
        *("lower", MODELS / "lstm14_defaults.onnx", "-o", tmp_path / "out.onnx"),
        *("--target", "onnx2torch", "--opset", "18"),
        code=2,
    )
    assert "the opset is 18; target onnx2torch takes 10 to 17" in run.stderr


def test_a_newer_model_is_brought_down(tmp_path: Path) -> None:
    path, out = save(Config(opset=22).build(), tmp_path), tmp_path / "out.onnx"
    rnnlower("lower", path, "-o", out, "--target", "onnx2torch")
    assert onnx.load(out).opset_import[0].version == 17


def test_an_unknown_target_is_wrong_usage(tmp_path: Path) -> None:
    for command in (["check"], ["lower", "-o", tmp_path / "out.onnx"]):
        run = rnnlower(*command, MODELS / "lstm14_defaults.onnx", "--target", "nonesuch", code=2)
        assert "there is no target 'nonesuch'" in run.stderr


def test_an_unknown_size_asks_for_dim(out: Path) -> None:
    model = MODELS / "lstm14_dynamic.onnx"
    run = rnnlower("lower", model, "-o", out, "--target", "tinygrad", code=3)
    assert "takes static shapes only" in run.stderr
    assert "--dim" in run.stderr
    assert not out.exists()


def test_an_unnamed_size_asks_for_input_shape(tmp_path: Path) -> None:
    path = save(recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, ["?", "?", 3])}), tmp_path)
    run = rnnlower("lower", path, "-o", tmp_path / "out.onnx", "--target", "tinygrad", code=3)
    assert "--input-shape X:N,N,3" in run.stderr


def around_an_odd_op(folder: Path) -> Path:
    """Return an LSTM behind an operator that few targets have."""
    model = Config(opset=14).build()
    model.graph.node.insert(0, helper.make_node("Round", ["raw"], ["X"], name="rounding"))
    x = model.graph.input[0]
    shape = [dim.dim_value for dim in x.type.tensor_type.shape.dim]
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("raw", TensorProto.FLOAT, shape))
    return save(model, folder)


def test_the_rest_of_the_model_is_a_warning_or_with_strict_an_error(tmp_path: Path) -> None:
    path, out = around_an_odd_op(tmp_path), tmp_path / "out.onnx"
    strict = rnnlower("lower", path, "-o", out, "--target", "primitive", "--strict", code=3)
    assert "Round 'rounding': primitive has no Round" in strict.stderr
    assert not out.exists()
    run = rnnlower("lower", path, "-o", out, "--target", "primitive")
    assert "Round 'rounding': primitive has no Round" in run.stderr
    assert "Round" in {node.op_type for node in all_nodes(onnx.load(out))}


def test_a_target_file_of_the_user_decides_the_ops(tmp_path: Path, out: Path) -> None:
    ops = ["Concat", "MatMul", "Add", "Mul", "Sigmoid", "Tanh", "Reshape", "Split", "Relu"]
    path = write(tmp_path, MINIMAL | {"ops": f"allowed = {ops}", "opset": "range = [9, 14]"})
    rnnlower("lower", MODELS / "lstm14_defaults.onnx", "-o", out, "--target", path)
    assert {node.op_type for node in all_nodes(onnx.load(out))} <= set(ops)
    # Without Sub, 1 - z is an Add and a product with -1; nothing stands in for a product.
    rnnlower("lower", MODELS / "gru14_defaults.onnx", "-o", out, "--target", path)
    assert {node.op_type for node in all_nodes(onnx.load(out))} <= set(ops)
    path = write(tmp_path, MINIMAL | {"ops": f"allowed = {[*ops[:3], *ops[4:]]}", "opset": "range = [9, 14]"})
    refused = rnnlower("lower", MODELS / "gru14_defaults.onnx", "-o", out, "--target", path, code=3)
    assert "GRU node 'GRU_0': Mul, which target own lacks; choose a target that has Mul" in refused.stderr


@pytest.mark.parametrize(
    ("target", "config", "said"),
    [
        ("tinygrad", Config(), "is unrolled"),
        ("onnxruntime", Config(layout=1, batch_size=1), "is kept"),
        ("onnxruntime", Config(), "is kept"),
        ("sonnx", Config(), "is kept"),
        ("tract", Config(x_dims="time", clip=0.3), ""),
    ],
)
def test_an_unroll_factor_without_effect_is_noted(
    tmp_path: Path, target: str, config: Config, said: str
) -> None:
    path, out = save(config.build(), tmp_path), tmp_path / "out.onnx"
    run = rnnlower("lower", path, "-o", out, "--target", target, "--unroll-factor", "2", "--no-verify")
    assert (f"note: LSTM node 'LSTM_0' {said}: --unroll-factor 2" in run.stderr) == bool(said)
    assert ("--unroll-factor" in run.stderr) == bool(said)
    without = rnnlower("lower", path, "-o", out, "--target", target, "--no-verify")
    assert "--unroll-factor" not in without.stderr


def test_check_and_lower_give_the_same_note_on_batches(tmp_path: Path) -> None:
    path, out = save(Config().build(), tmp_path), tmp_path / "out.onnx"
    note = "note: LSTM node 'LSTM_0': batch_size is 2"
    assert note in rnnlower("lower", path, "-o", out, "--target", "sonnx").stderr
    run = rnnlower("check", out, "--target", "sonnx", "--json")
    assert note in run.stderr
    assert len(run.json["notes"]) == 1
    assert "batch_size" not in rnnlower("check", out, "--target", "tract", code=1).stderr


def test_check_does_not_count_constants_that_lower_folds(tmp_path: Path, out: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> m (float[2] x) => (float[2] y) {
        one = Constant <value = float[1] {1}> ()
        two = Constant <value_floats = [2.0]> ()
        sum = Add (one, two)
        y = Add (x, sum)
    }"""
    path = save(onnx.parser.parse_model(text), tmp_path)
    target = write(tmp_path, MINIMAL)
    found = rnnlower("check", path, "--target", target, "--json")
    assert (found.json["fits"], found.json["misfits"]) == (True, [])
    assert f"`rnnlower lower --target {target}` makes initializers of 2 nodes" in found.stderr
    rnnlower("lower", path, "-o", out, "--target", target)
    assert {node.op_type for node in onnx.load(out).graph.node} == {"Add"}
