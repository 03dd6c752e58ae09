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
from support.places import MODELS

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
_FEW = ("--trials", "2")
"""A model that was simplified wrongly differs at once, or does not run."""


def _slim(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnxslim.slim(model)


def _simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    simplified, _ = onnxsim.simplify(model)
    return simplified


TOOLS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {"onnxslim": _slim, "onnxsim": _simplify}


@pytest.fixture(scope="module")
def simplified(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function to a model of `MODELS` as a tool simplifies it, which is verified."""

    @functools.cache
    def make(tool: str, name: str) -> Path:
        source = MODELS / f"{name}.onnx"
        made = save(TOOLS[tool](onnx.load(source)), tmp_path_factory.mktemp(tool))
        rnnlower("verify", source, made, *_FEW)
        return made

    return make


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """Return a function to a model of `MODELS` as a command rewrites it."""

    @functools.cache
    def make(command: str, name: str) -> Path:
        result = tmp_path_factory.mktemp(command) / "result.onnx"
        _run(command, MODELS / f"{name}.onnx", result, name)
        return result

    return make


def _run(command: str, source: Path, result: Path, name: str) -> None:
    fixed = [] if command in DYNAMIC else FIXED[name]
    rnnlower(command, source, "-o", result, *COMMANDS[command], *fixed, *_FEW)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_simplified_model_is_rewritten(
    command: str, name: str, tool: str, tmp_path: Path, simplified: Callable[[str, str], Path]
) -> None:
    _run(command, simplified(tool, name), tmp_path / "result.onnx", name)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_rewritten_model_is_simplified(
    command: str, name: str, tool: str, tmp_path: Path, rewritten: Callable[[str, str], Path]
) -> None:
    result = rewritten(command, name)
    simple = save(TOOLS[tool](onnx.load(result)), tmp_path, "simplified.onnx")
    rnnlower("verify", result, simple, *_FEW)
