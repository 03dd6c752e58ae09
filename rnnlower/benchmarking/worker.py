"""Sessions of onnxruntime in a process of their own, one at a time.

Native kernels can abort their process, and a live session's threads disturb what is timed next to it. This
module is imported by the one process and run as a script by the other, which therefore imports little.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Worker", "WorkerError"]

Array = NDArray[Any]

# Seconds after which a request is given up: a Loop may have no end.
LONGEST_REQUEST = 900.0
_BFLOAT16 = 16
# Where onnxruntime's profile stops counting.
_MOST_EVENTS = 1_000_000


class WorkerError(Exception):
    """onnxruntime refuses the model or these inputs, or ended its process."""


class Worker:
    """The other process, started when it is first needed and again after a crash."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """Ends the process."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def check(self, path: str, feeds: Mapping[str, Array], threads: int) -> tuple[dict[str, Any], int | None]:
        """The outputs of one run, and how many kernels ran in it.

        Raises:
            WorkerError: The model does not run.
        """
        outputs, kernels = self._ask("check", path, dict(feeds), threads)
        return outputs, kernels

    def measure(
        self, path: str, feeds: Mapping[str, Array], threads: int, warmup: int, runs: int
    ) -> tuple[float, list[float]]:
        """Seconds to make a session, and of each of its runs after ``warmup`` others.

        Raises:
            WorkerError: The model does not run.
        """
        seconds, latencies = self._ask("measure", path, dict(feeds), threads, warmup, runs)
        return seconds, latencies

    def _ask(self, *request: Any) -> Any:
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
            )
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(LONGEST_REQUEST, child.kill)
        timer.daemon = True
        timer.start()
        try:
            pickle.dump(request, child.stdin)
            child.stdin.flush()
            done, answer = pickle.load(child.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            late = not timer.is_alive()
            self.close()
            reason = f"took more than {LONGEST_REQUEST:.0f} s" if late else f"exit status {child.returncode}"
            raise WorkerError(f"onnxruntime ended its process: {reason}") from error
        finally:
            timer.cancel()
        if not done:
            raise WorkerError(answer)
        return answer


def _check(path: str, feeds: dict[str, Array], threads: int) -> tuple[dict[str, Any], int | None]:
    with tempfile.TemporaryDirectory() as folder:
        session = _session(path, threads, os.path.join(folder, "profile"))
        outputs = [_array(value) for value in _runner(session, feeds)()]
        with open(session.end_profiling(), encoding="utf-8") as file:
            events = json.load(file)
    kernels = sum(event["name"].endswith("_kernel_time") for event in events)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, outputs, strict=True)), kernels if len(events) < _MOST_EVENTS else None


def _measure(
    path: str, feeds: dict[str, Array], threads: int, warmup: int, runs: int
) -> tuple[float, list[float]]:
    start = time.perf_counter()
    session = _session(path, threads)
    seconds = time.perf_counter() - start
    run = _runner(session, feeds)
    for _ in range(warmup):
        run()
    latencies = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        latencies.append(time.perf_counter() - start)
    return seconds, latencies


def _session(path: str, threads: int, profile: str = "") -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _runner(session: Any, feeds: dict[str, Array]) -> Callable[[], Any]:
    """What runs the session once. onnxruntime's bridge to NumPy lacks bfloat16, its own values lack text."""
    typed = (*session.get_inputs(), *session.get_outputs())
    if all(value.type != "tensor(bfloat16)" for value in typed):
        return lambda: session.run(None, feeds)
    from onnxruntime import OrtValue

    values = {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.ascontiguousarray(array).view(np.uint16), _BFLOAT16
        )
        if array.dtype.name == "bfloat16"
        else OrtValue.ortvalue_from_numpy(array)
        for name, array in feeds.items()
    }
    return lambda: session.run_with_ort_values(None, values)


def _array(value: Any) -> Any:
    if not hasattr(value, "data_type"):
        return value
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    import ml_dtypes

    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape, dtype=np.int64)))
    return np.frombuffer(raw, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)


def _serve(incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Answers pairs of whether it went well and a value, until the input ends."""
    actions: dict[str, Callable[..., Any]] = {"check": _check, "measure": _measure}
    while True:
        try:
            action, *arguments = pickle.load(incoming)
        except EOFError:
            return
        try:
            answer = (True, actions[action](*arguments))
        except Exception as error:
            # onnxruntime's errors have no base class of their own.
            answer = (False, (str(error).strip() or type(error).__name__).splitlines()[0])
        pickle.dump(answer, outgoing)
        outgoing.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
