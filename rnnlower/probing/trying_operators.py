"""The operators of a runtime, with their forms, types and opsets."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from rnnlower.graph.versions import versions
from rnnlower.probing import cases
from rnnlower.probing import operator_forms as forms
from rnnlower.probing.asking import Asker, Question, answered, question, written
from rnnlower.probing.cases import OPSETS
from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.targets.format import CONTROL_FLOW

_FIRST = 7
_RANDOM = ("Bernoulli",)
"""Operators whose node tests have random outputs."""
_SPLITS = (2, 9, 50, 200)
_LARGE = {"Sigmoid": (40.0, 100.0), "Softplus": (100.0,), "Tanh": (40.0, 100.0)}
"""Numbers that a recurrence may well meet."""
_CUTS = ("Clip", "Slice", "Split", "Squeeze", "Unsqueeze")
"""What any lowering may emit, in a form that depends on the opset."""


def opset_range(asker: Asker) -> list[int]:
    """Return the first and the last opset that it accepts around opset 13; empty if it refuses 13."""
    known = range(_FIRST, OPSETS[-1] + 1)
    right = [opset for opset in known if asker.right(f"opset {opset}", forms.opset_question, opset)]
    around = [opset for opset in right if all(o in right for o in range(min(opset, 13), max(opset, 13)))]
    return [min(around), max(around)] if 13 in right else []


def opsets_to_cut(opsets: Sequence[int], limits: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the ends of the longest range of opsets that have what a lowering emits in a correct version."""
    right = {
        op_type: limit["versions"]
        for limit in limits
        for op_type in limit["ops"]
        if op_type in _CUTS and "versions" in limit
    }
    first, last = opsets

    def fits(opset: int) -> bool:
        return all(onnx.defs.get_schema(name, opset).since_version in right[name] for name in right)

    runs = [[*run] for fit, run in itertools.groupby(range(first, last + 1), fits) if fit]
    longest = max(runs, key=len, default=[first, last])
    return [longest[0], longest[-1]]


def operators(asker: Asker, last: int) -> list[str]:
    """Return the operators with a correct form or ONNX node test, up to an opset."""
    formed = {form.op_type for form in forms.FORMS if form.opset <= last and _is_right(asker, form)}
    return [
        name
        for name in tried_operators()
        if (name in formed or _right_case(asker, name, last) or _is_right_between(asker, name))
        and all(
            asker.right(f"{name} up to {number:g}", _of_number, name, number)
            for number in _LARGE.get(name, ())
        )
        and all(_is_right(asker, form) for form in forms.NEEDED if form.op_type == name)
    ]


def _is_right(asker: Asker, form: forms.Form) -> bool:
    return asker.right(str(form), form.question)


def _is_right_between(asker: Asker, op_type: str) -> bool:
    return any(_is_right(asker, form) for form in forms.BETWEEN if form.op_type == op_type)


