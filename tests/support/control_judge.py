"""The verdict on one random model with control flow."""

from __future__ import annotations

import numpy as np
import onnx

import rnnlower
from support.control_models import SHAPE, STEPS, ControlModel
from support.judge import all_nodes, run

__all__ = ["judge_control"]


def judge_control(model: ControlModel, rng: np.random.Generator) -> str:
    """``right``, or what is wrong with the model lowered for a target without control flow."""
    inputs = {
        "x": rng.standard_normal(SHAPE).astype(np.float32),
        "seq": rng.standard_normal([STEPS, *SHAPE]).astype(np.float32),
    }
    lowered = rnnlower.unroll(model.proto, sets={"mode": model.mode}, control_flow="unroll")
    onnx.checker.check_model(lowered, full_check=True)
    left = {node.op_type for node in all_nodes(lowered)} & {"If", "Loop", "Scan"}
    if left:
        return f"left: {', '.join(sorted(left))}"
    found = run(lowered, inputs)[model.output]
    expected = model.expected(inputs)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-4, atol=1e-4):
        return "wrong"
    return "right"
