"""Rockchip's rknn-toolkit2: its NPU simulator, which computes in float16."""

from __future__ import annotations

from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {
    "title": "rknn-toolkit2",
    "packages": ("rknn-toolkit2",),
    "precision": "float16",
    "tried": "2.5.0",
    "slow": True,
}


def load(model: Model) -> Run:
    import os

    import onnx
    from rknn.api import RKNN

    # It refuses inputs that no node reads.
    read = {name for node in onnx.load(model.path).graph.node for name in node.input}
    toolkit = RKNN(verbose=False)
    toolkit.config(target_platform=os.environ.get("RKNN_TARGET", "rk3588"))
    inputs, outputs = [name for name in model.inputs if name in read], list(model.outputs)
    steps = {
        "load_onnx": lambda: toolkit.load_onnx(
            model=model.path, inputs=inputs, input_size_list=[model.inputs[name] for name in inputs]
        ),
        "build": lambda: toolkit.build(do_quantization=False),
        "init_runtime": toolkit.init_runtime,
    }
    for name, step in steps.items():
        if step():
            raise RuntimeError(f"its {name} fails")

    def run(feeds: Arrays) -> Arrays:
        results = toolkit.inference(
            inputs=[feeds[name] for name in inputs], data_format=["nchw"] * len(inputs)
        )
        if results is None:
            raise RuntimeError("its inference fails")
        return dict(zip(outputs, results, strict=True))

    return run
