"""Whether a node has the inputs, outputs and attributes that some version of its operator asks for.

Any version will do: exporters stamp an older opset than they write, and their models run. A node that fits
none is refused here, in one place, so that nothing behind has to ask whether a required input is there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import onnx

__all__ = ["misfit_of_every_version"]


@dataclass(frozen=True)
class _Signature:
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    required_inputs: tuple[tuple[int, str], ...]
    required_attributes: tuple[str, ...]
    attribute_types: dict[str, int]

    def misfit(self, node: onnx.NodeProto) -> str:
        """What the node lacks or has too much of; empty if it fits."""
        for position, name in self.required_inputs:
            if position >= len(node.input) or not node.input[position]:
                return f"input {name} is missing; it is required"
        for what, values, (least, most) in (
            ("input", node.input, self.inputs),
            ("output", node.output, self.outputs),
        ):
            if not least <= len(values) <= most:
                wanted = f"at least {least}" if len(values) < least else f"at most {most}"
                return f"has {len(values)} {what}s, but needs {wanted}"
        given = {attribute.name: attribute for attribute in node.attribute}
        for name in self.required_attributes:
            if name not in given:
                return f"attribute {name!r} is missing; it is required"
        for name, attribute in given.items():
            wanted_type = self.attribute_types.get(name, attribute.type)
            if attribute.type not in (wanted_type, onnx.AttributeProto.UNDEFINED):
                kinds = onnx.AttributeProto.AttributeType
                return (
                    f"attribute {name!r} has the type {kinds.Name(attribute.type)}; "
                    f"it must be {kinds.Name(wanted_type)}"
                )
        if node.op_type == "Constant" and len(node.attribute) != 1:
            return f"has {len(node.attribute)} attributes, but needs 1 that holds its value"
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
    """Why no version of the operator takes the node, in the words of the newest; empty if one does.

    Nodes of other domains, and operators that onnx does not know, are left to others.
    """
    if node.domain not in ("", "ai.onnx"):
        return ""
    signatures = _signatures().get(node.op_type, ())
    misfits = [signature.misfit(node) for signature in signatures]
    return misfits[0] if misfits and all(misfits) else ""
