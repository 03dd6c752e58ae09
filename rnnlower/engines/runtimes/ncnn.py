"""ncnn on the CPU in float32, through pnnx."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {"title": "ncnn", "packages": ("ncnn", "pnnx")}


def load(model: Model) -> Run:
    import os
    import re

    import ncnn
    import numpy as np
    import pnnx

    beside = os.path.join(os.path.dirname(pnnx.__file__), "pnnx")
    model.call(beside if os.path.exists(beside) else "pnnx", "model.onnx", "fp16=0")
    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    param, weights, script = (
        f"{model.folder}/model{end}" for end in (".ncnn.param", ".ncnn.bin", "_ncnn.py")
    )
    with open(param, encoding="utf-8") as file:
        kinds = re.findall(r"^((?:F|torch|nn|Tensor|aten|prims|pnnx)\.\S+|LSTM|GRU) ", file.read(), re.M)
    if net.load_param(param) or net.load_model(weights):
        raise RuntimeError(f"it does not load the result of pnnx; not converted: {sorted(set(kinds))}")
    with open(script, encoding="utf-8") as file:
        # The Python file that pnnx writes next to the model shows whether arrays have a batch axis.
        batched = "batch_index" in file.read()

    def run(feeds: Arrays) -> Arrays:
        extractor = net.create_extractor()
        for index, name in enumerate(model.inputs):
            array = np.ascontiguousarray(feeds[name])
            mat = ncnn.Mat(array, batch_index=233) if batched else ncnn.Mat(array)
            extractor.input(f"in{index}", mat.clone())
        results = {}
        for index, name in enumerate(model.outputs):
            status, mat = extractor.extract(f"out{index}")
            if status:
                raise RuntimeError(f"no output {name!r}; not converted: {sorted(set(kinds))}")
            results[name] = np.array(mat.numpy(batch_index=233) if batched else mat)
        return results

    return run
