"""Apache TVM: the Relax frontend, compiled for the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {"title": "TVM", "packages": ("apache-tvm", "onnx"), "tried": "0.27.0.post1"}


def load(model: Model) -> Run:
    import numpy as np
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = relax.transform.LegalizeOps()(from_onnx(onnx.load(model.path), keep_params_in_input=False))
    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), device)
    inputs, outputs = list(model.inputs), list(model.outputs)

    def run(feeds: Arrays) -> Arrays:
        values = [tvm.runtime.tensor(np.asarray(feeds[name], order="C"), device) for name in inputs]
        results = machine["main"](*values)
        results = [results] if hasattr(results, "numpy") else results
        return {name: result.numpy() for name, result in zip(outputs, results, strict=True)}

    return run
