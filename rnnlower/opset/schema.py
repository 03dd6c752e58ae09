"""The installed onnx's schemas of every version of every operator of the default domain.

The history of `onnx.defs` decides most version steps: a node may cross one unchanged if the other version
has its attributes (or they carry their default), its inputs and outputs, and its element types.
`misfit` makes that check. Steps whose *meaning* changed are rows of the tables in the family modules.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import onnx.defs
import onnx.helper
import onnx_ir as ir

MIN_OPSET = 1
MAX_OPSET = onnx.defs.onnx_opset_version()

TypesOf = Callable[[ir.Value], frozenset[str]]


@dataclasses.dataclass(frozen=True)
class Attribute:
    """An attribute of an operator version; `default` is ``None`` if the version has none."""

    type: int
    required: bool
    default: Any


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A formal input or output; `variable` is the type variable or the type it is declared with."""

    name: str
    required: bool
    variadic: bool
    homogeneous: bool
    variable: str
    types: frozenset[str]


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


@functools.cache
def _schemas() -> dict[str, tuple[onnx.defs.OpSchema, ...]]:
    found: dict[str, list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append(schema)
    return {name: tuple(sorted(each, key=lambda s: s.since_version)) for name, each in sorted(found.items())}


def _default(attribute: onnx.defs.OpSchema.Attribute) -> Any:
    if not attribute.default_value.type:
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value


def _attribute_type(attribute: onnx.defs.OpSchema.Attribute) -> int:
    # The stubs do not know that the type is an enumeration.
    kind: Any = attribute.type
    return int(kind.value)


def _parameter(formal: onnx.defs.OpSchema.FormalParameter) -> Parameter:
    options = onnx.defs.OpSchema.FormalParameterOption
    return Parameter(
        name=formal.name,
        required=formal.option == options.Single,
        variadic=formal.option == options.Variadic,
        homogeneous=formal.is_homogeneous,
        variable=formal.type_str,
        types=frozenset(formal.types),
    )


@functools.cache
def _history(op_type: str) -> tuple[Version, ...]:
    return tuple(
        Version(
            op_type=schema.name,
            since=schema.since_version,
            deprecated=schema.deprecated,
            attributes={
                name: Attribute(_attribute_type(each), each.required, _default(each))
                for name, each in schema.attributes.items()
            },
            inputs=tuple(map(_parameter, schema.inputs)),
            outputs=tuple(map(_parameter, schema.outputs)),
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
    return tuple(version.since for version in _history(op_type))


@functools.cache
def version_at(op_type: str, opset: int) -> Version | None:
    """Return the version of `op_type` in force at `opset`, or ``None`` if there was no such operator."""
    found = None
    for version in _history(op_type):
        if version.since <= opset:
            found = version
    return found


def first_version(op_type: str) -> Version | None:
    """Return the first version of `op_type`, or ``None`` if there never was such an operator."""
    return next(iter(_history(op_type)), None)


def type_string(type_: ir.TypeProtocol | None) -> str | None:
    """Return `type_` in the schemas' notation (``seq(tensor(float))``), or ``None`` if it is not known."""
    if isinstance(type_, ir.SequenceType):
        element = type_string(type_.elem_type)
        return element and f"seq({element})"
    if isinstance(type_, ir.OptionalType):
        element = type_string(type_.elem_type)
        return element and f"optional({element})"
    if isinstance(type_, ir.TensorType) and type_.dtype != ir.DataType.UNDEFINED:
        return f"tensor({type_.dtype.name.lower()})"
    return None


def present(values: Iterable[ir.Value | None]) -> list[ir.Value | None]:
    """Return `values` with omitted ones (absent or nameless) as ``None``, without omitted ones at the end."""
    kept = [None if value is None or value.name == "" else value for value in values]
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def bind(
    formals: Sequence[Parameter], values: Sequence[ir.Value | None]
) -> Iterator[tuple[Parameter, ir.Value | None]]:
    """Yield pair `values` with their formal parameters; a variadic one takes the rest."""
    for position, value in enumerate(values):
        if position < len(formals):
            yield formals[position], value
        elif formals and formals[-1].variadic:
            yield formals[-1], value


def misfit(node: ir.Node, version: Version, types_of: TypesOf, previous: Version | None = None) -> str | None:
    """Describe why `node` as it stands is not a node of `version`; ``None`` if it is one.

    `types_of(value)` returns the types that a value may have, empty if nothing is known. With `previous`,
    the version that the node comes from, an unknown type is a misfit, too, if `version` allows fewer types.
    """
    return form_misfit(node, version) or type_misfit(node, version, types_of, previous)


def form_misfit(node: ir.Node, version: Version) -> str | None:
    """Describe why attributes, or number of inputs or outputs, do not fit `version`; ``None`` if they do."""
    return _attribute_misfit(node, version) or _arity_misfit(node, version)


def _attribute_misfit(node: ir.Node, version: Version) -> str | None:
    for name, attribute in node.attributes.items():
        formal = version.attributes.get(name)
        if formal is None:
            return f"{version} has no attribute {name!r}"
        if formal.type != int(attribute.type):
            return f"attribute {name!r} of {version} is not of type {attribute.type.name}"
    for name, formal in version.attributes.items():
        if formal.required and name not in node.attributes:
            return f"{version} requires the attribute {name!r}"
    return None


def _arity_misfit(node: ir.Node, version: Version) -> str | None:
    for kind, given, formals, (low, high) in (
        ("input", node.inputs, version.inputs, version.input_range),
        ("output", node.outputs, version.outputs, version.output_range),
    ):
        values = present(given)
        if len(values) > high:
            return f"{version} has at most {high} {kind}(s), the node has {len(values)}"
        if len(values) < low:
            return f"{version} has at least {low} {kind}(s), the node has {len(values)}"
        for formal, value in bind(formals, values):
            if value is None and formal.required:
                return f"{version} requires the {kind} {formal.name!r}"
    return None


def type_misfit(
    node: ir.Node, version: Version, types_of: TypesOf, previous: Version | None = None
) -> str | None:
    """Describe the misfit of element types; see `misfit`."""
    variables: dict[str, tuple[Parameter, frozenset[str]]] = {}
    unknown: list[tuple[Parameter, ir.Value]] = []
    older = (previous.inputs, previous.outputs) if previous else ((), ())
    for values, formals, before in (
        (present(node.inputs), version.inputs, older[0]),
        (present(node.outputs), version.outputs, older[1]),
    ):
        narrowed = {
            formal.name for formal, old in zip(formals, before, strict=False) if old.types - formal.types
        }
        for formal, value in bind(formals, values):
            if value is None:
                continue
            types = types_of(value)
            if types - formal.types:
                return f"{version} does not take {sorted(types - formal.types)[0]} for {formal.name!r}"
            if not types:
                unknown += [(formal, value)] * (formal.name in narrowed)
            elif formal.homogeneous:
                first, bound = variables.setdefault(formal.variable, (formal, types))
                if bound != types:
                    return f"{version} requires {formal.name!r} to have the same type as {first.name!r}"
    for formal, value in unknown:
        if formal.variable not in variables or not formal.homogeneous:
            return f"the type of {value.name!r} is not known, and {version} takes fewer for {formal.name!r}"
    return None
