"""Sessions of onnxruntime for tests: silent, on one thread of the CPU."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime


def session(model: onnx.ModelProto | bytes | Path, *, optimized: bool = True) -> onnxruntime.InferenceSession:
    """Return a session without threads (starting some takes longer than a small model).

    Not optimized, the kernels are asked for the graph as it is.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
