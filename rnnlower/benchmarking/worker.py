"""Sessions of onnxruntime in a child process, one at a time.

Native kernels can abort their process, and a live session's threads disturb what is timed next to it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from rnnlower.engines.child import time_runs
from rnnlower.engines.session import Array, first_line, prepare_run, to_array
from rnnlower.folders import temporary_folder
from rnnlower.processes import Child, ChildDiedError

# onnxruntime's profile stops counting here.
_MAX_EVENTS = 1_000_000


class WorkerError(Exception):
    """onnxruntime refuses the model or these inputs, or its process ended."""


class Worker:
    """The child process, started on first use and again after a crash."""

    def __init__(self, threads: int) -> None:
        self._child, self._threads = Child(), threads

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def check(self, path: str, feeds: Mapping[str, Array]) -> tuple[dict[str, Any], int | None]:
        """Return the outputs of one run, and the number of kernels in it.

        Raises:
            WorkerError: The model does not run.
        """
        outputs, kernels = self._ask(_check, path, dict(feeds))
        return outputs, kernels

    def measure(
        self, path: str, feeds: Mapping[str, Array], warmup: int, runs: int
    ) -> tuple[float, list[float]]:
        """Return the seconds to create a session, and of each of its runs after ``warmup`` others.

        Raises:
            WorkerError: The model does not run.
        """
        seconds, latencies = self._ask(_measure, path, dict(feeds), warmup, runs)
        return seconds, latencies

    def _ask(self, action: Callable[..., Any], path: str, *arguments: Any) -> Any:
        try:
            return self._child.call(_call, action, os.path.abspath(path), self._threads, *arguments)
        except ChildDiedError as error:
            raise WorkerError(f"onnxruntime {error}") from error


def _call(action: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of the action; any error is a WorkerError, since onnxruntime's have no base class."""
    try:
        return action(*arguments)
    except Exception as error:
        raise WorkerError(first_line(error)) from None


def _check(path: str, threads: int, feeds: dict[str, Array]) -> tuple[dict[str, Any], int | None]:
    with temporary_folder() as folder:
        session = _session(path, threads, os.path.join(folder, "profile"))
        outputs = [to_array(value) for value in prepare_run(session, feeds)()]
        with open(session.end_profiling(), encoding="utf-8") as file:
            events = json.load(file)
    kernels = sum(event["name"].endswith("_kernel_time") for event in events)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, outputs, strict=True)), kernels if len(events) < _MAX_EVENTS else None


def _measure(
    path: str, threads: int, feeds: dict[str, Array], warmup: int, runs: int
) -> tuple[float, list[float]]:
    start = time.perf_counter()
    session = _session(path, threads)
    seconds = time.perf_counter() - start
    return seconds, time_runs(prepare_run(session, feeds), warmup, runs)[0]


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
