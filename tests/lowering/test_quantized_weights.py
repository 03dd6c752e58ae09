"""Weights behind a DequantizeLinear: they stay integers, in front of each product."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.judge import STRATEGIES, all_nodes, run
from support.quantizing import products

import rnnlower

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, UNITS, FEATURES = 4, 32, 32
SCALES = {"tensor": (), "direction": (2,), "rows": (1,), "columns": (1,), "blocks": (1,)}


def network(op_type: str, scales: str, integer: int = TensorProto.INT8) -> onnx.ModelProto:
    """Return a recurrent node whose weights are dequantized."""
    rng = np.random.default_rng(1)
    D = 2 if scales == "direction" else 1
    rows = GATES[op_type] * UNITS
    nodes, constants = [], {}
    for name, columns in (("W", FEATURES), ("R", UNITS)):
        high = 7 if integer == TensorProto.INT4 else 127
        dtype = helper.tensor_dtype_to_np_dtype(integer)
        constants[f"{name}_q"] = rng.integers(-high, high + 1, (D, rows, columns)).astype(dtype)
        shape, attributes = {
            "tensor": ((), {}),
            "direction": ((2,), {"axis": 0}),
            "rows": ((rows,), {"axis": 1}),
            "columns": ((columns,), {"axis": -1}),
            "blocks": ((D, rows, columns // 16), {"axis": 2, "block_size": 16}),
        }[scales]
        scale = rng.uniform(0.5, 1.5, shape) / high / columns**0.5
        constants[f"{name}_scale"] = np.asarray(scale, np.float32)
        inputs = [f"{name}_q", f"{name}_scale"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [name], **attributes))
    direction = "bidirectional" if D == 2 else "forward"
    nodes.append(
        helper.make_node(op_type, ["X", "W", "R"], ["Y"], name="cell", hidden_size=UNITS, direction=direction)
    )
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [STEPS, 1, FEATURES])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [STEPS, D, 1, UNITS])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def inputs() -> dict[str, np.ndarray]:
    return {"X": np.random.default_rng(2).standard_normal((STEPS, 1, FEATURES)).astype(np.float32)}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("op_type", "scales"),
    [("LSTM", scales) for scales in SCALES] + [("GRU", "rows"), ("RNN", "tensor"), ("GRU", "direction")],
)
def test_every_product_reads_quantized_weights(op_type: str, scales: str, strategy: str) -> None:
    model = network(op_type, scales)
    lowered = getattr(rnnlower, strategy)(model)
    onnx.checker.check_model(lowered, full_check=True)
    integers, total = products(lowered)
    assert integers == total > 0
    assert lowered.ByteSize() < 1.5 * model.ByteSize() + 4000
    np.testing.assert_allclose(run(lowered, inputs())["Y"], run(model, inputs())["Y"], atol=2e-6)


def test_weights_of_4_bits_in_blocks_stay_quantized() -> None:
    model = network("LSTM", "blocks", TensorProto.INT4)
    lowered = rnnlower.unroll(model)
    stored = {tensor.data_type for tensor in lowered.graph.initializer if len(tensor.dims) == 2}
    assert TensorProto.INT4 in stored
    assert products(lowered)[0] == products(lowered)[1]
    np.testing.assert_allclose(run(lowered, inputs())["Y"], run(model, inputs())["Y"], atol=2e-6)


def test_integers_that_something_else_reads_are_not_stored_twice() -> None:
    model = network("LSTM", "rows")
    model.graph.node.append(helper.make_node("Identity", ["R"], ["out"]))
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    lowered = rnnlower.scan(model)
    assert [t.name for t in lowered.graph.initializer].count("R_q") == 1
    assert sum(node.op_type == "DequantizeLinear" for node in all_nodes(lowered)) >= 2
    np.testing.assert_allclose(run(lowered, inputs())["Y"], run(model, inputs())["Y"], atol=2e-6)


@pytest.mark.parametrize("gates", ["auto", "separate"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_scale_of_one_element_is_that_of_the_tensor(axis: int, gates: str) -> None:
    model = network("LSTM", "tensor")
    for node in model.graph.node[:2]:
        node.attribute.append(helper.make_attribute("axis", axis))
    for tensor in model.graph.initializer:
        if tensor.name.endswith("_scale"):
            tensor.dims.append(1)
    lowered = rnnlower.unroll(model, gates=gates)
    assert products(lowered)[0] == products(lowered)[1]
    np.testing.assert_allclose(run(lowered, inputs())["Y"], run(model, inputs())["Y"], atol=2e-6)


def test_integers_of_another_domain_stay_there() -> None:
    model = network("LSTM", "rows", TensorProto.UINT16)
    model.opset_import[0].version = 13
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    for node in model.graph.node[:2]:
        node.domain = "com.microsoft"
    lowered = rnnlower.unroll(model)
    np.testing.assert_allclose(run(lowered, inputs())["Y"], run(model, inputs())["Y"], atol=2e-6)


@pytest.mark.parametrize("parts", [[2], [1, 1], [0, 2], [0, 1, 1]])
def test_directions_are_those_of_their_place_in_a_concat(parts: list[int]) -> None:
    model = network("LSTM", "direction")
    dequantize, scale = model.graph.node.pop(0), np.float32(0.01)
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(scale), "scale"))
    whole = next(tensor for tensor in model.graph.initializer if tensor.name == "W_q")
    cuts = np.split(numpy_helper.to_array(whole), np.cumsum(parts)[:-1])
    names = [f"part{number}" for number in range(len(parts))]
    for name, cut in zip(names, cuts, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(cut, f"{name}_q"))
    nodes = [helper.make_node("DequantizeLinear", [f"{name}_q", "scale"], [name]) for name in names]
    nodes.append(helper.make_node("Concat", names, dequantize.output, axis=0))
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    lowered = rnnlower.unroll(model)
    np.testing.assert_allclose(run(lowered, inputs())["Y"], run(model, inputs())["Y"], atol=2e-6)
