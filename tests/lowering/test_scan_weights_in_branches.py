"""Weights of a Scan in an If: onnxruntime packs those that lie at most one graph above a product."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.judge import differences, run
from support.small_models import recurrent_model, weights

import rnnlower

FLOAT = onnx.TensorProto.FLOAT


def far_weights(graph: onnx.GraphProto, around: tuple[onnx.GraphProto, ...] = ()) -> list[str]:
    """Return the constants that a product reads from more than one graph above its own."""
    scopes = [{each.name for each in outer.initializer} for outer in (*around, graph)]
    found = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += far_weights(attribute.g, (*around, graph))
        if node.op_type in ("Gemm", "MatMul") and any(node.input[1] in names for names in scopes[:-2]):
            found.append(node.input[1])
    return found


def dynamic(op_type: str, **attributes: Any) -> onnx.ModelProto:
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    constants = weights(op_type, directions=directions)
    return recurrent_model(op_type, constants=constants, inputs={"X": (FLOAT, ["T", 2, 3])}, **attributes)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("LSTM", {}),
        ("LSTM", {"direction": "bidirectional"}),
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {}),
        ("RNN", {"direction": "reverse"}),
    ],
)
def test_a_scan_of_dynamic_length(op_type: str, attributes: dict[str, Any]) -> None:
    source = dynamic(op_type, **attributes)
    result = rnnlower.scan(source)
    assert "If" in {node.op_type for node in result.graph.node}
    assert far_weights(result.graph) == []
    for steps in (1, 7):
        feeds = {"X": np.random.default_rng(0).standard_normal((steps, 2, 3)).astype(np.float32)}
        assert differences(run(source, feeds), run(result, feeds), "float32") == []


def test_nodes_in_branches() -> None:
    """Each branch has weights of its own, as in a voice detector with a branch for each sample rate."""
    taken, other = dynamic("LSTM"), dynamic("LSTM")
    for tensor in other.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) / 2, f"{tensor.name}2")
        )
    other.graph.node[0].input[1:] = [f"{name}2" if name else "" for name in other.graph.node[0].input[1:]]
    names = [value.name for value in taken.graph.output]
    choice = helper.make_node(
        "If",
        ["wanted"],
        [f"{name}_out" for name in names],
        then_branch=helper.make_graph(taken.graph.node, "then", [], taken.graph.output),
        else_branch=helper.make_graph(other.graph.node, "else", [], other.graph.output),
    )
    graph = helper.make_graph(
        [choice],
        "g",
        [*taken.graph.input, helper.make_tensor_value_info("wanted", onnx.TensorProto.BOOL, [])],
        [helper.make_tensor_value_info(f"{name}_out", FLOAT, None) for name in names],
        [*taken.graph.initializer, *other.graph.initializer],
    )
    source = helper.make_model(graph, opset_imports=taken.opset_import, ir_version=taken.ir_version)
    result = rnnlower.scan(source)
    assert far_weights(result.graph) == []
    for wanted in (True, False):
        feeds = {"X": np.ones((4, 2, 3), np.float32), "wanted": np.array(wanted)}
        assert differences(run(source, feeds), run(result, feeds), "float32") == []


def test_old_ir_versions_have_no_initializers_in_bodies() -> None:
    source = dynamic("LSTM")
    source.ir_version = 3
    source.graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in source.graph.initializer
    )
    result = rnnlower.scan(source)
    assert result.ir_version == 3
    onnx.checker.check_model(result)
