"""Lookup of targets by name, parsing of their TOML files, and the faults of these.

A fault is a departure from the format, or keys that contradict each other.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import msgspec.toml
import onnx_ir as ir
from msgspec import inspect

from rnnlower.errors import OptionError
from rnnlower.graph.versions import history
from rnnlower.recurrent.operators import ATTRIBUTE_TYPES
from rnnlower.targets.format import Claim, TargetFile
from rnnlower.targets.target import Target
from rnnlower.targets.vocabulary import standard_operators

_FOLDER = pathlib.Path(__file__).parent / "data"
_MAX_LISTED = 24
_PLAIN: Mapping[type[inspect.Type], tuple[Any, str]] = {
    inspect.BoolType: (bool, "true or false"),
    inspect.IntType: (int, "an integer"),
    inspect.FloatType: ((int, float), "a number"),
    inspect.StrType: (str, "a string"),
    inspect.VarTupleType: (list, "a list"),
    inspect.DictType: (dict, "a table"),
    inspect.StructType: (dict, "a table"),
}
_PYTHON_TYPES: Mapping[ir.AttributeType, Any] = {
    ir.AttributeType.INT: int,
    ir.AttributeType.FLOAT: (int, float),
    ir.AttributeType.STRING: str,
    ir.AttributeType.INTS: list,
    ir.AttributeType.FLOATS: list,
    ir.AttributeType.STRINGS: list,
}


def target_names() -> list[str]:
    """Return the names of the built-in targets."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


_DEFAULT = "onnxruntime"
"""The target whose forms are emitted if none is asked for: it runs every result, to verify it."""


def find_target(name: str | os.PathLike[str] = _DEFAULT) -> Target:
    """Return the target of this name, or the one that the TOML file at this path describes.

    Raises:
        OptionError: There is no such target, or the file does not describe one.
    """
    if not isinstance(name, str | os.PathLike):
        raise OptionError(f"the target is {name!r}; it must be a name, or the path of a .toml file")
    return _built_in(str(name)) if str(name) in target_names() else _read_file(pathlib.Path(name), name)


_REMEDY = "`rnnlower targets --new FILE.toml` writes a start with all keys, --schema is for editors"
_ALIKE = 0.7
"""The least similarity of a misspelt target to the one that was meant; TensorFlow and TensorRT have less."""


@functools.cache
def _built_in(name: str) -> Target:
    """Return a built-in target, cached because every lowering uses it."""
    return _parse(name, _drop_newer_operators(read_toml(_FOLDER / f"{name}.toml")))


def _drop_newer_operators(data: dict[str, Any]) -> dict[str, Any]:
    """Remove operators that are newer than the installed onnx from a built-in file."""

    def known(op_types: Sequence[str]) -> list[str]:
        return [name for name in op_types if "." in name or name in standard_operators()]

    ops, limits = data["ops"], data.get("limits", [])
    ops |= {"allowed": known(ops["allowed"])} if "allowed" in ops else {}
    limits = [limit | {"ops": known(limit["ops"])} for limit in limits if known(limit["ops"])]
    return data | {"limits": limits}


def _read_file(path: pathlib.Path, name: str | os.PathLike[str]) -> Target:
    if path.suffix == ".toml" and not path.is_file():
        remedy = f"`rnnlower targets --new {path}` writes a start"
        raise OptionError(f"target file {path} does not exist", remedy=remedy)
    if path.suffix != ".toml" and path.is_file():
        raise OptionError(f"target file {path} does not end in .toml")
    if path.suffix != ".toml":
        names = target_names()
        listed = f"; it must be one of {', '.join(names)}, or the path of a .toml file that describes one"
        raise OptionError(
            f"there is no target {str(name)!r}" + (_did_you_mean(str(name), names, _ALIKE) or listed)
        )
    try:
        return parse_target(path.stem, path.read_text(encoding="utf-8"), str(name))
    except ValueError as error:
        raise OptionError(f"target file {path}: {error}", remedy=_REMEDY) from error


def read_toml(path: pathlib.Path) -> dict[str, Any]:
    """Return the data of a target's file.

    Raises:
        OptionError: It is not TOML.
    """
    try:
        data: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
    except ValueError as error:
        raise OptionError(f"target file {path}: {error}") from error
    return data


def parse_target(name: str, text: str, path: str = "") -> Target:
    """Parse the text of a target file, which is at a path unless it is built in or not written yet.

    Raises:
        ValueError: It is not TOML or does not describe a target.
    """
    return _parse(name, msgspec.toml.decode(text), path)


