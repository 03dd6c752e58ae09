"""Which opset a lowering needs for the ops it emits."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.activations import ACTIVATIONS
from rnnlower.recurrent import ResolvedNode

__all__ = ["FIRST_OPSET", "minimum_opset"]

FIRST_OPSET = 7
"""Where broadcasting and the recurrent operators got their present form."""


def minimum_opset(node: ResolvedNode, strategy: str, unroll_factor: int = 1) -> int:
    """The lowest opset in which the lowering of a node can be written."""
    looped = strategy != "unroll"
    states = ("initial_h", "initial_c")[: 1 + (node.op_type == "LSTM")]
    zero_state = not all(name in node.inputs for name in states)
    may_be_empty = (
        node.semantics == "ort" and not node.seq_length and any(name in node.inputs for name in states)
    )
    reasons = {
        "Scan-9": 9 if strategy == "scan" else 0,
        "Where-9, Less-9": 9 if "sequence_lens" in node.inputs else 0,
        "Where-9, Greater-9": 9 if may_be_empty else 0,
        "ConstantOfShape-9 for zero states": 9 if zero_state and looped and node.batch_size is None else 0,
        "Slice-10 with a step": 10
        if strategy == "loop" and any(node.reversed_directions) and node.used("Y")
        else 0,
        "Slice-10 at run-time positions": 10
        if looped and unroll_factor > 1 and node.seq_length is None
        else 0,
        "Max-8, Min-8": 8 if node.dtype == ir.DataType.DOUBLE else 0,
        "Cast-13": 13 if node.dtype == ir.DataType.BFLOAT16 else 0,
        "activations": max(ACTIVATIONS[row.name].since for rows in node.activations for row in rows),
    }
    return max(FIRST_OPSET, *reasons.values())
