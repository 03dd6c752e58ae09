"""onnxruntime on the CPU, with its graph optimizations."""

from __future__ import annotations

from rnnlower.engines.child import Model, Run

ABOUT = {"title": "onnxruntime", "packages": ("onnxruntime",), "tried": "1.31.1", "threads": True}


def load(model: Model) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = model.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.path, options, providers=["CPUExecutionProvider"])
    names = list(model.outputs)
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))
