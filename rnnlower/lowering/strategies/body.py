"""Subgraphs: the bodies of Scan and Loop, and the branches of If."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.lowering.emitter import Dim, Emitter


def body_value(e: Emitter, what: str, dtype: ir.DataType, dims: Sequence[Dim]) -> ir.Value:
    """Return an input of a body."""
    return ir.Value(name=e.names.fresh(what), shape=_shape(dims), type=ir.TensorType(dtype))


def body_graph(
    e: Emitter, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], dims: Sequence[Sequence[Dim]]
) -> ir.Graph:
    """Return the graph of the nodes that the emitter holds.

    Args:
        e: The emitter.
        inputs: The inputs.
        outputs: The outputs in the type of the arithmetic. A graph must not name a value twice among its
            outputs, nor return a value from outside: such outputs get an Identity.
        dims: The sizes of the outputs.
    """
    produced = set(e.nodes)
    distinct: list[ir.Value] = []
    for value, sizes in zip(outputs, dims, strict=True):
        if value in distinct or value.producer() not in produced:
            value = e.op("Identity", value)
        value.shape, value.type = _shape(sizes), ir.TensorType(e.dtype)
        distinct.append(value)
    return ir.Graph(inputs, distinct, nodes=e.nodes, name=e.names.source.fresh(e.names.prefix.rstrip("/")))


def _shape(dims: Sequence[Dim]) -> ir.Shape:
    return ir.Shape([dim if isinstance(dim, int) else None for dim in dims])
