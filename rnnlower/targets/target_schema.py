"""The JSON Schema of target files for editors, and a file to begin with, both from the format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from rnnlower.targets.format import TargetFile

_COMMENT = 31
"""The column of comments."""
_MAX_LISTED = 8
_SOURCE = '# source = "..."'


def schema() -> dict[str, Any]:
    """Return the schema as JSON data (draft 2020-12)."""
    tables = msgspec.json.schema(TargetFile)["$defs"]
    for table in tables.values():
        for key in table["properties"].values():
            key.pop("default", None)
            # A key that may be left out: TOML has no null.
            key |= key.pop("anyOf", [{}])[0]
    tables["Ops"]["oneOf"] = [{"required": ["allowed"]}, {"required": ["absent"]}]
    file = tables.pop("TargetFile")
    guess = {"required": ["guess"], "properties": {"guess": {"const": True}}}
    stated = {"anyOf": [{"required": ["source"]}, guess]}
    claims = {
        name: {"items": stated} if "items" in key else stated
        for name, key in file["properties"].items()
        if "$ref" in key or "$ref" in key.get("items", {})
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **file,
        "anyOf": [{"required": ["source"]}, {"properties": claims}],
        "title": "A target of rnnlower: what a runtime can run",
        "$defs": tables,
    }


def start() -> str:
    """Return a target file to begin with: all keys with examples, the optional ones as comments."""
    info = inspect.type_info(TargetFile)
    assert isinstance(info, inspect.StructType)
    return "\n".join(line for field in info.fields for line in _lines(field)) + "\n"


def _lines(field: inspect.Field) -> Iterator[str]:
    table = _innermost(field.type)
    if not isinstance(table, inspect.StructType):
        yield _row(field, due=field.name == "title")
        return
    head = f"[{field.name}]" if not isinstance(field.type, inspect.VarTupleType) else f"[[{field.name}]]"
    mark = "" if field.required else "# "
    yield from ("", f"{mark}{head:{_COMMENT - len(mark)}} # {(table.cls.__doc__ or '').partition('.')[0]}")
    for key in table.fields:
        if key.name not in ("source", "guess"):
            yield _row(key, due=field.required and (key.required or key.name == "allowed"))
    said = "the documentation or code that states it, with its version"
    if field.required:
        yield f"{'guess = true':{_COMMENT}} # or source = {toml_value(said)}"
    else:
        yield f"{_SOURCE:{_COMMENT}} # {said}; or guess = true"


def _row(field: inspect.Field, due: bool) -> str:
    assert isinstance(field.type, inspect.Metadata)
    assert field.type.extra_json_schema is not None
    told = field.type.extra_json_schema
    inner = _innermost(field.type, words=True)
    known = inner.extra["known"] if isinstance(inner, inspect.Metadata) and inner.extra else ()
    is_listed = len(known) <= _MAX_LISTED and any(word not in told["description"] for word in known)
    listed = f" ({', '.join(known)})" if is_listed else ""
    row = f"{'' if due else '# '}{field.name} = {toml_value(told['examples'][0])}"
    return f"{row:{_COMMENT}} # {told['description']}{listed}"


def _innermost(info: inspect.Type, words: bool = False) -> inspect.Type:
    """Return the type of what an optional value or list holds; with `words`, including its known words."""
    if isinstance(info, inspect.Metadata):
        return info if words and info.extra else _innermost(info.type, words)
    if isinstance(info, inspect.UnionType):
        return _innermost(info.types[0], words)
    return _innermost(info.item_type, words) if isinstance(info, inspect.VarTupleType) else info


def toml_value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name} = {toml_value(what)}" for name, what in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)
