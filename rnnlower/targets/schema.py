"""The JSON Schema of target files for editors, and a file to begin with, from the format's description."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping
from typing import Any

from rnnlower.targets import target as description
from rnnlower.targets.reading import LISTS, PLAIN, TABLES
from rnnlower.targets.target import (
    OPTIONAL,
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

_TYPES = {"str": "string", "bool": "boolean", "int": "integer"}
_ATTRIBUTES = {"type": "object", "additionalProperties": {"type": "array"}}
_PRICES = {"type": "object", "additionalProperties": {"type": "number"}}
_COMMON = {
    "source": "The documentation or code that states it, with its version.",
    "guess": "Whether the claim is a guess, without a source.",
}
_GUESS = (
    'guess = true                  # or source = "the documentation or code that states it, with its version"'
)


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
        "required": [name for name in _required(Target) if name in TABLES],
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
    return {
        "type": "object",
        "properties": properties,
        "required": _required(kind),
        "anyOf": [
            {"required": ["source"]},
            {"required": ["guess"], "properties": {"guess": {"const": True}}},
        ],
        "additionalProperties": False,
    }


def start() -> str:
    """Return a target file to begin with: the format's description, with what is optional as comments."""
    lines, kept = [], {"title"}
    description_of_file = (description.__doc__ or "").partition("::\n")[2].partition("\nShape inputs")[0]
    for line in textwrap.dedent(description_of_file).strip().splitlines():
        if header := re.match(r"\[+(\w+)\]", line):
            is_due = header[1] in TABLES and header[1] not in OPTIONAL
            kept = {header[1], "allowed", *_required(TABLES[header[1]])} if is_due else set()
        key = re.match(r"\[*(\w+)", line)
        if kept and line == 'source = "..."':
            lines.append(_GUESS)
        else:
            lines.append(f"# {line}" if key and key[1] not in kept else line.strip())
    return "\n".join(lines) + "\n"


def _required(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if _is_due(field)]


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