def tried_operators() -> list[str]:
    """Return the operators that can be tried."""
    known = {
        op_type
        for op_type, tests in cases.node_cases().items()
        if any(any(cases.opsets_of(case, OPSETS)) for _, case in tests)
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
        return asker.right(key, cases.case_question, self.case, self.opset, self.constant)

    def is_right_twice(self, asker: Asker) -> bool:
        """Return whether it does so again: what reads memory beyond its own is right by chance."""
        return self.is_right(asker) and (asker.engine.slow or self.is_right(asker, ", again"))


def _right_case(asker: Asker, op_type: str, last: int) -> _NodeTest | None:
    """Return the first test that is right, with its inputs fed, or else constant but for the first."""
    for constant in (False, True):
        for name, case in cases.node_cases().get(op_type, ()):
            for opset in itertools.islice(cases.opsets_of(case, [o for o in OPSETS if o <= last]), 1):
                test = _NodeTest(name, case, opset, constant)
                if test.is_right_twice(asker):
                    return test
    return None if asker.engine.slow else _right_older_case(asker, op_type, last)


def _right_older_case(asker: Asker, op_type: str, last: int) -> _NodeTest | None:
    """Return the first test that is right in an older version of the operator, from the newest on."""
    for version in reversed([version for version in _versions(op_type) if version <= last]):
        opset = max(version, _FIRST)
        for name, case in cases.node_cases().get(op_type, ()):
            for constant in (False, True):
                test = _NodeTest(name, case, opset, constant)
                if cases.is_possible(case, opset) and test.is_right_twice(asker):
                    return test
    return None


def _of_number(op_type: str, number: float) -> Question:
    """Ask about an operator of a number that overflows if its formula is taken literally."""
    # As many that a kernel takes several at once.
    x = np.linspace(-number, number, 64, dtype=np.float32).reshape(4, 16)
    return question(f"Y = {op_type} (X)", {"X": x}, 13)


def limits(asker: Asker, ops: Sequence[str], opsets: Sequence[int], dynamic: bool) -> list[dict[str, Any]]:
    """Return the limits of single operators, without their sources.

    An input that may be computed from dynamic sizes counts as free, where sizes may be dynamic.
    """
    found: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for form in forms.FORMS:
        fits = form.op_type in ops and opsets[0] <= form.opset <= opsets[1]
        if not fits or _is_right(asker, form) or _is_right_between(asker, form.op_type):
            continue
        key, what = form.limit
        if key == "constant" and dynamic and _is_sized(asker, form.op_type):
            continue
        limit = found[form.op_type]
        if key == "attributes":
            limit.setdefault("attributes", {})[what[0]] = [what[1]]
        elif key == "versions":
            limit.setdefault("versions", _versions(form.op_type)).remove(what)
        else:
            limit.setdefault(key, []).append(what)
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
    if "Split" in ops:
        most = _most(asker, "Split into {}", forms.split_question, _SPLITS)
        if most < _SPLITS[-1]:
            found["Split"]["max_outputs"] = most
    for op_type in forms.RANKED:
        if op_type in ops:
            ask = functools.partial(forms.rank_question, op_type)
            rank = _most(asker, f"{op_type} of rank {{}}", ask, (3, 4, 5, 6))
            if rank < 6:
                found[op_type]["max_rank"] = rank
    for op_type, product in (("MatMul", "Y = MatMul (Z, W)"), ("Gemm", "Y = Gemm (Z, W)")):
        behind = [
            repeating
            for repeating in ("Expand", "Tile")
            if {op_type, repeating} <= {*ops}
            and not asker.right(f"{op_type} behind {repeating}", _behind, repeating, product)
        ]
        if behind:
            found[op_type]["alone_behind"] = behind
    # An operator without a correct version counts as missing.
    return [
        {"ops": [op_type], **limit} for op_type, limit in sorted(found.items()) if limit.get("versions", 1)
    ]


def _is_sized(asker: Asker, op_type: str) -> bool:
    return op_type in forms.SIZED and asker.right(f"{op_type} of sizes of X", forms.sized_question, op_type)


def _behind(repeating: str, product: str) -> Question:
    """Ask about a product of what another operator repeats for it alone."""
    times = [5, 4] if repeating == "Expand" else [5, 1]
    inputs = {"X": np.ones((1, 4), np.float32), "s": np.array(times), "W": np.ones((4, 3), np.float32)}
    return question(f"Z = {repeating} (X, s)\n{product}", inputs, 13, {"s", "W"})


def _versions_not_right(asker: Asker, op_type: str, right: _NodeTest, opsets: Sequence[int]) -> Iterator[int]:
    """Yield the versions in which a test fails, from either end to the first in which it does not."""
    known = _versions(op_type)
    spans = [*itertools.zip_longest(known, known[1:], fillvalue=1 << 30)]
    for way in (spans[::-1], spans):
        for version, after in way:
            opset = max(version, opsets[0])
            if opset > opsets[1] or opset >= after:
                continue
            if version <= right.opset < after:
                break
            if not cases.is_possible(right.case, opset):
                continue
            if dataclasses.replace(right, opset=opset).is_right(asker):
                break
            yield version


def _versions(op_type: str) -> list[int]:
    return [version for version in versions(op_type) if version <= OPSETS[-1]]


def _most(asker: Asker, words: str, make: Any, numbers: Sequence[int]) -> int:
    """Return the last number up to which it is correct; the first is assumed to be."""
    most = numbers[0]
    for number in numbers:
        if not asker.right(words.format(number), make, number):
            break
        most = number
    return most


def is_dynamic(asker: Asker) -> bool:
    """Return whether sizes may be symbolic: one loaded model runs at two of them."""
    return asker.right("open sizes", _open)


def _open() -> Question:
    model = written("""
        question (float[time, batch, 4] X) => (float[time, batch, 4] Y)
        <float[4, 4] W = {1, 2, 3, 4, 4, 3, 2, 1, 0, 1, 0, 1, -1, 2, -2, 1}, float[4] b = {1, 2, 3, 4}>
        { A = MatMul (X, W) C = Add (A, b) D = Sigmoid (C) Y = Mul (D, X) }
    """)
    rng = np.random.default_rng(0)
    shapes = ((3, 2, 4), (5, 1, 4))
    return answered(model, *({"X": rng.standard_normal(shape).astype(np.float32)} for shape in shapes))
