"""Models in another float type: in float64, neither rounding nor range matters much; in float16 both do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rnnlower.verification.models import HeldModel

__all__ = ["retyped"]

_FLOATS = {TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# Attributes by which a node states its output type.
_TYPE_ATTRIBUTES = {"to", "dtype"}


def retyped(model: HeldModel, dtype: np.dtype[Any]) -> HeldModel:
    """Return the model with a type in place of every other float: inputs, weights, constants and casts."""
    other = onnx.ModelProto()
    other.CopyFrom(model.with_data())
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    for graph in _graphs(other.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in _FLOATS:
                value.type.tensor_type.elem_type = kind
        for tensor in graph.initializer:
            _retype(tensor, dtype)
        _retype_nodes(graph.node, dtype)
    for function in other.functions:
        _retype_nodes(function.node, dtype)
    return HeldModel(model.role, other, None)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(inner)


def _retype_nodes(nodes: Iterable[onnx.NodeProto], dtype: np.dtype[Any]) -> None:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _FLOATS:
                attribute.i = helper.np_dtype_to_tensor_dtype(dtype)
            elif attribute.HasField("t"):
                _retype(attribute.t, dtype)
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = np.array(
                    attribute.f if attribute.name == "value_float" else list(attribute.floats), dtype
                )
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))


def _retype(tensor: TensorProto, dtype: np.dtype[Any]) -> None:
    if tensor.data_type in _FLOATS:
        with np.errstate(over="ignore"):
            array = numpy_helper.to_array(tensor).astype(dtype)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
