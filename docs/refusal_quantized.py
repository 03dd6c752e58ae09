"""Models with com.microsoft.DynamicQuantizeLSTM that are refused."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from refusal_models import Case, Change, cell

SCAN = "scan model.onnx -o out.onnx"
PLAIN = "lower model.onnx -o out.onnx --target primitive --dim T=2"


def quantized() -> onnx.ModelProto:
    """Return one node called `cell`, over a dynamic length."""
    weights = {
        "W": np.ones((1, 3, 8), np.int8),
        "R": np.ones((1, 2, 8), np.int8),
        **{f"{name}_scale": np.ones(1, np.float32) for name in "WR"},
        **{f"{name}_zero_point": np.zeros(1, np.int8) for name in "WR"},
    }
    names = ["X", "W", "R", *[""] * 5, "W_scale", "W_zero_point", "R_scale", "R_zero_point"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["Y"], name="cell", domain="com.microsoft", hidden_size=2
    )
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", 1, 3])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def weight(name: str, array: np.ndarray) -> Change:
    """Return other contents of an initializer."""

    def change(model: onnx.ModelProto) -> None:
        index = [tensor.name for tensor in model.graph.initializer].index(name)
        model.graph.initializer[index].CopyFrom(numpy_helper.from_array(array, name))

    return change


def no_scale(model: onnx.ModelProto) -> None:
    """Leave out the scale of W."""
    model.graph.node[0].input[8] = ""


MODEL = quantized()
QUANTIZED = [
    Case("weights of a float type", SCAN, weight("W", np.ones((1, 3, 8), np.float32)), MODEL),
    Case("a zero point of another type", SCAN, weight("R_zero_point", np.zeros(1, np.uint8)), MODEL),
    Case("zero points of the columns", SCAN, weight("W_zero_point", np.ones((1, 8), np.int8)), MODEL),
    Case("no scale", SCAN, no_scale, MODEL),
    Case("a GRU older than its attribute", f"{SCAN} --assume-linear-before-reset", None, cell("GRU", 1)),
    Case("a compute type", f"{SCAN} --compute-type float64"),
    Case("gates", f"{SCAN} --gates joined"),
    Case("a stream of it", "stream model.onnx -o out.onnx", None, MODEL),
    Case("a target without integer products", PLAIN, None, MODEL),
]
