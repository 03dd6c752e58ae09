"""The GitHub action and the pre-commit hook: what they run, run here."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.forking import python
from support.recipes import ROOT

FITS, MISFITS = "models/lstm14_defaults.onnx", "models/lstm14_peephole.onnx"


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which `rnnlower` is the one under test."""
    command = tmp_path / "rnnlower"
    command.write_text(f'#!/bin/sh\nexec "{python()}" -m rnnlower "$@"\n')
    command.chmod(0o755)
    return dict(os.environ, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", PYTHONPATH=str(ROOT))


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("models", "status"), [([FITS], 0), ([MISFITS], 1), ([MISFITS, FITS], 1)])
def test_the_hook_checks_each_changed_model(
    models: list[str], status: int, environment: dict[str, str]
) -> None:
    (hook,) = load(".pre-commit-hooks.yaml")
    result = run([*shlex.split(hook["entry"]), "--target", "openvino", *models], environment)
    assert result.returncode == status, result.stdout
    assert result.stdout.count("place       fits") == len(models)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({"MODEL": FITS, "TARGET": "openvino"}, 0),
        ({"MODEL": "models/lstm14_pee*.onnx", "TARGET": "openvino"}, 1),
        ({"MODEL": FITS, "CANDIDATE": FITS, "OPTIONS": "--trials 1"}, 0),
        ({"MODEL": FITS, "CANDIDATE": MISFITS}, 1),
        ({"MODEL": FITS}, 2),
    ],
)
def test_the_action_checks_and_verifies(
    given: dict[str, str], status: int, environment: dict[str, str]
) -> None:
    action = load("action.yml")
    *_, step = action["runs"]["steps"]
    variables = {
        name: given.get(name, action["inputs"][name.lower()].get("default", "")) for name in step["env"]
    }
    result = run(["bash", "-e", "-o", "pipefail", "-c", step["run"]], environment | variables)
    assert result.returncode == status, result.stdout


def test_the_settings_of_the_page_work(environment: dict[str, str]) -> None:
    text = (ROOT / "docs/scripting.md").read_text(encoding="utf-8")
    (step,), hooks = (
        yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)
    )
    assert step["with"].keys() <= load("action.yml")["inputs"].keys()
    (given,), (hook,) = hooks["repos"][0]["hooks"], load(".pre-commit-hooks.yaml")
    assert given["id"] == hook["id"]
    # The page's dimension, under the name that it has in the model.
    options = shlex.split(step["with"]["options"].replace("T=", "time="))
    for words in (given["args"], ["--target", step["with"]["target"], *options]):
        result = run([*shlex.split(hook["entry"]), *words, "models/gru_two_layers_dynamic.onnx"], environment)
        assert result.returncode in (0, 1), result.stdout
        assert "place       fits" in result.stdout


def test_the_workflow_runs_the_projects_own_ci() -> None:
    steps = load(".github/workflows/ci.yml")["jobs"]["run"]["steps"]
    assert {"run": ".ci/run"} in steps
