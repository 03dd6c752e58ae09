"""Work in a process of its own, which may die, or be ended, without taking this one along.

onnxruntime and onnx's shape inference end their process over some models, and hold off signals while they are
at it. The other process calls functions that it is sent by name, one after the other, until it is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from rnnlower.errors import OptionError

__all__ = ["Child", "ChildDiedError", "limit_set", "longest_call"]

_VARIABLE = "RNNLOWER_ENGINE_SECONDS"
# Of how often a child looks whether its parent is still there.
_WATCH_SECONDS = 1.0
# The paths come first, so that nothing in the current folder hides a module.
_START = "import sys; sys.path[:] = sys.argv[1:]; from rnnlower.processes import serve; serve()"


class ChildDiedError(Exception):
    """The process ended during a call, by itself (``late`` is False) or because its time was over."""

    def __init__(self, message: str, late: bool) -> None:
        super().__init__(message)
        self.late = late


def longest_call() -> float:
    """Seconds after which a call is given up: RNNLOWER_ENGINE_SECONDS, by default 600.

    Raises:
        OptionError: It is no number above 0.
    """
    return limit_set(_VARIABLE, 600.0)


def limit_set(variable: str, default: float) -> float:
    """The limit that an environment variable sets.

    Raises:
        OptionError: It is no number above 0.
    """
    text = os.environ.get(variable) or str(default)
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise OptionError(f"{variable} is {text!r}; it must be a number above 0")
    return number


class Child:
    """A process that is started at the first call, and again at the first after it ended."""

    def __init__(self) -> None:
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.RLock()
        atexit.register(self.close)

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        """What a function of a module gives there; its errors are raised here.

        Args:
            function: A function that a module has under its own name.
            arguments: What can be pickled.
            seconds: After which time to give up; left out: `longest_call`.

        Raises:
            ChildDiedError: The process ended before it answered, or its time was over.
        """
        most = longest_call() if seconds is None else seconds
        with self._lock:
            self.start()
            process = self._process
            assert process is not None
            with _killed_after(process, most) as late:
                try:
                    succeeded, answer = _exchange(process, (function, arguments))
                except (EOFError, OSError, pickle.UnpicklingError) as error:
                    self.close()
                    text = _how_it_ended(process.returncode, late.is_set(), most)
                    raise ChildDiedError(text, late.is_set()) from error
                except BaseException:
                    # A signal: what the process would answer belongs to no question any more.
                    self.close()
                    raise
        if not succeeded:
            raise answer
        return answer

    def start(self) -> int:
        """Makes sure that it runs; how often it was started: what it held is lost when that grows."""
        with self._lock:
            if not self.runs_since(self._starts):
                self.close()
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _START, *(path or os.getcwd() for path in sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
                self._owner = os.getpid()
                self._starts += 1
            return self._starts

    def runs_since(self, start: int) -> bool:
        """Whether it has not ended since `start` gave this number."""
        # A process that was forked off this one has none of its own yet.
        process = self._process if self._owner == os.getpid() else None
        return process is not None and self._starts == start and process.poll() is None

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def _killed_after(process: subprocess.Popen[bytes], seconds: float) -> Iterator[threading.Event]:
    """Kills the process when its time is over; the event tells that this was done."""
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _exchange(process: subprocess.Popen[bytes], message: Any) -> tuple[bool, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    pickle.dump(message, process.stdin, pickle.HIGHEST_PROTOCOL)
    process.stdin.flush()
    succeeded, answer = pickle.load(process.stdout)
    return succeeded, answer


def _how_it_ended(status: int, late: bool, seconds: float) -> str:
    if late:
        return f"took longer than {seconds:g} s, and was ended ({_VARIABLE} sets the limit)"
    if status >= 0:
        return f"ended its process with status {status}"
    try:
        return f"ended its process by {signal.Signals(-status).name}"
    except ValueError:
        return f"ended its process by signal {-status}"


def serve() -> None:
    """The child's side: answers pairs of whether a call went well, and what it gave or raised."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a library prints must not come between the answers.
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _leave_no_core_file()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            function, arguments = pickle.load(incoming)
        except EOFError:
            return
        try:
            answer = pickle.dumps((True, function(*arguments)), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            # Every error is the caller's: it is raised there.
            answer = pickle.dumps((False, _portable(error)), pickle.HIGHEST_PROTOCOL)
        outgoing.write(answer)
        outgoing.flush()


def _portable(error: Exception) -> Exception:
    """The error, or one that says the same if the error cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # Whatever an error of somebody else's class fails with, its words can be sent.
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _leave_no_core_file() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent(parent: int) -> None:
    """Ends this process soon after its parent, whatever it is at: a killed parent cannot."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
