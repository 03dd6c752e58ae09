"""Conversion of the training part of a model, whose graphs use the model's opset, too."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir

from rnnlower.errors import OpsetError
from rnnlower.files import beyond_ir
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.walk import values_of
from rnnlower.opset.value_types import ValueTypes

Convert = Callable[[ir.Model], object]
"""Converts a model in place."""


def convert_training(
    model: ir.Model, types: ValueTypes, convert: Convert
) -> list[onnx.TrainingInfoProto] | None:
    """Return the converted training info of the model, or ``None`` if there is none. Changes nothing.

    Raises:
        OpsetError: A training graph cannot be converted.
    """
    rest = beyond_ir.find(model)
    if rest is None or not rest.training_info:
        return None
    known = {str(value.name): value for value in values_of(model.graph)}
    converted = []
    for info in rest.training_info:
        copy = onnx.TrainingInfoProto()
        copy.CopyFrom(info)
        for graph in (copy.initialization, copy.algorithm):
            if graph.node:
                _convert(graph, model, known, types, convert)
        converted.append(copy)
    return converted


def _convert(
    graph: onnx.GraphProto, model: ir.Model, known: dict[str, ir.Value], types: ValueTypes, convert: Convert
) -> None:
    # The training graphs read values of the model; here those become inputs.
    proto = onnx.ModelProto(ir_version=max(model.ir_version, FREE_INITIALIZERS_IR))
    proto.opset_import.extend(
        onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()
    )
    proto.graph.CopyFrom(graph)
    outside = sorted(_read(graph) - _made(graph))
    for name in outside:
        proto.graph.input.append(_declaration(name, known.get(name), types))
    work = ir.from_proto(proto)
    try:
        convert(work)
    except OpsetError as error:
        raise OpsetError(f"in the model's training info: {error}") from error
    result = ir.to_proto(work).graph
    inputs = [value for value in result.input if value.name not in outside]
    del result.input[:]
    result.input.extend(inputs)
    graph.CopyFrom(result)


def _declaration(name: str, value: ir.Value | None, types: ValueTypes) -> onnx.ValueInfoProto:
    dtype = types.dtype(value)
    if dtype is None:
        return onnx.ValueInfoProto(name=name)
    declared = ir.Value(name=name, type=ir.TensorType(dtype), shape=types.shape(value))
    return ir.serde.serialize_value(declared)


def _read(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in node.input if name}
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                names |= _read(inner) - _made(inner)
    return names | {value.name for value in graph.output if value.name not in _made(graph)}


def _made(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in node.output}
    return names | {value.name for value in (*graph.input, *graph.initializer)}
