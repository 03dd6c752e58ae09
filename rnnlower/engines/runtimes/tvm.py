"""Apache TVM: the Relax frontend, compiled for the CPU."""

from __future__ import annotations

from typing import Any

from rnnlower.engines.child import Model, Run

ABOUT = {"title": "TVM", "packages": ("apache-tvm", "onnx"), "tried": "0.27.0.post1"}


def load(model: Model) -> Run:
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = relax.transform.LegalizeOps()(from_onnx(onnx.load(model.path), keep_params_in_input=False))
    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), device)

    def run(arrays: list[Any]) -> list[Any]:
        results = machine["main"](*(tvm.runtime.tensor(array, device) for array in arrays))
        return [result.numpy() for result in ([results] if hasattr(results, "numpy") else results)]

    return model.in_order(run)
