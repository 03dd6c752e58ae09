"""The commands that pages show and no other test runs, each made short."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.forking import python
from support.recipes import ROOT

import rnnlower

REDUCED = {"--count": "4", "--runs": "2", "--gigabytes": "0.01", "--record": "{folder}/record.jsonl"}
"""What makes a sweep of a page short."""


def blocks(text: str, kind: str) -> list[str]:
    """Return the code blocks of a kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of each command in the sh blocks of a page."""
    for block in blocks((ROOT / "docs" / page).read_text(encoding="utf-8"), "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


SMALL = {
    "runtime.py": "--variants lstm --sizes 3,1,4,4 --rounds 1",
    "dynamic.py": "--variants lstm --sizes 3,1,4,4 --rounds 1",
    "kernels.py": "--cases 1",
    "sweeps.py": "--variants lstm --sizes 1 --rounds 1",
    "on_runtimes.py": "--variants lstm --sizes 3,1,4,4 --runs 2",
    "loading.py": "--hidden-size 4 --steps 3 6 --textbook-steps 3 6",
    "lowering.py": "--hidden-size 4 --steps 3 6 --repeats 1",
    "startup.py": "--rounds 1",
}
"""What makes a measurement of docs/performance.md short; all of them take half an hour (`benchmarks/run`)."""


@pytest.mark.parametrize(
    "words", [each for each in commands("performance.md") if each[0] == "python"], ids=" ".join
)
def test_benchmarks_of_the_page_run(words: list[str], tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    small = SMALL[Path(words[1]).name].split()
    # The runtime of the page need not be installed; onnxruntime is.
    given = ["onnxruntime" if word == "tract" else word for word in words[1:]]
    run([python(), *given, *small, "--json", str(result)], ROOT)
    assert json.loads(result.read_text())


SWEEPS = {words[1]: words for words in commands("verification.md") if words[0] == "python"}


@pytest.mark.parametrize("script", SWEEPS)
def test_sweeps_of_the_page_run(script: str, tmp_path: Path) -> None:
    pairs = itertools.pairwise(SWEEPS[script])
    short = [REDUCED.get(before, word).format(folder=tmp_path) for before, word in pairs]
    if script == "tests/interrupted.py":
        # Where a signal arrives is a matter of time, and may be in the import of a library: no interruption.
        short[short.index("--runs") + 1] = "0"
    run([python(), *short], ROOT)


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Run a command in a folder with the rnnlower under test; return what it prints."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.mark.parametrize(
    "words",
    [
        *(each for each in commands("performance.md") if each[0] == "rnnlower"),
        *(
            each[each.index("rnnlower") :]
            for each in commands("scripting.md")
            if each[:2] == ["docker", "run"]
        ),
    ],
    ids=" ".join,
)
def test_commands_of_other_pages_run(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models")
    (tmp_path / "model.onnx").symlink_to(ROOT / "models/lstm14_defaults.onnx")
    # A bench takes its time with long sequences.
    short = [{"width=400": "width=40"}.get(word, word) for word in words]
    run([python(), "-m", *short, *(["--runs", "2"] if "bench" in words else [])], tmp_path)


def test_the_pass_for_olive(tmp_path: Path) -> None:
    python = os.environ.get("RNNLOWER_PYTHON_OLIVE", sys.executable)
    installed = subprocess.run([python, "-c", "import olive, requests"], capture_output=True, check=False)
    if installed.returncode:
        pytest.skip("olive-ai and requests are not installed")
    text = (ROOT / "docs/exporters.md").read_text(encoding="utf-8").partition("## Olive\n")[2]
    (code,), (package, workflow) = blocks(text, "python"), blocks(text, "json")
    (tmp_path / "rnnlower_olive.py").write_text(code)
    (tmp_path / "package.json").write_text(package)
    (tmp_path / "workflow.json").write_text(workflow)
    (tmp_path / "model.onnx").write_bytes((ROOT / "models/lstm14_defaults.onnx").read_bytes())
    (command,) = blocks(text, "sh")
    folders = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "HOME": str(tmp_path)}
    silent = {"CI": "1", "OLIVE_DISABLE_TELEMETRY": "1"}
    run([python, "-m", *shlex.split(command)], tmp_path, **folders, **silent)
    lowered = onnx.load(tmp_path / json.loads(workflow)["output_dir"] / "model.onnx")
    assert rnnlower.inspect(lowered) == []
    assert rnnlower.verify(tmp_path / "model.onnx", lowered)


def test_the_chain_to_an_ethos_u(tmp_path: Path) -> None:
    """`RNNLOWER_CHAIN` names the folders of its programs; the python of the first has AI Edge's quantizer."""
    path = os.pathsep.join([os.environ.get("RNNLOWER_CHAIN", ""), os.environ["PATH"]])
    missing = [each for each in ("onnx2tf", "vela") if shutil.which(each, path=path) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found")
    text = (ROOT / "docs/custom_runtimes.md").read_text(encoding="utf-8").partition("## Chains of tools")[2]
    first, *others = blocks(text, "sh")[0].splitlines()
    (tmp_path / "quantize.py").write_text(blocks(text, "python")[0])
    model = ROOT / "models/lstm14_defaults.onnx"
    (tmp_path / "model.onnx").write_bytes(model.read_bytes())
    shape = [each.dim_value for each in onnx.load(model).graph.input[0].type.tensor_type.shape.dim]
    np.save(
        tmp_path / "calibration.npy", np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    )
    run([sys.executable, "-m", *shlex.split(first)], tmp_path)
    for line in others:
        printed = run(shlex.split(line), tmp_path, PATH=path, PYTHONPATH="")
    assert "NPU operators" in printed
