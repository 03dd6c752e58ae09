"""Graphs as text: from docstrings, and in a canonical form without inner names."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper


def parse_text(text: str, opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    """Parse a graph in the text form of ONNX, with its functions; the header of the model is left out."""
    found = re.findall(r'domain: "([^"]+)"|\b([a-z][a-z.]*)\.[A-Z]\w+ *[(<]', text)
    names = sorted({name for pair in found for name in pair if name})
    imports = ", ".join([f'"" : {opset}', *(f'"{name}" : 1' for name in names)])
    return onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]> main {text}")


@dataclasses.dataclass(frozen=True)
class Canonical:
    """A graph with numbered inner values, and constants written as their content.

    Attributes:
        parts: Inputs, outputs, nodes in order, initializers.
        types: The types of the inner values that have one.
    """

    parts: dict[str, Any]
    types: dict[Any, Any]


def canonical(model: onnx.ModelProto) -> Canonical:
    """Describe a graph by its interface and its computation."""
    types: dict[Any, Any] = {}
    parts = _graph(model.graph, {}, types)
    parts["functions"] = [(function.domain, function.name) for function in model.functions]
    return Canonical(parts, types)


def _graph(graph: onnx.GraphProto, outer: dict[str, Any], types: dict[Any, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {"": "", **outer}
    constants = {tensor.name: _tensor(tensor) for tensor in graph.initializer}
    known |= constants
    visible = {value.name for value in (*graph.input, *graph.output)} if not outer else set()
    for value in graph.input:
        known[value.name] = value.name if value.name in visible else f"#{len(known)}"
    nodes = []
    for node in graph.node:
        inputs = [known[name] for name in node.input]
        while inputs and not inputs[-1]:
            inputs.pop()
        attributes = {each.name: _attribute(each, known, types) for each in node.attribute}
        for name in node.output:
            if name:
                known[name] = name if name in visible else f"#{len(known)}"
        nodes.append((node.domain, node.op_type, inputs, attributes, [known[name] for name in node.output]))
    inner = [value for value in graph.value_info if value.name in known and value.name not in constants]
    types |= {known[value.name]: _type(value) for value in inner}
    return {
        "inputs": [_port(known, value) for value in graph.input],
        "outputs": [_port(known, value) for value in graph.output],
        "nodes": nodes,
        "initializers": sorted(map(repr, constants.values())),
    }


def _port(known: dict[str, Any], value: onnx.ValueInfoProto) -> tuple[Any, Any]:
    return known[value.name], _type(value)


def _type(value: onnx.ValueInfoProto) -> Any:
    kind = value.type.tensor_type
    return kind.elem_type, [dim.dim_param or dim.dim_value for dim in kind.shape.dim]


def _tensor(tensor: TensorProto) -> Any:
    array = numpy_helper.to_array(tensor)
    return str(array.dtype), array.shape, array.tolist()


def _attribute(attribute: AttributeProto, known: dict[str, Any], types: dict[Any, Any]) -> Any:
    if attribute.type == AttributeProto.GRAPH:
        return _graph(attribute.g, known, types)
    if attribute.type == AttributeProto.TENSOR:
        return _tensor(attribute.t)
    return helper.get_attribute_value(attribute)
