"""The statements of random models with Ifs: each one emits nodes, and computes its result.

The oracle runs the statements, and never looks at the nodes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from support import oracle

Arrays = dict[str, Any]
ROWS, WIDTH = 2, 3
SHAPE = [ROWS, WIDTH]
STEPS = 3
UNARY = {"Neg": np.negative, "Abs": np.abs, "Tanh": np.tanh, "Identity": np.array}
BINARY = {"Add": np.add, "Sub": np.subtract, "Max": np.maximum}


@dataclasses.dataclass
class Known:
    """An initializer."""

    name: str
    value: np.ndarray

    def run(self, env: Arrays) -> None:
        """Run the statement in NumPy."""
        env[self.name] = self.value


@dataclasses.dataclass
class Op:
    """One operator on floats."""

    op_type: str
    inputs: list[str]
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """Return the statement in ONNX."""
        return [helper.make_node(self.op_type, self.inputs, [self.output])]

    def run(self, env: Arrays) -> None:
        """Run the statement in NumPy."""
        values = [env[name] for name in self.inputs]
        function = UNARY.get(self.op_type) or BINARY[self.op_type]
        env[self.output] = np.asarray(function(*values), np.float32)


@dataclasses.dataclass
class If:
    """An If that decides by a constant, a size, an iteration's number, an input or the data."""

    kind: str
    operand: int
    decider: str
    then: list[Any]
    otherwise: list[Any]
    results: tuple[str, str]
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """Return the statement in ONNX."""
        c = f"{self.output}_c"
        nodes, op_type, value = [], "Equal", self.decider
        if self.kind == "size":
            nodes += [
                helper.make_node("Shape", ["x"], [f"{c}_s"]),
                constant(f"{c}_i", np.array(0, np.int64)),
                helper.make_node("Gather", [f"{c}_s", f"{c}_i"], [f"{c}_n"]),
            ]
            op_type, value = "Less", f"{c}_n"
        elif self.kind == "data":
            nodes.append(helper.make_node("ReduceMax", ["x"], [f"{c}_n"], keepdims=0))
            op_type, value = "Less", f"{c}_n"
        if self.kind == "constant":
            nodes.append(constant(c, np.array(bool(self.operand))))
        elif self.kind == "flag":
            nodes.append(helper.make_node("Not" if self.operand else "Identity", ["flag"], [c]))
        else:
            dtype = np.float32 if self.kind == "data" else np.int64
            nodes.append(constant(f"{c}_k", np.array(self.operand, dtype)))
            nodes.append(helper.make_node(op_type, [value, f"{c}_k"], [c]))
        branches = {
            f"{name}_branch": helper.make_graph(emit(block), name, [], [tensor(result)])
            for name, block, result in zip(
                ("then", "else"), (self.then, self.otherwise), self.results, strict=True
            )
        }
        return [*nodes, helper.make_node("If", [c], [self.output], **branches)]

    def run(self, env: Arrays) -> None:
        """Run the statement in NumPy."""
        taken = {
            "constant": lambda: bool(self.operand),
            "number": lambda: env[self.decider] == self.operand,
            "size": lambda: self.operand > ROWS,
            "flag": lambda: bool(env["flag"]) != bool(self.operand),
            "data": lambda: env["x"].max() < self.operand,
        }[self.kind]()
        inner = dict(env)
        execute(self.then if taken else self.otherwise, inner)
        env[self.output] = inner[self.results[0 if taken else 1]]


@dataclasses.dataclass
class Recurrent:
    """An LSTM, GRU or RNN over the rows of a value."""

    op_type: str
    direction: str
    opset: int
    weights: tuple[np.ndarray, np.ndarray]
    operand: str
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """Return the statement in ONNX."""
        o = self.output
        return [
            constant(f"{o}_W", self.weights[0]),
            constant(f"{o}_R", self.weights[1]),
            constant(f"{o}_in", np.array([ROWS, 1, WIDTH], np.int64)),
            helper.make_node("Reshape", [self.operand, f"{o}_in"], [f"{o}_X"]),
            self._cell(),
            constant(f"{o}_back", np.array(SHAPE, np.int64)),
            helper.make_node("Reshape", [f"{o}_Y", f"{o}_back"], [o]),
        ]

    def _cell(self) -> onnx.NodeProto:
        o = self.output
        return helper.make_node(
            self.op_type,
            [f"{o}_X", f"{o}_W", f"{o}_R"],
            [f"{o}_Y"],
            name=f"{o}_cell",
            hidden_size=WIDTH,
            direction=self.direction,
        )

    def run(self, env: Arrays) -> None:
        """Run the statement with the oracle of the recurrent operators."""
        o = self.output
        values = {f"{o}_X": env[self.operand][:, None], f"{o}_W": self.weights[0], f"{o}_R": self.weights[1]}
        env[o] = oracle.evaluate_node(self._cell(), self.opset, values)[f"{o}_Y"].reshape(SHAPE)


def execute(block: list[Any], env: Arrays) -> None:
    """Run statements."""
    for statement in block:
        statement.run(env)


def emit(block: list[Any]) -> list[onnx.NodeProto]:
    """Write statements."""
    return [node for statement in block for node in statement.node()]


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    """Return a Constant node."""
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))


def tensor(name: str) -> onnx.ValueInfoProto:
    """Return a float value of the one shape."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


def scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    """Return a value without axes."""
    return helper.make_tensor_value_info(name, dtype, [])
