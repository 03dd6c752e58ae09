"""Random models with nested Ifs, Loops, Scans, sequences and recurrent nodes, and their outputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from support.control_loops import Accumulation, Loop, Scan
from support.control_statements import (
    BINARY,
    SHAPE,
    STEPS,
    UNARY,
    WIDTH,
    Arrays,
    If,
    Known,
    Op,
    Recurrent,
    emit,
    execute,
    scalar,
    tensor,
)

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FIRST_WITH_SEQUENCES_IN_LOOPS = 13


@dataclasses.dataclass
class Scope:
    """Names of float values of one shape that a statement may read, and a source of names.

    Attributes:
        values: These names.
        numbers: Names of integers: the input `mode`, and the number of each iteration around.
        used: What decides something in the model, of `flag`, `times` and `data`.
    """

    values: list[str]
    counter: list[int]
    rng: np.random.Generator
    opset: int
    numbers: list[str] = dataclasses.field(default_factory=lambda: ["mode"])
    used: set[str] = dataclasses.field(default_factory=set)
    depth: int = 0

    def name(self, kind: str) -> str:
        """Return a name that nothing has."""
        self.counter[0] += 1
        return f"{kind}{self.counter[0]}"

    def pick(self) -> str:
        """Return a value that is there."""
        return self.values[int(self.rng.integers(len(self.values)))]

    def inner(self, *more: str, numbers: list[str] | None = None) -> Scope:
        """Return the scope of a body."""
        return dataclasses.replace(
            self,
            values=[*self.values, *more],
            numbers=[*self.numbers, *(numbers or [])],
            depth=self.depth + 1,
        )


@dataclasses.dataclass
class ControlModel:
    """A model of inputs x, seq, mode, flag and times, and of one output.

    Attributes:
        proto: The model.
        settings: The values of its inputs `mode`, `flag` and `times` for which the oracle stands.
        used: Those of `flag` and `times` that decide something, and `data` if the data does.
        block: Its statements.
        output: The name of its output.
    """

    proto: onnx.ModelProto
    settings: dict[str, Any]
    used: set[str]
    block: list[Any]
    output: str

    def expected(self, inputs: Arrays) -> np.ndarray:
        """Return the output, by NumPy."""
        env = inputs | {name: np.array(value) for name, value in self.settings.items()}
        execute(self.block, env)
        return np.asarray(env[self.output])


def draw_model(rng: np.random.Generator) -> ControlModel:
    """Return a random model."""
    opset = int(rng.choice([11, 13, 16, 18, 21]))
    scope = Scope(["x", "w"], [0], rng, opset)
    block = draw_block(scope, int(rng.integers(2, 5)))
    w = rng.standard_normal(SHAPE).astype(np.float32)
    output = scope.name("y")
    block.append(Op("Add", [scope.values[-1], "x"], output))
    inputs = [
        tensor("x"),
        helper.make_tensor_value_info("seq", TensorProto.FLOAT, [STEPS, *SHAPE]),
        scalar("mode", TensorProto.INT64),
        scalar("flag", TensorProto.BOOL),
        scalar("times", TensorProto.INT64),
    ]
    graph = helper.make_graph(
        emit(block), "control", inputs, [tensor(output)], [onnx.numpy_helper.from_array(w, "w")]
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(proto)
    settings = {
        "mode": int(rng.integers(3)),
        "flag": bool(rng.random() < 0.5),
        "times": int(rng.integers(4)),
    }
    return ControlModel(proto, settings, scope.used, [Known("w", w), *block], output)


def draw_block(scope: Scope, count: int) -> list[Any]:
    """Return statements, of which the last one writes the last value of the scope."""
    kinds = ["op"] * 4 + ["if"] * 2 + ["loop"] * 2 + ["scan"] * 2 + ["cell", "sequence"]
    if scope.depth == 3:
        kinds = ["op"] * 4 + ["cell"]
    if scope.opset < _FIRST_WITH_SEQUENCES_IN_LOOPS and "sequence" in kinds:
        kinds.remove("sequence")
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


def _draw_cell(scope: Scope) -> Recurrent:
    rng = scope.rng
    op_type, direction = str(rng.choice(list(_GATES))), str(rng.choice(["forward", "reverse"]))
    w, r = rng.standard_normal((2, 1, _GATES[op_type] * WIDTH, WIDTH)).astype(np.float32) / 2
    return Recurrent(op_type, direction, scope.opset, (w, r), scope.pick(), scope.name("v"))


def _draw_body(scope: Scope) -> tuple[list[Any], str]:
    """Return a body that gives what it makes."""
    block = draw_block(scope, int(scope.rng.integers(1, 3)))
    name = scope.name("r")
    # It shrinks, so that loops in loops stay finite.
    block.append(Op("Tanh", [scope.values[-1]], name))
    return block, name


def _draw_if(scope: Scope) -> If:
    rng = scope.rng
    kind = str(rng.choice(["constant", "number", "size", "flag", "data"], p=[0.25, 0.35, 0.25, 0.1, 0.05]))
    scope.used.update({"flag", "data"} & {kind})
    operand = int(rng.integers(2 if kind in ("constant", "flag") else 4))
    decider = str(rng.choice(scope.numbers))
    then, first = _draw_body(scope.inner())
    otherwise, second = _draw_body(scope.inner())
    return If(kind, operand, decider, then, otherwise, (first, second), scope.name("v"))


def _draw_loop(scope: Scope) -> Loop:
    rng = scope.rng
    states, start, output = (scope.name("h"), scope.name("g")), scope.pick(), scope.name("v")
    by = str(rng.choice(["constant", "size", "number", "times", "nothing"], p=[0.4, 0.25, 0.2, 0.05, 0.1]))
    leave = int(rng.integers(-1, 3)) if by == "nothing" or rng.random() < 0.25 else None
    begins = str(rng.choice(["yes", "no", "absent"], p=[0.7, 0.1, 0.2]))
    scope.used.update({"times"} & {by})
    by = str(rng.choice(scope.numbers)) if by == "number" else by
    body, result = _draw_body(scope.inner(*states, numbers=[f"{output}_i"]))
    return Loop(int(rng.integers(5)), by, begins, leave, start, states, body, result, output)


def _draw_sequence(scope: Scope) -> Accumulation:
    rng, output = scope.rng, scope.name("v")
    count = int(rng.integers(1, 5))
    picked, at_end = int(rng.integers(-count, count)), rng.random() < 0.5
    body, result = _draw_body(scope.inner(numbers=[f"{output}_i"]))
    return Accumulation(count, at_end, picked, body, result, output)


def _draw_scan(scope: Scope) -> Scan:
    rng = scope.rng
    state, piece, start = scope.name("h"), scope.name("e"), scope.pick()
    body, result = _draw_body(scope.inner(state, piece))
    length, axis, *backward = (int(each) for each in rng.integers([STEPS + 1, 2, 2, 2]))
    backward = (backward[0], backward[1])
    return Scan(length, axis, backward, start, state, piece, body, result, scope.name("v"))


_DRAW = {
    "op": _draw_op,
    "cell": _draw_cell,
    "if": _draw_if,
    "loop": _draw_loop,
    "sequence": _draw_sequence,
    "scan": _draw_scan,
}
