"""A Python that starts at once: its processes fork from one that has imported the libraries.

It runs ``-c CODE``, ``-m MODULE``, ``-`` and scripts as Python does, in the caller's folder and environment,
with its streams and umask; signals are passed on, and the exit status comes back. Other options, or another
value of a variable that is read at the start, get a Python of their own. A test of the start itself, of
limits or of whose child a process is takes `sys.executable`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import marshal
import os
import pkgutil
import re
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_CALLER = Path(__file__).with_name("forked.py")
# What Python and libraries read while they start, which is past in a fork.
_EARLY = ("PYTHON", "LC_", "LANG", "FORCE_COLOR", "NO_COLOR", "TERMINAL_WIDTH", "TTY_", "OPENBLAS_", "OMP_")
_LIBRARIES = (
    "onnx.reference",
    "rich.console",
    "rnnlower",
    "rnnlower.passes",
    "typer._adapters",
    "typer.rich_utils",
)
# What imports onnxruntime, which starts a thread, or packages that may be absent.
_LATER = re.compile(r".*\.__main__|rnnlower\.(engines|exporters|benchmarking\.worker)")

Request = tuple[tuple[str, ...], str, dict[str, str], int, list[int]]
"""The words after ``python``, folder, environment, umask, and which of the streams 0, 1 and 2 are open."""


@functools.cache
def python() -> str:
    """Return the path of this Python, whose server ends with this process."""
    if not hasattr(os, "pidfd_open"):
        return sys.executable
    folder = Path(tempfile.mkdtemp())
    command = folder / "python"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{_CALLER}" "{folder}" "$@"\n')
    command.chmod(0o700)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    early = {name: text for name, text in environment.items() if name.startswith(_EARLY)}
    (folder / "early").write_bytes(marshal.dumps((_EARLY, early)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(64)
        line = [sys.executable, __file__, str(folder), str(listener.fileno()), *filter(None, sys.path)]
        number = listener.fileno()
        _servers.append(subprocess.Popen(line, stdin=subprocess.PIPE, pass_fds=[number], env=environment))
    return str(command)


_servers: list[subprocess.Popen[bytes]] = []


class _Server:
    """The process that forks, as long as its standard input is open."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(listener, selectors.EVENT_READ)

    def serve(self) -> tuple[Request, list[int]] | None:
        """Fork a process for each request, and return the request and its streams there; here, nothing."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return None
                if key.fileobj is self._listener:
                    if forked := self._fork():
                        return forked
                else:
                    self._end(*key.data, killed=isinstance(key.fileobj, socket.socket))
                    # The other events may be of the same process, or of numbers that are used again.
                    break

    def _fork(self) -> tuple[Request, list[int]] | None:
        connection, _ = self._listener.accept()
        message, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
        if not message:
            connection.close()
            return None
        process = os.fork()
        if not process:
            self._selector.close()
            self._listener.close()
            connection.close()
            return marshal.loads(message), streams
        for number in streams:
            os.close(number)
        # A caller that was killed meanwhile is noticed where its end of the connection is read.
        with contextlib.suppress(OSError):
            connection.send(b"%d" % process)
        ending = os.pidfd_open(process)
        for each in (connection, ending):
            self._selector.register(each, selectors.EVENT_READ, (connection, ending, process))
        return None

    def _end(self, connection: socket.socket, ending: int, process: int, *, killed: bool) -> None:
        """Send the status of a process; where its caller was killed, it is, too."""
        if killed:
            os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        for each in (connection, ending):
            self._selector.unregister(each)
        os.close(ending)
        with connection, contextlib.suppress(OSError):
            connection.send(b"%d" % status)


def _take_place(request: Request, streams: list[int], path: list[str]) -> None:
    """Give this process what its caller has, as in a Python that has just started."""
    _, folder, environment, umask, numbers = request
    os.chdir(folder)
    os.umask(umask)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.close(number)
        stream = None
        if number in numbers:
            os.dup2(streams[numbers.index(number)], number)
            errors = "backslashreplace" if number == 2 else None
            stream = open(number, "w" if number else "r", errors=errors, closefd=False)  # noqa: SIM115
            stream.reconfigure(line_buffering=number == 2 or stream.isatty())
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    for number in streams:
        os.close(number)
    own = environment.get("PYTHONPATH", "")
    sys.path[:] = [*(os.path.abspath(each) for each in own.split(os.pathsep) if own), *path]


def _run(words: tuple[str, ...]) -> None:
    """Run the words after ``python`` as the main program."""
    kind = words[0]
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif kind in ("-c", "-"):
        sys.path.insert(0, "")
        code = words[1] if kind == "-c" else sys.stdin.read()
        sys.argv = [kind, *words[2 if kind == "-c" else 1 :]]
        space: dict[str, Any] = vars(sys.modules["__main__"])
        for name in [name for name in space if not name.startswith("__")]:
            del space[name]
        del space["__file__"]
        exec(compile(code, "<string>" if kind == "-c" else "<stdin>", "exec"), space)
    else:
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv = list(words)
        runpy.run_path(kind, run_name="__main__")


def _end(status: object) -> None:
    """End as Python does, but for freeing all objects of the libraries, which takes longer than most runs.

    Return where there is more to say than a status.
    """
    import atexit
    import contextlib
    import os
    import sys
    import threading

    if not isinstance(status, int | None):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        os._exit((status or 0) & 0xFF)


def main(folder: str, number: str, *path: str) -> None:
    """Import the libraries from the path, fork, and run what was asked for in each fork."""
    plain = sys.path[1:]
    sys.path[:] = path
    for library in _LIBRARIES:
        package = importlib.import_module(library)
        if library.startswith("rnnlower"):
            for module in pkgutil.walk_packages(package.__path__, f"{library}."):
                if not _LATER.match(module.name):
                    importlib.import_module(module.name)
    assert "onnxruntime" not in sys.modules
    gc.collect()
    gc.freeze()
    forked = _Server(socket.socket(fileno=int(number))).serve()
    if not forked:
        shutil.rmtree(folder)
        return
    sys.executable = f"{folder}/python"
    _take_place(*forked, plain)
    # What runs may take all names away from this module.
    run, end = _run, _end
    try:
        run(forked[0][0])
    except SystemExit as error:
        end(error.code)
        raise
    end(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
