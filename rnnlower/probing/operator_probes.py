"""Probes of a runtime's operators: forms, versions, sizes, types, DynamicQuantizeLSTM, opsets of models."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnnlower.graph.versions import versions
from rnnlower.probing import node_tests
from rnnlower.probing import operator_forms as forms
from rnnlower.probing.asking import Asker, Question, model_question, parse_model, question
from rnnlower.probing.node_tests import OPSETS
from rnnlower.recurrent.operators import DIRECTIONS, OUTPUT_NAMES, QUANTIZED_LSTM, RECURRENT_OPS
from rnnlower.targets.vocabulary import CONTROL_FLOW

_FIRST = 7
_RANDOM = ("Bernoulli",)
"""Operators whose node tests have random outputs."""
_SPLITS = (2, 9, 50, 200)
_LARGE = {"Sigmoid": (40.0, 100.0), "Softplus": (100.0,), "Tanh": (40.0, 100.0)}
"""Large inputs that occur in recurrences."""
_TRIMMING_OPS = ("Clip", "Slice", "Split", "Squeeze", "Unsqueeze")
"""Operators that any lowering may emit, in a form that depends on the opset."""
_Limits = dict[str, dict[str, Any]]
"""The keys of the limit of each operator."""
# Steps, batch, input_size, hidden_size. With several threads, onnxruntime rounds a batch in parts; over many
# steps, two right sums may be rounded to different steps of 8 bits.
_SIZES_OF_LSTM = ((1, 1, 8, 16), (3, 1, 8, 16), (3, 1, 16, 64))


def probe_opset_range(asker: Asker) -> list[int]:
    """Return the first and last accepted opset of the range around opset 13; empty if 13 is refused."""
    known = range(_FIRST, OPSETS[-1] + 1)
    right = [opset for opset in known if asker.is_right(f"opset {opset}", forms.opset_question, opset)]
    around = [opset for opset in right if all(o in right for o in range(min(opset, 13), max(opset, 13)))]
    return [min(around), max(around)] if 13 in right else []


def trim_opsets(opsets: Sequence[int], limits: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the longest range of opsets in which the operators that any lowering emits are correct."""
    right = {
        op_type: limit["versions"]
        for limit in limits
        for op_type in limit["ops"]
        if op_type in _TRIMMING_OPS and "versions" in limit
    }
    first, last = opsets

    def fits(opset: int) -> bool:
        return all(onnx.defs.get_schema(name, opset).since_version in right[name] for name in right)

    runs = [[*run] for fit, run in itertools.groupby(range(first, last + 1), fits) if fit]
    longest = max(runs, key=len, default=[first, last])
    return [longest[0], longest[-1]]


def probe_operators(asker: Asker, last: int) -> list[str]:
    """Return the operators that pass a form or one of ONNX's node tests, up to an opset."""
    formed = {form.op_type for form in forms.FORMS if form.opset <= last and _is_right(asker, form)}
    return [
        name
        for name in tried_operators()
        if (name in formed or _right_case(asker, name, last) or _is_right_between(asker, name))
        and all(
            asker.is_right(f"{name} up to {number:g}", _large_number_question, name, number)
            for number in _LARGE.get(name, ())
        )
        and all(_is_right(asker, form) for form in forms.NEEDED if form.op_type == name)
    ]


def _is_right(asker: Asker, form: forms.OperatorForm) -> bool:
    return asker.is_right(str(form), form.question)


def _is_right_between(asker: Asker, op_type: str) -> bool:
    return any(_is_right(asker, form) for form in forms.BETWEEN if form.op_type == op_type)


def tried_operators() -> list[str]:
    """Return the operators that can be tried."""
    known = {
        op_type
        for op_type, tests in node_tests.node_cases().items()
        if any(any(node_tests.opsets_with_form(case, OPSETS)) for _, case in tests)
    } | {form.op_type for form in forms.FORMS}
    return sorted(known - {*RECURRENT_OPS, *CONTROL_FLOW, *_RANDOM})


@dataclasses.dataclass(frozen=True)
class _NodeTest:
    """A node test at an opset, with its inputs fed, or else constant but for the first."""

    name: str
    case: Any
    opset: int
    constant: bool

    def is_right(self, asker: Asker, time: str = "") -> bool:
        """Return whether the runtime passes the test."""
        key = f"{self.name} at opset {self.opset}{', of constants' if self.constant else ''}{time}"
        return asker.is_right(key, node_tests.case_question, self.case, self.opset, self.constant)

    def is_right_twice(self, asker: Asker) -> bool:
        """Return whether the test passes twice: a kernel that reads foreign memory may be right by chance."""
        return self.is_right(asker) and (asker.engine.slow or self.is_right(asker, ", again"))


