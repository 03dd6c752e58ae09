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
_MAX_CASES = 5
_MAX_CASE_ELEMENTS = 20_000


@functools.cache
def node_cases() -> Mapping[str, Sequence[tuple[str, Any]]]:
    """Return onnx's smallest tests of each operator, preferring float32."""
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
        if len(case.model.graph.node) == 1 and plain and 0 < size < _MAX_CASE_ELEMENTS and arrays:
            node = case.model.graph.node[0]
            if not node.domain and len(arrays[0].shape) <= 4:
                floats = all(array.dtype in (np.float32, np.int64, np.bool_) for array in arrays)
                plain_rank = len(arrays[0].shape) in (2, 3)
                found[node.op_type].append(((not floats, not plain_rank, size), case.name, case))
    ordered = {op_type: sorted(sized, key=lambda each: each[:2]) for op_type, sized in found.items()}
    return {op_type: [each[1:] for each in sized[:_MAX_CASES]] for op_type, sized in ordered.items()}


_CASE_ERRORS = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, TypeError, ValueError)


def opsets_with_form(case: Any, opsets: Iterable[int]) -> Iterator[int]:
    """Yield the opsets at which the test is valid as it is written."""
    for opset in opsets:
        try:
            _unconverted_question(case, opset)
        except _CASE_ERRORS:
            continue
        yield opset


def case_question(case: Any, opset: int, constant: bool = False) -> Question:
    """Return the test in the operator's form at an opset.

    If the operator has another version there, the test is converted if possible: its attributes may differ.

    Raises:
        ValueError: The test has no form at that opset.
    """
    written = _original_opset(case)
    if written is not None and written > opset and _version(case, written) != _version(case, opset):
        with contextlib.suppress(*_CASE_ERRORS):
            return _convert_question(case, written, opset, constant)
    with contextlib.suppress(*_CASE_ERRORS):
        return _unconverted_question(case, opset, constant)
    newer = next(opsets_with_form(case, [each for each in OPSETS if each > opset]), None)
    if newer is None:
        raise ValueError(f"no opset from {opset} on has the test")
    return _convert_question(case, newer, opset, constant)


def _original_opset(case: Any) -> int | None:
    """Return the first of `OPSETS` with the operator version that the test was written for."""
    newest = next(each.version for each in case.model.opset_import if not each.domain)
    version = _version(case, newest)
    return next((opset for opset in opsets_with_form(case, OPSETS) if _version(case, opset) == version), None)


def _version(case: Any, opset: int) -> Version | None:
    return version_at(case.model.graph.node[0].op_type, opset)


def _convert_question(case: Any, newer: int, opset: int, constant: bool) -> Question:
    """Return the test converted from one opset to an older one."""
    asked = _unconverted_question(case, newer, constant)
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


def can_ask(case: Any, opset: int) -> bool:
    """Return whether the test can be asked at an opset."""
    try:
        case_question(case, opset)
    except _CASE_ERRORS:
        return False
    return True


def _unconverted_question(case: Any, opset: int, constant: bool = False) -> Question:
    """Return the unchanged test at an opset; int64 inputs are constants, or all inputs but the first."""
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
