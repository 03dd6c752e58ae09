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
