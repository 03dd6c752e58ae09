"""A model opened on a runtime: through an adapter in a child process, or a command that runs each time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.engines import child
from rnnlower.engines.catalog import PLACEHOLDERS, Engine, adapter_file
from rnnlower.engines.session import Array, LacksKernelError, brief, restore_bfloat16
from rnnlower.folders import temporary_folder
from rnnlower.processes import ending, killed_after, limit_set, longest_call

# Below protobuf's 2 GiB, with a margin for serialization.
LARGE = 2**31 - 2**20
# Nothing listens at this address.
_NOWHERE = "http://127.0.0.1:9"
_LOG_TAIL = 300


class EngineError(LacksKernelError):
    """The runtime does not run the model: not installed, refused, crashed, too slow, or no answer.

    Attributes:
        how: ``refuses``, ``crashes`` or ``hangs``.
    """

    def __init__(self, problem: str, how: str = "refuses") -> None:
        super().__init__(problem)
        self.how = how


class OpenedModel(ABC):
    """A model on a runtime: a folder with a copy of it, through which arrays are exchanged."""

    def __init__(self, engine: Engine, model: onnx.ModelProto) -> None:
        self._engine = engine
        self._resources = ExitStack()
        self._folder = self._resources.enter_context(temporary_folder())
        self._model, self._inputs, self._outputs, self._log = (
            self._folder / name for name in ("model.onnx", "inputs.npz", "outputs.npz", "log.txt")
        )
        if model.ByteSize() < LARGE:
            self._model.write_bytes(model.SerializeToString())
        else:
            onnx.save(model, self._model, save_as_external_data=True, location="model.data")
        self._types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return the outputs by name."""
        self.measure(feeds, 0, 1)
        if not self._outputs.is_file():
            raise EngineError(f"{self._engine.label} succeeded, but wrote no outputs")
        try:
            arrays = child.read_arrays(str(self._outputs))
        except ValueError as error:
            raise EngineError(f"the output of {self._engine.label} cannot be read: {error}") from error
        return {name: restore_bfloat16(array, self._types.get(name, 0)) for name, array in arrays.items()}

    def measure(self, feeds: Mapping[str, Array], warmup: int, runs: int) -> tuple[float, list[float]]:
        """Return the seconds for loading, and for each of the runs after ``warmup`` others."""
        self._outputs.unlink(missing_ok=True)
        try:
            child.write_arrays(str(self._inputs), feeds)
        except ValueError as error:
            raise EngineError(f"the inputs do not fit an .npz file: {error}") from error
        return self._measure_runs(warmup, runs)

    def close(self) -> None:
        """End the process and remove its files."""
        self._resources.close()

    @abstractmethod
    def _measure_runs(self, warmup: int, runs: int) -> tuple[float, list[float]]:
        """Run on the inputs in the folder; see `measure`."""


def open_on(engine: Engine, model: onnx.ModelProto, threads: int = 0) -> OpenedModel:
    """Open a copy of the model on the runtime.

    Raises:
        EngineError: It is not installed or does not load the model; also from ``run`` and ``measure``.
        OptionError: A limit is not a number.
    """
    if engine.missing:
        raise EngineError(f"{engine.title} is not installed: {engine.missing}; {engine.install}")
    return _CommandModel(engine, model) if engine.command else _AdapterModel(engine, model, threads)


class _CommandModel(OpenedModel):
    """A program that runs again for every set of inputs."""

    def _measure_runs(self, warmup: int, runs: int) -> tuple[float, list[float]]:
        return 0.0, child.time_runs(self._call, warmup, runs)[0]

    def _call(self) -> None:
        label, words = self._engine.label, self._engine.command
        for place, path in zip(PLACEHOLDERS, (self._model, self._inputs, self._outputs), strict=True):
            words = [word.replace(place, str(path)) for word in words]
        with self._log.open("wb") as log:
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(f"{label} cannot be started: {error.strerror}") from error
            try:
                with killed_after(longest_call(), lambda: _kill(process)) as late:
                    status = process.wait()
            except BaseException:
                # A signal to this process does not reach a session of its own.
                _kill(process)
                process.wait()
                raise
        if late.is_set():
            raise _timeout_error(label, "running")
        if status:
            raise EngineError(f"{label} ended {_describe_end(status, self._log)}")


