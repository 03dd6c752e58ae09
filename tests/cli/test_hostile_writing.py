"""Results are written whole or not at all, whatever happens to the disk or the process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from support.forking import python
from support.places import ROOT
from support.processes import process
from support.small_models import recurrent_model
from typer.testing import CliRunner

from rnnlower.cli import app

_KILLED = """
import os, signal, sys
from rnnlower.cli import app
place, *line = sys.argv[1:]
def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
if place == "rename":
    os.replace = die
else:
    import onnx_ir as ir
    def half(model, path, **options):
        with open(path, "wb") as file:
            file.write(b"half a model")
            file.flush()
            die()
    ir.save = half
app(line)
"""


def source(folder: Path) -> Path:
    path = folder / "model.onnx"
    inputs = {"X": (onnx.TensorProto.FLOAT, [3, 2, 3])}
    path.write_bytes(recurrent_model(inputs=inputs).SerializeToString())
    return path


@pytest.mark.parametrize("data", ["never", "always"])
def test_a_full_disk_leaves_no_partial_file(data: str, tmp_path: Path) -> None:
    path = source(tmp_path)
    code = "from rnnlower.cli import app; app()"
    line = ["unroll", path, "-o", tmp_path / "out.onnx", "--external-data", data, "--no-verify"]
    result = process(code, *line, limit=600)
    assert (result.returncode, "Traceback" in result.stderr) == (2, False), result.stderr
    assert "out.onnx cannot be written" in result.stderr
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("place", ["rename", "write"])
@pytest.mark.parametrize("old", [None, b"what was there"])
def test_a_killed_run_leaves_no_partial_file(place: str, old: bytes | None, tmp_path: Path) -> None:
    path = source(tmp_path)
    output = tmp_path / "out.onnx"
    if old:
        output.write_bytes(old)
    result = process(_KILLED, place, "scan", path, "-o", output, "--no-verify")
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert (output.read_bytes() if output.exists() else None) == old
    # What is left has a hidden name, and does not stand in the way of the next run.
    assert all(left.name.startswith(".") for left in tmp_path.iterdir() if left not in (path, output))
    assert CliRunner().invoke(app, ["scan", str(path), "-o", str(output)]).exit_code == 0


def test_output_folder_missing_or_no_folder(tmp_path: Path) -> None:
    path = source(tmp_path)
    (tmp_path / "folder").mkdir()
    for output in (tmp_path / "missing" / "out.onnx", path / "out.onnx", tmp_path / "folder"):
        result = CliRunner().invoke(app, ["scan", str(path), "-o", str(output)])
        assert (result.exit_code, "cannot be written" in result.output) == (2, True), result.output
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "model.onnx"]


def test_output_folder_unwritable(tmp_path: Path) -> None:
    path = source(tmp_path)
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    if os.geteuid() == 0:
        # Modes do not bind root; what the kernel shows does.
        folder = Path("/proc")
    result = CliRunner().invoke(app, ["scan", str(path), "-o", str(folder / "out.onnx")])
    assert (result.exit_code, "cannot be written" in result.output) == (2, True)


@pytest.mark.parametrize("data", ["auto", "always"])
def test_output_is_the_model(data: str, tmp_path: Path) -> None:
    path = source(tmp_path)
    for _ in range(2):
        line = ["scan", str(path), "-o", str(path), "--external-data", data]
        assert CliRunner().invoke(app, line).exit_code == 0
    onnx.checker.check_model(str(path))
    assert {node.op_type for node in onnx.load(path).graph.node} & {"LSTM"} == set()


def test_two_runs_at_once(tmp_path: Path) -> None:
    path = source(tmp_path)
    command = [python(), "-m", "rnnlower", "scan", str(path), "-o", str(tmp_path / "out.onnx")]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    runs = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [run.wait() for run in runs] == [0, 0]
    onnx.checker.check_model(str(tmp_path / "out.onnx"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


_RUNS = [
    ["unroll", "--no-verify"],
    ["scan", "--no-verify", "--external-data", "always"],
    ["loop", "--json", "--trials", "2"],
    ["lower", "--target", "tinygrad", "--no-verify"],
    ["convert", "--opset", "17", "--json"],
    ["inspect", "--json"],
    ["verify", "--json"],
]


_RUN_EACH = """
import json, os, sys
from rnnlower.cli import app
from typer.testing import CliRunner
said = []
for line in json.loads(sys.argv[1]):
    os.mkdir(line[0])
    os.chdir(line[0])
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 0, result.output
    said.append(result.stdout)
    os.chdir("..")
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[str], Path]]:
    """Return the outputs of `_RUNS` and their folder, from two processes whose hashes of names differ."""
    model = str(ROOT / "models" / "gru07_bidirectional.onnx")
    others = {"inspect": [], "verify": [model]}
    lines = [[name, model, *others.get(name, ["-o", "result.onnx"]), *more] for name, *more in _RUNS]
    results = []
    for number in range(2):
        folder = tmp_path_factory.mktemp("run")
        said = subprocess.run(
            [sys.executable, "-c", _RUN_EACH, json.dumps(lines)],
            cwd=folder,
            env=dict(os.environ, PYTHONPATH=str(ROOT), PYTHONHASHSEED=str(number)),
            check=True,
            capture_output=True,
        ).stdout
        results.append((json.loads(said), folder))
    return results


@pytest.mark.parametrize("line", _RUNS, ids=lambda line: line[0])
def test_same_bytes_every_time(line: list[str], twice: list[tuple[list[str], Path]]) -> None:
    results = []
    for printed, folder in twice:
        # What it took is another every time.
        said = re.sub(r'"seconds": \{[^}]*\}', "", printed[_RUNS.index(line)])
        results.append((said, {each.name: each.read_bytes() for each in (folder / line[0]).iterdir()}))
    assert results[0] == results[1]
    assert results[0][1] or results[0][0]


def test_a_closed_reader_of_stderr_does_not_stop_the_run(tmp_path: Path) -> None:
    path, output = source(tmp_path), tmp_path / "out.onnx"
    reading, writing = os.pipe()
    os.close(reading)
    line = [python(), "-m", "rnnlower", "scan", path, "-o", output, "--no-verify", "-v"]
    result = subprocess.run(
        [*map(str, line)], stderr=writing, stdout=subprocess.DEVNULL, cwd=ROOT, check=False
    )
    os.close(writing)
    assert result.returncode == 0
    assert output.exists()