def _right_case(asker: Asker, op_type: str, last: int) -> _NodeTest | None:
    """Return the first test that is right, with its inputs fed, or else constant but for the first."""
    opsets = [opset for opset in OPSETS if opset <= last]
    for constant in (False, True):
        for name, case in node_tests.node_cases().get(op_type, ()):
            for opset in itertools.islice(node_tests.opsets_with_form(case, opsets), 1):
                test = _NodeTest(name, case, opset, constant)
                if test.is_right_twice(asker):
                    return test
    return None if asker.engine.slow else _right_older_case(asker, op_type, last)


def _right_older_case(asker: Asker, op_type: str, last: int) -> _NodeTest | None:
    """Return the first test that is right in an older version of the operator, from the newest on."""
    for version in reversed([version for version in _versions(op_type) if version <= last]):
        opset = max(version, _FIRST)
        for name, case in node_tests.node_cases().get(op_type, ()):
            for constant in (False, True):
                test = _NodeTest(name, case, opset, constant)
                if node_tests.can_ask(case, opset) and test.is_right_twice(asker):
                    return test
    return None


def _large_number_question(op_type: str, number: float) -> Question:
    """Ask about an operator at a number for which its textbook formula overflows."""
    # Enough elements for vectorized kernels.
    x = np.linspace(-number, number, 64, dtype=np.float32).reshape(4, 16)
    return question(f"Y = {op_type} (X)", {"X": x}, 13)


def probe_limits(
    asker: Asker, ops: Sequence[str], opsets: Sequence[int], dynamic: bool
) -> list[dict[str, Any]]:
    """Return the limits of single operators, without their sources.

    If sizes may be dynamic, an input that may be computed from them counts as unlimited.
    """
    found: _Limits = collections.defaultdict(dict)
    _probe_forms(asker, ops, opsets, dynamic, found)
    _probe_versions(asker, ops, opsets, found)
    _probe_sizes(asker, ops, found)
    # An operator without a correct version counts as missing.
    return [
        {"ops": [op_type], **limit} for op_type, limit in sorted(found.items()) if limit.get("versions", 1)
    ]


def _probe_forms(
    asker: Asker, ops: Sequence[str], opsets: Sequence[int], dynamic: bool, found: _Limits
) -> None:
    """Add the limits of forms that are not right."""
    for form in forms.FORMS:
        fits = form.op_type in ops and opsets[0] <= form.opset <= opsets[1]
        if not fits or _is_right(asker, form) or _is_right_between(asker, form.op_type):
            continue
        key, what = form.limit
        if key == "constant" and dynamic and _takes_sizes(asker, form.op_type):
            continue
        limit = found[form.op_type]
        if key == "attributes":
            limit.setdefault("attributes", {})[what[0]] = [what[1]]
        elif key == "versions":
            limit.setdefault("versions", _versions(form.op_type)).remove(what)
        elif what is True:
            limit[key] = what
        else:
            limit.setdefault(key, []).append(what)


def _probe_versions(asker: Asker, ops: Sequence[str], opsets: Sequence[int], found: _Limits) -> None:
    """Add the limits of operators whose tests are right with constants alone, or in some versions."""
    for op_type in ops:
        right = _right_case(asker, op_type, opsets[1])
        if right is None:
            continue
        if right.constant and op_type not in {form.op_type for form in forms.FORMS}:
            inputs = [name for name in right.case.model.graph.node[0].input if name]
            found[op_type]["constant"] = [*range(1, len(inputs))]
        for version in () if asker.engine.slow else _versions_not_right(asker, op_type, right, opsets):
            left = found[op_type].setdefault("versions", _versions(op_type))
            if version in left:
                left.remove(version)


def _probe_sizes(asker: Asker, ops: Sequence[str], found: _Limits) -> None:
    """Add the largest numbers of outputs and axes, and what must not repeat the factor of a product."""
    if "Split" in ops:
        largest = _largest_right(asker, "Split into {}", forms.split_question, _SPLITS)
        if largest < _SPLITS[-1]:
            found["Split"]["max_outputs"] = largest
    for op_type in forms.RANKED:
        if op_type in ops:
            ask = functools.partial(forms.rank_question, op_type)
            rank = _largest_right(asker, f"{op_type} of rank {{}}", ask, (3, 4, 5, 6))
            if rank < 6:
                found[op_type]["max_rank"] = rank
    for op_type, product in (("MatMul", "Y = MatMul (Z, W)"), ("Gemm", "Y = Gemm (Z, W)")):
        behind = [
            repeating
            for repeating in ("Expand", "Tile")
            if {op_type, repeating} <= {*ops}
            and not asker.is_right(f"{op_type} behind {repeating}", _repeating_question, repeating, product)
        ]
        if behind:
            found[op_type]["alone_behind"] = behind


