"""The imports of a command: starting must stay cheap. `lint-imports` checks their direction."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter
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
import json, os, runpy, sys

def run(line):
    sys.argv[:] = ["rnnlower", *line]
    try:
        runpy.run_module("rnnlower", run_name="__main__")
    except SystemExit as end:
        assert end.code in (None, 0, 1), end.code  # 1 is a verdict

for line in json.loads(sys.argv[1]):
    if "--help" not in line:
        # Every other command needs these, and what they import.
        import onnx_ir, sympy, typer._adapters, rnnlower.cli.tables, rnnlower.cli.commands.examining
        import rnnlower.files.publishing, rnnlower.graph.facts, rnnlower.recurrent.suspicions
    reading, writing = os.pipe()
    if process := os.fork():
        os.close(writing)
        print(open(reading).read())
        assert os.waitpid(process, 0)[1] == 0, line
    else:
        os.dup2(2, 1)
        run(line)
        open(writing, "w").write(" ".join(sys.modules))
        os._exit(0)
"""


ABSENT: list[tuple[list[str], set[str]]] = [
    (["--help"], LIBRARIES | RUNNING | LOWERING | CONVERTING | MEASURING),
    (["bench", "--help"], LIBRARIES | RUNNING | LOWERING | CONVERTING | MEASURING),
    (["inspect", MODEL], RUNNING | LOWERING | CONVERTING | MEASURING | {"onnxscript"}),
    # It foretells what `lower` leaves, by the same steps.
    (["check", MODEL, "--target", "primitive"], (RUNNING - {"onnx.reference"}) | MEASURING),
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
]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the modules that each command loads, in a fork of its own."""
    out = str(tmp_path_factory.mktemp("imports") / "out.onnx")
    lines = [[out if text == "out.onnx" else text for text in command] for command, _ in ABSENT]
    command = [sys.executable, "-c", _RUN, json.dumps(lines)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    names = (" ".join(command) for command, _ in ABSENT)
    return {name: {*line.split()} for name, line in zip(names, run.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize(("command", "absent"), ABSENT, ids=[" ".join(command) for command, _ in ABSENT])
def test_a_command_imports_only_what_it_uses(
    command: list[str], absent: set[str], loaded: dict[str, set[str]]
) -> None:
    assert "rnnlower.cli" in loaded[" ".join(command)]
    assert not absent & loaded[" ".join(command)]


@pytest.mark.parametrize("module", ["benchmarking.worker", "engines.session", "engines.child"])
def test_a_child_process_imports_only_what_it_uses(module: str) -> None:
    code = f"import rnnlower.{module}, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"onnx", "onnx_ir", "sympy", "rnnlower.api"} & {*run.stdout.split()}


SHARED = {
    "rnnlower.errors",
    "rnnlower.files.checks",
    "rnnlower.files.metadata",
    "rnnlower.graph.inference",
    "rnnlower.folders",
    "rnnlower.processes",
    "rnnlower.arguments",
    "rnnlower.wording",
}
"""All that the verification and the engines share with what they check, as docs/verification.md says."""


@pytest.mark.parametrize("room", ["verification", "engines"])
def test_verification_and_engines_import_only_the_shared_modules(room: str) -> None:
    found = set()
    for path in Path("rnnlower", room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rnnlower":
                whole = node.module == "rnnlower"
                found |= {f"rnnlower.{a.name}" for a in node.names} if whole else {str(node.module)}
    own = ("rnnlower.verification", "rnnlower.engines")
    assert {name for name in found if not name.startswith(own)} <= SHARED


def test_module_names_are_unique() -> None:
    paths = {path for room in ("rnnlower", "passes") for path in Path(room).resolve().rglob("*.py")}
    counts = Counter(path.name for path in paths)
    assert [name for name, count in counts.items() if count > 1] == ["__init__.py"]
