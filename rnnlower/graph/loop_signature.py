"""The Loops and Scans of a model: which values go from iteration to iteration, which are stacked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from rnnlower.graph.operator_kinds import VIEWS
from rnnlower.graph.walk import (
    LocatedNode,
    default_opset,
    look_through_identities,
    node_names,
    subgraphs_of,
    walk,
)

FIRST_SCAN_WITHOUT_BATCH = 9
"""The opset below which a Scan takes the lengths of its sequences first, and has a batch axis."""


@dataclasses.dataclass(frozen=True)
class State:
    """A value that is carried from iteration to iteration.

    Attributes:
        start, end: The initial and the final state.
        before, after: The state before and after an iteration, in the body.
    """

    start: ir.Value
    before: ir.Value
    after: ir.Value
    end: ir.Value

    @property
    def is_invariant(self) -> bool:
        """Return whether no iteration changes it."""
        return look_through_identities(self.after) is self.before


class LoopSignature:
    """The values of a Loop or Scan, by their part in the iterations.

    Attributes:
        states: The values that go from iteration to iteration, without the condition of a Loop.
        count: Their number.
        first_input, first_output: Their places among the inputs and outputs of the body. The inputs of the
            node have the same places, but for a Scan that takes lengths first.
        stacked: The other outputs of the body, which the node stacks.
        input_axes, output_axes: The axis of the iterations in what a Scan reads, and in what is stacked.
        scanned: The tensors that a Scan reads, each with its axis of the iterations.
        input_backward, output_backward: 1 where the last slice is that of the first iteration.
    """

    def __init__(self, node: ir.Node) -> None:
        self.body = node.attributes["body"].as_graph()
        # A Loop's body takes the iteration number and the condition first, and returns the condition first.
        inputs, outputs = self.first_input, self.first_output = (2, 1) if node.op_type == "Loop" else (0, 0)
        scanned = 0 if node.op_type == "Loop" else node.attributes.get_int("num_scan_inputs", 1)
        self.count = len(self.body.inputs) - inputs - scanned
        before = self.body.inputs[inputs : inputs + self.count]
        after = self.body.outputs[outputs : outputs + self.count]
        # A Scan of opset 8 takes the lengths of its sequences first.
        lengths = node.op_type == "Scan" and len(node.inputs) > len(self.body.inputs)
        states = zip(node.inputs[inputs + lengths :], before, after, node.outputs, strict=False)
        self.states = [State(start, *rest) for start, *rest in states if start is not None]
        self.stacked = self.body.outputs[outputs + self.count :]
        given, made = [0] * scanned, [0] * len(self.stacked)
        self.input_axes = node.attributes.get_ints("scan_input_axes", given)
        self.scanned = [*zip(node.inputs[len(node.inputs) - scanned :], self.input_axes, strict=True)]
        self.input_backward = node.attributes.get_ints("scan_input_directions", given)
        self.output_axes = node.attributes.get_ints("scan_output_axes", made)
        self.output_backward = node.attributes.get_ints("scan_output_directions", made)


def iteration_numbers(body: ir.Graph) -> list[ir.Value]:
    """Return the iteration number that the body of a Loop gets, and the views of it there."""
    numbers = [body.inputs[0]]
    for value in numbers:
        readers = [use.node for use in value.uses() if use.idx == 0 and use.node.graph is body]
        numbers += [node.outputs[0] for node in readers if node.op_type in VIEWS]
    return numbers


def counters(body: ir.Graph, step: int) -> list[NDArray[Any]]:
    """Return the iteration number and the condition that the body of a Loop gets in an iteration.

    They are scalars, or have one axis where the body declares that.
    """
    pairs = zip(body.inputs, (np.array(step, np.int64), np.array(True)), strict=False)
    return [array.reshape(1) if value.shape else array for value, array in pairs]


def loops_and_scans(model: ir.Model) -> Iterator[tuple[LocatedNode, ir.Node | None]]:
    """Yield the Loop and Scan nodes of a model, the inner ones first, each with the node around it."""
    opset, paths, names = default_opset(model), dict(walk(model.graph)), node_names(model)

    def nested(graph: ir.Graph, owner: ir.Node | None) -> Iterator[tuple[LocatedNode, ir.Node | None]]:
        for node in graph:
            for body in subgraphs_of(node):
                yield from nested(body, node)
            if not node.domain and node.op_type in ("Loop", "Scan"):
                yield LocatedNode(node, names[node], paths[node], opset), owner

    yield from nested(model.graph, None)
