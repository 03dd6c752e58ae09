"""Which opset a lowering needs for the ops it emits."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.lowering.activations import ACTIVATIONS
from rnnlower.recurrent.node import ResolvedNode

__all__ = ["FIRST_OPSET", "opset_needs"]

FIRST_OPSET = 7
"""Where broadcasting and the recurrent operators got their present form."""


def opset_needs(node: ResolvedNode, strategy: str, unroll_factor: int = 1) -> dict[str, int]:
    """What the lowering of a node needs beside the first opset, each with the opset that brought it."""
    looped = strategy != "unroll"
    states = [node.initial_state(name) for name in node.state_names]
    sizes = (node.seq_length, node.batch_size)
    is_dynamic = node.seq_length is None
    may_be_empty = is_dynamic and node.semantics == "ort" and any(state is not None for state in states)
    zero_states = None in states and (looped or node.seq_length == 0)
    flipped = strategy == "loop" and any(node.reversed_directions) and node.used("Y")
    needs = [
        ("Max-8 and Min-8, as Clip has no float64", node.dtype == ir.DataType.DOUBLE, 8),
        ("Scan-9", strategy == "scan", 9),
        ("Where-9 and Less-9 of masks", "sequence_lens" in node.inputs, 9),
        ("Where-9 and Greater-9 of final states", may_be_empty, 9),
        ("ConstantOfShape-9", zero_states and node.batch_size is None, 9),
        ("ConstantOfShape-9 of empty outputs", 0 in sizes and None in sizes, 9),
        ("Slice-10 with a step", flipped, 10),
        ("Slice-10 at run-time positions", looped and unroll_factor > 1 and is_dynamic, 10),
        ("DynamicQuantizeLinear-11", node.is_quantized, 11),
        ("Cast-13 of bfloat16", node.dtype == ir.DataType.BFLOAT16, 13),
    ]
    activations = {row.name: ACTIVATIONS[row.name].since for rows in node.activations for row in rows}
    found = {f"the activation {name}": since for name, since in activations.items() if since > FIRST_OPSET}
    return found | {what: opset for what, needed, opset in needs if needed}
