"""Checks of a node's inputs, outputs and attributes against the versions of its operator.

Any version will do: exporters declare an older opset than they write, and their models run. A node that fits
none is refused here, so that later code can rely on required inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import onnx


@dataclass(frozen=True)
class _Form:
    """The properties of a node that matter here; many nodes share one form."""

    op_type: str
    inputs: tuple[bool, ...]
    outputs: int
    attributes: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class _Signature:
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    required_inputs: tuple[tuple[int, str], ...]
    required_attributes: tuple[str, ...]
    attribute_types: dict[str, int]

    def misfit(self, form: _Form) -> str:
        """Describe the misfit between the node and the form; empty if it fits."""
        for position, name in self.required_inputs:
            if position >= len(form.inputs) or not form.inputs[position]:
                return f"input {name} is missing; it is required"
        for what, count, (least, most) in (
            ("input", len(form.inputs), self.inputs),
            ("output", form.outputs, self.outputs),
        ):
            if not least <= count <= most:
                wanted = f"at least {least}" if count < least else f"at most {most}"
                return f"has {count} {what}s, but needs {wanted}"
        given = dict(form.attributes)
        for name in self.required_attributes:
            if name not in given:
                return f"attribute {name!r} is missing; it is required"
        for name, kind in form.attributes:
            wanted_kind = self.attribute_types.get(name, kind)
            if kind not in (wanted_kind, onnx.AttributeProto.UNDEFINED):
                kinds = onnx.AttributeProto.AttributeType
                return f"attribute {name!r} has type {kinds.Name(kind)}; it must be {kinds.Name(wanted_kind)}"
        if form.op_type == "Constant" and len(given) != 1:
            return f"has {len(given)} attributes, but needs 1 that holds its value"
        return ""


@functools.cache
def _signatures() -> dict[str, Sequence[_Signature]]:
    found: dict[str, list[tuple[int, _Signature]]] = {}
    required = onnx.defs.OpSchema.FormalParameterOption.Single
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain:
            continue
        signature = _Signature(
            (schema.min_input, schema.max_input),
            (schema.min_output, schema.max_output),
            tuple((i, each.name) for i, each in enumerate(schema.inputs) if each.option == required),
            tuple(name for name, each in schema.attributes.items() if each.required),
            {name: int(each.type.value) for name, each in schema.attributes.items()},  # type: ignore[attr-defined]
        )
        found.setdefault(schema.name, []).append((schema.since_version, signature))
    return {name: [each for _, each in sorted(pairs, key=_version)] for name, pairs in found.items()}


def _version(pair: tuple[int, _Signature]) -> int:
    return -pair[0]


def misfit_of_every_version(node: onnx.NodeProto) -> str:
    """Describe why no version of the operator takes the node, in terms of the newest; empty if one does.

    Nodes of other domains, and operators that onnx does not know, are not checked.
    """
    if node.domain not in ("", "ai.onnx"):
        return ""
    attributes = tuple((each.name, each.type) for each in node.attribute)
    return _misfit(_Form(node.op_type, tuple(map(bool, node.input)), len(node.output), attributes))


@functools.lru_cache(maxsize=4096)
def _misfit(form: _Form) -> str:
    signatures = _signatures().get(form.op_type, ())
    newest = signatures[0].misfit(form) if signatures else ""
    return newest if all(signature.misfit(form) for signature in signatures[1:]) else ""
