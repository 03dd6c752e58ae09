"""The baselines of the benchmarks: they must be correct and as fast as claimed."""

from __future__ import annotations

import collections

import pytest
from measuring import VARIANTS, recurrent
from plain_scan import plain_scan
from textbook import textbook

import rnnlower


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("baseline", [textbook, plain_scan])
@pytest.mark.parametrize("variant", ["lstm", "bilstm", "gru", "gru_linear", "bigru"])
def test_a_baseline_computes_what_its_native_operator_does(variant, baseline, batch):
    source = recurrent(VARIANTS[variant], (4, batch, 3, 5))
    result = rnnlower.verify(source, baseline(source))
    assert result, str(result)
    assert result.engines["reference"] == "onnxruntime"


@pytest.mark.parametrize(("variant", "gates"), [("lstm", 4), ("gru_linear", 3)])
def test_the_textbook_unrolling_has_two_products_a_gate_and_a_chain_of_concats(variant, gates):
    steps = 6
    nodes = textbook(recurrent(VARIANTS[variant], (steps, 1, 3, 5))).graph.node
    ops = collections.Counter(node.op_type for node in nodes)
    assert ops["Gemm"] == 2 * gates * steps
    chain = [node for node in nodes if node.op_type == "Concat" and len(node.input) == 2]
    assert len(chain) == steps - 1
    assert [len(node.output) for node in nodes if node.op_type == "Split"] == [steps]
