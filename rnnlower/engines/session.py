"""onnxruntime sessions in a child process.

Native LSTM and GRU kernels abort their process on zero-length time or batch, graph optimizations do so on
unpredictable models, and signals are blocked while onnxruntime runs.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from rnnlower.processes import Child, ChildDiedError

Array = NDArray[Any]

# onnxruntime's messages for faults that are not the model's.
_MISSING_KERNEL = (
    "Could not find an implementation",
    "NOT_IMPLEMENTED",
    "Batchwise recurrent operations",
    "does not support double yet",
    "ONNX Runtime only *guarantees* support",
    "Unsupported model IR version",
    "is not a registered function/op",
)
_MAX_LENGTH, _HEAD = 500, 100
# Its message if a value inside the model has another shape than the model declares.
RECORDED_SHAPE = "pre-allocated output OrtValues"
_MAX_THREADS = 4
_BFLOAT16 = 16
# It aborts the process at a float16 MatMul after a Transpose of unknown sizes (onnxruntime 1.31).
_UNSOUND_OPTIMIZERS = ["NchwcTransformer"]


class LoadError(Exception):
    """The engine refuses the model."""


class LacksKernelError(LoadError):
    """The engine has no implementation for something in the model; the model may be correct."""


class RunError(Exception):
    """The model does not run on these inputs."""


def brief(error: Exception) -> str:
    """Return the error's message, cut in the middle if it is long.

    The cause is at the end, after every subgraph on the way and a position in onnxruntime's source.
    """
    text = str(error)
    return text if len(text) <= _MAX_LENGTH else f"{text[:_HEAD]} ... {text[-(_MAX_LENGTH - _HEAD) :]}"


class Session:
    """An onnxruntime session on the CPU, without log output, with few threads.

    ``source`` is a path or serialized bytes; ``optimize=False`` runs the graph as it is written. Values then
    do not share memory: planning that takes minutes for a large graph. Nor are constant weights packed, which
    every node would do for itself.
    ``one_thread`` is for models whose numbers depend on the threads.

    Raises:
        LoadError: The model is refused; LacksKernelError if an implementation is missing.
        RunError: In ``run``.
    """

    def __init__(self, source: str | bytes, optimize: bool, one_thread: bool = False) -> None:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        self._failures = tuple(
            kind for kind in vars(state).values() if isinstance(kind, type) and issubclass(kind, Exception)
        )
        self._failures += (RuntimeError, ValueError)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1 if one_thread else min(os.cpu_count() or 1, _MAX_THREADS)
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        levels = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
        options.enable_mem_reuse = options.enable_mem_pattern = optimize
        options.add_session_config_entry("session.disable_prepacking", "0" if optimize else "1")
        try:
            self._session = onnxruntime.InferenceSession(
                source, options, providers=["CPUExecutionProvider"], disabled_optimizers=_UNSOUND_OPTIMIZERS
            )
        except self._failures as error:
            lacks_kernel = any(text in str(error) for text in _MISSING_KERNEL)
            raise (LacksKernelError if lacks_kernel else LoadError)(first_line(error)) from None
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return all graph outputs by name."""
        try:
            values = prepare_run(self._session, feeds)()
            return {name: to_array(value) for name, value in zip(self._names, values, strict=True)}
        except self._failures as error:
            if any(text in str(error) for text in _MISSING_KERNEL):
                raise LacksKernelError(first_line(error)) from None
            raise RunError(first_line(error)) from None


def prepare_run(session: Any, feeds: Mapping[str, Array]) -> Callable[[], Sequence[Any]]:
    """Return a function for one run of a session, whose results `to_array` makes arrays of.

    onnxruntime's NumPy bridge does not support bfloat16, which is passed as raw bits in its own values, and
    these do not support strings.
    """
    typed = (*session.get_inputs(), *session.get_overridable_initializers(), *session.get_outputs())
    if all(value.type != "tensor(bfloat16)" for value in typed):
        given = dict(feeds)
        return lambda: session.run(None, given)
    from onnxruntime import OrtValue

    values = {
        name: OrtValue.ortvalue_from_numpy_with_onnx_type(
            np.ascontiguousarray(array).view(np.uint16), _BFLOAT16
        )
        if array.dtype == ml_dtypes.bfloat16
        else OrtValue.ortvalue_from_numpy(np.asarray(array))
        for name, array in feeds.items()
    }
    return lambda: session.run_with_ort_values(None, values)


def to_array(value: Any) -> Any:
    """Return a result of a prepared run as an array, if it is one of onnxruntime's own values."""
    if not hasattr(value, "data_type"):
        return value
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    shape = tuple(value.shape())
    raw = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape, dtype=np.int64)))
    return np.frombuffer(raw, np.uint16).view(ml_dtypes.bfloat16).reshape(shape)


def restore_bfloat16(array: Array, elem_type: int) -> Array:
    """Return an array of a file in its declared type: NumPy stores bfloat16 as two bytes of no type."""
    raw = array.dtype.kind == "V" and array.dtype.itemsize == 2
    return array.view(ml_dtypes.bfloat16) if raw and elem_type == _BFLOAT16 else array


def first_line(error: Exception) -> str:
    """Return the first line of a message, or the kind of an error without one."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class IsolatedSession:
    """A :class:`Session` in a child process that all of them share.

    onnxruntime may abort that process, and cannot be interrupted: here that is an error, and
    signals work. The next call creates the session again.

    Raises:
        LoadError: The model is refused, or onnxruntime aborts its process; LacksKernelError if an
            implementation is missing or the time is up.
    """

    def __init__(self, source: str | bytes, optimize: bool, one_thread: bool = False) -> None:
        # The child process may have started in another folder.
        self._source = os.path.abspath(source) if isinstance(source, str) else source
        self._settings = optimize, one_thread
        self._key = next(_KEYS)
        self._open()

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return all graph outputs by name.

        Raises:
            RunError: onnxruntime refuses these inputs, aborts its process or takes too long.
        """
        if self._birth != _CHILD.start():
            self._open()
        try:
            outputs: dict[str, Any] = _CHILD.call(_run, self._key, dict(feeds))
        except ChildDiedError as error:
            raise RunError(f"onnxruntime {error}") from error
        return outputs

    def close(self) -> None:
        """End the session, if its process has not ended."""
        if _CHILD.runs_since(self._birth):
            with suppress(ChildDiedError):
                _CHILD.call(_close, self._key)

    def _open(self) -> None:
        try:
            _CHILD.call(_open, self._key, self._source, *self._settings)
        except ChildDiedError as error:
            text = f"onnxruntime {error}, when it loaded the model"
            raise (LacksKernelError if error.late else LoadError)(text) from error
        self._birth = _CHILD.start()


_CHILD = Child()
_KEYS = itertools.count()
_COMPARABLE = (np.ndarray, np.generic, list, dict, str, bytes, int, float, type(None))
# In the child: the open sessions.
_sessions: dict[int, Session] = {}


def _open(key: int, source: str | bytes, optimize: bool, one_thread: bool) -> None:
    _sessions[key] = Session(source, optimize, one_thread)


def _run(key: int, feeds: dict[str, Array]) -> dict[str, Any]:
    outputs = _sessions[key].run(feeds)
    strange = [name for name, value in outputs.items() if not isinstance(value, _COMPARABLE)]
    if strange:
        kind = type(outputs[strange[0]]).__name__
        raise RunError(f"output {strange[0]!r} is a {kind}, which cannot be compared")
    return outputs


def _close(key: int) -> None:
    _sessions.pop(key, None)
