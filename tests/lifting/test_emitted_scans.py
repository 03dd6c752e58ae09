"""Scans as rnnlower emits them for an open length, changed in ways that keep what they compute."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import helper
from support.judge import recurrent_left
from support.small_models import recurrent_model, weights

import rnnlower


def emitted() -> onnx.ModelProto:
    """Return a Scan in an If, which holds for a sequence with steps."""
    return rnnlower.scan(recurrent_model("LSTM", outputs=("Y", "Y_h", "Y_c")))


@pytest.mark.parametrize("dims", [{}, {"N": 2}])
@pytest.mark.parametrize("command", ["lift", "stream", "pad"])
def test_its_if_goes_with_it(command: str, dims: dict[str, int]) -> None:
    """The states that the If returns without steps may be folded by themselves."""
    options: dict[str, Any] = {"dims": dims} if dims else {}
    options |= {"max": {"T": 5}} if command == "pad" else {}
    result, report = getattr(rnnlower, command).with_report(emitted(), **options)
    assert recurrent_left(result) == ["LSTM"]
    assert not [note for note in report.notes if "stays" in note]
    assert "If" not in [node.op_type for node in result.graph.node]


def test_its_initial_state_may_be_copied_first() -> None:
    model = emitted()
    (zeros, _) = (node for node in model.graph.node if node.op_type == "ConstantOfShape")
    copy = helper.make_node("Identity", ["filled"], [zeros.output[0]])
    zeros.output[0] = "filled"
    model.graph.node.insert([*model.graph.node].index(zeros) + 1, copy)
    assert recurrent_left(rnnlower.lift(model)) == ["LSTM"]


def test_nothing_may_read_what_follows_from_it() -> None:
    model = emitted()
    (branches,) = (node for node in model.graph.node if node.op_type == "If")
    for number, output in enumerate(branches.output):
        model.graph.node.append(helper.make_node("Tanh", [output], [f"unread_{number}"]))
    result = rnnlower.lift(model)
    assert recurrent_left(result) == ["LSTM"]
    assert rnnlower.verify(model, result)


def test_nothing_may_read_either_direction() -> None:
    model = recurrent_model("GRU", constants=weights("GRU", directions=2), direction="bidirectional")
    (node,) = model.graph.node
    model.graph.node.append(helper.make_node("GRU", node.input, ["unread"], "unread"))
    model.graph.node[-1].attribute.extend(node.attribute)
    assert recurrent_left(rnnlower.lift(rnnlower.scan(model))) == ["GRU"]
