"""Checks of a node's inputs, outputs and attributes against the versions of its operator.

Any version will do: exporters declare an older opset than they write, and their models run. A node that fits
none is refused here, so that later code can rely on required inputs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import onnx

from rnnlower.graph.versions import Version, history


@dataclass(frozen=True)
class _Form:
    """The properties of a node that matter here; many nodes share one form."""

    op_type: str
    inputs: tuple[bool, ...]
    outputs: int
    attributes: tuple[tuple[str, int], ...]


def _misfit_of(version: Version, form: _Form) -> str:
    """Describe the misfit between a node and a version; empty if it fits."""
    for position, formal in enumerate(version.inputs):
        if formal.required and not any(form.inputs[position : position + 1]):
            return f"input {formal.name} is missing; it is required"
    for what, count, (least, most) in (
        ("input", len(form.inputs), version.input_range),
        ("output", form.outputs, version.output_range),
    ):
        if not least <= count <= most:
            wanted = f"at least {least}" if count < least else f"at most {most}"
            return f"has {count} {what}s, but needs {wanted}"
    given = dict(form.attributes)
    for name, attribute in version.attributes.items():
        if attribute.required and name not in given:
            return f"attribute {name!r} is missing; it is required"
    for name, kind in form.attributes:
        wanted_kind = version.attributes[name].type if name in version.attributes else kind
        if kind not in (wanted_kind, onnx.AttributeProto.UNDEFINED):
            kinds = onnx.AttributeProto.AttributeType
            return f"attribute {name!r} has type {kinds.Name(kind)}; it must be {kinds.Name(wanted_kind)}"
    if form.op_type == "Constant" and len(given) != 1:
        return f"has {len(given)} attributes, but needs 1 that holds its value"
    return ""


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
    misfits = [_misfit_of(version, form) for version in reversed(history(form.op_type))]
    return misfits[0] if misfits and all(misfits) else ""
