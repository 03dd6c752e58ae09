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


def test_directions_behind_copies_of_many_residual_layers() -> None:
    """Each layer is read twice, so the pairs of values to compare must not double with each."""

    def layers(name: str) -> str:
        steps = [
            f"{name}{i}t = Tanh ({name}{i})  {name}{i + 1} = Add ({name}{i}, {name}{i}t)" for i in range(600)
        ]
        return f"{name}0 = Neg (X)  " + "  ".join(steps)

    body = """(float[B, 3] h, float[B, 3] x) => (float[B, 3] h2, float[B, 3] y)
        { xw = MatMul (x, W)  hr = MatMul (h, R)  s = Add (xw, hr)  h2 = Tanh (s)  y = Identity (h2) }"""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[T, B, 3] X, float[B, 3] S) => (float[T, B, 3] O, float[T, B, 3] P)
        <float[3, 3] W = {{1, 0, 0.5, 0.2, 1, 0, 0, 0, 1}},
         float[3, 3] R = {{0.1, 0, 0.5, 0.2, 1, 0, 0, 0, 1}}> {{
            {layers("a")}  {layers("b")}
            E, O = Scan <num_scan_inputs = 1, body = f {body}> (S, a600)
            F, P = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1],
                body = g {body}> (S, b600)
        }}""")
    lifted = rnnlower.lift(model)
    (node,) = (node for node in lifted.graph.node if node.op_type == "RNN")
    assert [helper.get_attribute_value(each) for each in node.attribute if each.name == "direction"] == [
        b"bidirectional"
    ]
