"""Random models with Ifs, Loops and Scans, nested, and what they compute, by plain NumPy.

A block is a list of statements; each statement writes itself as a node and computes itself. The oracle runs
the statements, and never looks at the node.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

__all__ = ["ControlModel", "draw_model"]

Arrays = dict[str, Any]
ROWS, WIDTH = 2, 3
SHAPE = [ROWS, WIDTH]
UNARY = {"Neg": np.negative, "Abs": np.abs, "Tanh": np.tanh, "Identity": np.array}
BINARY = {"Add": np.add, "Sub": np.subtract, "Max": np.maximum}


@dataclasses.dataclass
class Scope:
    """Names of float values of one shape that a statement may read, and a source of names."""

    values: list[str]
    counter: list[int]
    rng: np.random.Generator
    depth: int = 0

    def name(self, kind: str) -> str:
        """A name that nothing has."""
        self.counter[0] += 1
        return f"{kind}{self.counter[0]}"

    def pick(self) -> str:
        """A value that is there."""
        return self.values[int(self.rng.integers(len(self.values)))]

    def inner(self, *more: str) -> Scope:
        """The scope of a body."""
        return Scope([*self.values, *more], self.counter, self.rng, self.depth + 1)


@dataclasses.dataclass
class Op:
    """One operator on floats."""

    op_type: str
    inputs: list[str]
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """The statement in ONNX."""
        return [helper.make_node(self.op_type, self.inputs, [self.output])]

    def run(self, env: Arrays) -> None:
        """The statement in NumPy."""
        values = [env[name] for name in self.inputs]
        function = UNARY.get(self.op_type) or BINARY[self.op_type]
        env[self.output] = np.asarray(function(*values), np.float32)


@dataclasses.dataclass
class If:
    """An If that a constant, a size or the input `mode` decides."""

    kind: str
    operand: int
    then: list[Any]
    otherwise: list[Any]
    results: tuple[str, str]
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """The statement in ONNX."""
        c = f"{self.output}_c"
        if self.kind == "constant":
            nodes = [constant(c, np.array(bool(self.operand)))]
        elif self.kind == "mode":
            nodes = [
                constant(f"{c}_k", np.array(self.operand, np.int64)),
                helper.make_node("Equal", ["mode", f"{c}_k"], [c]),
            ]
        else:
            nodes = [
                helper.make_node("Shape", ["x"], [f"{c}_s"]),
                constant(f"{c}_i", np.array(0, np.int64)),
                helper.make_node("Gather", [f"{c}_s", f"{c}_i"], [f"{c}_n"]),
                constant(f"{c}_k", np.array(self.operand, np.int64)),
                helper.make_node("Less", [f"{c}_n", f"{c}_k"], [c]),
            ]
        branches = {
            f"{name}_branch": helper.make_graph(emit(block), name, [], [tensor(result)])
            for name, block, result in zip(
                ("then", "else"), (self.then, self.otherwise), self.results, strict=True
            )
        }
        return [*nodes, helper.make_node("If", [c], [self.output], **branches)]

    def run(self, env: Arrays) -> None:
        """The statement in NumPy."""
        taken = {
            "constant": bool(self.operand),
            "mode": env["mode"] == self.operand,
            "size": self.operand > ROWS,
        }[self.kind]
        inner = dict(env)
        execute(self.then if taken else self.otherwise, inner)
        env[self.output] = inner[self.results[0 if taken else 1]]


@dataclasses.dataclass
class Loop:
    """A Loop with one state and one scan output: its count a constant or a size; perhaps it ends early."""

    count: int
    by_size: bool
    leave_after: int | None
    start: str
    state: str
    body: list[Any]
    result: str
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """The statement in ONNX."""
        o = self.output
        if self.by_size:
            nodes = [helper.make_node("Size", ["x"], [f"{o}_z"])]
            nodes += [
                constant(f"{o}_d", np.array(ROWS * WIDTH - self.count, np.int64)),
                helper.make_node("Sub", [f"{o}_z", f"{o}_d"], [f"{o}_n"]),
            ]
        else:
            nodes = [constant(f"{o}_n", np.array(self.count, np.int64))]
        nodes.append(constant(f"{o}_on", np.array(True)))
        inner = emit(self.body)
        if self.leave_after is None:
            inner.append(helper.make_node("Identity", [f"{o}_c"], [f"{o}_d_out"]))
        else:
            inner.append(constant(f"{o}_l", np.array(self.leave_after, np.int64)))
            inner.append(helper.make_node("Less", [f"{o}_i", f"{o}_l"], [f"{o}_d_out"]))
        inner.append(helper.make_node("Identity", [self.result], [f"{o}_scan"]))
        body = helper.make_graph(
            inner,
            "body",
            [scalar(f"{o}_i", TensorProto.INT64), scalar(f"{o}_c", TensorProto.BOOL), tensor(self.state)],
            [scalar(f"{o}_d_out", TensorProto.BOOL), tensor(self.result), tensor(f"{o}_scan")],
        )
        nodes.append(
            helper.make_node("Loop", [f"{o}_n", f"{o}_on", self.start], [f"{o}_h", f"{o}_all"], body=body)
        )
        return nodes + gather_up(o)

    def run(self, env: Arrays) -> None:
        """The statement in NumPy."""
        state, steps = env[self.start], []
        for step in range(self.count):
            inner = env | {self.state: state}
            execute(self.body, inner)
            state = inner[self.result]
            steps.append(state)
            if self.leave_after is not None and step >= self.leave_after:
                break
        env[self.output] = weighted(state, steps)


@dataclasses.dataclass
class Scan:
    """A Scan over an axis of `x`, of which each slice is added to the state."""

    length: int
    backward: tuple[int, int]
    start: str
    state: str
    slice: str
    body: list[Any]
    result: str
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """The statement in ONNX."""
        o = self.output
        bounds = {"b": 0, "e": self.length, "a": 0}
        nodes = [constant(f"{o}_{key}", np.array([value], np.int64)) for key, value in bounds.items()]
        nodes.append(
            helper.make_node("Slice", ["seq", f"{o}_b", f"{o}_e", f"{o}_a"], [f"{o}_x"], name=f"{o}_slice")
        )
        inner = [*emit(self.body), helper.make_node("Identity", [self.result], [f"{o}_scan"])]
        body = helper.make_graph(
            inner,
            "body",
            [tensor(self.state), tensor(self.slice)],
            [tensor(self.result), tensor(f"{o}_scan")],
        )
        nodes.append(
            helper.make_node(
                "Scan",
                [self.start, f"{o}_x"],
                [f"{o}_h", f"{o}_all"],
                num_scan_inputs=1,
                body=body,
                scan_input_directions=[self.backward[0]],
                scan_output_directions=[self.backward[1]],
            )
        )
        return nodes + gather_up(o)

    def run(self, env: Arrays) -> None:
        """The statement in NumPy."""
        state, steps = env[self.start], []
        slices = list(env["seq"][: self.length])
        for piece in slices[::-1] if self.backward[0] else slices:
            inner = env | {self.state: state, self.slice: piece}
            execute(self.body, inner)
            state = inner[self.result]
            steps.append(state)
        env[self.output] = weighted(state, steps[::-1] if self.backward[1] else steps)


@dataclasses.dataclass
class ControlModel:
    """A model of inputs x, seq and mode, and of one output.

    Attributes:
        proto: The model.
        mode: The value of its input `mode` for which the oracle stands.
        block: Its statements.
        output: The name of its output.
    """

    proto: onnx.ModelProto
    mode: int
    block: list[Any]
    output: str

    def expected(self, inputs: Arrays) -> np.ndarray:
        """The output, by NumPy."""
        env = inputs | {"mode": self.mode}
        execute(self.block, env)
        return np.asarray(env[self.output])


STEPS = 3


def draw_model(rng: np.random.Generator) -> ControlModel:
    """A random model."""
    scope = Scope(["x", "w"], [0], rng)
    block = draw_block(scope, int(rng.integers(2, 5)))
    w = rng.standard_normal(SHAPE).astype(np.float32)
    output = scope.name("y")
    block.append(Op("Add", [scope.values[-1], "x"], output))
    inputs = [
        tensor("x"),
        helper.make_tensor_value_info("seq", TensorProto.FLOAT, [STEPS, *SHAPE]),
        scalar("mode", TensorProto.INT64),
    ]
    graph = helper.make_graph(
        emit(block), "control", inputs, [tensor(output)], [onnx.numpy_helper.from_array(w, "w")]
    )
    opset = int(rng.choice([11, 13, 16, 18, 21]))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = ControlModel(proto, int(rng.integers(3)), [Known("w", w), *block], output)
    onnx.checker.check_model(proto)
    return model


@dataclasses.dataclass
class Known:
    """An initializer."""

    name: str
    value: np.ndarray

    def run(self, env: Arrays) -> None:
        """The statement in NumPy."""
        env[self.name] = self.value


def draw_block(scope: Scope, count: int) -> list[Any]:
    """Statements, of which the last one writes the last value of the scope."""
    kinds = ["op", "op", "if", "loop", "scan"] if scope.depth < 3 else ["op"]
    block = []
    for _ in range(count):
        statement = _DRAW[str(scope.rng.choice(kinds))](scope)
        block.append(statement)
        scope.values.append(statement.output)
    return block


def _draw_op(scope: Scope) -> Op:
    if scope.rng.random() < 0.4:
        return Op(str(scope.rng.choice(list(UNARY))), [scope.pick()], scope.name("v"))
    return Op(str(scope.rng.choice(list(BINARY))), [scope.pick(), scope.pick()], scope.name("v"))


def _draw_body(scope: Scope) -> tuple[list[Any], str]:
    """A body that gives what it makes."""
    block = draw_block(scope, int(scope.rng.integers(1, 3)))
    name = scope.name("r")
    # It shrinks, so that loops in loops stay finite.
    block.append(Op("Tanh", [scope.values[-1]], name))
    return block, name


def _draw_if(scope: Scope) -> If:
    kind = str(scope.rng.choice(["constant", "mode", "size"]))
    operand = int(scope.rng.integers(2)) if kind == "constant" else int(scope.rng.integers(4))
    then, first = _draw_body(scope.inner())
    otherwise, second = _draw_body(scope.inner())
    return If(kind, operand, then, otherwise, (first, second), scope.name("v"))


def _draw_loop(scope: Scope) -> Loop:
    rng = scope.rng
    state, start = scope.name("h"), scope.pick()
    body, result = _draw_body(scope.inner(state))
    leave = int(rng.integers(3)) if rng.random() < 0.3 else None
    return Loop(int(rng.integers(5)), rng.random() < 0.4, leave, start, state, body, result, scope.name("v"))


def _draw_scan(scope: Scope) -> Scan:
    rng = scope.rng
    state, piece, start = scope.name("h"), scope.name("e"), scope.pick()
    body, result = _draw_body(scope.inner(state, piece))
    backward = (int(rng.integers(2)), int(rng.integers(2)))
    return Scan(int(rng.integers(STEPS + 1)), backward, start, state, piece, body, result, scope.name("v"))


_DRAW = {"op": _draw_op, "if": _draw_if, "loop": _draw_loop, "scan": _draw_scan}


def execute(block: list[Any], env: Arrays) -> None:
    """Runs statements."""
    for statement in block:
        statement.run(env)


def emit(block: list[Any]) -> list[onnx.NodeProto]:
    """Writes statements."""
    return [node for statement in block for node in statement.node()]


def gather_up(name: str) -> list[onnx.NodeProto]:
    """The final state plus the sum of what all iterations gave, weighted by their place from 1 on."""
    ones = np.ones((1, STEPS * 4), np.float32)
    return [
        constant(f"{name}_pad", np.zeros((STEPS * 4, *SHAPE), np.float32)),
        helper.make_node("Concat", [f"{name}_all", f"{name}_pad"], [f"{name}_padded"], axis=0),
        constant(f"{name}_from", np.array([0], np.int64)),
        constant(f"{name}_to", np.array([STEPS * 4], np.int64)),
        helper.make_node("Slice", [f"{name}_padded", f"{name}_from", f"{name}_to"], [f"{name}_cut"]),
        constant(f"{name}_shape", np.array([STEPS * 4, ROWS * WIDTH], np.int64)),
        helper.make_node("Reshape", [f"{name}_cut", f"{name}_shape"], [f"{name}_flat"]),
        constant(f"{name}_weights", np.cumsum(ones, axis=1)),
        helper.make_node("MatMul", [f"{name}_weights", f"{name}_flat"], [f"{name}_sum"]),
        constant(f"{name}_back", np.array(SHAPE, np.int64)),
        helper.make_node("Reshape", [f"{name}_sum", f"{name}_back"], [f"{name}_total"]),
        helper.make_node("Add", [f"{name}_h", f"{name}_total"], [name]),
    ]


def weighted(state: np.ndarray, steps: list[np.ndarray]) -> np.ndarray:
    """What `gather_up` writes, in NumPy."""
    total = np.array(state, np.float32)
    for place, step in enumerate(steps, 1):
        total = total + np.float32(place) * step
    return np.asarray(total, np.float32)


def constant(name: str, array: np.ndarray) -> onnx.NodeProto:
    """A Constant node."""
    return helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array))


def tensor(name: str) -> onnx.ValueInfoProto:
    """A float value of the one shape."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)


def scalar(name: str, dtype: int) -> onnx.ValueInfoProto:
    """A value without axes."""
    return helper.make_tensor_value_info(name, dtype, [])
