"""Work in a child process: answers, errors, crashes, time limits, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.processes import process

from rnnlower.engines import session
from rnnlower.errors import OptionError
from rnnlower.processes import Child, ChildDiedError, longest_call


@pytest.fixture
def child() -> Iterator[Child]:
    own = Child()
    yield own
    own.close()


def test_results_and_errors_are_returned(child: Child) -> None:
    assert child.call(os.getpid) != os.getpid()
    with pytest.raises(FileNotFoundError):
        child.call(os.stat, "/nowhere")
    assert child.start() == 1


def test_a_crash_is_an_error_and_the_next_call_starts_a_new_process(child: Child) -> None:
    with pytest.raises(ChildDiedError, match="SIGABRT"):
        child.call(os.abort)
    with pytest.raises(ChildDiedError, match="status 3"):
        child.call(os._exit, 3)
    assert child.call(os.path.basename, "/a/b") == "b"
    assert child.start() == 3


def test_a_call_that_takes_too_long_is_given_up(child: Child) -> None:
    with pytest.raises(ChildDiedError, match=r"longer than 0\.5 s.*RNNLOWER_ENGINE_SECONDS"):
        child.call(time.sleep, 1000, seconds=0.5)


def test_each_call_has_a_limit_of_its_own(child: Child) -> None:
    others = [Child() for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        late = [
            pool.submit(each.call, time.sleep, 1000, seconds=0.3 * (n + 1)) for n, each in enumerate(others)
        ]
        assert child.call(time.sleep, 2, seconds=100) is None
        for n, each in enumerate(late):
            with pytest.raises(ChildDiedError, match=f"longer than {0.3 * (n + 1):g} s"):
                each.result(timeout=60)


def test_a_call_of_a_forked_process_is_given_up() -> None:
    code = """if True:
        import os, time
        from rnnlower.processes import Child, ChildDiedError
        child = Child()
        child.call(os.getpid)
        forked = os.fork()
        if not forked:
            try:
                child.call(time.sleep, 1000, seconds=0.5)
            except ChildDiedError as error:
                os._exit(not error.late)
            os._exit(2)
        assert os.waitpid(forked, 0)[1] == 0
        child.call(os.getpid)
        assert child.start() == 1
    """
    run = process(code)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("text", ["0", "-1", "inf", "soon"])
def test_the_limit_must_be_a_number(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNLOWER_ENGINE_SECONDS", text)
    with pytest.raises(OptionError, match="RNNLOWER_ENGINE_SECONDS"):
        longest_call()


def test_nothing_in_the_folder_hides_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pickle", "numpy", "rnnlower", "session", "models"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('hidden')")
    monkeypatch.chdir(tmp_path)
    own = Child()
    assert own.call(os.path.basename, "/a/b") == "b"
    own.close()


def test_a_forked_process_has_a_child_of_its_own() -> None:
    code = """if True:
        import os
        from rnnlower.processes import Child
        child = Child()
        first = child.call(os.getpid)
        forked = os.fork()
        if not forked:
            os._exit(child.call(os.getpid) == first or child.call(os.getppid) != os.getpid())
        assert os.waitpid(forked, 0)[1] == 0
        assert child.call(os.getpid) == first
    """
    run = process(code)
    assert run.returncode == 0, run.stderr


def test_a_restarted_process_is_known_as_another_one(child: Child) -> None:
    first = child.start()
    assert child.runs_since(first)
    child.close()
    assert not child.runs_since(first)
    assert child.start() != first
    assert not child.runs_since(first)


def test_a_session_that_was_lost_starts_no_process_to_be_closed() -> None:
    path = str(Path(__file__).parents[1] / "models/lstm14_defaults.onnx")
    held = session.IsolatedSession(path, False)
    session._CHILD.close()
    starts = session._CHILD._starts
    held.close()
    assert session._CHILD._starts == starts


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_a_command_ends_without_collecting_garbage(ending: str) -> None:
    """A large graph is full of cycles: to collect them takes longer than a signal may wait."""
    code = f"""if True:
        import gc, os, signal, sys
        gc.disable()
        from rnnlower.cli import main
        class Cycle:
            def __del__(self):
                os.write(1, b"collected")
        def work():
            cycle = Cycle()
            cycle.itself = cycle
            {ending}
        sys.modules["rnnlower.cli.app"].app = work
        main()
    """
    run = process(code)
    assert (run.returncode, run.stdout) == (128 + signal.SIGTERM if ending else 0, ""), run.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_a_call_and_its_process(number: int) -> None:
    """The command line turns SIGTERM into an exit; whoever is killed leaves a child that ends by itself."""
    code = """if True:
        import os, signal, sys, time
        from rnnlower.cli.app import _end
        from rnnlower.processes import Child
        signal.signal(signal.SIGTERM, _end)
        child = Child()
        print(child.call(os.getpid), flush=True)
        child.call(time.sleep, 1000)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        inner = int(run.stdout.readline())
        run.send_signal(number)
        assert run.wait(timeout=60) == (128 + number if number == signal.SIGTERM else -number)
    for _ in range(600):
        if not _runs(inner):
            break
        time.sleep(0.1)
    assert not _runs(inner)


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
        # Nobody may have asked yet how it ended.
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