def fill_in_sources(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a file with the file's source in every claim that states none."""
    source = data.get("source")

    def stated(claim: Any) -> Any:
        if not source or not isinstance(claim, dict) or "source" in claim or claim.get("guess"):
            return claim
        return claim | {"source": source}

    return {
        key: [stated(claim) for claim in value] if isinstance(value, list) else stated(value)
        for key, value in data.items()
    }


def _parse(name: str, data: Mapping[str, Any], path: str = "") -> Target:
    data = fill_in_sources(data)
    _raise_first(_faults(data, _expected_file(), ""))
    target = msgspec.convert({"title": name, **data, "name": name, "path": path}, Target)
    _raise_first(_contradictions(target))
    return target


def _raise_first(faults: Iterator[str]) -> None:
    for fault in faults:
        raise ValueError(fault)


def _did_you_mean(given: str, known: Collection[str], alike: float = 0.6) -> str:
    """Return the question whether the nearest known word was meant; empty if none is similar enough."""
    near = difflib.get_close_matches(given, known, n=1, cutoff=alike)
    return f"; did you mean {near[0]!r}?" if near else ""


@functools.cache
def _expected_file() -> inspect.Type:
    return inspect.type_info(TargetFile)


def _faults(value: Any, expected: inspect.Type, where: str) -> Iterator[str]:
    if isinstance(expected, inspect.Metadata):
        yield from _faults(value, expected.type, where)
        known = (expected.extra or {}).get("known")
        if known and value not in known and not ("domains" in (expected.extra or {}) and "." in value):
            yield f"{where} names {value!r}, which is unknown" + _suggestion(value, known)
        return
    if isinstance(expected, inspect.UnionType):
        (expected,) = (each for each in expected.types if not isinstance(each, inspect.NoneType))
        yield from _faults(value, expected, where)
        return
    plain, named = _PLAIN.get(type(expected), (object, ""))
    if not _has_type(value, plain):
        yield f"{where} is {value!r}; it must be {named}"
    elif isinstance(expected, inspect.FloatType) and not 0 <= value < math.inf:
        yield f"{where} is {value}; it must be a finite number of at least 0"
    elif isinstance(expected, inspect.IntType) and expected.ge is not None and value < expected.ge:
        yield f"{where} is {value}; it must be at least {expected.ge}"
    elif isinstance(expected, inspect.VarTupleType):
        if expected.min_length is not None and len(value) != expected.min_length:
            yield f"{where} is {value!r}; it must have {expected.min_length} entries"
        tables = isinstance(expected.item_type, inspect.StructType)
        for index, item in enumerate(value):
            yield from _faults(item, expected.item_type, f"{where}[{index}]" if tables else where)
    elif isinstance(expected, inspect.DictType):
        for key, item in value.items():
            yield from _faults(key, expected.key_type, where)
            yield from _faults(item, expected.value_type, f"{where}.{key}")
    elif isinstance(expected, inspect.StructType):
        yield from _table_faults(value, expected, where)


def _table_faults(table: Mapping[str, Any], expected: inspect.StructType, where: str) -> Iterator[str]:
    known = {field.name: field for field in expected.fields}
    for key, value in table.items():
        if key in known:
            yield from _faults(value, known[key].type, f"{where}.{key}" if where else key)
        elif where:
            yield f"{where} has an unknown key {key!r}" + _suggestion(key, known)
        else:
            named = ", for a target is named by its file" if key == "name" else ""
            yield f"unknown key {key!r} at the top{named}" + _suggestion(key, known)
    missing = [name for name, field in known.items() if field.required and name not in table]
    if missing:
        yield f"{f'{where} has no' if where else 'no table'} {', '.join(missing)}"
    is_claim = issubclass(expected.cls, Claim)
    if is_claim and not table.get("guess") and not str(table.get("source", "")).strip():
        words = 'source = "the documentation or code that states it", or guess = true'
        yield f"{where} has no source; it must have {words}"


def _has_type(value: Any, plain: Any) -> bool:
    """Return whether a value has a type; in TOML, a boolean is not a number."""
    return isinstance(value, plain) and (plain is bool or plain is object or not isinstance(value, bool))


def _suggestion(given: Any, known: Collection[str]) -> str:
    listed = f"; known are {', '.join(known)}" if len(known) <= _MAX_LISTED else ""
    return _did_you_mean(str(given), known) or listed


def _contradictions(target: Target) -> Iterator[str]:
    """Yield the faults that involve several keys."""
    first, last = target.opset.range
    if first > last:
        yield f"opset.range is [{first}, {last}]; it must be [first, last]"
    if (target.ops.allowed is None) == (target.ops.absent is None):
        yield "ops must have either allowed or absent"
    corrections = [("overwrites_outputs", "Cast"), ("copied_outputs", "Cast"), ("inexact_behind_sum", "Max")]
    corrections += [("loses_nan", "ReduceMax")] if "Softmax" in target.ops.loses_nan else []
    corrections += [("loses_nan", "IsNaN")] if {*target.ops.loses_nan} - {"Softmax"} else []
    for key, op_type in corrections:
        if getattr(target.ops, key) and op_type not in target.op_types:
            yield f"ops.{key} takes a {op_type}, which the target does not have"
    is_narrow = target.arithmetic is not None and target.arithmetic.accumulates == "float16"
    if is_narrow and ("float32" not in target.dtypes.allowed or "Cast" not in target.op_types):
        yield "arithmetic.accumulates is float16, and there is no float32 or no Cast"
    for index, limit in enumerate(target.limits):
        where = f"limits[{index}]"
        types = {
            name: ir.AttributeType(attribute.type)
            for op_type in limit.ops
            for version in history(op_type)
            for name, attribute in version.attributes.items()
        }
        for key, names in (("written", limit.written), ("spelled", limit.spelled)):
            for name in names:
                if name not in types:
                    yield f"{where}.{key} names {name!r}, which is unknown" + _suggestion(name, types)
        yield from _attribute_faults(limit.attributes, types, f"{where}.attributes")
    for index, rule in enumerate(target.recurrent):
        yield from _attribute_faults(rule.attributes, ATTRIBUTE_TYPES, f"recurrent[{index}].attributes")


def _attribute_faults(
    attributes: Mapping[str, Collection[Any]], types: Mapping[str, ir.AttributeType], where: str
) -> Iterator[str]:
    for name, values in attributes.items():
        if name not in types:
            yield f"{where} names {name!r}, which is unknown" + _suggestion(name, types)
            continue
        for value in values:
            if not _has_type(value, _PYTHON_TYPES.get(types[name], object)):
                yield f"{where}.{name} has {value!r}; the attribute is of type {types[name].name}"
