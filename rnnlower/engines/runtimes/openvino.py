"""OpenVINO on the CPU, computing in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {"title": "OpenVINO", "packages": ("openvino",), "tried": "2026.4.1", "threads": True}


def load(model: Model) -> Run:
    import openvino

    # By default it computes in bfloat16 on machines that support it.
    settings: dict[str, object] = {"INFERENCE_PRECISION_HINT": "f32"}
    if model.threads:
        settings["INFERENCE_NUM_THREADS"] = model.threads
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.path), "CPU", settings)
    inputs, outputs = list(model.inputs), list(model.outputs)

    def run(feeds: Arrays) -> Arrays:
        results = compiled([feeds[name] for name in inputs])
        return {name: results[index] for index, name in enumerate(outputs)}

    return run
