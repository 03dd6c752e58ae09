"""The installed onnx's schemas of every version of every operator of the default domain.

`onnx_ir.schemas.OpSignature` would do for names and types, but not for numbers of inputs, deprecation and
history, and it calls a variadic input required.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import onnx
import onnx.defs
import onnx.helper
import onnx_ir as ir
from onnx.defs import OpSchema

from rnnlower.graph.walk import default_opset, walk

Parameter = OpSchema.FormalParameter
REQUIRED, VARIADIC = OpSchema.FormalParameterOption.Single, OpSchema.FormalParameterOption.Variadic
"""The options of a formal input or output that must be given, and of one that takes all that are left."""


@dataclasses.dataclass(frozen=True)
class Attribute:
    """An attribute of an operator version; `default` is ``None`` if the version has none."""

    type: int
    required: bool
    default: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Version:
    """One version of an operator."""

    op_type: str
    since: int
    deprecated: bool
    attributes: dict[str, Attribute]
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    input_range: tuple[int, int]
    output_range: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.op_type}-{self.since}"


@dataclasses.dataclass(frozen=True)
class NodeForm:
    """The properties of a node by which it fits a version; many nodes share one form.

    Attributes:
        inputs, outputs: Whether each one is present.
    """

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    attributes: tuple[tuple[str, int], ...]


def misfit_of(form: NodeForm, version: Version) -> str:
    """Describe the misfit between a node and a version, unknown attributes aside; empty if there is none."""
    for what, present, formals, (minimum, maximum) in (
        ("input", form.inputs, version.inputs, version.input_range),
        ("output", form.outputs, version.outputs, version.output_range),
    ):
        for position, formal in enumerate(formals):
            if formal.option == REQUIRED and not any(present[position : position + 1]):
                return f"{what} {formal.name} is missing; it is required"
        if not minimum <= len(present) <= maximum:
            wanted = f"at least {minimum}" if len(present) < minimum else f"at most {maximum}"
            return f"has {len(present)} {what}s, but needs {wanted}"
    given = dict(form.attributes)
    for name, attribute in version.attributes.items():
        if attribute.required and name not in given:
            return f"attribute {name!r} is missing; it is required"
        kind = given.get(name, attribute.type)
        if kind not in (attribute.type, onnx.AttributeProto.UNDEFINED):
            kinds = onnx.AttributeProto.AttributeType
            return f"attribute {name!r} has type {kinds.Name(kind)}; it must be {kinds.Name(attribute.type)}"
    return ""


@functools.cache
def _schemas() -> dict[str, tuple[OpSchema, ...]]:
    found: dict[str, list[OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append(schema)
    return {name: tuple(sorted(each, key=lambda s: s.since_version)) for name, each in sorted(found.items())}


def _default(attribute: OpSchema.Attribute) -> Any:
    if not attribute.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value


def _attribute_type(attribute: OpSchema.Attribute) -> int:
    # The stubs do not know that the type is an enumeration.
    kind: Any = attribute.type
    return int(kind.value)


@functools.cache
def history(op_type: str) -> tuple[Version, ...]:
    """Return the versions of `op_type`, ascending; none for an unknown operator."""
    return tuple(
        Version(
            op_type=schema.name,
            since=schema.since_version,
            deprecated=schema.deprecated,
            attributes={
                name: Attribute(_attribute_type(each), each.required, _default(each))
                for name, each in schema.attributes.items()
            },
            inputs=tuple(schema.inputs),
            outputs=tuple(schema.outputs),
            input_range=(schema.min_input, schema.max_input),
            output_range=(schema.min_output, schema.max_output),
        )
        for schema in _schemas().get(op_type, ())
    )


def operators() -> tuple[str, ...]:
    """Return the names of all operators that the default domain ever had, sorted."""
    return tuple(_schemas())


@functools.cache
def changed_in(opset: int) -> frozenset[str]:
    """Return the operators with a new version in `opset`."""
    return frozenset(op_type for op_type in operators() if opset in versions(op_type))


def versions(op_type: str) -> tuple[int, ...]:
    """Return the opsets that changed `op_type`, ascending; empty for an unknown operator."""
    return tuple(version.since for version in history(op_type))


@functools.cache
def version_at(op_type: str, opset: int) -> Version | None:
    """Return the version of `op_type` in force at `opset`, or ``None`` if there was no such operator."""
    return next((version for version in reversed(history(op_type)) if version.since <= opset), None)


def first_version(op_type: str) -> Version | None:
    """Return the first version of `op_type`, or ``None`` if there never was such an operator."""
    return next(iter(history(op_type)), None)


def body_versions(op_type: str, opset: int) -> tuple[list[int], list[int]]:
    """Return the versions of the operator's fixed and context-dependent function bodies."""
    try:
        # The stubs of onnx lack the function-related members of a schema.
        schema: Any = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return [], []
    fixed, other = schema.function_opset_versions, schema.context_dependent_function_opset_versions
    return [each for each in fixed if each <= opset], [each for each in other if each <= opset]


def function_body(
    node: ir.Node,
    opset: int,
    dtype_of: Callable[[ir.Value], ir.DataType | None],
    shape_of: Callable[[ir.Value], Iterable[int | ir.SymbolicDim | None] | None],
) -> onnx.FunctionProto | None:
    """Return the body by which onnx defines the operator for this node, or ``None``; it may be empty.

    The types and shapes are those of the inputs, for bodies that depend on them.
    """
    fixed, other = body_versions(node.op_type, opset)
    if not fixed and not other:
        return None
    schema: Any = onnx.defs.get_schema(node.op_type, opset)
    body = onnx.FunctionProto()
    if fixed:
        body.ParseFromString(schema.get_function_with_opset_version(max(fixed)))
        return body
    types = []
    for value in node.inputs:
        type_ = onnx.TypeProto()
        if value is not None:
            if (dtype := dtype_of(value)) is None:
                return None
            type_ = ir.to_proto(ir.TensorType(dtype))
            if (shape := shape_of(value)) is not None:
                ir.serde.serialize_shape_into(type_, ir.Shape(shape))
        types.append(type_.SerializeToString())
    made = schema.get_context_dependent_function_with_opset_version
    body.ParseFromString(made(max(other), ir.to_proto(node).SerializeToString(), types))
    return body


def needed_opset(model: ir.Model) -> int:
    """Return the first opset that has every operator of the main graph, or the model's own if that has them.

    onnxruntime takes some operators at opsets that do not have them yet, and writes such models.
    """
    return max(_newer_operators(model).values(), default=default_opset(model))


def notes_on_newer_operators(model: ir.Model) -> list[str]:
    """Return a note on each operator of the main graph that the model's opset does not have yet."""
    opset = default_opset(model)
    return [
        note_on_newer_operator(op_type, opset, first) for op_type, first in _newer_operators(model).items()
    ]


def _newer_operators(model: ir.Model) -> dict[str, int]:
    """Return the operators of the main graph that are newer than the opset, with their first versions."""
    opset = default_opset(model)
    types = dict.fromkeys(node.op_type for node, _ in walk(model.graph) if not node.domain)
    found = {op_type: version.since for op_type in types if (version := first_version(op_type)) is not None}
    return {op_type: first for op_type, first in found.items() if first > opset}


def note_on_newer_operator(op_type: str, opset: int, first: int) -> str:
    """Return the note on an operator that an opset does not have yet."""
    return f"opset {opset} has no {op_type}: it is taken as that of opset {first}"
