"""tinygrad's ONNX frontend, on its CPU device."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {"title": "tinygrad", "packages": ("tinygrad",), "tried": "0.14.0"}


def load(model: Model) -> Run:
    # Its CPU device compiles with clang; without one the Python device runs the same kernels, interpreted.
    os.environ.setdefault("DEV", "CPU" if shutil.which("clang") else "PYTHON")
    from tinygrad import Tensor
    from tinygrad.nn.onnx import OnnxRunner

    runner = OnnxRunner(model.path)

    def run(feeds: Arrays) -> Arrays:
        results = runner({name: Tensor(array) for name, array in feeds.items()})
        return {name: value.numpy() for name, value in results.items()}

    return run
