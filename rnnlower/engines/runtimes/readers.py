"""Adapters for runtimes that read ONNX files by themselves."""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Callable
from typing import Any

from rnnlower.engines.child import Arrays, Model, Run, adapter


@adapter("onnxruntime", packages=("onnxruntime",), tried="1.32.0", threads=True)
def onnxruntime(model: Model) -> Run:
    """onnxruntime on the CPU, with its graph optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = model.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    names = list(model.outputs)
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


@adapter("OpenVINO", packages=("openvino",), tried="2026.4.1", threads=True)
def openvino(model: Model) -> Run:
    """OpenVINO on the CPU, computing in float32."""
    import openvino

    # By default it computes in bfloat16 on machines that support it.
    settings: dict[str, object] = {"INFERENCE_PRECISION_HINT": "f32"}
    if model.threads:
        settings["INFERENCE_NUM_THREADS"] = model.threads
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.path), "CPU", settings)
    return model.in_order(lambda arrays: compiled(arrays).to_tuple())


@adapter(
    "OpenCV",
    packages=("opencv-python-headless|opencv-python|opencv-contrib-python-headless|opencv-contrib-python",),
    tried="5.0.0.93",
    threads=True,
)
def opencv(model: Model) -> Run:
    """OpenCV's dnn module."""
    import cv2

    if model.threads:
        cv2.setNumThreads(model.threads)
    net = cv2.dnn.readNetFromONNX(model.path)
    outputs = list(model.outputs)

    def run(feeds: Arrays) -> Arrays:
        for name, array in feeds.items():
            net.setInput(array, name)
        return dict(zip(outputs, net.forward(outputs), strict=True))

    return run


@adapter(
    "tract",
    packages=("tract",),
    tried="0.23.9",
    # Rational functions: against float64, Sigmoid is up to 4.77e-7 off and Tanh 5.96e-7, at the ends; there,
    # a closed gate is not 0.
    activation_error=6e-7,
)
def tract(model: Model) -> Run:
    """tract, the inference engine in Rust, through its Python package."""
    import tract

    runnable = tract.onnx().load(model.path).into_model().into_runnable()
    return model.in_order(lambda arrays: [result.to_numpy() for result in runnable.run(arrays)])


@adapter(
    "tinygrad",
    packages=("tinygrad",),
    install="pip install tinygrad, and clang (or DEV=PYTHON, which takes minutes)",
    # Its CPU device compiles with clang; DEV selects another device.
    needs=() if os.environ.get("DEV") else ("clang",),
    tried="0.14.0",
)
def tinygrad(model: Model) -> Run:
    """tinygrad's ONNX frontend, on its CPU device."""
    os.environ.setdefault("DEV", "CPU")
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    runner = OnnxRunner(model.path)

    def run(feeds: Arrays) -> Arrays:
        results = runner({name: Tensor(array) for name, array in feeds.items()})
        return {name: value.numpy() for name, value in results.items()}

    return run


@adapter(
    "onnxruntime-qnn",
    packages=("onnxruntime-qnn", "onnxruntime"),
    install="pip install onnxruntime onnxruntime-qnn",
    tried="2.7.0",
    precision="float16",
)
def ort_qnn(model: Model) -> Run:
    """onnxruntime's QNN provider on the simulator of its HTP, which computes in float16."""
    import onnxruntime
    import onnxruntime_qnn

    devices = _qnn_devices(onnxruntime_qnn.get_library_path())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Otherwise, nodes that it cannot run would run on the CPU, and seem to work.
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    backend = os.path.join(os.path.dirname(onnxruntime_qnn.__file__), "libQnnHtp.so")
    # Snapdragon X Elite; the chip that it simulates by default has no floats: QNN_COMMON_ERROR_MEM_ALLOC.
    options.add_provider_for_devices(devices[:1], {"backend_path": backend, "soc_model": "60"})
    session = onnxruntime.InferenceSession(model.path, sess_options=options)
    names = list(model.outputs)
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


@functools.cache
def _qnn_devices(library: str) -> list[Any]:
    """Return QNN's devices; its library can be registered only once in a process."""
    import onnxruntime

    provider = "QNNExecutionProvider"
    onnxruntime.register_execution_provider_library(provider, library)
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    if not devices:
        raise RuntimeError("it finds no QNN device")
    return devices


def _web_version() -> str | None:
    """Return the version that Node.js finds."""
    try:
        with open(os.path.join(_web_package(), "package.json"), encoding="utf-8") as file:
            found: str = json.load(file)["version"]
    except OSError:
        return None
    return found


def _web_package() -> str:
    folder = os.path.abspath(os.environ.get("RNNLOWER_NODE") or ".")
    return os.path.join(folder, "node_modules", "onnxruntime-web")


@adapter(
    "onnxruntime-web",
    install="npm install onnxruntime-web, in the folder that RNNLOWER_NODE names, or here",
    needs=("node",),
    tried="1.30.0",
    version=_web_version,
)
def ort_web(model: Model) -> Run:
    """onnxruntime-web, the build for browsers, on WebAssembly in Node.js."""
    import numpy as np

    ask = _start_node()

    def run(feeds: Arrays) -> Arrays:
        values = {}
        for name, array in feeds.items():
            data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            values[name] = {"type": str(array.dtype), "dims": list(array.shape), "data": data}
        results = {}
        for name, value in ask({"feeds": values}).items():
            raw = base64.b64decode(value["data"])
            results[name] = np.frombuffer(raw, np.dtype(value["type"])).reshape(value["dims"])
        return results

    ask({"model": model.path})
    return run


@functools.cache
def _start_node() -> Callable[[Any], Any]:
    """Start a node process, which takes long and holds the last loaded model, and return how to ask it."""
    import subprocess

    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ort_web.mjs")
    node = subprocess.Popen(["node", script, _web_package()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(request: Any) -> Any:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write(json.dumps(request).encode() + b"\n")
        node.stdin.flush()
        line = node.stdout.readline()
        if not line:
            _start_node.cache_clear()
            raise RuntimeError("node ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    return ask


@adapter("the NumPy reference", packages=("rnnlower",), install="it comes with rnnlower", tried="0.1.0")
def rnnlower_reference(model: Model) -> Run:
    """The NumPy evaluation that verification uses where onnxruntime has no kernel."""
    import onnx

    from rnnlower.engines.reference import Evaluator

    return Evaluator(onnx.load(model.path)).run
