"""Publication of results: the old file stays usable at every moment."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.forking import python
from support.places import ROOT
from support.processes import process
from support.small_models import recurrent_model
from typer.testing import CliRunner

import rnnlower
from rnnlower.cli import app
from rnnlower.files import publishing
from rnnlower.folders import remove_leftovers

_CODE = "from rnnlower.cli import app; app()"


def saved_model(folder: Path, scale: float = 1.0, name: str = "model.onnx") -> Path:
    """Return a GRU whose W is large enough for a data file."""
    random = np.random.default_rng(0)
    shapes = {"W": (1, 12, 64), "R": (1, 12, 4), "B": (1, 24)}
    constants = {k: (scale * random.standard_normal(v)).astype(np.float32) for k, v in shapes.items()}
    inputs = {"X": (onnx.TensorProto.FLOAT, [3, 2, 64])}
    path = folder / name
    path.write_bytes(recurrent_model("GRU", constants=constants, inputs=inputs).SerializeToString())
    return path


def run_line(*line: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(part) for part in line])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.output


def scan(path: Path, output: Path) -> None:
    code, words = run_line("scan", path, "-o", output, "--external-data", "always", "--trials", 1)
    assert code == 0, words


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def wait_until(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.1)


def test_a_data_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    first, second, third = (saved_model(tmp_path, scale, f"{scale}.onnx") for scale in (1.0, 0.5, 0.25))
    scan(first, tmp_path / "out.onnx")
    assert names(tmp_path) == ["0.25.onnx", "0.5.onnx", "1.0.onnx", "out.onnx", "out.onnx.data"]
    (tmp_path / "copy.onnx").write_bytes((tmp_path / "out.onnx").read_bytes())
    scan(second, tmp_path / "out.onnx")
    assert rnnlower.verify(first, tmp_path / "copy.onnx")
    assert rnnlower.verify(second, tmp_path / "out.onnx")
    # A file of its own name goes with the model that used it.
    (other,) = [name for name in names(tmp_path) if re.fullmatch(r"out\.onnx\.[0-9a-f]{16}\.data", name)]
    scan(third, tmp_path / "out.onnx")
    assert rnnlower.verify(third, tmp_path / "out.onnx")
    assert other not in names(tmp_path)
    assert len(names(tmp_path)) == 7


def test_a_data_file_of_the_same_content_keeps_its_name(tmp_path: Path) -> None:
    path = saved_model(tmp_path)
    contents = []
    for _ in range(2):
        scan(path, tmp_path / "out.onnx")
        contents.append({name: (tmp_path / name).read_bytes() for name in names(tmp_path)})
    assert contents[0] == contents[1]


_KILLED_BETWEEN = """
import os, signal, sys
from rnnlower.cli import app
replace = os.replace
def die_at_the_model(source, target):
    if str(target).endswith(".onnx"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = die_at_the_model
app()
"""


def test_a_kill_between_the_two_renames(tmp_path: Path) -> None:
    first, second = saved_model(tmp_path), saved_model(tmp_path, 0.5, "second.onnx")
    output = tmp_path / "out.onnx"
    scan(first, output)
    line = ["scan", second, "-o", output, "--external-data", "always", "--no-verify"]
    result = process(_KILLED_BETWEEN, *line)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert rnnlower.verify(first, output)
    scan(second, output)
    assert rnnlower.verify(second, output)


def test_files_of_killed_runs_are_removed_by_the_next_run(tmp_path: Path) -> None:
    path, output = saved_model(tmp_path), tmp_path / "out.onnx"
    assert process(_KILLED_BETWEEN, "scan", path, "-o", output, "--no-verify").returncode == -signal.SIGKILL
    (left,) = (tmp_path / name for name in names(tmp_path) if name.startswith("."))
    assert left.is_dir()
    beside, other = left.with_name(f"{left.name}.onnx"), tmp_path / ".other.rnnlower"
    beside.write_bytes(b"")
    other.mkdir()
    held = os.open(other, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert run_line("scan", path, "-o", tmp_path / "third.onnx", "--no-verify")[0] == 0
    assert names(tmp_path) == [".other.rnnlower", "model.onnx", "third.onnx"]
    os.close(held)


def test_a_folder_is_locked_until_it_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = publishing._remove_staged

    def after_another_run(folder: Path) -> None:
        remove_leftovers([folder], remove)
        remove(folder)

    monkeypatch.setattr(publishing, "_remove_staged", after_another_run)
    with publishing.staging_folder(tmp_path / "out.onnx") as folder:
        assert folder.is_dir()
    assert names(tmp_path) == []


def test_two_runs_with_data_at_once(tmp_path: Path) -> None:
    sources = [saved_model(tmp_path, scale, f"{scale}.onnx") for scale in (1.0, 0.5)]
    line = [python(), "-c", _CODE, "scan", "-o", tmp_path / "out.onnx", "--external-data", "always"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [[*map(str, line), "--no-verify", str(source)] for source in sources]
    runs = [subprocess.Popen(each, env=environment, stderr=subprocess.DEVNULL) for each in command * 2]
    assert [each.wait() for each in runs] == [0] * 4
    assert any(rnnlower.verify(source, tmp_path / "out.onnx") for source in sources)
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_a_run_waits_for_another_that_is_placing(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    path = saved_model(tmp_path)
    line = [sys.executable, "-c", _CODE, "scan", str(path), "-o", str(path), "--no-verify"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    with subprocess.Popen(line, env=environment, stderr=subprocess.DEVNULL) as waiting:
        # What waits for a lock has an arrow there.
        wait_until(lambda: re.search(rf"-> FLOCK .* {waiting.pid} ", Path("/proc/locks").read_text()))
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
        os.close(descriptor)
        assert waiting.wait(60) == 0


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path: Path) -> None:
    path = saved_model(tmp_path)
    before = path.read_bytes()
    (tmp_path / "link.onnx").symlink_to("model.onnx")
    (tmp_path / "dangling.onnx").symlink_to("nowhere")
    for name in ("link.onnx", "dangling.onnx"):
        assert run_line("scan", path, "-o", tmp_path / name, "--trials", 1)[0] == 0
        assert not (tmp_path / name).is_symlink()
    assert path.read_bytes() == before
    assert names(tmp_path) == ["dangling.onnx", "link.onnx", "model.onnx"]


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    path = saved_model(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    code, words = run_line("scan", path, "-o", tmp_path / "link", "--trials", 1)
    assert code == 2
    assert "it is a directory and not a file" in words
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path, out: Path, mode: int) -> None:
    first, second = saved_model(tmp_path), saved_model(tmp_path, 0.5, "second.onnx")
    scan(first, out)
    out.chmod(mode)
    scan(second, out)
    written = [each for each in tmp_path.iterdir() if each.name.startswith("out.onnx")]
    assert len(written) == 3
    new = next(each for each in written if re.search(r"[0-9a-f]{16}\.data", each.name))
    assert [each.stat().st_mode & 0o777 for each in (out, new)] == [mode, mode]
    first.chmod(mode)
    assert run_line("scan", first, "-o", first, "--no-verify")[0] == 0
    assert first.stat().st_mode & 0o777 == mode


def test_a_new_file_has_the_permissions_of_every_new_file(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    scan(saved_model(tmp_path), tmp_path / "out.onnx")
    for name in ("out.onnx", "out.onnx.data"):
        assert (tmp_path / name).stat().st_mode == ordinary.stat().st_mode


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    os.mkfifo(tmp_path / "pipe")
    yield tmp_path / "pipe"
    assert (tmp_path / "pipe").is_fifo()


def test_a_pipe_folder_or_device_is_refused_as_output(tmp_path: Path, pipe: Path) -> None:
    path = saved_model(tmp_path)
    for output in (pipe, tmp_path):
        code, words = run_line("scan", path, "-o", output, "--no-verify")
        assert (code, "and not a file" in words) == (2, True), words
    with pytest.raises(rnnlower.OptionError, match="device"):
        publishing.check_destination(Path("/dev/null"))


def test_a_pipe_is_not_a_path_of_a_model(tmp_path: Path) -> None:
    """What is read twice, for the work and for its verification, would be empty the second time."""
    reading, writing = os.pipe()
    os.write(writing, saved_model(tmp_path).read_bytes())
    os.close(writing)
    pipe = f"/dev/fd/{reading}"
    with pytest.raises(rnnlower.InvalidModelError, match="it is a pipe and not a file; write its content to"):
        rnnlower.scan(pipe)
    os.close(reading)


def test_the_models_own_data_is_not_the_destination(tmp_path: Path) -> None:
    loaded = onnx.load(saved_model(tmp_path))
    path = tmp_path / "external.onnx"
    onnx.save(loaded, path, save_as_external_data=True, location="weights.onnx", size_threshold=0)
    before = hashlib.sha256((tmp_path / "weights.onnx").read_bytes()).digest()
    for mode in ("auto", "always", "never"):
        line = ["scan", path, "-o", tmp_path / "weights.onnx", "--external-data", mode, "--no-verify"]
        code, words = run_line(*line)
        assert (code, "weights.onnx, which the command reads; give" in words) == (2, True), words
    assert hashlib.sha256((tmp_path / "weights.onnx").read_bytes()).digest() == before


def test_the_sources_data_survives_a_result_of_its_name(tmp_path: Path) -> None:
    """The source keeps its weights in the file that the result's data would take."""
    loaded = onnx.load(saved_model(tmp_path))
    path = tmp_path / "source.onnx"
    onnx.save(loaded, path, save_as_external_data=True, location="out.onnx.data", size_threshold=0)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    scan(path, tmp_path / "out.onnx")
    for tensor in onnx.load(path).graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), weights[tensor.name])
    assert rnnlower.verify(path, tmp_path / "out.onnx")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_run_leaves_nothing(tmp_path: Path, number: int) -> None:
    path = saved_model(tmp_path)
    code = "import time, onnx_ir, rnnlower.cli; save = onnx_ir.save\n"
    code += "onnx_ir.save = lambda *a, **k: (save(*a, **k), time.sleep(60))\nrnnlower.cli.main()"
    line = [sys.executable, "-c", code, "scan", str(path), "-o", str(tmp_path / "out.onnx")]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE) as running:
        wait_until(lambda: [name for name in names(tmp_path) if name.startswith(".")])
        time.sleep(0.5)
        running.send_signal(number)
        assert running.wait(60) == 128 + number
    assert names(tmp_path) == ["model.onnx"]


@pytest.mark.parametrize("line", [["inspect"], ["verify"], ["verify", "--json"], ["scan"]])
def test_a_full_or_closed_stdout(line: list[str], tmp_path: Path) -> None:
    path = str(saved_model(tmp_path))
    command, *options = line
    rest = {"inspect": [path], "verify": [path, path], "scan": [path, "-o", str(tmp_path / "out.onnx")]}
    arguments = [python(), "-c", _CODE, command, *rest[command], *options]
    arguments += [] if command == "inspect" else ["--trials", "1"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("wb") as full, os.fdopen(writing, "wb") as closed:
        for stdout, code in ((full, 2), (closed, 0)):
            result = subprocess.run(
                arguments, stdout=stdout, stderr=subprocess.PIPE, env=environment, text=True, check=False
            )
            assert result.returncode == code, result.stderr
            assert "Traceback" not in result.stderr
            # A reader that stops reading wants no more; a full disk is an error.
            assert ("rnnlower: error: cannot read or write" in result.stderr) == (code == 2)
            assert "Broken pipe" not in result.stderr