class _ChildProcess:
    """A child process that loads models and runs the one loaded last."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._label, self._log = engine.label, folder / "log.txt"
        words = (engine.python, child.__file__, engine.name, adapter_file(engine), memory_limit())
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                [*map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=_guarded_environment(str(folder), engine.python),
                start_new_session=True,
            )

    def ask(self, doing: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a request of `child`."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with killed_after(longest_call(), lambda: _kill(process)) as late:
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:
                line = b""
        if late.is_set():
            raise _timeout_error(self._label, doing)
        if not line.endswith(b"\n"):
            how = _describe_end(process.wait(), self._log)
            raise EngineError(f"{self._label} ended its process while {doing} the model, {how}", "crashes")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            problem = brief(Exception(" ".join(answer["error"].split())))
            raise EngineError(f"{self._label} failed {doing} the model: {problem}")
        return answer

    def close(self) -> None:
        _kill(self._process)
        self._process.communicate()


class _AdapterModel(OpenedModel):
    """A model loaded in a child process of its own, or in a shared one."""

    def __init__(
        self, engine: Engine, model: onnx.ModelProto, threads: int, process: _ChildProcess | None = None
    ) -> None:
        super().__init__(engine, model)
        self._process = process or _ChildProcess(engine, self._folder)
        if process is None:
            self._resources.callback(self._process.close)
        initialized = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in initialized]
        try:
            answer = self._process.ask(
                "loading",
                path=str(self._model),
                folder=str(self._folder),
                inputs={value.name: _static_sizes(value) for value in inputs},
                outputs={value.name: _static_sizes(value) for value in model.graph.output},
                dtypes={value.name: _dtype_name(value) for value in model.graph.output},
                threads=threads,
            )
        except BaseException:
            self.close()
            raise
        self._seconds = float(answer["seconds"])

    def _measure_runs(self, warmup: int, runs: int) -> tuple[float, list[float]]:
        files = {"inputs": str(self._inputs), "outputs": str(self._outputs)}
        return self._seconds, self._process.ask("running", **files, warmup=warmup, runs=runs)["latencies"]


class Attempts(ExitStack):
    """Small models on a runtime, one after the other in one process, which is replaced if it ends.

    With most runtimes, starting the process takes longest. This is a context manager.
    """

    # Some runtimes keep what they have compiled.
    _MODELS_A_PROCESS = 200

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = engine
        self._folder = self.enter_context(temporary_folder())
        self.callback(self._end)
        self._process: _ChildProcess | None = None
        self._models = 0

    def run(self, model: onnx.ModelProto, *trials: Mapping[str, Array]) -> list[dict[str, Any]]:
        """Return the outputs of each trial by name; the model is loaded once.

        Raises:
            EngineError: The runtime does not run it.
            OptionError: A limit is not a number.
        """
        try:
            with closing(self._open(model)) as opened:
                return [opened.run(feeds) for feeds in trials]
        except EngineError as error:
            if error.how != "refuses":
                self._end()
            raise

    def _open(self, model: onnx.ModelProto) -> OpenedModel:
        if self._engine.missing or self._engine.command:
            return open_on(self._engine, model)
        if self._models % self._MODELS_A_PROCESS == 0:
            self._end()
        self._models += 1
        self._process = self._process or _ChildProcess(self._engine, self._folder)
        return _AdapterModel(self._engine, model, 0, self._process)

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None


def memory_limit() -> float:
    """Return how much memory a runtime may write to: RNNLOWER_ENGINE_GIGABYTES, by default 8."""
    return limit_set("RNNLOWER_ENGINE_GIGABYTES", 8.0)


def _guarded_environment(folder: str, python: str) -> dict[str, str]:
    """Return a runtime's environment, without a package index to install from or a proxy to send data to.

    ``folder`` is for temporary files. A different interpreter gets none of this interpreter's paths.
    """
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    for name in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy"):
        environment |= {name: _NOWHERE, name.upper(): _NOWHERE}
    environment |= {"PIP_NO_INDEX": "1", "PIP_NO_INPUT": "1", "UV_OFFLINE": "1", "npm_config_offline": "true"}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "RUST_BACKTRACE": "0",
        "TMPDIR": folder,
    }
    if python == sys.executable:
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    else:
        for name in ("PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
    return environment


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and the processes it started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _describe_end(status: int, log: Path) -> str:
    """Describe how a process ended, with its last output in one line."""
    text = log.read_bytes()[-4 * _LOG_TAIL :].decode(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join([ending(status, "exit status"), *(line[:_LOG_TAIL] for line in lines[-1:])])


def _timeout_error(label: str, doing: str) -> EngineError:
    variable = "RNNLOWER_ENGINE_SECONDS allows more"
    return EngineError(f"{label} was still {doing} after {longest_call():g} s; {variable}", "hangs")


def _static_sizes(value: onnx.ValueInfoProto) -> list[int | None] | None:
    """Return the sizes of a value's axes, ``None`` for a dynamic one; ``None`` if the rank is not known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    ]


def _dtype_name(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    return np.dtype(tensor_dtype_to_np_dtype(kind)).name if kind else ""
