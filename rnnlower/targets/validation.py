"""Validation of target files: the keywords that they may use, and the consistency of their values."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import onnx
import onnx_ir as ir

from rnnlower.lowering.forms import BODY_FORMS, STRAIGHT_FORMS
from rnnlower.lowering.pricing import KINDS, names_of_prices
from rnnlower.lowering.replacing import Gates
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.recurrent.operators import (
    ATTRIBUTE_TYPES,
    DIRECTIONS,
    INPUT_NAMES,
    OUTPUT_NAMES,
    SIGNATURES,
    SPEC_PARAMETERS,
)

if TYPE_CHECKING:
    from rnnlower.targets.target import Target

CONTROL_FLOW = ("If", "Loop", "Scan")
_MOST_LISTED = 24
_SIZES = ("batch", "time")
_RECURRENT = tuple(op_type for _, op_type in SIGNATURES)
_OPTIONAL_INPUTS = INPUT_NAMES[3:]
_DTYPES = (
    *("bool", "string", "float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
    *("int2", "int4", "int8", "int16", "int32", "int64", "uint2", "uint4", "uint8", "uint16", "uint32"),
    *("uint64", "float4e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    "float8_e8m0fnu",
)
_JUDGED = (
    *(*INPUT_NAMES, *OUTPUT_NAMES, *ATTRIBUTE_TYPES, *DIRECTIONS, *_SIZES),
    *("type", "empty", "inputs", "nested", "semantics", "repeated", "input_size"),
)
ADAPTABLE: Mapping[str, str] = {
    "B": "B written out as zeros",
    "initial_h": "initial_h written out as zeros",
    "initial_c": "initial_c written out as zeros",
    "sequence_lens": "full sequence_lens left out",
    "hidden_size": "hidden_size written",
    "layout": "X, states and outputs transposed",
    "direction": "direction = forward left out",
    "bidirectional": "one node for each direction",
    "reverse": "time turned around a forward node",
    "inputs": "no empty inputs at the end",
    "activations": "default activations left out",
    "Y": "Y named",
    "Y_h": "Y_h named",
    "Y_c": "Y_c named",
}
"""The keywords of a rule that ops around the operator can correct, with the correction."""
_PLAIN: Mapping[ir.AttributeType, type | tuple[type, ...]] = {
    ir.AttributeType.INT: int,
    ir.AttributeType.FLOAT: (int, float),
    ir.AttributeType.STRING: str,
    ir.AttributeType.INTS: list,
    ir.AttributeType.FLOATS: list,
    ir.AttributeType.STRINGS: list,
}


def known_word(given: Any, known: Collection[str], problem: str) -> None:
    """Refuse a word that is not one of the known ones, as `problem`, with the nearest known word.

    Raises:
        ValueError: It is not one of them.
    """
    if given in known:
        return
    listed = f"; known are {', '.join(known)}" if len(known) <= _MOST_LISTED else ""
    raise ValueError(problem + (did_you_mean(given, known) or listed))


def did_you_mean(given: Any, known: Collection[str], alike: float = 0.6) -> str:
    """Return the question whether the nearest known word was meant; empty if none has that much in common."""
    near = difflib.get_close_matches(str(given), known, n=1, cutoff=alike)
    return f"; did you mean {near[0]!r}?" if near else ""


def validate(target: Target) -> None:
    """Check properties of a file's values that their types do not express.

    Raises:
        ValueError: A word is unknown, a number out of range, or two keys contradict each other.
    """
    first_last = target.opset.range
    if len(first_last) != 2 or not 1 <= first_last[0] <= first_last[1]:
        raise ValueError(f"opset.range is {list(first_last)}; it must be [first, last]")
    if (target.ops.allowed is None) == (target.ops.absent is None):
        raise ValueError("ops must have either allowed or absent")
    for given, known, where in words(target):
        for word in given:
            known_word(word, known, f"{where} names {word!r}, which is unknown")
    for where, attributes, types in _attributes(target):
        for name, values in attributes.items():
            known_word(name, tuple(types), f"{where} has an unknown attribute {name!r}")
            _check_values(values, types[name], f"{where}.{name}")
    mends = [("overwrites_outputs", "Cast"), ("copied_outputs", "Cast"), ("inexact_behind_sum", "Max")]
    mends += [("loses_nan", "ReduceMax")] if "Softmax" in target.ops.loses_nan else []
    mends += [("loses_nan", "IsNaN")] if {*target.ops.loses_nan} - {"Softmax"} else []
    for key, mend in mends:
        if getattr(target.ops, key) and mend not in target.op_types:
            raise ValueError(f"ops.{key} takes a {mend}, which the target does not have")
    is_narrow = target.arithmetic is not None and target.arithmetic.accumulates == "float16"
    if is_narrow and ("float32" not in target.dtypes.allowed or "Cast" not in target.op_types):
        raise ValueError("arithmetic.accumulates is float16, and there is no float32 or no Cast")
    if target.costs is not None:
        _check_costs(target.costs.microseconds, names_of_prices(native=False), "costs.microseconds")
        for op_type, costs in target.costs.native.items():
            where = f"costs.native.{op_type}"
            if not isinstance(costs, dict):
                raise ValueError(f"{where} is {costs!r}; it must be a table")
            _check_costs(costs, names_of_prices(native=True), where)
    for where, number, least in _numbers(target):
        if number < least:
            raise ValueError(f"{where} is {number}; it must be at least {least}")


def _check_costs(costs: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for name, cost in costs.items():
        known_word(name, known, f"{where} has an unknown key {name!r}")
        if isinstance(cost, bool) or not isinstance(cost, int | float):
            raise ValueError(f"{where}.{name} is {cost!r}; it must be a number")


def words(target: Target) -> Iterator[tuple[Iterable[str], Collection[str], str]]:
    """Return words, the known words at that place, and the place."""
    yield target.control_flow.ops, CONTROL_FLOW, "control_flow.ops"
    for name in ("dynamic", "captured"):
        yield [getattr(target.control_flow, name)], ("Loop", "Scan"), f"control_flow.{name}"
    yield target.dtypes.allowed, _DTYPES, "dtypes.allowed"
    for name in ("allowed", "absent"):
        named = getattr(target.ops, name) or ()
        yield (op_type for op_type in named if "." not in op_type), _standard_ops(), f"ops.{name}"
    for name in ("copied_outputs", "loses_nan", "inexact_behind_sum"):
        yield getattr(target.ops, name), _standard_ops(), f"ops.{name}"
    for index, limit in enumerate(target.limits):
        where = f"limits[{index}]"
        yield limit.ops, _standard_ops(), f"{where}.ops"
        yield limit.dtypes or (), _DTYPES, f"{where}.dtypes"
        yield limit.alone_behind, _standard_ops(), f"{where}.alone_behind"
        own = tuple(name for op_type in limit.ops for name in _attributes_of_ops().get(op_type, {}))
        yield limit.written, own, f"{where}.written"
    if target.arithmetic is not None:
        yield [target.arithmetic.gates], get_args(Gates), "arithmetic.gates"
        yield [target.arithmetic.accumulates], ("", "float16", "float32"), "arithmetic.accumulates"
    if target.costs is not None:
        yield target.costs.fused, _standard_ops(), "costs.fused"
        yield target.costs.forms, [form.name for form in (*STRAIGHT_FORMS, *BODY_FORMS)], "costs.forms"
        yield target.costs.native, KINDS, "costs.native"
        yield target.costs.strategies, tuple(STRATEGIES), "costs.strategies"
    for index, caution in enumerate(target.cautions):
        where = f"cautions[{index}]"
        yield caution.ops, _RECURRENT, f"{where}.ops"
        yield caution.open, _SIZES, f"{where}.open"
    for index, rule in enumerate(target.recurrent):
        where = f"recurrent[{index}]"
        yield rule.ops, _RECURRENT, f"{where}.ops"
        yield rule.dtypes or (), _DTYPES, f"{where}.dtypes"
        yield rule.directions or (), tuple(DIRECTIONS), f"{where}.directions"
        yield rule.inputs or (), _OPTIONAL_INPUTS, f"{where}.inputs"
        yield rule.activations or (), ("default", *SPEC_PARAMETERS), f"{where}.activations"
        yield rule.constant, INPUT_NAMES, f"{where}.constant"
        yield rule.fixed, INPUT_NAMES, f"{where}.fixed"
        yield rule.needs, (*_OPTIONAL_INPUTS, *OUTPUT_NAMES, *ATTRIBUTE_TYPES), f"{where}.needs"
        yield rule.not_empty, (*_OPTIONAL_INPUTS, *OUTPUT_NAMES), f"{where}.not_empty"
        yield rule.not_behind, _standard_ops(), f"{where}.not_behind"
        for key in ("static", "static_nested", "static_with_states"):
            yield getattr(rule, key), _SIZES, f"{where}.{key}"
        yield rule.adapt, ADAPTABLE, f"{where}.adapt"
        yield rule.semantics or (), ("ort", "spec"), f"{where}.semantics"
        yield rule.wrong, _JUDGED, f"{where}.wrong"
        yield [rule.otherwise], ("refused", "unknown"), f"{where}.otherwise"
        yield [rule.profile] if rule.profile else [], ("sonnx",), f"{where}.profile"


def _attributes(
    target: Target,
) -> Iterator[tuple[str, Mapping[str, Sequence[Any]], Mapping[str, ir.AttributeType]]]:
    """Yield the places with attributes, the attributes there, and those of the operators."""
    for index, limit in enumerate(target.limits):
        types: dict[str, ir.AttributeType] = {}
        for op_type in limit.ops:
            types |= _attributes_of_ops().get(op_type, {})
        yield f"limits[{index}].attributes", limit.attributes, types
    for index, rule in enumerate(target.recurrent):
        yield f"recurrent[{index}].attributes", rule.attributes, ATTRIBUTE_TYPES


def _numbers(target: Target) -> Iterator[tuple[str, int, int]]:
    """Yield numbers with their places and their minimum."""
    for index, limit in enumerate(target.limits):
        where = f"limits[{index}]"
        yield from ((f"{where}.constant", number, 0) for number in limit.constant)
        yield from ((f"{where}.vector", number, 0) for number in limit.vector)
        yield from ((f"{where}.not_negative", number, 0) for number in limit.not_negative)
        yield from ((f"{where}.versions", number, 1) for number in limit.versions or ())
        yield f"{where}.max_rank", 0 if limit.max_rank is None else limit.max_rank, 0
        # A tree of nodes with one output each would never end.
        yield f"{where}.max_outputs", 2 if limit.max_outputs is None else limit.max_outputs, 2
    for index, rule in enumerate(target.recurrent):
        where = f"recurrent[{index}]"
        yield f"{where}.most_inputs", 3 if rule.most_inputs is None else rule.most_inputs, 3
        yield f"{where}.min_hidden_size", rule.min_hidden_size or 1, 1
        yield f"{where}.max_batch", 1 if rule.max_batch is None else rule.max_batch, 1
        yield f"{where}.min_input_size", rule.min_input_size or 1, 1


def _check_values(values: Any, kind: ir.AttributeType, where: str) -> None:
    if not isinstance(values, list):
        raise ValueError(f"{where} is {values!r}; it must be a list of the values that are taken")
    expected = _PLAIN.get(kind, object)
    for value in values:
        if not isinstance(value, expected) or isinstance(value, bool):
            raise ValueError(f"{where} has {value!r}; the attribute is of type {kind.name}")


@functools.cache
def _standard_ops() -> tuple[str, ...]:
    return tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}))


@functools.cache
def _attributes_of_ops() -> dict[str, dict[str, ir.AttributeType]]:
    """Return the attributes of each operator, of all its versions."""
    found: dict[str, dict[str, ir.AttributeType]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, {}).update(
                (name, ir.AttributeType[str(attribute.type).rpartition(".")[2]])
                for name, attribute in schema.attributes.items()
            )
    return found
