"""Simplifiers before and after each command: onnxslim and onnxsim, on models with and without subgraphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import onnx
import onnxsim
import onnxslim
import pytest
from support.cli_helpers import rnnlower, save

MODELS = Path(__file__).parents[2] / "models"
_FRAMES = ["--dim", "frames=4"]
_BATCH = ["--dim", "T=4", "--dim", "N=2"]
FIXED = {
    "denoiser_gru": _FRAMES,
    "streaming_lstm_stack": _FRAMES,
    "lstm13_in_if_in_if_captured": [*_BATCH, "--set", "cond=true", "--set", "cond_inner=true"],
    "lstm14_dynamic": _BATCH,
}
COMMANDS = {
    "unroll": (),
    "scan": ("--unroll-factor", "2"),
    "loop": (),
    "lower": ("--target", "primitive"),
    "convert": ("--opset", "18"),
    "stream": (),
}
DYNAMIC = ("scan", "loop", "convert")


def _slim(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnxslim.slim(model)


def _simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    simplified, _ = onnxsim.simplify(model)
    return simplified


TOOLS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {"onnxslim": _slim, "onnxsim": _simplify}


@functools.cache
def _simplified(tool: str, name: str) -> bytes:
    return TOOLS[tool](onnx.load(MODELS / f"{name}.onnx")).SerializeToString()


def _run(command: str, source: Path, result: Path, name: str) -> None:
    fixed = [] if command in DYNAMIC else FIXED[name]
    rnnlower(command, source, "-o", result, *COMMANDS[command], *fixed)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("command", COMMANDS)
def test_before(command: str, name: str, tool: str, tmp_path: Path) -> None:
    source, simplified = MODELS / f"{name}.onnx", tmp_path / "simplified.onnx"
    simplified.write_bytes(_simplified(tool, name))
    rnnlower("verify", source, simplified)
    _run(command, simplified, tmp_path / "result.onnx", name)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("command", COMMANDS)
def test_after(command: str, name: str, tool: str, tmp_path: Path) -> None:
    result = tmp_path / "result.onnx"
    _run(command, MODELS / f"{name}.onnx", result, name)
    rnnlower("verify", result, save(TOOLS[tool](onnx.load(result)), tmp_path, "simplified.onnx"))
