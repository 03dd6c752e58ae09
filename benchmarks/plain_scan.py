"""The second baseline: an efficient hand-written Scan.

The product of X for all steps stands in front of the Scan; in the step each gate has a Gemm that adds to it
and an activation behind, which onnxruntime fuses. Two directions are two Scans, or for an LSTM and a batch of
one a single step with one batched product.

Written with onnx.helper alone, so that it shares nothing with what it is compared to.

python benchmarks/plain_scan.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper
from textbook import GATES, Graph, check, parts_of


def plain_scan(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model of one static LSTM or GRU node with W, R and B alone, as one Scan or two."""
    node, attributes, W, R, B = parts_of(source)
    time_steps, batch, _ = (dim.dim_value for dim in source.graph.input[0].type.tensor_type.shape.dim)
    graph = _ScanGraph(node, time_steps, batch, R.shape[-1])
    linear = bool(attributes.get("linear_before_reset"))
    if node.op_type == "LSTM" and batch == 1 and len(W) == 2:
        graph.both_directions(W, R, B)
        return graph.model_like(source)
    backward = {b"forward": [0], b"reverse": [1], b"bidirectional": [0, 1]}[
        attributes.get("direction", b"forward")
    ]
    sides = [
        graph.direction(W[number], R[number], B[number], reverse, linear)
        for number, reverse in enumerate(backward)
    ]
    axis_0, axis_1 = (graph.constant(np.array([axis])) for axis in (0, 1))
    for name, own, axis in zip(node.output, zip(*sides, strict=True), (1, 0, 0), strict=False):
        unsqueezed = [graph.op("Unsqueeze", value, axis_1 if axis else axis_0) for value in own]
        graph.op("Concat", *unsqueezed, axis=axis, output=name)
    return graph.model_like(source)


class _ScanGraph(Graph):
    """The graph around the Scans of a node."""

    def __init__(self, node: onnx.NodeProto, time_steps: int, batch: int, hidden_size: int) -> None:
        super().__init__()
        self.node, self.time_steps, self.batch, self.hidden_size = node, time_steps, batch, hidden_size

    def product(self, W: np.ndarray, bias: np.ndarray, *dims: int) -> str:
        """Return ``X W^T + bias`` for all steps, in the given sizes."""
        rows = self.op("Reshape", self.node.input[0], self.constant(np.array([-1, W.shape[1]])))
        product = self.op("Gemm", rows, self.constant(W), self.constant(bias), transB=1)
        return self.op("Reshape", product, self.constant(np.array([self.time_steps, *dims])))

    def direction(
        self, W: np.ndarray, R: np.ndarray, B: np.ndarray, reverse: int, linear: bool
    ) -> tuple[str, ...]:
        """Return Y, Y_h and Y_c of a direction."""
        gates, op_type = len(GATES[self.node.op_type]), self.node.op_type
        Wb, Rb = B.reshape(2, gates, -1)
        hoisted = Wb + Rb
        if linear:
            hoisted[2] = Wb[2]
        Ws, Rs = (np.split(weight, gates) for weight in (W, R))
        sizes = (self.batch, self.hidden_size)
        X = [self.product(own, bias, *sizes) for own, bias in zip(Ws, hoisted, strict=True)]
        weights = [self.constant(weight) for weight in Rs]
        body = Graph(prefix=f"s{reverse}_")
        if op_type == "LSTM":
            states = _lstm(body, weights)
        else:
            states = _gru(body, weights, self.constant(Rb[2]), linear)
        inputs = [f"x{gate}" for gate in range(gates)]
        values = self.scan(body, states, inputs, X, sizes, reverse)
        return (values[-1], *values[:-1])

    def both_directions(self, W: np.ndarray, R: np.ndarray, B: np.ndarray) -> None:
        """Add the outputs of an LSTM, from a step that has both directions' values ``[2, 1, units]``."""
        hidden_size = self.hidden_size
        flip = [self.constant(np.array([bound])) for bound in (-1, np.iinfo(np.int64).min, 0, -1)]
        X = [
            self.product(W[side], B[side, : len(R[side])] + B[side, len(R[side]) :], 1, 1, 4 * hidden_size)
            for side in (0, 1)
        ]
        X[1] = self.op("Slice", X[1], *flip)
        body = Graph(prefix="s_")
        product = body.op("MatMul", "h", self.constant(R.swapaxes(1, 2)))
        sizes = self.constant(np.array([3 * hidden_size, hidden_size]))
        iof, new = body.many("Split", body.op("Add", product, "x0"), sizes, outputs=2, axis=2)
        i, o, f = body.many("Split", body.op("Sigmoid", iof), outputs=3, axis=2)
        states = _lstm_states(body, i, o, f, body.op("Tanh", new))
        both = (2, 1, hidden_size)
        h, c, Y = self.scan(body, states, ["x0"], [self.op("Concat", *X, axis=1)], both, 0)
        first, second = self.many("Split", Y, outputs=2, axis=1)
        self.op("Concat", first, self.op("Slice", second, *flip), axis=1, output=self.node.output[0])
        for name, value in zip(self.node.output[1:], (h, c), strict=True):
            self.op("Identity", value, output=name)

    def scan(
        self,
        body: Graph,
        states: Sequence[str],
        inputs: Sequence[str],
        values: Sequence[str],
        sizes: Sequence[int],
        reverse: int,
    ) -> list[str]:
        """Return the final states and the first one over time."""
        states = [*states, body.op("Identity", states[0])]
        carried = ["h", "c"][: len(states) - 1]
        graph = helper.make_graph(
            body.nodes,
            "step",
            [_float(name, sizes) for name in carried] + [_float(name, None) for name in inputs],
            [_float(name, sizes) for name in states],
        )
        zeros = self.constant(np.zeros(sizes, np.float32))
        return self.many(
            "Scan",
            *[zeros] * len(carried),
            *values,
            outputs=len(states),
            body=graph,
            num_scan_inputs=len(inputs),
            scan_input_directions=[reverse] * len(inputs),
            scan_output_directions=[reverse],
        )


def _float(name: str, sizes: Sequence[int] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, sizes)


def _lstm(body: Graph, R: Sequence[str]) -> list[str]:
    activations = ("Sigmoid", "Sigmoid", "Sigmoid", "Tanh")
    gates = [
        body.op(activation, body.op("Gemm", "h", R[gate], f"x{gate}", transB=1))
        for gate, activation in enumerate(activations)
    ]
    return _lstm_states(body, *gates)


def _lstm_states(body: Graph, i: str, o: str, f: str, new: str) -> list[str]:
    c = body.op("Add", body.op("Mul", f, "c"), body.op("Mul", i, new))
    return [body.op("Mul", o, body.op("Tanh", c)), c]


def _gru(body: Graph, R: Sequence[str], Rbh: str, linear: bool) -> list[str]:
    z, r = (body.op("Sigmoid", body.op("Gemm", "h", R[gate], f"x{gate}", transB=1)) for gate in (0, 1))
    if linear:
        new = body.op("Add", "x2", body.op("Mul", r, body.op("Gemm", "h", R[2], Rbh, transB=1)))
    else:
        new = body.op("Gemm", body.op("Mul", r, "h"), R[2], "x2", transB=1)
    new = body.op("Tanh", new)
    return [body.op("Add", new, body.op("Mul", z, body.op("Sub", "h", new)))]


if __name__ == "__main__":
    check(plain_scan, ("lstm", "bilstm", "gru", "gru_linear", "bigru"))
