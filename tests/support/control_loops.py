"""The statements of random models that repeat others: Loop, Loop over a sequence, Scan."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from support.control_statements import (
    ROWS,
    SHAPE,
    STEPS,
    WIDTH,
    Arrays,
    constant,
    emit,
    execute,
    scalar,
    tensor,
)


@dataclasses.dataclass
class Loop:
    """A Loop with two states, the second of which is the first one's last but one, and with a scan output.

    Attributes:
        count: The iterations that are asked for.
        by: What tells that: ``constant``, ``size``, ``nothing`` (there is no limit) or the name of a number.
        begins: What the condition is at first: ``yes``, ``no``, or ``absent``.
        leave_after: The iteration after which the condition is false; -1: always; ``None``: never.
        start: The initial state.
        states: The names of the states in the body.
        body: Its statements.
        result: The value that is the next state.
        output: The sum of all results.
    """

    count: int
    by: str
    begins: str
    leave_after: int | None
    start: str
    states: tuple[str, str]
    body: list[Any]
    result: str
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """Return the statement in ONNX."""
        o = self.output
        limit, nodes = self._limit()
        begins = "" if self.begins == "absent" else f"{o}_on"
        if begins:
            nodes.append(constant(begins, np.array(self.begins == "yes")))
        body = helper.make_graph(
            [
                *emit(self.body),
                *self._condition(),
                helper.make_node("Identity", [self.result], [f"{o}_scan"]),
                helper.make_node("Identity", [self.states[0]], [f"{o}_last"]),
            ],
            "body",
            [
                scalar(f"{o}_i", TensorProto.INT64),
                scalar(f"{o}_c", TensorProto.BOOL),
                *(tensor(state) for state in self.states),
            ],
            [
                scalar(f"{o}_d_out", TensorProto.BOOL),
                tensor(self.result),
                tensor(f"{o}_last"),
                tensor(f"{o}_scan"),
            ],
        )
        inputs, outputs = [limit, begins, self.start, self.start], [f"{o}_new", f"{o}_old", f"{o}_all"]
        nodes.append(helper.make_node("Loop", inputs, outputs, body=body))
        nodes.append(helper.make_node("Sub", [f"{o}_new", f"{o}_old"], [f"{o}_h"]))
        return nodes + gather_up(o)

    def _limit(self) -> tuple[str, list[onnx.NodeProto]]:
        o = self.output
        if self.by == "nothing":
            return "", []
        if self.by == "constant":
            return f"{o}_n", [constant(f"{o}_n", np.array(self.count, np.int64))]
        if self.by == "size":
            return f"{o}_n", [
                helper.make_node("Size", ["x"], [f"{o}_z"]),
                constant(f"{o}_d", np.array(ROWS * WIDTH - self.count, np.int64)),
                helper.make_node("Sub", [f"{o}_z", f"{o}_d"], [f"{o}_n"]),
            ]
        return self.by, []

    def _condition(self) -> list[onnx.NodeProto]:
        o = self.output
        if self.leave_after is None:
            return [helper.make_node("Identity", [f"{o}_c"], [f"{o}_d_out"])]
        if self.leave_after < 0:
            return [constant(f"{o}_d_out", np.array(False))]
        return [
            constant(f"{o}_l", np.array(self.leave_after, np.int64)),
            helper.make_node("Less", [f"{o}_i", f"{o}_l"], [f"{o}_d_out"]),
        ]

    def run(self, env: Arrays) -> None:
        """Run the statement in NumPy."""
        first, second, steps = env[self.start], env[self.start], []
        count = {"constant": self.count, "size": self.count, "nothing": STEPS * 4}.get(self.by)
        count = int(env[self.by]) if count is None else count
        for step in range(0 if self.begins == "no" else count):
            inner = env | dict(zip(self.states, (first, second), strict=True))
            inner[f"{self.output}_i"] = np.array(step, np.int64)
            execute(self.body, inner)
            first, second = inner[self.result], first
            steps.append(first)
            if self.leave_after is not None and step >= self.leave_after:
                break
        env[self.output] = weighted(np.asarray(first - second, np.float32), steps)


@dataclasses.dataclass
class Accumulation:
    """A Loop that inserts a value into a sequence in each iteration, at the end or at the beginning."""

    count: int
    at_end: bool
    picked: int
    body: list[Any]
    result: str
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """Return the statement in ONNX."""
        o = self.output
        place = [] if self.at_end else [f"{o}_zero"]
        body = helper.make_graph(
            [
                *emit(self.body),
                helper.make_node("Identity", [f"{o}_c"], [f"{o}_d_out"]),
                helper.make_node("SequenceInsert", [f"{o}_s", self.result, *place], [f"{o}_more"]),
            ],
            "body",
            [
                scalar(f"{o}_i", TensorProto.INT64),
                scalar(f"{o}_c", TensorProto.BOOL),
                helper.make_tensor_sequence_value_info(f"{o}_s", TensorProto.FLOAT, SHAPE),
            ],
            [
                scalar(f"{o}_d_out", TensorProto.BOOL),
                helper.make_tensor_sequence_value_info(f"{o}_more", TensorProto.FLOAT, SHAPE),
            ],
        )
        return [
            constant(f"{o}_zero", np.array(0, np.int64)),
            constant(f"{o}_n", np.array(self.count, np.int64)),
            constant(f"{o}_k", np.array(self.picked, np.int64)),
            helper.make_node("SequenceEmpty", [], [f"{o}_none"], dtype=TensorProto.FLOAT),
            helper.make_node("Loop", [f"{o}_n", "", f"{o}_none"], [f"{o}_seq"], body=body),
            helper.make_node("SequenceAt", [f"{o}_seq", f"{o}_k"], [f"{o}_h"]),
            helper.make_node("ConcatFromSequence", [f"{o}_seq"], [f"{o}_all"], axis=0, new_axis=1),
            *gather_up(o),
        ]

    def run(self, env: Arrays) -> None:
        """Run the statement in NumPy."""
        found: list[np.ndarray] = []
        for step in range(self.count):
            inner = env | {f"{self.output}_i": np.array(step, np.int64)}
            execute(self.body, inner)
            found.insert(len(found) if self.at_end else 0, inner[self.result])
        env[self.output] = weighted(found[self.picked], found)


@dataclasses.dataclass
class Scan:
    """A Scan over the slices of `seq`, which lie along an axis of it."""

    length: int
    axis: int
    backward: tuple[int, int]
    start: str
    state: str
    slice: str
    body: list[Any]
    result: str
    output: str

    def node(self) -> list[onnx.NodeProto]:
        """Return the statement in ONNX."""
        o = self.output
        bounds = {"b": 0, "e": self.length, "a": 0}
        nodes = [constant(f"{o}_{key}", np.array([value], np.int64)) for key, value in bounds.items()]
        nodes.append(
            helper.make_node("Slice", ["seq", f"{o}_b", f"{o}_e", f"{o}_a"], [f"{o}_part"], name=f"{o}_slice")
        )
        order = [1, 0, 2] if self.axis else [0, 1, 2]
        nodes.append(helper.make_node("Transpose", [f"{o}_part"], [f"{o}_x"], perm=order))
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
                [f"{o}_h", f"{o}_turned"],
                num_scan_inputs=1,
                body=body,
                scan_input_directions=[self.backward[0]],
                scan_output_directions=[self.backward[1]],
                scan_input_axes=[self.axis],
                scan_output_axes=[self.axis - 3 if self.axis else 0],
            )
        )
        nodes.append(helper.make_node("Transpose", [f"{o}_turned"], [f"{o}_all"], perm=order))
        return nodes + gather_up(o)

    def run(self, env: Arrays) -> None:
        """Run the statement in NumPy."""
        state, steps = env[self.start], []
        slices = list(env["seq"][: self.length])
        for piece in slices[::-1] if self.backward[0] else slices:
            inner = env | {self.state: state, self.slice: piece}
            execute(self.body, inner)
            state = inner[self.result]
            steps.append(state)
        env[self.output] = weighted(state, steps[::-1] if self.backward[1] else steps)


def gather_up(name: str) -> list[onnx.NodeProto]:
    """Return the final state plus the sum of what all iterations gave, weighted by their place from 1 on."""
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
    """Compute the result of `gather_up` in NumPy."""
    total = np.array(state, np.float32)
    for place, step in enumerate(steps, 1):
        total = total + np.float32(place) * step
    return np.asarray(total, np.float32)
