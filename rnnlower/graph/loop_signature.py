"""The signatures of Loop and Scan: which values go from iteration to iteration, which are stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

FIRST_SCAN_WITHOUT_BATCH = 9
"""The opset below which a Scan takes the lengths of its sequences first, and has a batch axis."""


class LoopSignature:
    """The values of a Loop or Scan, by their part in the iterations.

    Attributes:
        body: The body.
        states: The number of values that go from iteration to iteration, without the condition of a Loop.
        first_input, first_output: Their places among the inputs and outputs of the body.
        before, after: These values as inputs and as outputs of the body.
        stacked: The other outputs of the body, which the node stacks.
        input_axes, output_axes: The axis of the iterations in what a Scan reads, and in what is stacked.
        input_backward, output_backward: 1 where the last slice is that of the first iteration.
    """

    def __init__(self, node: ir.Node) -> None:
        self.body = node.attributes["body"].as_graph()
        # A Loop's body takes the iteration number and the condition first, and returns the condition first.
        inputs, outputs = self.first_input, self.first_output = (2, 1) if node.op_type == "Loop" else (0, 0)
        scanned = 0 if node.op_type == "Loop" else node.attributes.get_int("num_scan_inputs", 1)
        self.states = len(self.body.inputs) - inputs - scanned
        self.before = self.body.inputs[inputs : inputs + self.states]
        self.after = self.body.outputs[outputs : outputs + self.states]
        self.stacked = self.body.outputs[outputs + self.states :]
        given, made = [0] * scanned, [0] * len(self.stacked)
        self.input_axes = node.attributes.get_ints("scan_input_axes", given)
        self.input_backward = node.attributes.get_ints("scan_input_directions", given)
        self.output_axes = node.attributes.get_ints("scan_output_axes", made)
        self.output_backward = node.attributes.get_ints("scan_output_directions", made)


def counters(body: ir.Graph, step: int) -> list[NDArray[Any]]:
    """Return the iteration number and the condition that the body of a Loop gets in an iteration.

    They are scalars, or have one axis where the body declares that.
    """
    pairs = zip(body.inputs, (np.array(step, np.int64), np.array(True)), strict=False)
    return [array.reshape(1) if value.shape else array for value, array in pairs]
