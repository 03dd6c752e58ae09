"""Functions, which old opsets lack, and the training part of a model."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass

from rnnlower.errors import InvalidModelError, OpsetError
from rnnlower.files import beyond_ir
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.inlining import functions_with, inline_functions
from rnnlower.graph.walk import walk_values
from rnnlower.opset.conversion_state import Conversion
from rnnlower.opset.value_types import ValueTypes


def drop_uncalled_functions(conversion: Conversion) -> None:
    """Remove the functions that nothing calls: there is no place to inline them."""
    model = conversion.model
    before = list(model.functions)
    if RemoveUnusedFunctionsPass()(model).modified:  # type: ignore[no-untyped-call]
        names = conversion.report.unused = [_name(each) for each in before if each not in model.functions]
        conversion.report.notes.append(
            f"opset {conversion.report.target} has no functions: {', '.join(names)} "
            f"{'is' if len(names) == 1 else 'are'} never called, and left out"
        )


def inlining_opset(conversion: Conversion) -> int:
    """Return the opset at which to inline the functions: on the model's way, and close to their own."""
    low, high = sorted((conversion.report.source, conversion.report.target))
    imports = [each.opset_imports for each in conversion.model.functions.values()]
    own = max((each[""] for each in imports if "" in each), default=conversion.report.source)
    return min(max(own, low), high)


def inline_all_functions(conversion: Conversion) -> None:
    """Replace every call of a function by its body, and drop the functions.

    The functions must have the model's opset.

    Raises:
        OpsetError: A call cannot be expanded.
    """
    model, report = conversion.model, conversion.report
    report.inlined += map(_name, model.functions)
    outputs = {
        str(value.name): value
        for node in model.graph.all_nodes()
        if node.op_identifier() in model.functions
        for value in node.outputs
        if value.name
    }
    try:
        inline_functions(model, functions_with(model, lambda node: True))
    except InvalidModelError as error:
        raise OpsetError(f"opset {conversion.report.target} has no functions, and {error}") from error
    if model.functions:
        name = _name(next(iter(model.functions)))
        raise OpsetError(
            f"opset {conversion.report.target} has no functions, and {name} has no nodes to inline"
        )
    _restore_metadata(model, outputs)
    # The inlined bodies are new values, of which nothing is known yet.
    conversion.types = ValueTypes(model)
    conversion.collect_names()
    report.notes.append(
        f"opset {conversion.report.target} has no functions: {len(report.inlined)} were inlined"
    )


def _name(identifier: ir.OperatorIdentifier) -> str:
    domain, name, overload = identifier
    return f"{domain}::{name}:{overload}" if overload else f"{domain}::{name}"


def _restore_metadata(model: ir.Model, outputs: dict[str, ir.Value]) -> None:
    """Restore annotations of call outputs: inlining keeps their names, but not their metadata."""
    for value in walk_values(model.graph):
        old = outputs.get(str(value.name))
        if old is None:
            continue
        value.type = value.type or old.type
        value.shape = old.shape if value.shape is None else value.shape
        value.doc_string = value.doc_string or old.doc_string
        value.metadata_props.update(old.metadata_props)
        value.meta.update(old.meta)


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
    known = {str(value.name): value for value in walk_values(model.graph)}
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
    outside = sorted(_read_names(graph) - _produced_names(graph))
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


def _read_names(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in node.input if name}
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                names |= _read_names(inner) - _produced_names(inner)
    return names | {value.name for value in graph.output if value.name not in _produced_names(graph)}


def _produced_names(graph: onnx.GraphProto) -> set[str]:
    names = {name for node in graph.node for name in node.output}
    return names | {value.name for value in (*graph.input, *graph.initializer)}
