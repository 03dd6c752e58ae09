"""onnxruntime's QNN provider on the simulator of its HTP, which computes in float16."""

from __future__ import annotations

import functools
from typing import Any

from rnnlower.engines.child import Model, Run

ABOUT = {
    "title": "onnxruntime-qnn",
    "packages": ("onnxruntime-qnn", "onnxruntime"),
    "install": "pip install onnxruntime onnxruntime-qnn",
    "tried": "2.7.0",
    "precision": "float16",
}


def load(model: Model) -> Run:
    import os

    import onnxruntime
    import onnxruntime_qnn

    devices = _devices(onnxruntime_qnn.get_library_path())
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
def _devices(library: str) -> list[Any]:
    """Return QNN's devices; its library can be registered only once in a process."""
    import onnxruntime

    provider = "QNNExecutionProvider"
    onnxruntime.register_execution_provider_library(provider, library)
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == provider]
    if not devices:
        raise RuntimeError("it finds no QNN device")
    return devices
