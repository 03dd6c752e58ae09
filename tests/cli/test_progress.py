"""Progress: shown on a terminal only, once an activity has taken a second."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path

import onnx
import pytest
from support.forking import python
from support.places import ROOT
from support.small_models import recurrent_model

# Without a wait: how long a step takes is not what is tested.
_CODE = "import rnnlower.cli.progress as p; p._SECONDS = 0.0; from rnnlower.cli import app; app()"
_SLOW = "import rnnlower.cli.progress as p, time\nwith p.progress('waiting', False) as tell:\n    "


def _source(folder: Path) -> Path:
    path = folder / "model.onnx"
    inputs = {"X": (onnx.TensorProto.FLOAT, [300, 2, 3])}
    path.write_bytes(recurrent_model(inputs=inputs).SerializeToString())
    return path


def _on_terminal(code: str, *line: object) -> tuple[int, str, str]:
    """Exit code, stdout, and what a terminal on stderr gets."""
    terminal, end = pty.openpty()
    environment = dict(os.environ, PYTHONPATH=str(ROOT), TERM="xterm", COLUMNS="120")
    command = [python(), "-c", code, *map(str, line)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, env=environment) as running:
        os.close(end)
        seen = b""
        # Linux ends a terminal whose other side is closed with an error.
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
        assert running.stdout is not None
        said = running.stdout.read().decode()
    os.close(terminal)
    return running.returncode, said, seen.decode()


def test_a_terminal_sees_every_activity_and_its_steps(tmp_path: Path) -> None:
    path = _source(tmp_path)
    code, said, seen = _on_terminal(_CODE, "unroll", path, "-o", tmp_path / "o.onnx", "--trials", 3, "--json")
    assert code == 0, seen
    assert said.startswith("{")
    for words in ("lowering cell, 300 steps: node 1 of 1", "writing", "verifying: reference, trial"):
        assert words in seen
    assert "trial 3 of 3" in seen


@pytest.mark.parametrize("options", [["-q"], []])
def test_nothing_is_shown_where_it_is_not_wanted(options: list[str], tmp_path: Path) -> None:
    path = _source(tmp_path)
    line = ["unroll", path, "-o", tmp_path / "o.onnx", "--trials", 1, *options]
    if options:
        assert _on_terminal(_CODE, *line)[2] == ""
        return
    # rich takes this for a terminal; stderr is none.
    environment = dict(os.environ, PYTHONPATH=str(ROOT), FORCE_COLOR="1", TTY_COMPATIBLE="1")
    result = subprocess.run(
        [python(), "-c", _CODE, *map(str, line)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert result.stderr.splitlines() == [each for each in result.stderr.splitlines() if "rnnlower:" in each]
    assert "verifying" not in result.stderr


def test_messages_wrap_between_words_and_leave_long_words_whole() -> None:
    code = (
        "from rnnlower.cli.common import to_stderr; to_stderr('rnnlower: note: ' + 'word ' * 30 + 'p' * 150)"
    )
    _, _, screen = _on_terminal(code)
    first, second, path = screen.splitlines()
    assert first.startswith("rnnlower: note: word word")
    assert len(first) <= 120
    assert second.startswith("  word word")
    assert path == "  " + "p" * 150


def test_an_activity_of_less_than_a_second_is_not_shown() -> None:
    assert _on_terminal(_SLOW + "tell('quick', 0, 0)")[2] == ""
    assert "slow 1 of 2" in _on_terminal(_SLOW + "tell('slow', 1, 2); time.sleep(2.5)")[2]


def test_an_estimate_shows_the_time_left_and_lines_above_it() -> None:
    code = (
        "import rnnlower.cli.progress as p, time\n"
        "with p.progress('probing', False, estimated=True) as tell:\n    "
        "for number in range(1, 26):\n        "
        "tell('operators: question', number, 40); time.sleep(0.1)\n        "
        "if number in (2, 20): tell(f'group {number}: 21 questions in 2 s', 0, 0)"
    )
    seen = re.sub(r"\x1b\[[?;\d]*[A-Za-z]", "", _on_terminal(code)[2])
    assert re.search(r"operators: question \d+ of about 40", seen)
    assert re.search(r"0:00:0\d left", seen)
    lines = re.split(r"[\r\n]+", seen)
    assert {"group 2: 21 questions in 2 s", "group 20: 21 questions in 2 s"} <= {*lines}


def test_markup_in_names_is_shown_as_text() -> None:
    code = _SLOW.replace("time\n", "time; p._SECONDS = 0.0\n") + "tell('[/]', 1, 2); time.sleep(0.5)"
    assert "[/] 1 of 2" in _on_terminal(code)[2]
