"""The fit of a node to a version of its operator.

The history of `onnx.defs` decides most version steps: a node may cross one unchanged if the other version
has its attributes (or they carry their default), its inputs and outputs, and its element types.
`describe_misfit` makes that check. Steps whose *meaning* changed are rows of the tables in the family
modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import onnx.defs
import onnx_ir as ir

from rnnlower.graph.versions import VARIADIC, NodeForm, Parameter, Version, misfit_of
from rnnlower.graph.walk import trim_omitted

MIN_OPSET = 1
MAX_OPSET = onnx.defs.onnx_opset_version()

TypesOf = Callable[[ir.Value], frozenset[str]]


def type_string(type_: ir.TypeProtocol | None) -> str | None:
    """Return `type_` in the schemas' notation (``seq(tensor(float))``), or ``None`` if it is not known."""
    if isinstance(type_, (ir.SequenceType, ir.OptionalType)):
        element = type_string(type_.elem_type)
        return element and f"{'seq' if isinstance(type_, ir.SequenceType) else 'optional'}({element})"
    if isinstance(type_, ir.TensorType) and type_.dtype != ir.DataType.UNDEFINED:
        return f"tensor({type_.dtype.name.lower()})"
    return None


def bind_parameters(
    formals: Sequence[Parameter], values: Sequence[ir.Value | None]
) -> Iterator[tuple[Parameter, ir.Value | None]]:
    """Yield `values` with their formal parameters, of which a variadic one takes the rest."""
    for position, value in enumerate(values):
        if position < len(formals):
            yield formals[position], value
        elif formals and formals[-1].option == VARIADIC:
            yield formals[-1], value


def describe_misfit(
    node: ir.Node, version: Version, types_of: TypesOf, previous: Version | None = None
) -> str | None:
    """Describe why `node` as it stands is not a node of `version`; ``None`` if it is one.

    `types_of(value)` returns the types that a value may have, empty if nothing is known. With `previous`,
    the version that the node comes from, an unknown type is a misfit, too, if `version` allows fewer types.
    """
    return form_misfit(node, version) or type_misfit(node, version, types_of, previous)


def form_misfit(node: ir.Node, version: Version) -> str | None:
    """Describe why attributes, or number of inputs or outputs, do not fit `version`; ``None`` if they do."""
    for name in node.attributes:
        if name not in version.attributes:
            return f"{version} has no attribute {name!r}"
    inputs = _presence(node.inputs, version.input_range[0])
    outputs = _presence(node.outputs, version.output_range[0])
    attributes = tuple((name, int(attribute.type)) for name, attribute in node.attributes.items())
    return misfit_of(NodeForm(inputs, outputs, attributes), version) or None


def _presence(values: Sequence[ir.Value | None], least: int) -> tuple[bool, ...]:
    """Return which values are present, without omitted ones at the end beyond the least number."""
    present = [value is not None for value in trim_omitted(values)]
    return (*present, *[False] * (min(len(values), least) - len(present)))


def type_misfit(
    node: ir.Node, version: Version, types_of: TypesOf, previous: Version | None = None
) -> str | None:
    """Describe the misfit of element types; see `describe_misfit`."""
    variables: dict[str, tuple[Parameter, frozenset[str]]] = {}
    unknown: list[tuple[Parameter, ir.Value]] = []
    older = (previous.inputs, previous.outputs) if previous else ((), ())
    for values, formals, before in (
        (trim_omitted(node.inputs), version.inputs, older[0]),
        (trim_omitted(node.outputs), version.outputs, older[1]),
    ):
        narrowed = {
            formal.name for formal, old in zip(formals, before, strict=False) if old.types - formal.types
        }
        for formal, value in bind_parameters(formals, values):
            if value is None:
                continue
            types = types_of(value)
            if types - formal.types:
                return f"{version} does not take {sorted(types - formal.types)[0]} for {formal.name!r}"
            if not types:
                unknown += [(formal, value)] * (formal.name in narrowed)
            elif formal.is_homogeneous:
                first, bound = variables.setdefault(formal.type_str, (formal, types))
                if bound != types:
                    return f"{version} requires {formal.name!r} to have the same type as {first.name!r}"
    for formal, value in unknown:
        if formal.type_str not in variables or not formal.is_homogeneous:
            return f"the type of {value.name!r} is not known, and {version} takes fewer for {formal.name!r}"
    return None
