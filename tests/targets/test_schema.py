"""The JSON Schema of target files: it accepts and refuses the same files as the tool."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli_helpers import rnnlower, save
from support.small_models import recurrent_model
from support.target_files import MINIMAL, write

from rnnlower.errors import OptionError
from rnnlower.targets import find_target, target_schema

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).parents[2] / "rnnlower" / "targets" / "data"
schema = functools.cache(target_schema.schema)
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
    if "$ref" in rules:
        rules = schema()["$defs"][rules["$ref"].rpartition("/")[2]]
    if "type" not in rules or isinstance(value, str):
        # The words of a key: those that are listed, or a pattern.
        choices = [faults(value, each, where) for each in rules.get("anyOf", ())]
        if choices:
            return min(choices, key=len)
    if "pattern" in rules:
        return [] if re.search(rules["pattern"], value) else [f"{where} is {value!r}"]
    if "enum" in rules and value not in rules["enum"]:
        return [f"{where} is {value!r}"]
    if "type" not in rules:
        return []
    kind = _KINDS[rules["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return [f"{where} is no {rules['type']}"]
    if "minimum" in rules and value < rules["minimum"]:
        return [f"{where} is {value!r}"]
    if kind is list:
        items = rules.get("items")
        return [f for item in value for f in (faults(item, items, where) if items else [])]
    if kind is not dict:
        return []
    found = [f"{where} lacks {name}" for name in rules.get("required", ()) if name not in value]
    required = rules.get("oneOf", [{"required": []}])
    found += [] if _fits(value, {"anyOf": rules.get("anyOf", [{}])}) else [f"{where}: anyOf"]
    found += [] if sum({*each["required"]} <= {*value} for each in required) == 1 else [f"{where}: oneOf"]
    for name, inner in value.items():
        found += faults(name, rules.get("propertyNames", {}), f"{where}.{name}")
        inner_rules = rules.get("properties", {}).get(name) or rules["additionalProperties"]
        found += faults(inner, inner_rules, f"{where}.{name}") if inner_rules else [f"{where} has {name}"]
    return found


def _fits(value: Any, rules: dict[str, Any]) -> bool:
    """Return whether the alternatives of the schema, which name keys alone, allow a value."""
    if "items" in rules:
        return all(_fits(item, rules["items"]) for item in value)
    if "const" in rules:
        return bool(value == rules["const"])
    own = rules.get("properties", {})
    fits = [name in value for name in rules.get("required", ())]
    fits += [_fits(value[name], own[name]) for name in own if name in value]
    if "anyOf" in rules:
        fits.append(any(_fits(value, each) for each in rules["anyOf"]))
    return all(fits)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.toml")), ids=lambda path: path.stem)
def test_every_built_in_target_fits_the_schema(path: Path) -> None:
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
        ({}, '[[recurrent]]\nops = ["LSTM"]\nguess = false\n'),
        ({}, '[speed]\nsource = "me"\n'),
        ({"ops": 'allowed = ["Matmul"]'}, ""),
        ({}, '[[limits]]\nops = ["Split"]\nmax_outputs = 1\nsource = "me"\n'),
        ({}, '[costs]\nmicroseconds = { node = 1 }\nsource = "me"\n'),
        ({}, '[[recurrent]]\nops = ["LSTM"]\nattributes = { lay = [0] }\nsource = "me"\n'),
    ],
)
def test_the_schema_refuses_what_the_tool_refuses(tmp_path: Path, tables: dict[str, str], more: str) -> None:
    path = write(tmp_path, MINIMAL | tables, more)
    with pytest.raises(OptionError):
        find_target(path)
    assert faults(tomllib.loads(path.read_text()), schema())


def test_a_guess_needs_no_source(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL, '[[recurrent]]\nops = ["LSTM"]\nguess = true\n')
    assert find_target(path).recurrent[0].guess
    assert faults(tomllib.loads(path.read_text()), schema()) == []
    model = save(recurrent_model(inputs={"X": (1, [3, 2, 3])}), tmp_path)
    said = rnnlower("check", model, "--target", path, "-v").stdout
    assert "a guess about own: native LSTM\n" in said


def test_a_source_at_the_top_is_that_of_all_claims_without_one(tmp_path: Path) -> None:
    path = write(
        tmp_path, MINIMAL, '[[recurrent]]\nops = ["LSTM"]\n[[limits]]\nops = ["Pad"]\nguess = true\n'
    )
    path.write_text('source = "the manual"\n' + path.read_text(encoding="utf-8"), encoding="utf-8")
    target = find_target(path)
    assert [claim.source for claim in (target.recurrent[0], target.limits[0])] == ["the manual", ""]
    assert faults(tomllib.loads(path.read_text()), schema()) == []


def test_a_new_file_is_a_target_that_lowers(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    assert f"wrote {path}" in rnnlower("targets", "--new", path).stderr
    target, text = find_target(path), path.read_text()
    assert all(claim.guess for _, claim in target.claims())
    assert (target.limits, target.recurrent, target.costs, target.engine) == ((), (), None, "")
    # Every key of the format is there with its comment.
    tables = schema()["$defs"]
    for name in schema()["properties"]:
        assert re.search(rf"^(# )?(\[+{name}\]|{name} = )", text, re.MULTILINE), name
    for name, rules in tables.items():
        for key in rules["properties"]:
            assert re.search(rf"^(# )?{key} = .* # \w", text, re.MULTILINE), (name, key)
    model = save(recurrent_model(inputs={"X": (1, [3, 2, 3])}), tmp_path)
    rnnlower("lower", model, "-o", tmp_path / "out.onnx", "--target", path, "--strict")
    # With every comment that is a table or a key turned on, it still is one, but for what contradicts itself.
    rows = [row.removeprefix("# ") if re.match(r"# (\[|\w+ = )", row) else row for row in text.splitlines()]
    every = "\n".join(row for row in rows if not row.startswith("absent ="))
    path.write_text(every, encoding="utf-8")
    assert {*tomllib.loads(every)} == {*schema()["properties"]}
    assert find_target(path).recurrent[0].profile == "sonnx"


def test_a_new_target_file_does_not_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("mine")
    assert "exists" in rnnlower("targets", "--new", path, code=2).stderr
    assert path.read_text() == "mine"
    assert ".toml" in rnnlower("targets", "--new", tmp_path / "my.json", code=2).stderr
    assert "leave out one" in rnnlower("targets", "--new", tmp_path / "x.toml", "--schema", code=2).stderr
    assert [*tmp_path.iterdir()] == [path]


def test_keys_have_descriptions() -> None:
    limits, recurrent = (schema()["$defs"][name]["properties"] for name in ("Limit", "RecurrentRule"))
    assert "rnnlower engines" in schema()["properties"]["engine"]["description"]
    assert limits["constant"]["description"] == "inputs that must be constants"
    assert "bidirectional" in recurrent["directions"]["items"]["enum"]
    assert recurrent["nested"]["description"]


def test_the_command_prints_it() -> None:
    assert rnnlower("targets", "--schema").json == schema()
