"""Recurrent nodes in model-local functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.judge import STRATEGIES, differences, recurrent_left, run
from support.small_models import info, model_of, weights

import rnnlower
from rnnlower.files.model_io import load_model
from rnnlower.passes.pipeline import LoweringOptions, lower_model

FLOAT, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
X = info("X", FLOAT, [5, 2, 3])
CONDITION = info("c", BOOL, [])


def cell(**attributes: Any) -> onnx.NodeProto:
    """Return an LSTM over x, w, r, b; ``"@name"`` refers to the function's attribute."""
    node = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h"])
    for name, value in ({"hidden_size": 4} | attributes).items():
        if isinstance(value, str) and value.startswith("@"):
            kind = onnx.AttributeProto.INT if name == "hidden_size" else onnx.AttributeProto.STRING
            node.attribute.add(name=name, ref_attr_name=value[1:], type=kind)
        else:
            node.attribute.append(helper.make_attribute(name, value))
    return node


def function(
    nodes: Sequence[onnx.NodeProto],
    inputs: str = "x w r b",
    outputs: str = "y h",
    name: str = "encoder",
    opset: int = 17,
    attributes: Sequence[str] = (),
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_function(
        "own", name, inputs.split(), outputs.split(), nodes, imports, list(attributes)
    )


def call(inputs: str, outputs: Sequence[str], name: str = "encoder", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(name, inputs.split(), outputs, domain="own", **attributes)


def calling_model(
    nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto], outputs: Sequence[str] = ("Y",)
) -> onnx.ModelProto:
    return model_of(
        nodes,
        [X, CONDITION],
        [info(name, FLOAT, [5, 1, 2, 4]) for name in outputs],
        weights("LSTM", 3, 4),
        functions=functions,
        extra_domains=["own"],
    )


def check_branches(source: onnx.ModelProto, strategy: str, **options: Any) -> onnx.ModelProto:
    lowered = getattr(rnnlower, strategy)(source, **options)
    onnx.checker.check_model(lowered, full_check=True)
    assert recurrent_left(lowered) == []
    for taken in (True, False):
        inputs = {"X": np.random.default_rng(0).standard_normal((5, 2, 3), np.float32), "c": np.array(taken)}
        assert differences(run(source, inputs), run(lowered, inputs), "float32") == []
    return lowered


def _if(nodes: Sequence[onnx.NodeProto], constants: Sequence[onnx.TensorProto] = ()) -> onnx.NodeProto:
    """Return an If whose branches have the same names."""
    graphs = [
        helper.make_graph(
            [*nodes, helper.make_node(op_type, ["y"], ["z"])],
            op_type,
            [],
            [info("z", FLOAT, [5, 1, 2, 4])],
            constants,
        )
        for op_type in ("Neg", "Abs")
    ]
    return helper.make_node("If", ["c"], ["out"], then_branch=graphs[0], else_branch=graphs[1])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_calls_with_different_attributes(strategy: str) -> None:
    encoder = function([cell(hidden_size="@size", direction="@way")], attributes=["size", "way"])
    nodes = [
        call("X W R B", ["Y", ""], size=4, way="forward"),
        call("X W R B", ["y", "h"], size=4, way="reverse"),
    ]
    check_branches(calling_model(nodes, [encoder], ["Y", "y"]), strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("attribute", [4, "@size"])
def test_function_with_subgraphs(attribute: int | str, strategy: str) -> None:
    constant = onnx.numpy_helper.from_array(np.ones((1, 2, 4), np.float32), "W")
    body = _if([cell(hidden_size=attribute), helper.make_node("Add", ["h", "W"], ["sum"])], [constant])
    encoder = function([body], "x w r b c", "out", attributes=["size"])
    nodes = [call("X W R B c", ["Y"], size=4), call("X W R B c", ["z"], size=4)]
    check_branches(calling_model(nodes, [encoder], ["Y", "z"]), strategy)


def test_call_from_a_branch_of_a_function_that_calls_another() -> None:
    outer = function([call("x w r b", ["y", "h"])], name="outer", outputs="y h")
    body = _if([helper.make_node("outer", ["X", "W", "R", "B"], ["y", ""], domain="own")])
    body.output[0] = "Y"
    check_branches(calling_model([body], [function([cell()]), outer]), "scan")


@pytest.mark.parametrize("opset", [15, 19])
def test_function_of_another_opset(opset: int) -> None:
    lowered = check_branches(
        calling_model([call("X W R B", ["Y", "h"])], [function([cell()], opset=opset)]), "scan"
    )
    assert [each.version for each in lowered.opset_import if each.domain == ""] == [17]


def test_call_with_fewer_outputs_than_the_function() -> None:
    complete = calling_model([call("X W R B", ["Y", "h"])], [function([cell()])])
    lowered = rnnlower.scan(calling_model([call("X W R B", ["Y"])], [function([cell()])]))
    inputs = {"X": np.ones((5, 2, 3), np.float32), "c": np.array(True)}
    assert differences(run(complete, inputs), run(lowered, inputs), "float32") == []


def test_function_that_is_not_lowered_stays() -> None:
    plain = function([helper.make_node("Neg", ["x"], ["y"])], "x", "y", name="plain", opset=15)
    plain.doc_string = "of its own opset"
    nodes = [
        helper.make_node("LSTM", ["X", "W", "R", "B"], ["y"], hidden_size=4),
        call("y", ["Y"], name="plain"),
    ]
    lowered = check_branches(calling_model(nodes, [plain]), "scan")
    assert list(lowered.functions) == [plain]


def test_function_that_nothing_calls_is_named_when_it_goes() -> None:
    nodes = [helper.make_node("LSTM", ["X", "W", "R", "B"], ["Y"], hidden_size=4)]
    own = load_model(calling_model(nodes, [function([cell()])]))
    report = lower_model(own, LoweringOptions("scan"))
    assert not own.functions
    assert any("own::encoder" in note for note in report.notes)
