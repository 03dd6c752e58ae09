"""Bodies of Scan and Loop."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.emitter import Dim, Emitter

__all__ = ["body_graph", "body_value"]


def body_value(e: Emitter, dtype: ir.DataType, rows: Dim, width: int) -> ir.Value:
    """An input of a body, ``[rows, width]``."""
    return ir.Value(name=e.names.short(), shape=_shape(rows, width), type=ir.TensorType(dtype))


def body_graph(
    e: Emitter, inputs: Sequence[ir.Value], outputs: Sequence[tuple[ir.Value, Dim, int]]
) -> ir.Graph:
    """The graph of the nodes that the emitter holds; each output comes with its rows and width.

    A graph must not name a value twice among its outputs, nor pass an input straight on: such outputs get an
    Identity.
    """
    produced = set(e.nodes)
    distinct: list[ir.Value] = []
    for value, rows, width in outputs:
        if value in distinct or value.producer() not in produced:
            value = e.op("Identity", value)
        value.shape, value.type = _shape(rows, width), ir.TensorType(e.dtype)
        distinct.append(value)
    return ir.Graph(inputs, distinct, nodes=e.nodes, name=e.names.short())


def _shape(rows: Dim, width: int) -> ir.Shape:
    return ir.Shape([rows if isinstance(rows, int) else None, width])
