"""The JSON Schema of target files: it accepts and refuses the same files as the tool."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli_helpers import rnnlower
from support.target_files import MINIMAL, write

from rnnlower.errors import OptionError
from rnnlower.targets import find_target
from rnnlower.targets.schema import schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).parents[2] / "rnnlower" / "targets" / "data"
_KINDS = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


def faults(value: Any, rules: dict[str, Any], where: str = "") -> list[str]:
    """Return what breaks the schema; only the keywords used here are supported."""
    kind = _KINDS[rules["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return [f"{where} is no {rules['type']}"]
    if "enum" in rules and value not in rules["enum"]:
        return [f"{where} is {value!r}"]
    if kind is list:
        items = rules.get("items")
        return [f for item in value for f in (faults(item, items, where) if items else [])]
    if kind is not dict:
        return []
    found = [f"{where} lacks {name}" for name in rules.get("required", ()) if name not in value]
    choices = rules.get("oneOf", [{"required": []}])
    found += [] if sum({*each["required"]} <= {*value} for each in choices) == 1 else [f"{where}: oneOf"]
    for name, inner in value.items():
        inner_rules = rules.get("properties", {}).get(name) or rules["additionalProperties"]
        found += faults(inner, inner_rules, f"{where}.{name}") if inner_rules else [f"{where} has {name}"]
    return found


@pytest.mark.parametrize("path", sorted(DATA.glob("*.toml")), ids=lambda path: path.stem)
def test_the_targets_fit(path: Path) -> None:
    assert faults(tomllib.loads(path.read_text(encoding="utf-8")), schema()) == []


@pytest.mark.parametrize(
    ("tables", "more"),
    [
        ({"opset": "ranges = [7, 17]"}, ""),
        ({"opset": 'range = ["7"]'}, ""),
        ({"shapes": "static = 1"}, ""),
        ({"control_flow": 'ops = ["While"]'}, ""),
        ({"dtypes": 'allowed = ["float23"]'}, ""),
        ({"ops": 'allowed = ["Add"]\nabsent = ["Mul"]'}, ""),
        ({}, '[[recurrent]]\nops = ["LSTM"]\ndirections = ["forwards"]\nsource = "me"\n'),
        ({}, '[[recurrent]]\nops = ["LSTM"]\n'),
        ({}, '[speed]\nsource = "me"\n'),
    ],
)
def test_what_the_tool_refuses_is_found(tmp_path: Path, tables: dict[str, str], more: str) -> None:
    path = write(tmp_path, MINIMAL | tables, more)
    with pytest.raises(OptionError):
        find_target(path)
    assert faults(tomllib.loads(path.read_text()), schema())


def test_keys_have_words_for_the_reader() -> None:
    tables = schema()["properties"]
    limits, recurrent = (tables[name]["items"]["properties"] for name in ("limits", "recurrent"))
    assert "rnnlower engines" in tables["engine"]["description"]
    assert limits["constant"]["description"] == "inputs that must be constants"
    assert "bidirectional" in recurrent["directions"]["items"]["enum"]
    assert recurrent["nested"]["description"]


def test_the_command_prints_it() -> None:
    assert rnnlower("targets", "--schema").json == schema()
