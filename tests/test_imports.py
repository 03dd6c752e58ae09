"""What imports what: starting must stay cheap, and imports go one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

MODEL = "models/lstm14_defaults.onnx"
LIBRARIES = {"numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "onnx.reference", "matplotlib"}
RUNNING = {"onnxruntime", "onnx.reference", "rnnlower.verification", "rnnlower.engines", "matplotlib"}
LOWERING = {
    "rnnlower.lowering.strategies",
    "rnnlower.lowering.cells",
    "rnnlower.passes.pipeline",
    "rnnlower.lowering.emitter",
}
CONVERTING = {"rnnlower.opset"}
MEASURING = {"rnnlower.benchmarking"}

_RUN = """
import runpy, sys
sys.argv[0] = "rnnlower"
try:
    runpy.run_module("rnnlower", run_name="__main__")
except SystemExit as end:
    assert end.code in (None, 0, 1), end.code  # 1 is a verdict
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("command", "absent"),
    [
        (["--help"], LIBRARIES | RUNNING | LOWERING | CONVERTING | MEASURING),
        (["bench", "--help"], LIBRARIES | RUNNING | LOWERING | CONVERTING | MEASURING),
        (["inspect", MODEL], RUNNING | LOWERING | CONVERTING | MEASURING | {"onnxscript"}),
        (["check", MODEL, "--target", "primitive"], RUNNING | CONVERTING | MEASURING | {"onnxscript"}),
        (
            ["lower", MODEL, "-o", "out.onnx", "--target=primitive", "--no-verify"],
            {"onnxruntime"} | MEASURING,
        ),
        (["scan", MODEL, "-o", "out.onnx", "--no-verify"], RUNNING | MEASURING),
        (["unroll", MODEL, "-o", "out.onnx", "--no-verify"], RUNNING | MEASURING),
        (
            ["convert", MODEL, "-o", "out.onnx", "--opset", "18", "--no-verify"],
            RUNNING | LOWERING | MEASURING,
        ),
        (["verify", MODEL, MODEL, "--trials", "1"], LOWERING | CONVERTING | MEASURING | {"onnx.reference"}),
        (["verify", MODEL, MODEL, "--trials", "1", "--engine", "rnnlower-reference"], {"onnxruntime"}),
        (["bench", MODEL, "--runs", "1"], {"matplotlib", "onnx.reference"}),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, list) else None,
)
def test_a_command_imports_only_what_it_uses(tmp_path, command, absent):
    command = [str(tmp_path / text) if text == "out.onnx" else text for text in command]
    run = subprocess.run([sys.executable, "-c", _RUN, *command], capture_output=True, text=True, check=True)
    loaded = set(run.stderr.splitlines()[-1].split())
    assert "rnnlower.cli" in loaded
    assert not absent & loaded


LAYERS: dict[str, set[str]] = {
    "rnnlower/graph": {"cli", "engines", "lowering", "opset", "passes", "targets", "verification"},
    "rnnlower/files": {
        "cli",
        "engines",
        "lowering",
        "opset",
        "passes",
        "recurrent",
        "targets",
        "verification",
    },
    "rnnlower/engines": {"cli", "lowering", "opset", "passes", "targets", "verification"},
    "rnnlower/verification": {"cli", "lowering", "opset", "passes", "targets"},
    "rnnlower/lowering": {"cli", "engines", "opset", "passes", "targets", "verification"},
    "rnnlower/opset": {"cli", "engines", "lowering", "passes", "targets", "verification"},
    "rnnlower/targets": {"cli", "engines", "opset", "passes", "verification"},
    "passes": {"cli", "engines", "verification"},
}
"""Folders, and what their modules must not import, not even within a function."""


def imported(path: Path) -> set[str]:
    """The modules and packages of the project that a file imports, by their first name."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "rnnlower":
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rnnlower."):
            modules.add(str(node.module).split(".")[1])
    return modules


@pytest.mark.parametrize("folder", LAYERS)
def test_imports_go_one_way(folder: str) -> None:
    files = list(Path(folder).rglob("*.py"))
    assert files
    assert {(path.name, name) for path in files for name in imported(path) & LAYERS[folder]} == set()
