"""The JSON Schema of target files for editors, built from the tables' fields, keywords and comments."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from rnnlower.targets import target as description
from rnnlower.targets.reading import LISTS, PLAIN, TABLES
from rnnlower.targets.target import (
    Caution,
    Claim,
    ControlFlow,
    Limit,
    Ops,
    OpsetRange,
    RecurrentRule,
    Shapes,
    Target,
    Types,
)
from rnnlower.targets.validation import words

__all__ = ["schema"]

_TYPES = {"str": "string", "bool": "boolean", "int": "integer"}
_ATTRIBUTES = {"type": "object", "additionalProperties": {"type": "array"}}
_PRICES = {"type": "object", "additionalProperties": {"type": "number"}}
_COMMON = {
    "source": "The documentation or code that states it, with its version.",
    "guess": "Whether the claim is a guess, without a source.",
}


def schema() -> dict[str, Any]:
    """Return the schema as JSON data (draft 2020-12)."""
    known, told = _known_words(), _comments()
    properties: dict[str, Any] = {
        name: {"type": _TYPES[kind.__name__], "description": told["", name]} for name, kind in PLAIN.items()
    }
    for name, kind in TABLES.items():
        properties[name] = _table(name, kind, known, told)
    for name, kind in LISTS.items():
        properties[name] = {"type": "array", "items": _table(name, kind, known, told)}
    properties["ops"]["oneOf"] = [{"required": ["allowed"]}, {"required": ["absent"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A target of rnnlower: what a runtime can run",
        "type": "object",
        "properties": properties,
        "required": [
            field.name for field in dataclasses.fields(Target) if field.name in TABLES and _is_due(field)
        ],
        "additionalProperties": False,
    }


def _table(
    name: str, kind: type[Claim], known: Mapping[str, list[str]], told: Mapping[tuple[str, str], str]
) -> dict[str, Any]:
    properties = {}
    for field in dataclasses.fields(kind):
        text = told.get((name, field.name)) or _COMMON.get(field.name, "")
        value = _value(str(field.type), known.get(f"{name}.{field.name}"))
        properties[field.name] = value | ({"description": text} if text else {})
    required = [field.name for field in dataclasses.fields(kind) if _is_due(field)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _is_due(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _value(annotation: str, known: list[str] | None) -> dict[str, Any]:
    """Return the schema of a field of this type."""
    if annotation.startswith("Mapping[str, Mapping"):
        return {"type": "object", "additionalProperties": _PRICES}
    if annotation.startswith("Mapping"):
        return _PRICES if "float" in annotation else _ATTRIBUTES
    inner = re.sub(r"^Sequence\[(\w+)\]", r"\1", annotation)
    item: dict[str, Any] = {"type": _TYPES[inner.split(" ")[0]]}
    if known:
        item["enum"] = known
    return {"type": "array", "items": item} if annotation.startswith("Sequence") else item


def _known_words() -> dict[str, list[str]]:
    """Return the words that a key may hold, including the default domain's operators and the activations."""
    said: dict[str, Any] = {"source": "-"}
    sample = Target(
        "sample",
        "",
        OpsetRange(range=(7, 7), **said),
        ControlFlow(ops=(), **said),
        Shapes(static=False, **said),
        Types(allowed=(), **said),
        Ops(absent=(), **said),
        limits=(Limit(ops=(), **said),),
        recurrent=(RecurrentRule(ops=(), profile="sonnx", **said),),
        cautions=(Caution(ops=(), text="", **said),),
    )
    found = {re.sub(r"\[\d+\]", "", where): list(known) for _, known, where in words(sample)}
    # Operators of other domains are allowed, too, such as com.microsoft.Gelu.
    return {where: known for where, known in found.items() if not where.startswith("ops.")}


def _comments() -> dict[tuple[str, str], str]:
    """Return the format description's comment on each key of each table, or else of the first table."""
    found: dict[tuple[str, str], str] = {}
    table = ""
    for line in (description.__doc__ or "").splitlines():
        if header := re.match(r"    \[+(\w+)\]", line):
            table = header[1]
        elif comment := re.match(r"    (\w+) = .*?(?:\s# (.*))?$", line):
            found.setdefault((table, comment[1]), comment[2] or "")
    return found
