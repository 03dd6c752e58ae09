"""A float model to quantize, onnxruntime's two ways to do it, and their results."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from support.judge import all_nodes

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Network:
    """Recurrent layers and a linear one behind them, as a keyword spotter has them."""

    op_type: str = "LSTM"
    steps: int | str = 50
    features: int = 40
    hidden_size: int = 128
    layers: int = 2
    classes: int = 12

    def build(self, scale: float = 1) -> onnx.ModelProto:
        """Return the model: X ``[steps, 1, features]`` to scores ``[1, classes]``.

        The recurrent layers' weights are what PyTorch draws, times `scale`.
        """
        parts = _Parts(np.random.default_rng(0))
        x, width, H = "X", self.features, self.hidden_size
        for layer in range(self.layers):
            rows = GATES[self.op_type] * H
            shapes = {"W": (1, rows, width), "R": (1, rows, H), "B": (1, 2 * rows)}
            bound = scale * H**-0.5
            names = [parts.uniform(f"{name}{layer}", shape, bound) for name, shape in shapes.items()]
            last = layer == self.layers - 1
            outputs = ["", f"h{layer}"] if last else [f"Y{layer}"]
            attributes: dict[str, Any] = {"linear_before_reset": 1} if self.op_type == "GRU" else {}
            parts.add(self.op_type, [x, *names], outputs, hidden_size=H, name=f"layer{layer}", **attributes)
            x, width = f"x{layer}", H
            axis = parts.constant(f"axis{layer}", np.array([0 if last else 1], np.int64))
            parts.add("Squeeze", [outputs[-1], axis], [x])
        parts.add("MatMul", [x, parts.uniform("V", (H, self.classes), H**-0.5)], ["scores"])
        graph = helper.make_graph(
            parts.nodes,
            "network",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, [self.steps, 1, self.features])],
            [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, self.classes])],
            parts.initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def inputs(self, seed: int, steps: int = 50) -> dict[str, np.ndarray]:
        """Return features that change slowly, as those of sounds do."""
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((steps, 1, self.features))
        for t in range(1, steps):
            noise[t] = 0.8 * noise[t - 1] + 0.6 * noise[t]
        return {"X": noise.astype(np.float32)}


@dataclass
class _Parts:
    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op_type, inputs, outputs, **attributes))

    def constant(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def uniform(self, name: str, shape: tuple[int, ...], bound: float) -> str:
        return self.constant(name, self.rng.uniform(-bound, bound, shape).astype(np.float32))


class _Calibration(CalibrationDataReader):
    def __init__(self, inputs: Iterator[dict[str, np.ndarray]]) -> None:
        self._inputs = inputs

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._inputs, None)


def dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return by `quantize_dynamic`, bodies included.

    With 7 bits: onnxruntime's kernels for x86 processors without VNNI saturate with 8.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, result = pathlib.Path(folder, "float.onnx"), pathlib.Path(folder, "int8.onnx")
        onnx.save(model, source)
        options = {"EnableSubgraph": True}
        quantize_dynamic(
            source, result, weight_type=QuantType.QInt8, reduce_range=True, extra_options=options
        )
        return onnx.load(result)


def static(
    model: onnx.ModelProto, inputs: Iterator[dict[str, np.ndarray]], op_types: list[str] | None = None
) -> onnx.ModelProto:
    """Return by `quantize_static` in QDQ format, calibrated on the inputs."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = pathlib.Path(folder, "float.onnx"), pathlib.Path(folder, "int8.onnx")
        onnx.save(model, source)
        quantize_static(
            source,
            result,
            _Calibration(inputs),
            quant_format=QuantFormat.QDQ,
            weight_type=QuantType.QInt8,
            reduce_range=True,
            op_types_to_quantize=op_types,
        )
        return onnx.load(result)


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in float16."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*copy.graph.input, *copy.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in copy.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return copy


def products(model: onnx.ModelProto) -> tuple[int, int]:
    """Return the number of nodes that multiply by integer weights, and by any weights."""
    nodes = list(all_nodes(model))
    dequantized = {out for node in nodes if node.op_type == "DequantizeLinear" for out in node.output}
    integer = [node for node in nodes if node.op_type in ("MatMulInteger", "DynamicQuantizeLSTM")]
    other = [node for node in nodes if node.op_type in ("MatMul", "Gemm", "LSTM", "GRU", "RNN")]
    quantized = [node for node in other if node.input[1] in dequantized]
    return len(integer) + len(quantized), len(integer) + len(other)
