"""The examples of docs/custom_runtimes.md, as they stand there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.cli_helpers import rnnlower, save
from support.configs import Config

from rnnlower.engines.catalog import engines

PAGE = (Path(__file__).parents[2] / "docs" / "custom_runtimes.md").read_text(encoding="utf-8")

# What stands for a board: copies within this machine, and commands run here.
_TOOLS = {
    "python3": f'exec {sys.executable} "$@"',
    "ssh": 'shift\nexec sh -c "$*"',
    "scp": 'shift\nexec cp "${1#*:}" "${2#*:}"',
}
TURN = """
arrays = numpy.load(sys.argv[3])
numpy.savez(sys.argv[3], **{name: numpy.moveaxis(arrays[name], 1, -1) for name in arrays.files})
"""


def block(language: str, holding: str) -> str:
    """Return the page's code block that holds these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return next(text for text in blocks if holding in text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the page's scripts, the tools that they call, and a model."""
    (tmp_path / "run_model.py").write_text(block("python", "savez"))
    (tmp_path / "run_on_board.sh").write_text(block("sh", "scp"))
    (tmp_path / "bin").mkdir()
    for name, text in _TOOLS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    for script in (tmp_path / "run_on_board.sh", *(tmp_path / "bin").iterdir()):
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SCRIPT", str(tmp_path / "run_model.py"))
    monkeypatch.chdir(tmp_path)
    save(Config(Y_h="graph").build(), tmp_path)
    return tmp_path


@pytest.mark.skipif(sys.platform == "win32", reason="the scripts are for a shell")
@pytest.mark.parametrize("program", ["python3 run_model.py", "./run_on_board.sh"])
def test_the_examples_run(folder: Path, program: str) -> None:
    on = re.search(rf"'(cmd:{re.escape(program)}[^']*)'", PAGE)
    assert on is not None
    run = rnnlower("unroll", "model.onnx", "-o", "out.onnx", "--trials=1", "--on", on[1])
    assert f"tried on the command {program.split()[0]}: equal" in run.stdout
    assert (folder / "out.onnx").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="the scripts are for a shell")
def test_swapped_axes_of_an_output_are_recognized(folder: Path) -> None:
    script = (folder / "run_model.py").read_text()
    (folder / "run_model.py").write_text(f"{script}\nimport numpy\n{TURN}")
    on = "cmd:python3 run_model.py {model} {inputs} {outputs}"
    run = rnnlower("unroll", "model.onnx", "-o", "out.onnx", "--trials=1", "--on", on, code=1)
    assert "right but for the order of its axes, [0, 2, 3, 1]: transpose it" in " ".join(run.stdout.split())
    assert not (folder / "out.onnx").exists()


def test_every_known_runtime_was_tried() -> None:
    assert [engine.name for engine in engines() if not engine.tried] == []
