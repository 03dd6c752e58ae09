"""ONNX's node tests as questions, each in the forms that its operator has at several opsets."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower.errors import RnnLowerError
from rnnlower.graph.versions import Version, version_at
from rnnlower.opset import convert_opset
from rnnlower.probing.asking import Question, question

# Tried at the first of these opsets that has the operator in the form of the case.
OPSETS = (13, 17, 18, 20, 21, 22, 23, 24, 25, 26)
_CASES_AN_OPERATOR = 5
_LARGEST_CASE = 20_000


@functools.cache
def node_cases() -> Mapping[str, Sequence[tuple[str, Any]]]:
    """Return onnx's tests of each operator: the smallest, of float32 if there is one."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    found: dict[str, list[tuple[tuple[bool, bool, int], str, Any]]] = collections.defaultdict(list)
    case: Any
    for case in collected:
        arrays = [array for side in case.data_sets[0] for array in side]
        plain = all(
            isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "fiub" for array in arrays
        )
        size = sum(array.size for array in arrays) if plain else 0
        if len(case.model.graph.node) == 1 and plain and 0 < size < _LARGEST_CASE and arrays:
            node = case.model.graph.node[0]
            if not node.domain and len(arrays[0].shape) <= 4:
                floats = all(array.dtype in (np.float32, np.int64, np.bool_) for array in arrays)
                plain_rank = len(arrays[0].shape) in (2, 3)
                found[node.op_type].append(((not floats, not plain_rank, size), case.name, case))
    ordered = {op_type: sorted(sized, key=lambda each: each[:2]) for op_type, sized in found.items()}
    return {op_type: [each[1:] for each in sized[:_CASES_AN_OPERATOR]] for op_type, sized in ordered.items()}


_NOT_THE_FORM = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, TypeError, ValueError)


def opsets_of(case: Any, opsets: Iterable[int]) -> Iterator[int]:
    """Yield the opsets that have the form of the test."""
    for opset in opsets:
        try:
            _as_it_is(case, opset)
        except _NOT_THE_FORM:
            continue
        yield opset


def case_question(case: Any, opset: int, constant: bool = False) -> Question:
    """Return the test in the form that the operator has at an opset.

    Where the version is another, the test is converted if possible: attributes may have other values there.

    Raises:
        ValueError: It has none there.
    """
    written = _where_written(case)
    if written is not None and written > opset and _version(case, written) != _version(case, opset):
        with contextlib.suppress(*_NOT_THE_FORM):
            return _converted(case, written, opset, constant)
    with contextlib.suppress(*_NOT_THE_FORM):
        return _as_it_is(case, opset, constant)
    newer = next(opsets_of(case, [each for each in OPSETS if each > opset]), None)
    if newer is None:
        raise ValueError(f"no opset from {opset} on has the test")
    return _converted(case, newer, opset, constant)


def _where_written(case: Any) -> int | None:
    """Return the first opset to try that has the version of the operator that the test is for."""
    newest = next(each.version for each in case.model.opset_import if not each.domain)
    version = _version(case, newest)
    return next((opset for opset in opsets_of(case, OPSETS) if _version(case, opset) == version), None)


def _version(case: Any, opset: int) -> Version | None:
    return version_at(case.model.graph.node[0].op_type, opset)


def _converted(case: Any, newer: int, opset: int, constant: bool) -> Question:
    """Return the test of one opset, converted to an older one."""
    asked = _as_it_is(case, newer, constant)
    model = ir.from_proto(asked.model)
    try:
        convert_opset(model, opset)
    except RnnLowerError as error:
        raise ValueError(str(error)) from error
    moved = ir.to_proto(model)
    onnx.checker.check_model(moved, full_check=True)
    op_type = case.model.graph.node[0].op_type
    if op_type not in {node.op_type for node in moved.graph.node}:
        raise ValueError(f"{op_type} is expressed by others at opset {opset}")
    return Question(moved, asked.trials)


def is_possible(case: Any, opset: int) -> bool:
    """Return whether the test can be asked at an opset."""
    try:
        case_question(case, opset)
    except _NOT_THE_FORM:
        return False
    return True


def _as_it_is(case: Any, opset: int, constant: bool = False) -> Question:
    """Return the test at an opset; shapes, axes and the like are constants, or all inputs but the first."""
    node = copy.deepcopy(case.model.graph.node[0])
    if node.op_type == "Dropout" and len(node.input) < 3:
        # Without training_mode, the seed says nothing; some runtimes refuse it.
        del node.attribute[:]
    inputs = dict(zip([name for name in node.input if name], case.data_sets[0][0], strict=False))
    outputs = dict(zip([name for name in node.output if name], case.data_sets[0][1], strict=False))
    others = {
        name for index, name in enumerate(inputs) if index and (constant or inputs[name].dtype == np.int64)
    }
    return question([node], inputs, opset, others, list(outputs), outputs)
