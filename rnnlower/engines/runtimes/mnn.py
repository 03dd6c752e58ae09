"""MNN on the CPU.

Its converter is called as a module, because the script `mnnconvert` installs a package and posts usage data.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {"title": "MNN", "packages": ("mnn",), "tried": "3.6.1"}

_CONVERT = "import sys, _tools; _tools.mnnconvert(['mnnconvert'] + sys.argv[1:])"


def load(model: Model) -> Run:
    import os

    options = ("--bizCode", "x")
    files = ("--modelFile", model.path, "--MNNModel", "model.mnn")
    printed = model.call(sys.executable, "-c", _CONVERT, "-f", "ONNX", *files, *options)
    if not os.path.exists(f"{model.folder}/model.mnn"):
        lines = [line for line in printed.splitlines() if "rror" in line or "not supp" in line]
        raise RuntimeError(f"the converter wrote nothing: {' | '.join(lines[:3])}")
    import MNN.expr
    import MNN.nn
    import numpy as np

    inputs, outputs = list(model.inputs), list(model.outputs)
    net = MNN.nn.load_module_from_file(f"{model.folder}/model.mnn", inputs, outputs)
    kinds = {"f": MNN.expr.float, "i": MNN.expr.int}

    def run(feeds: Arrays) -> Arrays:
        values = []
        for name in inputs:
            array = np.asarray(feeds[name], order="C")
            # MNN computes integers and conditions in int32.
            array = array.astype(np.int32) if array.dtype.kind in "bui" else array
            values.append(MNN.expr.const(array, list(array.shape), MNN.expr.NCHW, kinds[array.dtype.kind]))
        results = {name: value.read() for name, value in zip(outputs, net.forward(values), strict=True)}
        return {
            name: array.astype(model.dtypes[name]) if array.dtype.kind == "i" else array.copy()
            for name, array in results.items()
        }

    return run
