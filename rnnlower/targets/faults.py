"""The faults of a target file: departures from the format, and keys that contradict each other."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import onnx_ir as ir
from msgspec import inspect

from rnnlower.graph.versions import history
from rnnlower.recurrent.operators import ATTRIBUTE_TYPES
from rnnlower.targets.format import Claim, TargetFile
from rnnlower.targets.target import Target

_MOST_LISTED = 24
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


def did_you_mean(given: str, known: Collection[str], alike: float = 0.6) -> str:
    """Return the question whether the nearest known word was meant; empty if none is similar enough."""
    near = difflib.get_close_matches(given, known, n=1, cutoff=alike)
    return f"; did you mean {near[0]!r}?" if near else ""


@functools.cache
def _expected_file() -> inspect.Type:
    return inspect.type_info(TargetFile)


def format_faults(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the departures of a file's data from the format."""
    return _faults(data, _expected_file(), "")


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
    listed = f"; known are {', '.join(known)}" if len(known) <= _MOST_LISTED else ""
    return did_you_mean(str(given), known) or listed


def contradictions(target: Target) -> Iterator[str]:
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
        for name in limit.written:
            if name not in types:
                yield f"{where}.written names {name!r}, which is unknown" + _suggestion(name, types)
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
