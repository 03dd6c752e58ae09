"""Random recurrent models that are lowered, lifted again, and must be the same node."""

from __future__ import annotations

import collections
import traceback

import numpy as np
import onnx

import rnnlower
from support import judge
from support.config_choices import Choose, draw_config
from support.configs import Config

_CONSTANT = ("initializer", "constant", "omitted", "empty")


def liftable(choose: Choose) -> Config:
    """Return a random model whose weights are constant and whose activations do not degenerate.

    With two steps and one row at least, in float32, the type for which onnxruntime has all kernels.
    """
    drawn = draw_config(choose)
    for name in "WRBP":
        if drawn.get(name, "omitted") not in _CONSTANT:
            drawn[name] = "initializer"
    if drawn["opset"] < 7:
        drawn["opset"] = 7
        drawn.pop("output_sequence", None)
    if drawn["direction"] == "foward":
        drawn["direction"] = None
    for name in ("captured", "all_refs"):
        drawn.pop(name, None)
    # A length and a batch that are not declared, or declared wrong, are no matter of lifting.
    sizes = {name: max(drawn[name], least) for name, least in (("seq_length", 3), ("batch_size", 1))}
    drawn |= {"place": "main", "dtype": "float32", "ir_version": max(drawn["ir_version"], 4), **sizes}
    drawn["x_dims"] = drawn["x_dims"] if drawn["x_dims"] in ("static", "time") else "static"
    names = drawn.get("activations") or ()
    if "Affine" in names:
        drawn.pop("activations")
    for name in ("activation_alpha", "activation_beta"):
        # A function of no effect, such as 0 tanh(x), leaves nothing to be found.
        given = [number or 0.7 for number in drawn.get(name) or ()]
        if "ScaledTanh" in names:
            given += [0.9] * (6 - len(given))
        if given:
            drawn[name] = tuple(given)
    return Config(**drawn)


def random_liftable(rng: np.random.Generator) -> Config:
    """Return a random model for a sweep."""
    return liftable(lambda options: options[int(rng.integers(len(options)))])


def judge_lift(config: Config, strategy: str, rng: np.random.Generator) -> tuple[str, str]:
    """Return ``back``, ``stays: ...``, ``refused``, ``wrong``, ``invalid`` or ``crash``, and its details."""
    inputs = config.make_inputs(rng)
    try:
        lowered = judge.lower(config, strategy, inputs)
    except rnnlower.UnsupportedModelError:
        return "refused", ""
    try:
        lifted, report = rnnlower.lift.with_report(lowered)
        onnx.checker.check_model(lifted, full_check=True)
        wrong = judge.differences(judge.run(lowered, inputs), judge.run(lifted, inputs), config.dtype)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return "invalid", str(error)
    except Exception:
        return "crash", traceback.format_exc(limit=-4)
    if wrong or judge.interface(lifted) != judge.interface(lowered):
        return "wrong", "; ".join(wrong) or "the interface"
    nodes = [(node.op_type, node.direction, node.hidden_size) for node in rnnlower.inspect(lifted)]
    if nodes == [(config.op_type, config.direction or "forward", config.hidden_size)]:
        return "back", ""
    reasons = collections.Counter(str(node.reason) for node in report.nodes if node.reason)
    return f"stays: {'; '.join(reasons) or [op for op, *_ in nodes] or 'nothing found'}", str(nodes)
