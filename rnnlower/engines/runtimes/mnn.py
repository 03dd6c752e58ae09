"""MNN on the CPU.

Its converter is called as a module, because the script `mnnconvert` installs a package and posts usage data.
"""

from __future__ import annotations

import sys
from typing import Any

from rnnlower.engines.child import Model, Run

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

    def run(arrays: list[Any]) -> list[Any]:
        # MNN computes integers and conditions in int32.
        fed = [array.astype(np.int32) if array.dtype.kind in "bui" else array for array in arrays]
        values = [MNN.expr.const(a, list(a.shape), MNN.expr.NCHW, kinds[a.dtype.kind]) for a in fed]
        results = zip(outputs, (value.read() for value in net.forward(values)), strict=True)
        return [a.astype(model.dtypes[name]) if a.dtype.kind == "i" else a.copy() for name, a in results]

    return model.in_order(run)
