"""FreezeInitializersPass: inputs with an initializer become constants, for those who ask and for targets."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from support.cli_helpers import rnnlower
from support.judge import all_nodes

from rnnlower.passes import FreezeInitializersPass

MODELS = Path(__file__).parents[2] / "models"
LEGACY = MODELS / "gru03_linear_before_reset.onnx"
OVERRIDABLE = MODELS / "lstm17_weights_overridable.onnx"


def inputs(model: onnx.ModelProto | Path) -> list[str]:
    own = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
    return [value.name for value in own.graph.input]


def test_initializers_are_no_longer_inputs() -> None:
    own = ir.load(LEGACY)
    freezing = FreezeInitializersPass()
    assert freezing(own).modified
    assert freezing.frozen == ["W", "R", "B"]
    assert [value.name for value in own.graph.inputs] == ["X"]
    assert own.ir_version == 4
    assert not FreezeInitializersPass()(own).modified


@pytest.mark.parametrize("source", [LEGACY, OVERRIDABLE], ids=lambda path: path.stem)
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("unroll", ()),
        ("scan", ()),
        ("loop", ()),
        ("lower", ("--target", "primitive")),
        ("convert", ("--opset", "18")),
        ("stream", ()),
    ],
)
def test_commands_freeze_if_asked(
    command: str, options: tuple[str, ...], source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    sizes = () if source == LEGACY or command == "convert" else ("--input-shape", "X:5,2,3")
    done = rnnlower(command, source, "-o", out, "--freeze", *options, *sizes)
    assert "with an initializer became constants: 'W', 'R'" in done.stderr
    assert {"W", "R"}.isdisjoint(inputs(out))
    rnnlower("verify", source, out) if command != "stream" else onnx.checker.check_model(str(out))


def test_for_a_target_the_weights_of_an_old_model_are_constants(tmp_path: Path) -> None:
    """No caller could feed them. At IR version 4 they would be defaults, and run-time inputs."""
    run = rnnlower("lower", LEGACY, "-o", tmp_path / "out.onnx", "--target", "ncnn", "--on", "none")
    assert "3 graph inputs with an initializer became constants: 'W', 'R', 'B'" in run.stderr
    result = onnx.load(tmp_path / "out.onnx")
    assert inputs(result) == ["X"]
    read = {name for node in all_nodes(result) for name in node.input}
    assert read.isdisjoint({"W", "R", "B"})
    kept = rnnlower(
        "lower", LEGACY, "-o", tmp_path / "kept.onnx", "--target", "ncnn", "--on", "none", "--no-freeze"
    )
    assert "became constants" not in kept.stderr
    assert inputs(tmp_path / "kept.onnx") == ["X", "W", "R", "B"]
    assert sum(1 for _ in all_nodes(result)) < sum(1 for _ in all_nodes(onnx.load(tmp_path / "kept.onnx")))


def test_overridable_initializers_stay_inputs_unless_asked(tmp_path: Path) -> None:
    line = ["lower", OVERRIDABLE, "-o", tmp_path / "out.onnx", "--target", "primitive"]
    run = rnnlower(*line, "--input-shape", "X:5,2,3")
    assert "--freeze takes them as constants" in run.stderr
    assert inputs(tmp_path / "out.onnx") == inputs(OVERRIDABLE)


def test_bench_and_check(tmp_path: Path) -> None:
    entries = rnnlower("bench", LEGACY, "--freeze", "--runs", 1, "--json").json["variants"]
    plain = rnnlower("bench", LEGACY, "--runs", 1, "--json").json["variants"]
    assert [entry["ops"] for entry in entries[1:]] < [entry["ops"] for entry in plain[1:]]
    frozen = rnnlower("check", LEGACY, "--target", "ncnn", "--freeze", code=1)
    assert "became constants" in frozen.stderr
