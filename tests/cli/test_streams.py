"""Standard input and pipes as MODEL, and standard output as OUT."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from support.cli_helpers import save
from support.forking import python
from support.judge import recurrent_left
from support.small_models import recurrent_model
from test_cli_writing import model_with_data
from typer.testing import CliRunner, Result

import rnnlower
from rnnlower.cli import app

FLOAT = onnx.TensorProto.FLOAT
COMMANDS = {
    "unroll": (),
    "scan": (),
    "loop": (),
    "lower": ("--target", "primitive"),
    "convert": ("--opset", "18"),
    "stream": (),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(recurrent_model(inputs={"X": (FLOAT, [5, 2, 3])}), tmp_path)


def run(*arguments: object, stdin: bytes = b"", code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)], input=stdin)
    assert result.exit_code == code, result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.mark.parametrize("command", COMMANDS)
def test_model_in_and_model_out(command: str, path: Path, tmp_path: Path, out: Path) -> None:
    """Stdout holds the bytes that a file would, and nothing else; the tables are on stderr."""
    run(command, path, "-o", out, *COMMANDS[command])
    piped = run(command, "-", "-o", "-", *COMMANDS[command], stdin=path.read_bytes())
    assert piped.stdout_bytes == out.read_bytes()
    assert "Verified: " in piped.stderr
    assert "wrote standard output (" in piped.stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


def test_one_of_several_files_comes_from_stdin(tmp_path: Path, out: Path) -> None:
    first = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] a) => (float[n] y) {}'
    )
    second = onnx.ModelProto.FromString(first.SerializeToString())
    first.graph.node.add(op_type="Tanh", input=["a"], output=["y"])
    second.graph.input[0].name, second.graph.output[0].name = "y", "z"
    second.graph.node.add(op_type="Relu", input=["y"], output=["z"])
    path = save(second, tmp_path)
    run("stream", "-", path, "--time-axis", "a:0", "-o", out, stdin=first.SerializeToString())
    assert [value.name for value in onnx.load(out).graph.output] == ["z"]


def test_a_pipeline_of_commands(path: Path, tmp_path: Path) -> None:
    rnn = f"{python()} -m rnnlower"
    line = f"cat model.onnx | {rnn} convert - -o - --opset 17 | {rnn} unroll /dev/stdin -o out.onnx"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    result = onnx.load(tmp_path / "out.onnx")
    assert recurrent_left(result) == []
    assert rnnlower.verify(path, result)


@pytest.mark.parametrize(
    "line",
    [
        ["inspect", "MODEL"],
        ["check", "MODEL", "--target", "primitive"],
        ["verify", "MODEL", "PATH"],
        ["verify", "PATH", "MODEL"],
        ["bench", "MODEL", "--runs", "1"],
    ],
    ids=" ".join,
)
def test_standard_input_in_the_other_commands(line: Sequence[str], path: Path) -> None:
    arguments = [{"MODEL": "-", "PATH": path}.get(part, part) for part in line]
    run(*arguments, stdin=path.read_bytes(), code=int(line[0] == "check"))


def test_named_pipes(path: Path, tmp_path: Path) -> None:
    """As a shell passes them for ``<(...)``; two at once, each of which can be read only once."""
    pipes = [tmp_path / "a", tmp_path / "b"]
    for pipe in pipes:
        os.mkfifo(pipe)
        threading.Thread(target=pipe.write_bytes, args=[path.read_bytes()], daemon=True).start()
    assert "Verified: " in run("verify", *pipes).stdout


def test_messages_name_the_stream(tmp_path: Path) -> None:
    wrong = run("unroll", "-", "-o", "-", stdin=b"<html></html>", code=3)
    assert wrong.stderr.startswith("rnnlower: error: standard input is not an ONNX model")
    assert wrong.stdout == ""


def test_a_result_that_differs_is_not_written(path: Path) -> None:
    line = ["scan", "-", "-o", "-", "--atol", 0, "--rtol", 0, "--trials", 3]
    differs = run(*line, stdin=path.read_bytes(), code=1)
    assert differs.stdout == ""
    assert "standard output was not written" in differs.stderr


def test_external_data_is_part_of_standard_output(tmp_path: Path) -> None:
    source = model_with_data(tmp_path)
    result = onnx.load_from_string(run("scan", source, "-o", "-").stdout_bytes)
    assert rnnlower.verify(source, result)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["scan", "-", "-o", "-", "--json"], "-o - and --json both write to standard output"),
        (["scan", "-", "-o", "-", "--external-data", "always"], "-o - holds one file"),
        (["verify", "-", "-"], "standard input can be only one of the models"),
        (["stream", "-", "-", "-o", "out.onnx"], "standard input can be only one of the models"),
    ],
    ids=str,
)
def test_options_that_need_the_same_stream_are_refused(line: Sequence[str], words: str, path: Path) -> None:
    assert words in run(*line, stdin=path.read_bytes(), code=2).stderr


def test_a_terminal_is_refused_as_model_and_as_output(path: Path) -> None:
    """A terminal gives no model, and gets none."""
    leader, follower = os.openpty()
    for line, words in (
        (["scan", "-", "-o", "out.onnx"], b"no model comes from standard input"),
        (["scan", path, "-o", "-"], b"redirect it to a file or a command"),
    ):
        done = subprocess.run(
            [python(), "-m", "rnnlower", *map(str, line)],
            stdin=follower,
            stdout=follower,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    os.close(leader)
    os.close(follower)


def test_the_model_arrives_though_nobody_reads_the_tables(path: Path, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    line = [python(), "-m", "rnnlower", "scan", str(path), "-o", "-"]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=writing, check=False)
    os.close(writing)
    assert done.returncode == 0
    assert rnnlower.verify(path, onnx.load_from_string(done.stdout))
