"""Sessions of onnxruntime in a child process, one at a time.

Native kernels can abort their process, and a live session's threads disturb what is timed next to it.
"""

from __future__ import annotations

import ctypes
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rnnlower.folders import temporary_folder
from rnnlower.processes import Child, ChildDiedError

Array = NDArray[Any]

_BFLOAT16 = 16
# onnxruntime's profile stops counting here.
_MOST_EVENTS = 1_000_000


class WorkerError(Exception):
    """onnxruntime refuses the model or these inputs, or its process ended."""


class Worker:
    """The child process, started on first use and again after a crash."""

    def __init__(self) -> None:
        self._child = Child()

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def check(self, path: str, feeds: Mapping[str, Array], threads: int) -> tuple[dict[str, Any], int | None]:
        """Return the outputs of one run, and the number of kernels in it.

        Raises:
            WorkerError: The model does not run.
        """
        outputs, kernels = self._ask(_check, path, dict(feeds), threads)
        return outputs, kernels

    def measure(
        self, path: str, feeds: Mapping[str, Array], threads: int, warmup: int, runs: int
    ) -> tuple[float, list[float]]:
        """Return the seconds to create a session, and of each of its runs after ``warmup`` others.

        Raises:
            WorkerError: The model does not run.
        """
        seconds, latencies = self._ask(_measure, path, dict(feeds), threads, warmup, runs)
        return seconds, latencies

    def _ask(self, action: Callable[..., Any], path: str, *arguments: Any) -> Any:
        try:
            return self._child.call(_told, action, os.path.abspath(path), *arguments)
        except ChildDiedError as error:
            raise WorkerError(f"onnxruntime {error}") from error


def _told(action: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of the action; convert errors, since onnxruntime's have no base class.

    Raises:
        WorkerError: It fails.
    """
    try:
        return action(*arguments)
    except Exception as error:
        raise WorkerError((str(error).strip() or type(error).__name__).splitlines()[0]) from None


def _check(path: str, feeds: dict[str, Array], threads: int) -> tuple[dict[str, Any], int | None]:
    with temporary_folder() as folder:
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
    """Return a function for one run. onnxruntime's NumPy bridge lacks bfloat16, its own values strings."""
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
