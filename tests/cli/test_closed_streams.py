"""Commands whose caller has closed stdout, stderr or both, or whose output encoding lacks letters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from support.cli_helpers import rnnlower
from support.forking import python
from support.places import MODELS, ROOT

_MODEL = MODELS / "lstm14_defaults.onnx"
_COMMANDS: dict[str, tuple[list[object], int]] = {
    "help": (["--help"], 0),
    "usage": (["unknown"], 2),
    "targets": (["targets"], 0),
    "schema": (["targets", "--schema"], 0),
    "engines": (["engines"], 0),
    "inspect": (["inspect", _MODEL, "--json"], 0),
    "missing": (["inspect", "missing.onnx"], 3),
    "check": (["check", _MODEL, "--target", "primitive"], 1),
    "unroll": (["unroll", _MODEL, "-o", "out.onnx", "-v"], 0),
    "lower": (["lower", _MODEL, "-o", "out.onnx", "--target", "primitive", "--report", "page.html"], 0),
    "convert": (["convert", _MODEL, "-o", "out.onnx", "--opset", 17], 0),
    "stream": (["stream", MODELS / "denoiser_gru.onnx", "-o", "out.onnx"], 0),
    "verify": (["verify", _MODEL, MODELS / "lstm14_clip.onnx"], 1),
    "bench": (["bench", _MODEL, "--runs", 1, "--strategy", "unroll"], 0),
    "probe": (["probe", "onnxruntime"], 2),
}


def _run(name: str, closed: str, folder: Path) -> None:
    command, code = _COMMANDS[name]
    line = " ".join([sys.executable, "-m", "rnnlower", *map(str, command)])
    result = subprocess.run(
        ["sh", "-c", f"{line} {closed}"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code, f"{closed}: {result.stdout}{result.stderr}"
    assert "Traceback" not in result.stderr


_STARTED = ("help", "usage", "inspect", "unroll", "probe")
"""The commands in a Python that starts with the closed stream; the others fork from one that has started."""


@pytest.mark.parametrize("name", _COMMANDS)
def test_no_command_needs_stdout(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in _STARTED:
        monkeypatch.setattr(sys, "executable", python())
    _run(name, ">&-", tmp_path)


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_model_holds_no_output_of_a_closed_stream(closed: str, tmp_path: Path) -> None:
    rnnlower("unroll", _MODEL, "-o", tmp_path / "expected.onnx")
    _run("unroll", closed, tmp_path)
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "expected.onnx").read_bytes()


def test_letters_that_the_output_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    model = onnx.load(_MODEL)
    model.graph.node[0].name = "\u5c42"
    onnx.save(model, tmp_path / "model.onnx")
    for line in (["inspect", "model.onnx"], ["unroll", "model.onnx", "-o", "out.onnx", "--no-verify"]):
        result = subprocess.run(
            [sys.executable, "-m", "rnnlower", *line],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252"},
            capture_output=True,
            check=True,
        )
        assert rb"\u5c42" in result.stdout
