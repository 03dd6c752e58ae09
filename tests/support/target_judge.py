"""The verdict on one lowering for a target: does it fit, is it valid, are the numbers the oracle's?"""

from __future__ import annotations

import re

import numpy as np
import onnx

import rnnlower
from rnnlower.targets import find_target
from support.configs import Config, is_native
from support.judge import all_nodes, differences, interface, recurrent_left, run


def foreign_ops(source: onnx.ModelProto, lowered: onnx.ModelProto, target: str) -> set[str]:
    """Return the operators that a lowering has brought in although the target lacks them."""
    before, after = ({node.op_type for node in all_nodes(model)} for model in (source, lowered))
    return after - before - find_target(target).op_types


def _frozen(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without the inputs that have initializers, if its IR version is below 4."""
    if source.ir_version >= 4:
        return source
    frozen = onnx.ModelProto.FromString(source.SerializeToString())
    constants = {tensor.name for tensor in frozen.graph.initializer}
    inputs = [value for value in frozen.graph.input if value.name not in constants]
    del frozen.graph.input[:]
    frozen.graph.input.extend(inputs)
    return frozen


def judge_target(
    config: Config, target: str, rng: np.random.Generator, semantics: str = "ort", unroll_factor: int = 1
) -> tuple[str, str]:
    """Return ``right``, ``wrong``, ``invalid`` or ``refused: ...``, and what is to be said about it.

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
    if interface(lowered) != interface(_frozen(source)):
        return "wrong", f"the interface is {interface(lowered)}"
    if foreign := foreign_ops(source, lowered, target):
        return "wrong", f"{target} has no {foreign}"
    if recurrent_left(lowered) and not is_native(config):
        return "right", "kept, not run"
    wrong = differences(config.expected(inputs, semantics), run(lowered, inputs), config.dtype)
    return ("wrong", "\n".join(wrong)) if wrong else ("right", "")
