"""ncnn on the CPU in float32, through pnnx."""

from __future__ import annotations

from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {"title": "ncnn", "packages": ("ncnn", "pnnx"), "tried": "1.0.20261020"}


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
        # The first two lines are not layers.
        kinds = {line.split()[0] for line in file.read().splitlines()[2:]}
    unknown = sorted(kind for kind in kinds if ncnn.layer_to_index(kind) < 0)
    if net.load_param(param) or net.load_model(weights):
        words = f"ncnn has no {', '.join(unknown)}" if unknown else "ncnn gives no reason"
        raise RuntimeError(f"the result of pnnx does not load: {words}")
    with open(script, encoding="utf-8") as file:
        # The Python file that pnnx writes next to the model shows which axis is each array's batch.
        lines = file.read().splitlines()
    axes = {
        name: int(index)
        for line in lines
        for name, index in re.findall(r"\b((?:in|out)\d+)\b.*batch_index=(\d+)", line)
    }

    def run(feeds: Arrays) -> Arrays:
        extractor = net.create_extractor()
        for index, name in enumerate(model.inputs):
            array = np.ascontiguousarray(feeds[name])
            axis = axes.get(f"in{index}")
            mat = ncnn.Mat(array) if axis is None else ncnn.Mat(array, batch_index=axis)
            extractor.input(f"in{index}", mat.clone())
        results = {}
        for index, name in enumerate(model.outputs):
            status, mat = extractor.extract(f"out{index}")
            if status:
                raise RuntimeError(f"output {name!r} has status {status}")
            axis = axes.get(f"out{index}")
            results[name] = np.array(mat if axis is None else mat.numpy(batch_index=axis))
        return results

    return run
