"""Models in float64, where neither rounding nor the range of a type matters much."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from rnnlower.verification.models import HeldModel

__all__ = ["widened"]

_NARROW = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# Attributes by which a node states its output type.
_TYPE_ATTRIBUTES = {"to", "dtype"}


def widened(model: HeldModel) -> HeldModel:
    """Return the model with float64 in place of every smaller float: inputs, weights, constants and casts."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model.with_data())
    for graph in _graphs(wide.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in _NARROW:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for tensor in graph.initializer:
            _widen(tensor)
        _widen_nodes(graph.node)
    for function in wide.functions:
        _widen_nodes(function.node)
    return HeldModel(model.role, wide, None)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(inner)


def _widen_nodes(nodes: Iterator[onnx.NodeProto] | list[onnx.NodeProto]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _NARROW:
                attribute.i = TensorProto.DOUBLE
            elif attribute.HasField("t"):
                _widen(attribute.t)
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = np.array(
                    attribute.f if attribute.name == "value_float" else list(attribute.floats), np.float64
                )
                attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(values)))


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type in _NARROW:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
