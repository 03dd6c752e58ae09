"""The node tests that a probe draws from, of a few operators: to collect those of all takes ten seconds."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from onnx.backend.test.case import node

from rnnlower.probing import node_tests

_OPERATORS = ("Cast", "DequantizeLinear", "Dropout", "GridSample", "Mul", "ReduceMean", "Slice", "Split")
# It has tests with sequences and with nothing, which no probe asks.
_ODD = "Identity"


def probed_cases(*op_types: str) -> Mapping[str, Sequence[tuple[str, Any]]]:
    """Return what `node_cases` finds for these operators."""

    def collect(package: Any) -> None:
        for op_type in (*_OPERATORS, _ODD):
            importlib.import_module(f"{package.__name__}.{op_type.lower()}")

    with patch.object(node, "import_recursive", collect):
        found = node_tests.node_cases.__wrapped__()
    return {op_type: found.get(op_type, []) for op_type in op_types}
