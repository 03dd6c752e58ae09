"""The runtimes of the grid: a function each, from a model and its inputs to its outputs.

An attempt runs in a process of its own, which may crash, hang or print what it likes.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RUNTIMES", "Attempts", "Failure", "Runtime"]

Arrays = dict[str, np.ndarray]
SECONDS = 300


def _tinygrad(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    # Its CPU device compiles with clang; without one the Python device runs the same kernels, interpreted.
    os.environ.setdefault("DEV", "CPU" if shutil.which("clang") else "PYTHON")
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(model.SerializeToString())
        file.flush()
        outputs = OnnxRunner(file.name)({name: Tensor(array) for name, array in inputs.items()})
        return {name: value.numpy() for name, value in outputs.items()}


def _onnx2torch(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    _stand_in_for_torchvision()
    import onnx2torch
    import torch

    module = onnx2torch.convert(model)
    with torch.no_grad():
        outputs = module(*(torch.from_numpy(inputs[value.name]) for value in model.graph.input))
    outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
    return {value.name: output.numpy() for value, output in zip(model.graph.output, outputs, strict=True)}


def _stand_in_for_torchvision() -> None:
    """onnx2torch imports torchvision for operators on images; no recurrent model has those."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision"):
        return
    package, ops = types.ModuleType("torchvision"), types.ModuleType("torchvision.ops")
    package.ops = ops  # type: ignore[attr-defined]
    ops.__getattr__ = lambda name: None  # type: ignore[method-assign]
    sys.modules |= {"torchvision": package, "torchvision.ops": ops}


def _opencv(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    import cv2

    net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))
    for name, array in inputs.items():
        net.setInput(array, name)
    names = [value.name for value in model.graph.output]
    return dict(zip(names, net.forward(names), strict=True))


def _tract(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    import tract

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(model.SerializeToString())
        file.flush()
        runnable = tract.onnx().load(file.name).into_model().into_runnable()
        outputs = runnable.run([inputs[value.name] for value in model.graph.input])
    return {value.name: output.to_numpy() for value, output in zip(model.graph.output, outputs, strict=True)}


def _openvino(model: onnx.ModelProto, inputs: Arrays) -> Arrays:
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    outputs = compiled([inputs[port.any_name] for port in compiled.inputs])
    return {value.name: outputs[index] for index, value in enumerate(model.graph.output)}


@dataclass(frozen=True)
class Runtime:
    """A runtime.

    Attributes:
        target: What `rnnlower targets` calls it.
        distribution: The package on PyPI.
        module: What it imports as.
        run: Runs a model.
        every: Of how many nodes of the page one is tried, where a run takes long; a prime.
    """

    target: str
    distribution: str
    module: str
    run: Callable[[onnx.ModelProto, Arrays], Arrays]
    every: int = 1

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        return metadata.version(self.distribution)


RUNTIMES: Mapping[str, Runtime] = {
    runtime.target: runtime
    for runtime in (
        Runtime("onnx2torch", "onnx2torch", "onnx2torch", _onnx2torch),
        Runtime("opencv", "opencv-python-headless", "cv2", _opencv),
        Runtime("openvino", "openvino", "openvino", _openvino),
        Runtime("tinygrad", "tinygrad", "tinygrad", _tinygrad, every=37),
        Runtime("tract", "tract", "tract", _tract),
    )
}


@dataclass(frozen=True)
class Failure:
    """An attempt that gave no outputs: the runtime ``refuses``, ``crashes`` or ``hangs``."""

    how: str
    message: str = ""


class Attempts:
    """Runs models on one runtime, in a process that is replaced where it dies or hangs."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._process: Any = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, model: onnx.ModelProto, inputs: Mapping[str, np.ndarray]) -> Arrays | Failure:
        """The model's outputs."""
        if self._process is None:
            self._start()
        assert self._pipe is not None
        self._pipe.send((model.SerializeToString(), dict(inputs)))
        try:
            if not self._pipe.poll(SECONDS):
                self._stop()
                return Failure("hangs")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._stop()
            return Failure("crashes")
        return Failure("refuses", answer) if isinstance(answer, str) else answer

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self.runtime.target, other), daemon=True)
        self._process.start()
        other.close()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None


def _serve(target: str, pipe: Connection) -> None:
    """Answers each model and its inputs with the outputs or a message."""
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    while True:
        try:
            serialized, inputs = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(RUNTIMES[target].run(onnx.load_from_string(serialized), inputs))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}")
