"""A model opened on a runtime: an adapter in a process of its own, or a command that is run each time."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.engines import child, command
from rnnlower.engines.isolation import ended, gigabytes, guarded_environment, kill, last_words, limit
from rnnlower.engines.known import Engine, adapter_file
from rnnlower.engines.session import Array, LacksKernelError, brief
from rnnlower.processes import longest_call

__all__ = ["EngineError", "Opened", "open_on"]

# Below protobuf's 2 GiB, with room for what serialising adds.
_LARGE = 2**31 - 2**20


class EngineError(LacksKernelError):
    """The runtime does not run the model: not installed, refused, crashed, too slow, or no answer."""


class Opened(Protocol):
    """A model on a runtime."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """The outputs by name."""

    def measure(self, feeds: Mapping[str, Array], warmup: int, runs: int) -> tuple[float, list[float]]:
        """Seconds that loading took, and each of the runs after ``warmup`` others."""

    def close(self) -> None:
        """End the process and remove its files."""


def open_on(engine: Engine, model: onnx.ModelProto, threads: int = 0) -> Opened:
    """The model on the runtime, loaded from a copy.

    Raises:
        EngineError: It is not installed or does not load the model; also from ``run`` and ``measure``.
        OptionError: A limit is no number.
    """
    if engine.missing:
        raise EngineError(f"{engine.title} is not installed: {engine.missing}; {engine.install}")
    return _Command(engine, model) if engine.command else _Adapter(engine, model, threads)


class _Workplace:
    """A folder with a copy of the model, and how arrays get there and back."""

    def __init__(self, engine: Engine, model: onnx.ModelProto) -> None:
        self.engine = engine
        # What still runs there when the folder goes may write into it.
        self._home = tempfile.TemporaryDirectory(prefix="rnnlower-", ignore_cleanup_errors=True)
        self.folder = Path(self._home.name)
        self.model = self.folder / "model.onnx"
        self.inputs, self.outputs, self.log = (
            self.folder / name for name in ("inputs.npz", "outputs.npz", "log.txt")
        )
        if model.ByteSize() < _LARGE:
            self.model.write_bytes(model.SerializeToString())
        else:
            onnx.save(model, self.model, save_as_external_data=True, location="model.data")
        types = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
        self._bfloat16 = {name for name, kind in types.items() if kind == onnx.TensorProto.BFLOAT16}

    def write(self, feeds: Mapping[str, Array]) -> None:
        self.outputs.unlink(missing_ok=True)
        try:
            child.write_arrays(str(self.inputs), feeds)
        except ValueError as error:
            raise EngineError(f"the inputs do not fit an .npz file: {error}") from error

    def read(self) -> dict[str, Any]:
        if not self.outputs.is_file():
            raise EngineError(f"{self.engine.label} ended well, but wrote no outputs")
        try:
            arrays = child.read_arrays(str(self.outputs))
        except ValueError as error:
            raise EngineError(f"what {self.engine.label} wrote is no .npz file: {error}") from error
        return {name: self._as_declared(name, array) for name, array in arrays.items()}

    def _as_declared(self, name: str, array: Array) -> Array:
        # How NumPy stores bfloat16 in a file.
        raw = array.dtype.kind == "V" and array.dtype.itemsize == 2
        return array.view(ml_dtypes.bfloat16) if raw and name in self._bfloat16 else array

    def late(self, doing: str) -> EngineError:
        variable = "RNNLOWER_ENGINE_SECONDS allows more"
        return EngineError(f"{self.engine.label} was still {doing} after {longest_call():g} s; {variable}")

    def remove(self) -> None:
        self._home.cleanup()


class _Command:
    """A program that is run anew for every set of inputs."""

    def __init__(self, engine: Engine, model: onnx.ModelProto) -> None:
        self._place = _Workplace(engine, model)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        place = self._place
        place.write(feeds)
        files = (str(path) for path in (place.model, place.inputs, place.outputs))
        with place.log.open("wb") as log:
            try:
                process = subprocess.Popen(
                    command.fill(place.engine.command, *files),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(f"{place.engine.label} cannot be started: {error.strerror}") from error
            with limit(process, longest_call()) as late:
                status = process.wait()
        if late.is_set():
            raise place.late("running")
        if status:
            words = last_words(place.log)
            raise EngineError(f"{place.engine.label} ended {ended(status)}{': ' if words else ''}{words}")
        return place.read()

    def measure(self, feeds: Mapping[str, Array], warmup: int, runs: int) -> tuple[float, list[float]]:
        latencies = []
        for _ in range(warmup + runs):
            start = time.perf_counter()
            self.run(feeds)
            latencies.append(time.perf_counter() - start)
        return 0.0, latencies[warmup:]

    def close(self) -> None:
        self._place.remove()


class _Adapter:
    """A child process that has loaded the model and answers requests."""

    def __init__(self, engine: Engine, model: onnx.ModelProto, threads: int) -> None:
        self._place = place = _Workplace(engine, model)
        with place.log.open("wb") as log:
            self._process = subprocess.Popen(
                [engine.python, str(Path(child.__file__)), str(adapter_file(engine)), str(gigabytes())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=guarded_environment(str(place.folder), engine.python),
                start_new_session=True,
            )
        initialized = {tensor.name for tensor in model.graph.initializer}
        inputs = [value for value in model.graph.input if value.name not in initialized]
        try:
            self._seconds = float(
                self._ask(
                    "loading",
                    path=str(place.model),
                    folder=str(place.folder),
                    inputs={value.name: _sizes(value) for value in inputs},
                    outputs={value.name: _sizes(value) for value in model.graph.output},
                    dtypes={value.name: _dtype(value) for value in model.graph.output},
                    threads=threads,
                )["seconds"]
            )
        except EngineError:
            self.close()
            raise

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        self.measure(feeds, 0, 1)
        return self._place.read()

    def measure(self, feeds: Mapping[str, Array], warmup: int, runs: int) -> tuple[float, list[float]]:
        place = self._place
        place.write(feeds)
        files = {"inputs": str(place.inputs), "outputs": str(place.outputs)}
        return self._seconds, self._ask("running", **files, warmup=warmup, runs=runs)["latencies"]

    def _ask(self, doing: str, **request: Any) -> dict[str, Any]:
        process, label = self._process, self._place.engine.label
        assert process.stdin is not None
        assert process.stdout is not None
        with limit(process, longest_call()) as late:
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except OSError:
                line = b""
        if late.is_set():
            raise self._place.late(doing)
        if not line.endswith(b"\n"):
            words = last_words(self._place.log)
            how = f"{ended(process.wait())}{': ' if words else ''}{words}"
            raise EngineError(f"{label} ended its process while {doing} the model, {how}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            problem = brief(Exception(" ".join(answer["error"].split())))
            raise EngineError(f"{label} failed {doing} the model: {problem}")
        return answer

    def close(self) -> None:
        kill(self._process)
        self._process.communicate()
        self._place.remove()


def _sizes(value: onnx.ValueInfoProto) -> list[int | None] | None:
    """The sizes of a value's axes, None for what is open; None if not even the rank is known."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    ]


def _dtype(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    return np.dtype(tensor_dtype_to_np_dtype(kind)).name if kind else ""
