"""The magnitude of values needed to reach everything that a model does at some threshold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import numpy_helper

# Larger numbers are not thresholds of values but the end of a type's range.
_LARGEST = 1e8
_ATTRIBUTES = ("clip", "activation_alpha", "activation_beta", "alpha", "min", "max")
_COMPARING = ("Clip", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Where", "Max", "Min")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)


def largest_threshold(model: onnx.ModelProto) -> float:
    """Return the largest magnitude of a clip, of an activation's bend, or of a comparison with a constant."""
    found = [0.0]
    constants: dict[str, float] = {}
    for graph in _graphs(model):
        for tensor in getattr(graph, "initializer", ()):
            _note_scalar(tensor.name, tensor, constants)
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
                _note_scalar(node.output[0], node.attribute[0].t, constants)
            found += _of_node(node)
            if node.op_type in _COMPARING:
                found += [constants[name] for name in node.input if name in constants]
    return max(value for value in map(abs, found) if math.isfinite(value) and value <= _LARGEST)


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while pending:
        graph = pending.pop()
        yield graph
        pending += [g for node in graph.node for a in node.attribute for g in (a.g, *a.graphs) if g.node]


def _note_scalar(name: str, tensor: onnx.TensorProto, constants: dict[str, float]) -> None:
    stored = tensor.data_location != onnx.TensorProto.EXTERNAL
    if stored and tensor.data_type in _FLOATS and math.prod(tensor.dims) == 1:
        constants[name] = float(np.ravel(numpy_helper.to_array(tensor))[0])


def _of_node(node: onnx.NodeProto) -> Iterable[float]:
    values = [v for a in node.attribute if a.name in _ATTRIBUTES for v in (a.f, *a.floats)]
    names = [s for a in node.attribute if a.name == "activations" for s in a.strings]
    if node.op_type == "HardSigmoid" or any(name.lower() == b"hardsigmoid" for name in names):
        # alpha x + beta bends at 0 and 1.
        values += [2 / v for v in values if v]
    return values
