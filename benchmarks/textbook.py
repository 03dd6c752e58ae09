"""The first baseline, unrolling by the textbook: two products per gate in every step, and a chain of Concats.

    x_0, x_1, ... = Split(X)
    i_0 = Sigmoid(Gemm(x_0, W_i, Wb_i) + Gemm(h, R_i, Rb_i))
    ...
    y_2 = Concat(y_1, h_2)

Written with onnx.helper alone, so that it shares nothing with what it is compared to.

python benchmarks/textbook.py
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

GATES = {"LSTM": "iofc", "GRU": "zrh"}
ONE = "c0"


@dataclasses.dataclass
class Graph:
    """A graph that grows; names of values are numbers."""

    prefix: str = ""
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    constants: list[onnx.TensorProto] = dataclasses.field(default_factory=list)

    def op(self, op_type: str, *inputs: str, output: str = "", **attributes: object) -> str:
        output = output or f"{self.prefix}v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def many(self, op_type: str, *inputs: str, outputs: int, **attributes: object) -> list[str]:
        """Return an op of several outputs."""
        names = [f"{self.prefix}v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def split(self, value: str, count: int) -> list[str]:
        """Return one node with an output for every step; needs no sizes before opset 18."""
        return self.many("Split", value, outputs=count, axis=0)

    def model_like(self, source: onnx.ModelProto) -> onnx.ModelProto:
        """Return the model with this graph's nodes and constants instead of its own."""
        model = onnx.ModelProto()
        model.CopyFrom(source)
        for field, values in (("node", self.nodes), ("initializer", self.constants)):
            model.graph.ClearField(field)
            getattr(model.graph, field).extend(values)
        return model


def parts_of(
    source: onnx.ModelProto,
) -> tuple[onnx.NodeProto, dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
    """Return the one node of a model, its attributes, W, R and B."""
    (node,) = source.graph.node
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert set(attributes) <= {"hidden_size", "direction", "linear_before_reset"}
    assert not any(node.input[4:])
    assert source.opset_import[0].version < 18
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    W, R, B = (weights[name] for name in node.input[1:4])
    return node, attributes, W, R, B


def textbook(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model of one static LSTM or GRU node with W, R and B alone, unrolled as a textbook would."""
    node, attributes, W, R, B = parts_of(source)
    time_steps, batch, _ = (dim.dim_value for dim in source.graph.input[0].type.tensor_type.shape.dim)
    direction = attributes.get("direction", b"forward").decode()
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    graph = Graph()
    assert graph.constant(np.ones(1, np.float32)) == ONE
    axis_0, axis_1 = (graph.constant(np.array([axis])) for axis in (0, 1))
    steps = [graph.op("Squeeze", x, axis_0) for x in graph.split(node.input[0], time_steps)]
    zeros = graph.constant(np.zeros((batch, R.shape[-1]), R.dtype))
    sides = []
    for number, reverse in enumerate(backward):
        gates = _gates(graph, node.op_type, W[number], R[number], B[number])
        states, series = [zeros, zeros], ""
        for x in reversed(steps) if reverse else steps:
            states = _STEPS[node.op_type](graph, gates, x, states, attributes.get("linear_before_reset", 0))
            row = graph.op("Unsqueeze", states[0], axis_0)
            pieces = [row, series] if reverse else [series, row]
            series = graph.op("Concat", *pieces, axis=0) if series else row
        finals = [graph.op("Unsqueeze", state, axis_0) for state in states]
        sides.append([graph.op("Unsqueeze", series, axis_1), *finals])
    for axis, name, parts in zip((1, 0, 0), node.output, zip(*sides, strict=True), strict=False):
        graph.op("Concat", *parts, axis=axis, output=name)
    return graph.model_like(source)


@dataclasses.dataclass(frozen=True)
class _Gate:
    W: str
    R: str
    Wb: str
    Rb: str

    def x(self, graph: Graph, x: str) -> str:
        return graph.op("Gemm", x, self.W, self.Wb, transB=1)

    def h(self, graph: Graph, h: str) -> str:
        return graph.op("Gemm", h, self.R, self.Rb, transB=1)

    def sum(self, graph: Graph, x: str, h: str) -> str:
        return graph.op("Add", self.x(graph, x), self.h(graph, h))


def _gates(graph: Graph, op_type: str, W: np.ndarray, R: np.ndarray, B: np.ndarray) -> dict[str, _Gate]:
    names = GATES[op_type]
    Wb, Rb = np.split(B, 2)
    cut = [np.split(tensor, len(names)) for tensor in (W, R, Wb, Rb)]
    return {name: _Gate(*(graph.constant(part[k]) for part in cut)) for k, name in enumerate(names)}


def _lstm(graph: Graph, gates: dict[str, _Gate], x: str, states: list[str], _: int) -> list[str]:
    h, c = states
    i, o, f = (graph.op("Sigmoid", gates[name].sum(graph, x, h)) for name in "iof")
    new = graph.op("Tanh", gates["c"].sum(graph, x, h))
    c = graph.op("Add", graph.op("Mul", f, c), graph.op("Mul", i, new))
    return [graph.op("Mul", o, graph.op("Tanh", c)), c]


def _gru(graph: Graph, gates: dict[str, _Gate], x: str, states: list[str], linear: int) -> list[str]:
    h = states[0]
    z, r = (graph.op("Sigmoid", gates[name].sum(graph, x, h)) for name in "zr")
    gate = gates["h"]
    reset = graph.op("Mul", r, gate.h(graph, h)) if linear else gate.h(graph, graph.op("Mul", r, h))
    new = graph.op("Tanh", graph.op("Add", gate.x(graph, x), reset))
    kept = graph.op("Mul", graph.op("Sub", ONE, z), new)
    return [graph.op("Add", kept, graph.op("Mul", z, h))]


_STEPS = {"LSTM": _lstm, "GRU": _gru}


def check(baseline: Callable[[onnx.ModelProto], onnx.ModelProto], variants: Sequence[str]) -> None:
    """Check a baseline: it must compute what the recurrent node computes. Exits where it does not."""
    from measuring import VARIANTS, recurrent

    import rnnlower

    for name in variants:
        for batch in (1, 2):
            source = recurrent(VARIANTS[name], (6, batch, 8, 16))
            result = rnnlower.verify(source, baseline(source))
            print(f"{name}: {result}")
            if not result:
                sys.exit(1)


if __name__ == "__main__":
    check(textbook, ("lstm", "bilstm", "gru", "gru_linear", "bigru"))
