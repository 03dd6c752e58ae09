"""Einsum, which is new in 12."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.graph.einsum import write_einsum
from rnnlower.opset.step import Row, Step


def einsum_down(step: Step) -> None:
    """Two operands with one common index that is summed become a MatMul; anything else Mul and ReduceSum."""
    step.opset = 11
    equation = str(step.attr("equation"))
    operands = [value for value in step.node.inputs if value is not None]
    result = write_einsum(_Writer(step), equation, operands)
    if result is None:
        step.refuse(f"equation {equation!r}: an ellipsis, or an index twice in one operand, is not supported")
    step.replace(result)


class _Writer:
    """A `Step` as `write_einsum` needs it."""

    def __init__(self, step: Step) -> None:
        self.emit, self.squeeze, self.unsqueeze = step.emit, step.squeeze, step.unsqueeze

    def sum(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        return self.emit("ReduceSum", value, axes=list(axes), keepdims=0)


ROWS = (Row("Einsum", 0, 12, "new in 12; MatMul, or Mul and ReduceSum, do the same", down=einsum_down),)
