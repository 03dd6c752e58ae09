"""The command line: options, exit codes, JSON, and what goes to which stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from support.cli_helpers import Run, rnnlower, save
from support.judge import STRATEGIES, all_nodes, recurrent_left
from support.places import MODELS
from support.small_models import recurrent_model, weights

STATIC = MODELS / "lstm14_states.onnx"
DYNAMIC = MODELS / "lstm14_dynamic.onnx"

LOWERING_KEYS = {
    "nodes",
    "opset",
    "ops_before",
    "ops_after",
    "notes",
    "warnings",
    "verification",
    "output",
    "seconds",
}
NODE_KEYS = {"name", "op_type", "path", "direction", "strategy", "steps", "emitted_ops"}
VERIFICATION_KEYS = {"equal", "engines", "trials", "outputs", "skipped"}
OUTPUT_KEYS = {"name", "max_abs", "max_rel", "max_ulp", "equal"}
INSPECTION_KEYS = {
    *("name", "op_type", "path", "direction", "hidden_size", "input_size", "seq_len", "batch", "dtype"),
    *("domain", "layout", "inputs", "outputs", "attributes", "weights"),
}


def different_model(folder: Path) -> Path:
    """Return a model with the interface of ``recurrent_model()`` and other weights."""
    return save(recurrent_model(constants=weights("LSTM", seed=1)), folder, "different.onnx")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lowering_writes_and_reports(strategy: str, out: Path) -> None:
    run = rnnlower(strategy, STATIC, "-o", out)
    assert recurrent_left(onnx.load(out)) == []
    for word in ("LSTM", "main graph", strategy, "emitted ops", "largest error", "Verified"):
        assert word in run.stdout
    assert str(out) in run.stderr


def test_notes_are_in_the_json_as_on_stderr(tmp_path: Path, out: Path) -> None:
    path = save(recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}), tmp_path)
    assert rnnlower("scan", path, "-o", out, "--json").json["notes"] == []
    model = onnx.load(path)
    node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("own", "spare", ["x", "w", "r"], ["y"], [node], opsets))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    run = rnnlower("scan", save(model, tmp_path), "-o", out, "--json")
    (note,) = run.json["notes"]
    assert "own::spare" in note
    assert f"note: {note}" in run.stderr


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lowering_json(strategy: str, out: Path) -> None:
    result = rnnlower(strategy, STATIC, "-o", out, "--json").json
    assert set(result) == LOWERING_KEYS
    (node,) = result["nodes"]
    assert set(node) == NODE_KEYS
    assert (node["op_type"], node["path"], node["strategy"], node["steps"]) == ("LSTM", "", strategy, 5)
    assert node["emitted_ops"] > 0
    assert result["ops_before"]["LSTM"] == 1
    assert "LSTM" not in result["ops_after"]
    assert sum(result["ops_after"].values()) == len(list(all_nodes(onnx.load(out))))
    assert result["opset"] == 14
    assert result["output"] == str(out)
    assert_verification(result["verification"])


def assert_verification(verification: dict[str, Any], *, equal: bool = True) -> None:
    assert set(verification) >= VERIFICATION_KEYS
    assert verification["equal"] is equal
    assert set(verification["engines"]) == {"reference", "candidate"}
    for output in verification["outputs"]:
        assert set(output) >= OUTPUT_KEYS


def test_dynamic_steps_are_null(out: Path) -> None:
    assert rnnlower("scan", DYNAMIC, "-o", out, "--json").json["nodes"][0]["steps"] is None


def test_no_verify(out: Path) -> None:
    assert rnnlower("scan", STATIC, "-o", out, "--no-verify", "--json").json["verification"] is None
    assert out.exists()


def test_opset_sets_the_opset_of_the_result(out: Path) -> None:
    assert rnnlower("scan", STATIC, "-o", out, "--opset", 17, "--json").json["opset"] == 17
    assert onnx.load(out).opset_import[0].version == 17


def test_opset_rises_only_as_far_as_needed(out: Path) -> None:
    assert rnnlower("scan", MODELS / "rnn07_defaults.onnx", "-o", out, "--json").json["opset"] == 9
    assert rnnlower("unroll", MODELS / "rnn07_defaults.onnx", "-o", out, "--json").json["opset"] == 7
    assert rnnlower("loop", MODELS / "lstm22_bfloat16.onnx", "-o", out, "--json").json["opset"] == 22


def test_dim_fixes_dimensions_of_the_input(out: Path, tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    result = rnnlower("unroll", path, "-o", out, "--dim", "T=4", "--dim", "N=2", "--json").json
    assert result["nodes"][0]["steps"] == 4
    (X,) = onnx.load(out).graph.input
    assert [dim.dim_value for dim in X.type.tensor_type.shape.dim] == [4, 2, 3]


def test_input_shape_fixes_the_number_of_steps(out: Path, tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    assert (
        rnnlower("unroll", path, "-o", out, "--input-shape", "X:6,1,3", "--json").json["nodes"][0]["steps"]
        == 6
    )


def test_node_selects_nodes_by_pattern(out: Path) -> None:
    source = MODELS / "gru_two_layers_dynamic.onnx"
    names = [node["name"] for node in rnnlower("inspect", source, "--json").json["recurrent"]]
    assert names == ["GRU_0", "GRU_1"]
    for pattern in ("GRU_1", "*1", "?RU_[1-9]"):
        result = rnnlower("scan", source, "-o", out, "--node", pattern, "--json").json
        assert [node["name"] for node in result["nodes"]] == ["GRU_1"]
        assert recurrent_left(onnx.load(out)) == ["GRU"]
    both = rnnlower("scan", source, "-o", out, "--node", "GRU_1", "--node", "GRU_0", "--json").json
    assert len(both["nodes"]) == 2


def test_unroll_factor_is_taken_by_scan_and_refused_by_unroll(out: Path) -> None:
    rnnlower("scan", STATIC, "-o", out, "--unroll-factor", 2)
    assert sum(node.op_type == "Scan" for node in all_nodes(onnx.load(out))) == 2
    rnnlower("unroll", STATIC, "-o", out, "--unroll-factor", 2, code=2)


def test_semantics_applies_to_the_result_and_its_verification(out: Path) -> None:
    source = MODELS / "lstm14_clip_relu_of_cell.onnx"
    rnnlower("scan", source, "-o", out, "--semantics", "spec")
    rnnlower("verify", source, out, "--semantics", "spec")
    rnnlower("verify", source, out, "--semantics", "ort", code=1)


def test_trials_and_seed_determine_the_verification(out: Path) -> None:
    runs = [
        rnnlower("scan", DYNAMIC, "-o", out, "--trials", 3, "--seed", seed, "--json").json
        for seed in (1, 1, 2)
    ]
    assert [run["verification"]["trials"] for run in runs] == [3, 3, 3]
    assert all(run.pop("seconds") for run in runs)
    assert runs[0] == runs[1]
    assert runs[0]["verification"] != runs[2]["verification"]


def test_tolerances_decide_the_verdict(out: Path) -> None:
    rnnlower("scan", STATIC, "-o", out, "--atol", 0, "--rtol", 0, code=1)
    rnnlower("scan", STATIC, "-o", out, "--atol", 1e-3, "--rtol", 0)


def test_inputs_from_a_file_replace_the_trials(out: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", X=np.ones((3, 2, 3), np.float32))
    path = save(recurrent_model(), tmp_path)
    result = rnnlower("scan", path, "-o", out, "--inputs", tmp_path / "inputs.npz", "--json").json
    assert result["verification"]["trials"] == 1
    np.savez(tmp_path / "inputs.npz", Z=np.ones((3, 2, 3), np.float32))
    assert "'Z'" in rnnlower("scan", path, "-o", out, "--inputs", tmp_path / "inputs.npz", code=2).stderr


def test_quiet_and_verbose(out: Path) -> None:
    source = MODELS / "streaming_lstm_stack.onnx"
    quiet = rnnlower("scan", source, "-o", out, "-q")
    assert (quiet.stdout, quiet.stderr) == ("", "")
    assert "MatMul" not in rnnlower("scan", source, "-o", out).stdout
    assert "MatMul" in rnnlower("scan", source, "-o", out, "-v").stdout


def test_quiet_json_is_still_json(out: Path) -> None:
    run = rnnlower("scan", STATIC, "-o", out, "-q", "--json")
    assert set(run.json) == LOWERING_KEYS
    assert run.stderr == ""


def test_model_without_recurrent_node(out: Path, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    )
    run = rnnlower("scan", save(model, tmp_path), "-o", out, "--no-provenance")
    assert "no recurrent node" in run.stdout
    assert onnx.printer.to_text(onnx.load(out)) == onnx.printer.to_text(model)


@pytest.mark.parametrize(
    "arguments",
    [
        ["scan"],
        ["scan", STATIC],
        ["scan", STATIC, "-o"],
        ["scan", STATIC, "-o", "x.onnx", "--nonsense"],
        ["scan", STATIC, "-o", "x.onnx", "--opset", "six"],
        ["scan", STATIC, "-o", "x.onnx", "--opset", "6"],
        ["scan", STATIC, "-o", "x.onnx", "--opset", "99"],
        ["scan", STATIC, "-o", "x.onnx", "--dim", "T"],
        ["scan", STATIC, "-o", "x.onnx", "--dim", "T=-1"],
        ["scan", STATIC, "-o", "x.onnx", "--dim", "absent=3"],
        ["scan", STATIC, "-o", "x.onnx", "--input-shape", "X"],
        ["scan", STATIC, "-o", "x.onnx", "--input-shape", "X:5,2"],
        ["scan", STATIC, "-o", "x.onnx", "--input-shape", "X:6,2,3"],
        ["scan", STATIC, "-o", "x.onnx", "--input-shape", "absent:5,2,3"],
        ["scan", STATIC, "-o", "x.onnx", "--node", "absent*"],
        ["scan", STATIC, "-o", "x.onnx", "--unroll-factor", "0"],
        ["scan", STATIC, "-o", "x.onnx", "--semantics", "torch"],
        ["scan", STATIC, "-o", "x.onnx", "--trials", "0"],
        ["scan", STATIC, "-o", "x.onnx", "--atol", "-1"],
        ["lower", STATIC, "-o", "x.onnx", "--target", "tinygrad", "--no-verify", "--trials", "7"],
        ["convert", STATIC, "-o", "x.onnx", "--opset", "15", "--no-verify", "--seed", "0"],
        ["unroll", STATIC, "-o", "x.onnx", "--no-verify", "--atol", "0"],
        ["loop", STATIC, "-o", "x.onnx", "--inputs", "absent.npz", "--no-verify"],
        ["scan", STATIC, "-o", "x.onnx", "--inputs", "absent.npz"],
        ["scan", STATIC, "-o", "x.onnx", "--external-data", "maybe"],
        ["scan", STATIC, "-o", "absent/x.onnx"],
        ["convert", STATIC, "-o", "x.onnx"],
        ["convert", STATIC, "-o", "x.onnx", "--opset", "six"],
        ["convert", STATIC, "-o", "x.onnx", "--opset", "0"],
        ["convert", STATIC, "-o", "x.onnx", "--opset", "99"],
        ["verify", STATIC],
        ["verify", STATIC, STATIC, "--semantics", "torch"],
        ["verify", STATIC, STATIC, "--engine", "torch"],
        ["inspect"],
        ["fold", STATIC],
    ],
    ids=lambda arguments: " ".join(Path(str(a)).name for a in arguments),
)
def test_wrong_usage(arguments: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = rnnlower(*arguments, code=2)
    assert run.stdout == ""
    assert run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--inputs", "--trials", "--seed", "--atol", "--rtol", "--state"])
def test_verification_options_contradict_no_verify(option: str, out: Path) -> None:
    value = "Y_h=X" if option == "--state" else "1"
    words = rnnlower("scan", STATIC, "-o", out, "--no-verify", option, value, code=2).stderr
    assert option in words
    assert "--no-verify" in words
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "name", "first", "second"),
    [
        ("--dim", "T", "T=4", "T=6"),
        ("--input-shape", "X", "X:5,2,3", "X:5,3,3"),
        ("--state", "Y_h", "Y_h=initial_h", "Y_h=initial_c"),
    ],
)
def test_one_name_with_two_values_is_refused(
    option: str, name: str, first: str, second: str, out: Path
) -> None:
    run = rnnlower("scan", STATIC, "-o", out, option, first, option, second, code=2)
    assert f"{option} gives {name!r} two values" in run.stderr
    assert not out.exists()


def test_the_same_value_given_twice_is_accepted(out: Path) -> None:
    line = ["--input-shape", "X:5,2,3"] * 2 + ["--state", "Y_h=initial_h"] * 2
    rnnlower("scan", STATIC, "-o", out, *line, "--trials", 3)


def test_two_states_for_one_input_are_refused(out: Path) -> None:
    line = ("--state", "Y_h=initial_h", "--state", "Y_c=initial_h")
    assert "same input" in rnnlower("scan", STATIC, "-o", out, *line, code=2).stderr


def test_trials_together_with_inputs_are_refused(out: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", X=np.zeros((5, 2, 3), np.float32))
    for line in (["verify", STATIC, STATIC], ["scan", STATIC, "-o", out]):
        run = rnnlower(*line, "--inputs", tmp_path / "inputs.npz", "--trials", 7, code=2)
        assert "--trials" in run.stderr
        assert "--inputs" in run.stderr
    assert not out.exists()


def test_help_lists_the_options() -> None:
    assert "unroll" in rnnlower("--help").stdout
    for option in (
        "--opset",
        "--dim",
        "--input-shape",
        "--node",
        "--unroll-factor",
        "--semantics",
        "--verify",
    ):
        assert option in rnnlower("scan", "--help").stdout


@pytest.mark.parametrize(("option", "other"), [("--atol", "--rtol"), ("--rtol", "--atol")])
def test_help_gives_the_default_of_each_tolerance(option: str, other: str) -> None:
    for command in ("scan", "convert", "verify"):
        words = rnnlower(command, "--help").stdout.replace("│", " ").split()
        text = " ".join(words[words.index(option) :])
        assert f"Default: by type, or 0 with {other}" in text


def test_version_prints_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 1.2.3")
    assert rnnlower("--version").stdout == "rnnlower 1.2.3\n"


def test_unroll_without_a_length_names_node_dimension_and_remedies(out: Path, tmp_path: Path) -> None:
    run = rnnlower("unroll", save(recurrent_model(), tmp_path), "-o", out, code=3)
    for words in ("LSTM node 'cell'", "'T'", "--dim T=16", "rnnlower scan"):
        assert words in run.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("dims", "remedy"),
    [
        (["time", "N", 3], ["--dim", "time=16"]),
        ([None, 2, 3], ["--input-shape", "X:N,2,3"]),
        ([-1, 2, 3], ["--input-shape", "X:N,2,3"]),
        (["?", "?", 3], ["--input-shape", "X:N,N,3"]),
        (None, ["--input-shape", "X:2,3,4"]),
    ],
    ids=["named", "unnamed", "negative", "question_marks", "unknown_rank"],
)
def test_the_remedy_for_an_unknown_length_works(
    dims: list[Any] | None, remedy: list[str], out: Path, tmp_path: Path
) -> None:
    path = save(recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, dims)}), tmp_path)
    assert " ".join(remedy) in rnnlower("unroll", path, "-o", out, code=3).stderr
    option, value = remedy
    value = value.replace("N", "5").replace("2,3,4", "5,2,3")
    rnnlower("unroll", path, "-o", out, option, value, "--no-verify")
    assert recurrent_left(onnx.load(out)) == []


def test_convert_changes_the_opset_in_both_directions(out: Path) -> None:
    run = rnnlower("convert", MODELS / "rnn01_output_sequence.onnx", "-o", out, "--opset", 13, "--json")
    assert {"opset", "verification", "output"} <= set(run.json)
    assert_verification(run.json["verification"])
    assert onnx.load(out).opset_import[0].version == 13
    assert rnnlower("convert", out, "-o", out, "--opset", 9).stdout
    rnnlower("convert", out, "-o", out, "--opset", 99, code=2)


def test_verify_equal(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    assert "equal" in rnnlower("verify", path, path).stdout
    assert_verification(rnnlower("verify", path, path, "--json", "--trials", 2).json)


def test_verify_different(tmp_path: Path) -> None:
    path, other = save(recurrent_model(), tmp_path), different_model(tmp_path)
    assert "DIFFERENT" in rnnlower("verify", path, other, code=1).stdout
    assert_verification(rnnlower("verify", path, other, "--json", code=1).json, equal=False)
    rnnlower("verify", path, other, "--atol", 10)


def test_unverifiable(out: Path, tmp_path: Path) -> None:
    model = recurrent_model()
    model.graph.node.add(op_type="Unheard", domain="custom", input=["Y_h"], output=["z"])
    model.graph.output.add(name="z").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model.opset_import.add(domain="custom", version=1)
    path = save(model, tmp_path)
    assert "Unheard" in rnnlower("scan", path, "-o", out, code=4).stderr
    assert not out.exists()
    rnnlower("verify", path, path, code=4)
    rnnlower("scan", path, "-o", out, "--no-verify")
    assert [node.domain for node in all_nodes(onnx.load(out))].count("custom") == 1


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.onnx")), ids=lambda path: path.stem)
def test_inspect_json(path: Path) -> None:
    result = rnnlower("inspect", path, "--json").json
    assert set(result) == {
        *("ir_version", "opset", "recurrent", "warnings"),
        *("inputs", "outputs", "ops", "bytes", "liftable", "notes", "provenance", "pad"),
    }
    model = onnx.load(path)
    assert [port["name"] for port in result["inputs"]] == [value.name for value in model.graph.input]
    assert [port["name"] for port in result["outputs"]] == [value.name for value in model.graph.output]
    assert sum(result["ops"].values()) == sum(1 for _ in all_nodes(model))
    assert result["bytes"] == path.stat().st_size
    assert result["recurrent"]
    for node in result["recurrent"]:
        assert set(node) == INSPECTION_KEYS
        assert node["weights"] in ("constant", "computed", "runtime")


def test_inspect_describes_any_model(out: Path) -> None:
    """Also of one that was unrolled and has no recurrent node left."""
    rnnlower("unroll", MODELS / "lstm14_dynamic.onnx", "-o", out, "--dim", "T=3")
    X, initial_h, _ = rnnlower("inspect", out, "--json").json["inputs"]
    assert X == {"name": "X", "dtype": "float32", "shape": [3, "N", 3], "default": False}
    assert initial_h["shape"] == [1, "N", 4]
    lines = [line.split() for line in rnnlower("inspect", out).stdout.splitlines()]
    assert [*lines[0][-2:]] == [f"{out.stat().st_size:,}", "bytes"]
    assert ["X", "float32", "[3,", "N,", "3]"] in lines
    assert ["no", "recurrent", "node"] in lines
    assert ["Tanh", "6"] in lines
    overridable = rnnlower("inspect", MODELS / "lstm17_weights_overridable.onnx")
    assert "[1, 16, 3] with a default" in overridable.stdout


def test_inspect_table() -> None:
    run: Run = rnnlower("inspect", MODELS / "lstm13_in_if_in_if_captured.onnx")
    assert "LSTM" in run.stdout
    assert "then_branch" in run.stdout
    assert run.stderr == ""
