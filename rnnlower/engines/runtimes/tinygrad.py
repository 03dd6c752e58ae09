"""tinygrad's ONNX frontend, on its CPU device."""

from __future__ import annotations

import os

from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {
    "title": "tinygrad",
    "packages": ("tinygrad",),
    "install": "pip install tinygrad, and clang (or DEV=PYTHON, which takes minutes)",
    # Its CPU device compiles with clang; DEV selects another device.
    "needs": () if os.environ.get("DEV") else ("clang",),
    "tried": "0.14.0",
}


def load(model: Model) -> Run:
    os.environ.setdefault("DEV", "CPU")
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    runner = OnnxRunner(model.path)

    def run(feeds: Arrays) -> Arrays:
        results = runner({name: Tensor(array) for name, array in feeds.items()})
        return {name: value.numpy() for name, value in results.items()}

    return run
