"""Output for people: --help, the additions of -v, and tables in a pipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.cli_helpers import rnnlower as run
from support.cli_helpers import save
from support.places import MODELS
from support.small_models import info, model_of, recurrent_model

from rnnlower.cli.app import app

COMMANDS = [command.name or "" for command in app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_an_example_and_the_exit_codes(command: str) -> None:
    words = run(command, "--help").stdout
    assert "<bool>" not in words
    assert "─ Options ─" not in words
    assert "…" not in words
    example, codes = words.split("Example:")[1].split("Exit codes:")
    assert example.split()[:2] == ["rnnlower", command]
    assert {"0", "2"} <= {line.split()[0] for line in codes.splitlines() if line.strip()}


def test_the_options_are_listed_in_panels() -> None:
    words = run("scan", "--help").stdout
    places = [words.index(f"─ {panel} ─") for panel in ("Model", "Lowering", "Verification", "Output")]
    assert places == sorted(places)


def test_verbose_and_json_give_the_time_of_each_phase(tmp_path: Path) -> None:
    path, out = save(recurrent_model(), tmp_path), tmp_path / "out.onnx"
    assert "reading" not in run("scan", path, "-o", out).stderr
    words = run("scan", path, "-o", out, "-v").stderr
    for phase in ("reading", "lowering", "writing", "verifying: reference", "verifying: candidate"):
        assert f"{phase} " in words
    for line in (
        ["scan", path, "-o", out],
        ["verify", path, out],
        ["convert", path, "-o", out, "--opset", 18],
    ):
        assert "verifying: candidate" in run(*line, "--json").json["seconds"]


def test_verbose_quantize_gives_the_time_of_each_phase(tmp_path: Path) -> None:
    recordings = tmp_path / "recordings.npz"
    np.savez(recordings, X=np.random.default_rng(0).normal(size=(4, 5, 2, 3)).astype(np.float32))
    line = [MODELS / "lstm14_defaults.onnx", "-o", tmp_path / "out.onnx", "--calibration", recordings]
    for options, is_told in ([], False), (["-v"], True):
        words = run("quantize", *line, "--min-sqnr=0", *options).stderr
        assert all((phase in words) == is_told for phase in ("reading ", "calibrating ", "measuring "))


def test_errors_in_ulp_are_shown_by_verbose_only(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    assert "max ulp" not in run("verify", path, path).stdout
    assert "max ulp" in run("verify", path, path, "-v").stdout
    result = run("verify", path, path, "--json").json
    assert result["tolerances"] == {"atol": None, "rtol": None}
    assert set(result["versions"]) == {"onnxruntime"}
    assert all(output["used"] <= 1 and output["dtype"] == "float32" for output in result["outputs"])


def test_the_tolerance_in_the_table_decides_the_verdict(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    run("scan", path, "-o", tmp_path / "out.onnx")
    line = ["verify", path, tmp_path / "out.onnx", "--rtol", 0, "--atol"]
    (worst, *_) = sorted(
        (output["error"] for output in run(*line, 1, "--json").json["outputs"]), reverse=True
    )
    assert {output["allowed"] for output in run(*line, 1, "--json").json["outputs"]} == {1.0}
    for atol, code in ((2 * worst, 0), (worst / 2, 1)):
        outputs = run(*line, atol, "--json", code=code).json["outputs"]
        assert max(output["used"] for output in outputs) == pytest.approx(worst / atol)


def test_tables_do_not_fold_in_a_pipe(tmp_path: Path) -> None:
    name = "encoder/" + "a_rather_long_name_of_a_layer/" * 8 + "cell"
    model = recurrent_model()
    model.graph.node[0].name = name
    for line in run("inspect", save(model, tmp_path)).stdout.splitlines():
        assert line == line.rstrip()
    assert f"{name}  LSTM  main graph" in run("inspect", tmp_path / "model.onnx").stdout


def many_nodes() -> onnx.ModelProto:
    """Return an LSTM and what onnx2torch lacks, several times."""
    nodes = [onnx.helper.make_node("CastLike", [f"c{n}" if n else "X", "X"], [f"c{n + 1}"]) for n in range(5)]
    float_ = onnx.TensorProto.FLOAT
    return model_of(nodes, [info("X", float_, ["T", 2, 3])], [info("c5", float_, None)])


def test_check_begins_with_a_summary(tmp_path: Path) -> None:
    path = save(many_nodes(), tmp_path)
    line = ["check", path, "--target", "onnx2torch", "--dim", "T=3"]
    brief, full = run(*line, code=1).stdout, run(*line, "-v", code=1).stdout
    (row,) = [each for each in brief.splitlines() if each.startswith("CastLike")]
    assert row.split()[1] == "5"
    assert full.count("onnx2torch has no CastLike") == 5
    assert brief.splitlines()[-1] == "target onnx2torch does not run 5 of 5 other nodes"


def test_the_summary_of_check_omits_recurrent_nodes_if_all_of_them_run(tmp_path: Path) -> None:
    model = onnx.load(MODELS / "lstm14_defaults.onnx")
    model.opset_import[0].version = 15
    model.graph.node.append(onnx.helper.make_node("CastLike", ["X", "X"], ["copy"]))
    model.graph.output.append(info("copy", onnx.TensorProto.FLOAT, None))
    summary = run("check", save(model, tmp_path), "--target", "mnn", code=1).stdout.splitlines()[-1]
    assert summary == "target mnn does not run 1 of 1 other nodes"


def test_check_takes_sizes_and_values(tmp_path: Path) -> None:
    path = save(recurrent_model(), tmp_path)
    line = ["check", path, "--target", "tinygrad", "--json"]
    kinds = [
        {each["op_type"] for each in run(*line, *more, code=1).json["misfits"]}
        for more in ([], ["--dim", "T=3", "--dim", "N=1"], ["--input-shape", "X:3,1,3"])
    ]
    assert kinds == [{"(input)", "LSTM"}, {"LSTM"}, {"LSTM"}]
    assert "no input named 'Z'" in run(*line, "--set", "Z=1", code=2).stderr


def test_convert_begins_with_a_summary(tmp_path: Path) -> None:
    line = [
        "convert",
        MODELS / "lstm14_layout1.onnx",
        "-o",
        tmp_path / "o.onnx",
        "--opset",
        12,
        "--no-verify",
    ]
    brief, full = run(*line).stdout, run(*line, "-v").stdout
    assert brief.splitlines()[1].split() == ["op", "nodes", "step", "change"]
    assert brief.splitlines()[2].split()[:2] == ["LSTM", "1"]
    assert full.splitlines()[1].split() == ["node", "op", "place", "step", "change"]
