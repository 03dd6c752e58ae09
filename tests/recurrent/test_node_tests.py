"""ONNX's own node tests of LSTM, GRU and RNN, as the installed onnx package generates them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.backend.test.case import node as node_cases
from onnx.backend.test.case.node import gru, lstm, rnn
from onnx.backend.test.case.test_case import TestCase
from support.judge import STRATEGIES, interface, recurrent_left, run

import rnnlower

# Importing a module adds its cases to the package's list; its public function would import all operators.
_MODULES = (gru, lstm, rnn)
CASES = {
    case.name: case
    for case in node_cases._NodeTestCases
    if any(node.op_type in ("LSTM", "GRU", "RNN") for node in case.model.graph.node)
}


def test_there_are_18_cases_or_more() -> None:
    assert len(CASES) >= 18


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_lowered_node_test_gives_its_outputs(case: TestCase, strategy: str) -> None:
    lowered = getattr(rnnlower, strategy)(case.model)
    onnx.checker.check_model(lowered, full_check=True)
    assert recurrent_left(lowered) == []
    assert interface(lowered) == interface(case.model)
    names = [value.name for value in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        found = run(lowered, dict(zip(names, inputs, strict=True)))
        for have, want in zip(found.values(), outputs, strict=True):
            assert have.dtype == want.dtype
            np.testing.assert_allclose(have, want, rtol=case.rtol, atol=1e-6)
