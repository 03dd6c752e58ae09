"""Forked processes: they end as a Python process does, whatever ends it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.forking import python


def _ended(command: str, folder: Path, *words: str, text: str | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [command, *words], cwd=folder, input=text, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr.rpartition("\n  File")[2].partition("\n")[2]


_SAID = "import os, sys; print(sys.argv, os.getcwd(), __name__, sys.path[0], os.umask(0))"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-c", _SAID, "a", "-b"], None),
        (["-", "a"], _SAID),
        (["script.py", "a"], None),
        (["-m", "script", "a"], None),
        (["-c", "raise SystemExit(7)"], None),
        (["-c", "raise SystemExit('said')"], None),
        (["-c", "raise ValueError('a')"], None),
        (["-c", "import os; os.kill(os.getpid(), 9)"], None),
        (["-c", "import atexit; atexit.register(print, 'at the end')"], None),
        (["-c", "import threading; threading.Timer(0.1, print, ['later']).start()"], None),
        (["-W", "error", "-c", "import warnings; warnings.warn('a')"], None),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, list) else "",
)
def test_a_forked_process_ends_as_python_does(words: list[str], text: str | None, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SAID)
    own, forked = (_ended(command, tmp_path, *words, text=text) for command in (sys.executable, python()))
    assert own[:2] == forked[:2]
    assert own[2].splitlines()[-1:] == forked[2].splitlines()[-1:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_fork(number: int) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"
    with subprocess.Popen([python(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        process = int(run.stdout.readline())
        run.send_signal(number)
        assert run.wait(60) == -number
        # The end of its standard output: the fork had it, too.
        assert run.stdout.read() == b""
    # What has ended exists until the server has taken note of it.
    limit = time.monotonic() + 60
    while Path(f"/proc/{process}").exists():
        assert time.monotonic() < limit
        time.sleep(0.01)
