"""emx-onnx-cgen: C code for microcontrollers, compiled here with gcc and called as a shared library."""

from __future__ import annotations

import functools
from typing import Any

from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {
    "title": "emx-onnx-cgen",
    "packages": ("emx-onnx-cgen",),
    "install": "pip install emx-onnx-cgen, and gcc",
    "needs": ("gcc",),
    "tried": "1.4.0",
}


def load(model: Model) -> Run:
    import ctypes

    import numpy as np
    import onnx
    import onnx.shape_inference

    loaded = onnx.load(model.path)
    # A result keeps the symbols of its outputs' sizes, even if fixed inputs determine them.
    inferred = onnx.shape_inference.infer_shapes(loaded, data_prop=True)
    for value in inferred.graph.output:
        dims = value.type.tensor_type.shape.dim
        model.outputs[value.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    for name, sizes in {**model.inputs, **model.outputs}.items():
        if sizes is None or None in sizes:
            raise ValueError(f"it needs static shapes, and that of {name!r} is {sizes}")
    with open(f"{model.folder}/mdl.c", "w", encoding="utf-8") as file:
        file.write(_compiler().compile(loaded))
    # Optimizing what many steps in a straight line give takes minutes, and times here mean nothing elsewhere.
    model.call("gcc", "-std=gnu11", "-O0", "-w", "-shared", "-fPIC", "-o", "mdl.so", "mdl.c", "-lm")
    function = ctypes.CDLL(f"{model.folder}/mdl.so").mdl
    function.restype = None

    def run(feeds: Arrays) -> Arrays:
        results = {name: np.empty(sizes, model.dtypes[name]) for name, sizes in model.outputs.items()}
        arrays = [*(np.asarray(feeds[name], order="C") for name in model.inputs), *results.values()]
        function(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))
        return results

    return run


@functools.cache
def _compiler() -> Any:
    """Return the code generator, the same for all models: it takes seconds to prepare its templates."""
    from emx_onnx_cgen.compiler import Compiler, CompilerOptions

    # Weights stay in the C file: above the threshold they would go to a separate file.
    return Compiler(CompilerOptions(model_name="mdl", large_weight_threshold=2_000_000_000))
