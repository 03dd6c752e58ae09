"""The verdict on one random model with control flow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

import rnnlower
from support.control_models import ControlModel
from support.control_statements import SHAPE, STEPS, Arrays
from support.judge import all_nodes, recurrent_left, run

TARGET = "primitive"
"""It has no control flow, no sequences and no recurrent operator."""


def judge_control(model: ControlModel, rng: np.random.Generator) -> str:
    """Return ``right``, or the fault of the model as a straight line, unrolled and lowered for a target."""
    inputs = {
        "x": rng.standard_normal(SHAPE).astype(np.float32),
        "seq": rng.standard_normal([STEPS, *SHAPE]).astype(np.float32),
    }
    straight = {"sets": model.settings, "control_flow": "unroll"}
    verdicts = [
        _judged(model, inputs, "x", *rnnlower.unroll.with_report(model.proto, **straight)),
        _judged(
            model, inputs, "x", *rnnlower.lower.with_report(model.proto, target=TARGET, sets=model.settings)
        ),
    ]
    if model.used & {"flag", "times"}:
        verdicts.append(_judge_open(model, inputs))
    return "; ".join(dict.fromkeys(verdict for verdict in verdicts if verdict)) or "right"


def _judge_open(model: ControlModel, inputs: Arrays) -> str:
    """Return the fault of the model without `flag` and `times`: their dependants are noted or refused."""
    sets = {"mode": model.settings["mode"]}
    try:
        lowered, report = rnnlower.unroll.with_report(model.proto, sets=sets, control_flow="unroll")
    except rnnlower.UnsupportedModelError as error:
        told = re.search(
            r"Loop node '.+': cannot be unrolled: .*input '(x|flag|times)' decides it", str(error)
        )
        return "" if told else f"refused: {error}"
    fed = inputs | {name: np.array(value) for name, value in model.settings.items() if name != "mode"}
    return _judged(model, fed, "x|flag|times", lowered, report)


def _judged(model: ControlModel, inputs: Arrays, deciders: str, lowered: onnx.ModelProto, report: Any) -> str:
    """Describe the fault; ``""`` if there is none."""
    onnx.checker.check_model(lowered, full_check=True)
    if recurrent_left(lowered):
        return "recurrent left"
    left = [node for node in all_nodes(lowered) if node.op_type in ("If", "Loop", "Scan")]
    if left and (model.used <= {"flag", "times"} if deciders == "x" else False):
        return f"left: {', '.join(sorted({node.op_type for node in left}))}"
    if unnamed := [node.name for node in left if not _is_told(node, deciders, report.notes)]:
        return f"left, and no note says what decides: {unnamed}"
    if any("Sequence" in node.op_type for node in all_nodes(lowered)) and not left:
        return "a sequence is left"
    found = run(lowered, inputs)[model.output]
    expected = model.expected(inputs)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-4, atol=1e-4):
        return "wrong"
    return ""


def _is_told(node: onnx.NodeProto, deciders: str, notes: Sequence[str]) -> bool:
    """Return whether a note says which input decides the node, which it may count rather than name."""
    label = re.escape(repr(node.name or node.output[0]))
    said = re.compile(rf"If (.*{label}.*|.* more) stays?: .*input '({deciders})' decides it")
    return any(said.match(note) for note in notes)
