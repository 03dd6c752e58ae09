"""OpenVINO on the CPU, computing in float32."""

from __future__ import annotations

from rnnlower.engines.child import Model, Run

ABOUT = {"title": "OpenVINO", "packages": ("openvino",), "tried": "2026.4.1", "threads": True}


def load(model: Model) -> Run:
    import openvino

    # By default it computes in bfloat16 on machines that support it.
    settings: dict[str, object] = {"INFERENCE_PRECISION_HINT": "f32"}
    if model.threads:
        settings["INFERENCE_NUM_THREADS"] = model.threads
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model.path), "CPU", settings)
    return model.in_order(lambda arrays: compiled(arrays).to_tuple())
