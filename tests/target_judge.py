"""The verdict on one lowering for a target: does it fit, is it valid, and do the numbers agree with the oracle?"""

from __future__ import annotations

import re

import numpy as np
import onnx
from configs import Config, is_native
from judge import differences, interface, recurrent_left, run

import rnnlower
from rnnlower.passes.lower_recurrent import EMITTED
from rnnlower.targets import find_target
from rnnlower.targets.fit import find_misfits

__all__ = ["judge_target", "misfits_of_steps"]


def judge_target(
    config: Config, target: str, rng: np.random.Generator, semantics: str = "ort", unroll_factor: int = 1
) -> tuple[str, str]:
    """``right``, ``wrong``, ``invalid`` or ``refused: ...``, and what is to be said about it.

    All sizes are fixed. What is kept native runs here only if onnxruntime has a kernel for it.
    """
    inputs = config.make_inputs(rng)
    shapes = {name: array.shape for name, array in inputs.items()}
    source = config.build()
    try:
        lowered = rnnlower.lower(
            source, target=target, input_shapes=shapes, semantics=semantics, unroll_factor=unroll_factor
        )
    except rnnlower.RnnLowerError as error:
        return f"refused: {type(error).__name__}: {re.sub(r'^[^:]*: ', '', str(error))}", str(error)
    try:
        onnx.checker.check_model(lowered, full_check=config.x_dims != "negative")
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return "invalid", str(error)
    if interface(lowered) != interface(source):
        return "wrong", f"the interface is {interface(lowered)}"
    left = [misfit for misfit in rnnlower.check(lowered, target=target, semantics=semantics) if _is_ours(misfit)]
    if left:
        return "wrong", "\n".join(map(str, left))
    if recurrent_left(lowered) and not is_native(config):
        return "right", "kept, not run"
    wrong = differences(config.expected(inputs, semantics), run(lowered, inputs), config.dtype)
    return ("wrong", "\n".join(wrong)) if wrong else ("right", "")
