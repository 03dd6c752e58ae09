"""Models with long memory: half of the units forget over 50 steps.

Random weights as PyTorch draws them forget within a few steps, and with them whatever error a rounding made.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
from onnx import helper, numpy_helper

MEMORY = 50
"""Steps over which half of the units forget."""

FEATURES, CLASSES = 16, 12


@dataclasses.dataclass(frozen=True)
class LongMemory:
    """A model of one or two recurrent layers; with two there is a linear layer behind.

    Attributes:
        op_type: LSTM, GRU or RNN (which has no gate to remember by).
        units: The number of hidden units.
        steps: The number of time steps; ``None``: any.
        layers: 1 or 2.
        direction: That of the first layer.
        linear_before_reset: The attribute of a GRU.
        seed: Determines the weights.
    """

    op_type: str = "LSTM"
    units: int = 64
    steps: int | None = None
    layers: int = 1
    direction: str = "forward"
    linear_before_reset: bool = True
    seed: int = 0

    def build(self) -> onnx.ModelProto:
        """Return the model, whose input X is ``[steps, 1, FEATURES]``."""
        draw = np.random.default_rng(self.seed)
        directions = 2 if self.direction == "bidirectional" else 1
        steps = self.steps or "T"
        nodes, weights = [], self._weights(draw, "first", FEATURES, directions)
        nodes.append(self._node("first", "X", "Y", self.direction))
        output = helper.make_tensor_value_info(
            "Y", onnx.TensorProto.FLOAT, [steps, directions, 1, self.units]
        )
        if self.layers == 2:
            one = np.array([1], np.int64)
            head = (draw.uniform(-1, 1, (self.units, CLASSES)) / np.sqrt(self.units)).astype(np.float32)
            weights += [numpy_helper.from_array(one, "axis"), numpy_helper.from_array(head, "head")]
            weights += self._weights(draw, "second", self.units, 1)
            nodes += [
                helper.make_node("Squeeze", ["Y", "axis"], ["features"], "squeeze_first"),
                self._node("second", "features", "Z", "forward"),
                helper.make_node("Squeeze", ["Z", "axis"], ["last"], "squeeze_second"),
                helper.make_node("MatMul", ["last", "head"], ["scores"], "head_product"),
            ]
            output = helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [steps, 1, CLASSES])
        X = helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, [steps, 1, FEATURES])
        graph = helper.make_graph(nodes, "long_memory", [X], [output], weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model

    def _node(self, name: str, source: str, result: str, direction: str) -> onnx.NodeProto:
        inputs = [source, *(f"{name}.{letter}" for letter in "WRB")]
        options = {"linear_before_reset": int(self.linear_before_reset)} if self.op_type == "GRU" else {}
        node = helper.make_node(self.op_type, inputs, [result], name, hidden_size=self.units, **options)
        if direction != "forward":
            node.attribute.append(helper.make_attribute("direction", direction))
        return node

    def _weights(
        self, draw: np.random.Generator, name: str, inputs: int, directions: int
    ) -> list[onnx.TensorProto]:
        units, gates = self.units, {"LSTM": 4, "GRU": 3, "RNN": 1}[self.op_type]
        W = draw.uniform(-1, 1, (directions, gates * units, inputs)) * np.sqrt(3 / inputs)
        R = draw.uniform(-1, 1, (directions, gates * units, units)) * np.sqrt(1.5 / units)
        B = draw.uniform(-0.1, 0.1, (directions, 2 * gates * units))
        if self.op_type != "RNN":
            # The forget gate of an LSTM is its third, the update gate of a GRU its first.
            first = 2 * units if self.op_type == "LSTM" else 0
            rows = slice(first, first + units // 2)
            B[:, rows] = np.log(MEMORY)
            W[:, rows] *= 0.1
            R[:, rows] *= 0.1
        if self.op_type == "LSTM":
            # What is kept for long is let in slowly.
            B[:, : units // 2] -= np.log(10)
        arrays = {"W": W, "R": R, "B": B}
        return [
            numpy_helper.from_array(array.astype(np.float32), f"{name}.{letter}")
            for letter, array in arrays.items()
        ]


def recordings(count: int = 8, steps: int = 200, seed: int = 1) -> np.ndarray:
    """Return sequences ``[count, steps, 1, FEATURES]`` of noise that changes slowly."""
    noise = np.random.default_rng(seed).normal(size=(count, steps, 1, FEATURES))
    for step in range(1, steps):
        noise[:, step] = 0.8 * noise[:, step - 1] + 0.6 * noise[:, step]
    return noise.astype(np.float32)
