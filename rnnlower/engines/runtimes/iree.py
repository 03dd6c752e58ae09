"""IREE, compiled for this machine's CPU."""

from __future__ import annotations

from typing import Any

from rnnlower.engines.child import Model, Run

ABOUT = {
    "title": "IREE",
    "packages": ("iree-base-compiler", "iree-base-runtime", "onnx"),
    "install": "pip install 'iree-base-compiler[onnx]' iree-base-runtime",
    "tried": "3.13.0",
    "slow": True,
}


def load(model: Model) -> Run:
    import numpy as np
    from iree.compiler.tools.import_onnx import __main__ as importer

    # In this process: starting the tool takes longer than its work.
    words = [model.path, "-o", f"{model.folder}/model.mlir", "--opset-version", "17"]
    importer.main(importer.parse_arguments(words))
    cpu = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host")
    model.call("iree-compile", "model.mlir", "-o", "model.vmfb", *cpu)
    import iree.runtime

    config = iree.runtime.Config("local-sync")
    compiled = iree.runtime.VmModule.mmap(config.vm_instance, f"{model.folder}/model.vmfb")
    module = iree.runtime.load_vm_module(compiled, config)
    inner = ("__init", "$async")
    names = [name for name in compiled.function_names if not name.startswith("_")]
    function = module[next(name for name in names if not name.endswith(inner))]

    def run(arrays: list[Any]) -> list[Any]:
        results = function(*arrays)
        return [*map(np.asarray, results if isinstance(results, (list, tuple)) else [results])]

    return model.in_order(run)
