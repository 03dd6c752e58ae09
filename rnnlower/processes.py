"""Calls in a child process, which may crash or be killed without harm to this one.

onnxruntime and onnx's shape inference abort their process over some models, and block signals while they run.
The child calls the functions it is sent, one after the other, until it is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
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

_VARIABLE = "RNNLOWER_ENGINE_SECONDS"
# Seconds between checks that the parent process still exists.
_WATCH_SECONDS = 1.0
# Seconds between checks of the limits of calls.
_LATE_SECONDS = 0.1
# The paths come first, so that no file in the current folder hides a module.
_START = "import sys; sys.path[:] = sys.argv[1:]; from rnnlower.processes import serve; serve()"

# Until when calls may run, by the monotonic clock, and what ends them; the event says that it did.
_Limits = dict[threading.Event, tuple[float, Callable[[], None]]]


class ChildDiedError(Exception):
    """The process ended during a call: by itself, or because the time was up (``late``)."""

    def __init__(self, message: str, late: bool) -> None:
        super().__init__(message)
        self.late = late


def longest_call() -> float:
    """Return the seconds after which a call is given up: RNNLOWER_ENGINE_SECONDS, by default 600."""
    return limit_set(_VARIABLE, 600.0)


def limit_set(variable: str, default: float) -> float:
    """Return the limit that an environment variable sets.

    Raises:
        OptionError: It is not a number above 0.
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
    """A child process that starts at the first call, and again at the first call after it ended."""

    def __init__(self) -> None:
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.RLock()
        atexit.register(self.close)

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        """Call a function in the child and return its result; its errors are raised here.

        Args:
            function: A function that can be imported by its module and name.
            arguments: Arguments that can be pickled.
            seconds: When to give up; by default `longest_call`.

        Raises:
            ChildDiedError: The process ended before it answered, or the time was up.
        """
        limit = longest_call() if seconds is None else seconds
        with self._lock:
            self.start()
            process = self._process
            assert process is not None
            with killed_after(limit, process.kill) as late:
                try:
                    succeeded, answer = _exchange(process, (function, arguments))
                except (EOFError, OSError, pickle.UnpicklingError) as error:
                    self.close()
                    text = _how_it_ended(process.returncode, late.is_set(), limit)
                    raise ChildDiedError(text, late.is_set()) from error
                except BaseException:
                    # After a signal, the answer of the process would belong to no question any more.
                    self.close()
                    raise
        if not succeeded:
            raise answer
        return answer

    def start(self) -> int:
        """Start the process if it is not running, and return how many times it was started.

        A higher number than before means that the state of the process is lost.
        """
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
        """Return whether the process has been running since `start` returned this number."""
        # A process forked from this one has no child of its own yet.
        process = self._process if self._owner == os.getpid() else None
        return process is not None and self._starts == start and process.poll() is None

    def close(self) -> None:
        """End the process."""
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
def killed_after(seconds: float, kill: Callable[[], None]) -> Iterator[threading.Event]:
    """Call ``kill`` when the time is up; the event is set if that happened.

    One thread watches all limits of a process: to start one for each takes longer than most calls.
    """
    late = threading.Event()
    limits = _watched_limits(os.getpid())
    limits[late] = (time.monotonic() + seconds, kill)
    try:
        yield late
    finally:
        limits.pop(late, None)


@functools.cache
def _watched_limits(process: int) -> _Limits:
    """Return the limits that run in this process, watched by a thread, which a fork does not inherit."""
    limits: _Limits = {}
    threading.Thread(target=_kill_late, args=(limits,), daemon=True, name=f"limits of {process}").start()
    return limits


def _kill_late(limits: _Limits) -> None:
    while True:
        time.sleep(_LATE_SECONDS)
        for late, (end, kill) in limits.copy().items():
            # A call that has ended in the meantime is left alone, and none is ended twice.
            if end <= time.monotonic() and late in limits and not late.is_set():
                late.set()
                kill()


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
    return f"ended its process {ending(status, 'status')}"


def ending(status: int, noun: str) -> str:
    """Describe how a process ended: with this status, which ``noun`` names, or by a signal."""
    if status >= 0:
        return f"with {noun} {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def serve() -> None:
    """Run the child's side: answer each call with a flag of success and the result or the error."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # The output of libraries must not get between the answers.
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
            # Every error belongs to the caller: it is raised there.
            answer = pickle.dumps((False, _portable(error)), pickle.HIGHEST_PROTOCOL)
        outgoing.write(answer)
        outgoing.flush()


def _portable(error: Exception) -> Exception:
    """Return the error, or one with the same message if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        # Pickling a foreign error class may fail in any way; its message can always be sent.
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _leave_no_core_file() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_parent(parent: int) -> None:
    """End this process soon after its parent ends, whatever it is doing: a killed parent cannot do it."""
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
