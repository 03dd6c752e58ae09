"""Operators that onnx defines as a function: if there is no older version, the body replaces them."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir

from rnnlower.graph.walk import resolve_references, values_of
from rnnlower.opset.step import Step
from rnnlower.opset.value_types import ValueTypes
from rnnlower.opset.version_fit import present


def expand(step: Step) -> None:
    """onnx defines the operator as a function of older ones: its body replaces the node."""
    step.opset = step.source_opset
    proto = _body(step)
    positions = _drop_missing_outputs(proto)
    function = ir.serde.deserialize_function(proto)
    for node in list(function.graph.all_nodes()):
        resolve_references(node, _attributes(step))
    outputs = list(function.outputs)
    inputs = [*present(step.node.inputs), *[None] * len(function.inputs)]
    for formal, actual in zip(function.inputs, inputs, strict=False):
        if actual is not None:
            formal.type, formal.shape = _type(step, actual), step.shape(actual)
    function.graph.opset_imports[""] = step.opset
    body = ir.Model(function.graph, ir_version=10)
    types = ValueTypes(body)
    for value in values_of(function.graph):
        value.name = (
            step.session.fresh(f"{step.node.name or step.node.op_type}_{value.name}") if value.name else ""
        )
        step.session.types.alias(value, value, types)
    for formal, actual in zip(function.inputs, inputs, strict=False):
        for user, position in list(formal.uses()):
            user.replace_input_with(position, actual)
    nodes = list(function)
    function.graph.outputs.clear()
    function.graph.remove(nodes)
    for node in nodes:
        node.name = step.session.fresh(f"{step.node.name or step.node.op_type}_{node.op_type}")
        step.place(node)
    actuals = dict(zip(function.inputs, inputs, strict=False))
    made = [actuals.get(value, value) for value in outputs]
    step.replace(*[None if position is None else made[position] for position in positions])


def _drop_missing_outputs(proto: onnx.FunctionProto) -> list[int | None]:
    """Remove outputs that the body does not compute; return the new position of each output."""
    made = {name for node in proto.node for name in node.output} | set(proto.input)
    names = list(proto.output)
    left = [name for name in names if name in made]
    del proto.output[:]
    proto.output.extend(left)
    return [left.index(name) if name in made else None for name in names]


def _attributes(step: Step) -> dict[str, ir.Attr]:
    found = {
        name: ir.convenience.convert_attribute(name, attribute.default)
        for name, attribute in step.old.attributes.items()
        if attribute.default is not None
    }
    for name in step.node.attributes:
        step.attr(name)
    return {**found, **step.node.attributes}


def _type(step: Step, value: ir.Value) -> ir.TypeProtocol:
    return ir.TensorType(step.known_dtype(value))


def _body(step: Step) -> onnx.FunctionProto:
    defined: Any = onnx.defs.get_schema(step.node.op_type, step.opset, "")
    version = step.old.since
    proto = onnx.FunctionProto()
    if version in defined.function_opset_versions:
        proto.ParseFromString(defined.get_function_with_opset_version(version))
        return proto
    if version not in defined.context_dependent_function_opset_versions:
        step.refuse("onnx has no definition of it in older operators")
    types = []
    for value in present(step.node.inputs):
        type_ = onnx.TypeProto()
        if value is not None:
            type_.CopyFrom(ir.serde.serialize_type(_type(step, value)))
            shape = step.shape(value)
            if shape is not None:
                ir.serde.serialize_shape_into(type_, shape)
        types.append(type_.SerializeToString())
    node = ir.to_proto(step.node).SerializeToString()
    proto.ParseFromString(defined.get_context_dependent_function_with_opset_version(version, node, types))
    return proto
