"""docs/models.md: its commands are those of docs/models.py, and run as they stand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.forking import python
from support.recipes import ROOT, recipes, run

sys.path.insert(0, str(ROOT / "docs"))
from models import PACKAGES

COMMANDS = recipes((ROOT / "docs" / "models.md").read_text(encoding="utf-8"))


def test_every_model_has_its_command() -> None:
    assert {package.title: f"{package.command}\n" for package in PACKAGES} == COMMANDS


def test_a_command_runs(tmp_path: Path) -> None:
    command = tmp_path / "rnnlower"
    command.write_text(f'#!/bin/sh\nexec "{python()}" -m rnnlower "$@"\n')
    command.chmod(0o755)
    folders = [tmp_path, *(Path(each).parent for each in (python(), sys.executable))]
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    script = COMMANDS["Silero VAD 5"].partition("\n")[2]
    done = run(script, tmp_path, dict(os.environ, PATH=path, PYTHONPATH=str(ROOT)))
    assert done.returncode == 0, done.stdout
    assert "wrote lowered.onnx" in done.stdout