def _takes_sizes(asker: Asker, op_type: str) -> bool:
    key = f"{op_type} of sizes of X"
    return op_type in forms.SIZED and asker.is_right(key, forms.sized_question, op_type)


def _repeating_question(repeating: str, product: str) -> Question:
    """Ask about a product whose factor another operator repeats for it alone."""
    times = [5, 4] if repeating == "Expand" else [5, 1]
    inputs = {"X": np.ones((1, 4), np.float32), "s": np.array(times), "W": np.ones((4, 3), np.float32)}
    return question(f"Z = {repeating} (X, s)\n{product}", inputs, 13, {"s", "W"})


def _versions_not_right(asker: Asker, op_type: str, right: _NodeTest, opsets: Sequence[int]) -> Iterator[int]:
    """Yield the versions in which a test fails, from each end up to the first that passes."""
    known = _versions(op_type)
    spans = [*itertools.zip_longest(known, known[1:], fillvalue=1 << 30)]
    for way in (spans[::-1], spans):
        for version, after in way:
            opset = max(version, opsets[0])
            if opset > opsets[1] or opset >= after:
                continue
            if version <= right.opset < after:
                break
            if not node_tests.can_ask(right.case, opset):
                continue
            if dataclasses.replace(right, opset=opset).is_right(asker):
                break
            yield version


def _versions(op_type: str) -> list[int]:
    return [version for version in versions(op_type) if version <= OPSETS[-1]]


def _largest_right(asker: Asker, words: str, make: Any, numbers: Sequence[int]) -> int:
    """Return the largest number up to which all are correct; the first is assumed to be."""
    largest = numbers[0]
    for number in numbers:
        if not asker.is_right(words.format(number), make, number):
            break
        largest = number
    return largest


def dynamic_question() -> Question:
    """Ask whether sizes may be symbolic: one loaded model runs at two sizes."""
    model = parse_model("""
        question (float[time, batch, 4] X) => (float[time, batch, 4] Y)
        <float[4, 4] W = {1, 2, 3, 4, 4, 3, 2, 1, 0, 1, 0, 1, -1, 2, -2, 1}, float[4] b = {1, 2, 3, 4}>
        { A = MatMul (X, W) C = Add (A, b) D = Sigmoid (C) Y = Mul (D, X) }
    """)
    rng = np.random.default_rng(0)
    shapes = ((3, 2, 4), (5, 1, 4))
    return model_question(model, *({"X": rng.standard_normal(shape).astype(np.float32)} for shape in shapes))


def probe_quantized_rules(asker: Asker) -> list[dict[str, Any]]:
    """Return the rule of DynamicQuantizeLSTM, without its source; nothing if no direction is right."""
    right = [
        direction
        for direction in DIRECTIONS
        if all(
            asker.is_right(f"{QUANTIZED_LSTM} {direction} of {sizes}", _quantized, direction, sizes)
            for sizes in _SIZES_OF_LSTM
        )
    ]
    rule = {"ops": [QUANTIZED_LSTM], "dtypes": ["float32"], "directions": right, "semantics": ["ort"]}
    return [rule] if right else []


def _quantized(direction: str, sizes: tuple[int, int, int, int]) -> Question:
    """Make a question about weights of 7 bits, whose products overflow on no processor."""
    steps, batch, features, units = sizes
    count = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (steps, batch, features)).astype(np.float32)
    scale, zero = np.full(count, 0.5 / 64 / np.sqrt(units), np.float32), np.zeros(count, np.int8)
    weights = {
        "W": rng.integers(-64, 64, (count, features, 4 * units), np.int8),
        "R": rng.integers(-64, 64, (count, units, 4 * units), np.int8),
        "B": rng.uniform(-1, 1, (count, 8 * units)).astype(np.float32),
        "scale": scale,
        "zero": zero,
    }
    inputs = ["X", "W", "R", "B", "", "", "", "", "scale", "zero", "scale", "zero"]
    node = helper.make_node(
        QUANTIZED_LSTM, inputs, OUTPUT_NAMES, domain="com.microsoft", direction=direction, hidden_size=units
    )
    return question([node], {"X": x, **weights}, 14, weights)
