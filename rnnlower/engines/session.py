"""onnxruntime sessions, in this process or in one of their own.

Native LSTM and GRU kernels abort the whole process on zero-length time or batch, so a model whose shapes
cannot be shown to be safe runs in a child process: this module, run as a script.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["IsolatedSession", "LacksKernelError", "LoadError", "RunError", "Session", "brief"]

Array = NDArray[Any]

# How onnxruntime says that it is not the model that is wrong.
_LACKING = (
    "Could not find an implementation",
    "NOT_IMPLEMENTED",
    "Batchwise recurrent operations",
    "does not support double yet",
    "ONNX Runtime only *guarantees* support",
    "Unsupported model IR version",
    "is not a registered function/op",
)
_LONGEST, _HEAD = 500, 100
# How it says that a value inside the model has another shape than the model records for it.
RECORDED_SHAPE = "pre-allocated output OrtValues"
_MAX_THREADS = 4
# It ends the process at a float16 MatMul behind a Transpose of unknown sizes (onnxruntime 1.31).
_UNSOUND_OPTIMIZERS = ["NchwcTransformer"]
# Seconds after which a run is given up: a Loop may have no end.
LONGEST_RUN = 600.0


class LoadError(Exception):
    """The engine refuses the model."""


class LacksKernelError(LoadError):
    """The engine has no implementation for something in the model; the model may be right."""


class RunError(Exception):
    """The model does not run on these inputs."""


def brief(error: Exception) -> str:
    """The error's text, cut in the middle if it is long.

    What went wrong stands last, behind every subgraph on the way and a position in onnxruntime's source.
    """
    text = str(error)
    return text if len(text) <= _LONGEST else f"{text[:_HEAD]} ... {text[-(_LONGEST - _HEAD) :]}"


class Session:
    """One onnxruntime session on the CPU, quiet, with few threads.

    ``source`` is a path or serialized bytes; ``optimize`` is False to run the graph as it is written.

    Raises:
        LoadError: the model is refused; LacksKernelError if for want of an implementation.
        RunError: at ``run``.
    """

    def __init__(self, source: str | bytes, optimize: bool) -> None:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._failures = tuple(
            kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)
        )
        self._failures += (RuntimeError, ValueError)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = min(os.cpu_count() or 1, _MAX_THREADS)
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
        self._ort = onnxruntime
        try:
            self._session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"], disabled_optimizers=_UNSOUND_OPTIMIZERS
            )
        except self._failures as error:
            raise _load_error(error) from error
        self._names = [output.name for output in self._session.get_outputs()]
        session = self._session
        typed = (*session.get_inputs(), *session.get_overridable_initializers(), *session.get_outputs())
        self._has_bfloat16 = any(value.type == "tensor(bfloat16)" for value in typed)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """All graph outputs by name."""
        try:
            if self._has_bfloat16:
                return self._run_with_values(feeds)
            with self._limit() as options:
                return dict(zip(self._names, self._session.run(None, dict(feeds), options), strict=True))
        except self._failures as error:
            if any(text in str(error) for text in _LACKING):
                raise LacksKernelError(_first_line(error)) from error
            raise RunError(_first_line(error)) from error

    @contextmanager
    def _limit(self) -> Iterator[Any]:
        """Run options by which a run ends when its time is over."""
        options = self._ort.RunOptions()
        timer = threading.Timer(LONGEST_RUN, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            yield options
        finally:
            timer.cancel()

    def _run_with_values(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """bfloat16 passes as raw bits: onnxruntime's NumPy bridge does not know it."""
        bfloat16_type = 16
        make = self._ort.OrtValue
        values = {
            name: make.ortvalue_from_numpy_with_onnx_type(
                np.ascontiguousarray(array).view(np.uint16), bfloat16_type
            )
            if array.dtype == ml_dtypes.bfloat16
            else make.ortvalue_from_numpy(np.asarray(array))
            for name, array in feeds.items()
        }
        with self._limit() as options:
            results = self._session.run_with_ort_values(None, values, options)
        return {name: _to_array(value) for name, value in zip(self._names, results, strict=True)}


def _to_array(value: Any) -> Any:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape, dtype=np.int64)))
    return np.frombuffer(raw, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _load_error(error: Exception) -> LoadError:
    lacking = any(text in str(error) for text in _LACKING)
    return (LacksKernelError if lacking else LoadError)(_first_line(error))


class IsolatedSession:
    """A :class:`Session` in a child process, which may die without taking this one along."""

    def __init__(self, source: str | bytes, optimize: bool) -> None:
        self._start = (source, optimize)
        self._child: subprocess.Popen[bytes] | None = None
        self._ask_for_session()

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """All graph outputs by name. After a crash the next call starts a new child."""
        if self._child is None:
            self._ask_for_session()
        outputs: dict[str, Any] = self._exchange(dict(feeds))
        return outputs

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            for pipe in (self._child.stdin, self._child.stdout):
                if pipe is not None:
                    pipe.close()
            self._child.wait()
            self._child = None

    def _ask_for_session(self) -> None:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
        self._child = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        try:
            self._exchange(self._start)
        except LoadError:
            self.close()
            raise

    def _exchange(self, message: Any) -> Any:
        child = self._child
        if child is None or child.stdin is None or child.stdout is None:
            raise RunError("the child process is gone")
        try:
            pickle.dump(message, child.stdin)
            child.stdin.flush()
            kind, answer = pickle.load(child.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            child.kill()
            code = child.wait()
            self._child = None
            raise RunError(f"onnxruntime ended its process with status {code}") from error
        if kind != "done":
            raise _KINDS[kind](answer)
        return answer


_KINDS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (LoadError, LacksKernelError, RunError)}


def _serve(incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """The child's side: make the session that is asked for, then run it until the input ends.

    Answers are pairs of ``"done"`` and a value, or an error's kind and text: the child knows its own classes
    only under the name ``__main__``.
    """
    session: Session | None = None
    while True:
        try:
            message = pickle.load(incoming)
        except EOFError:
            return
        answer: tuple[str, Any] = ("done", None)
        try:
            if session is None:
                session = Session(*message)
            else:
                answer = ("done", session.run(message))
        except (LoadError, RunError) as error:
            answer = (type(error).__name__, str(error))
        pickle.dump(answer, outgoing)
        outgoing.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
