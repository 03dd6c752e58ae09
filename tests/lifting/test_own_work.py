"""Nodes that rnnlower lowered and lifted: the same recurrent nodes, the same numbers on onnxruntime."""

from __future__ import annotations

import collections

import numpy as np
import onnx
import pytest
from support import judge
from support.configs import Config
from support.lifting import random_liftable

import rnnlower

LEAST = {"scan": 0.9, "loop": 0.85, "unroll": 0.2}
"""The share that must come back. Both directions in one product, and masks in straight lines, do not yet."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("strategy", LEAST)
def test_random_nodes_come_back(strategy: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outcomes: collections.Counter[str] = collections.Counter()
    for _ in range(40):
        config = random_liftable(rng)
        inputs = config.make_inputs(rng)
        try:
            lowered = judge.lower(config, strategy, inputs)
        except rnnlower.UnsupportedModelError:
            continue
        lifted, report = rnnlower.lift.with_report(lowered)
        onnx.checker.check_model(lifted, full_check=True)
        expected = judge.run(lowered, inputs)
        assert not judge.differences(expected, judge.run(lifted, inputs), "float32"), config
        assert judge.interface(lifted) == judge.interface(lowered)
        is_back = judge.recurrent_left(lifted) == [config.op_type]
        assert is_back or report.nodes == [] or report.nodes[0].op_type or report.nodes[0].reason
        outcomes["back" if is_back else "stays"] += 1
    assert outcomes["back"] >= LEAST[strategy] * outcomes.total()


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("strategy", LEAST)
def test_every_cell_comes_back_with_its_attributes(strategy: str, direction: str, op_type: str) -> None:
    config = Config(
        op_type=op_type, opset=17, seq_length=5, direction=direction, clip=3.0, B="initializer", Y_h="graph"
    )
    inputs = config.make_inputs(np.random.default_rng(0))
    lowered = judge.lower(config, strategy, inputs)
    lifted = rnnlower.lift(lowered)
    (node,) = rnnlower.inspect(lifted)
    assert (node.op_type, node.direction, node.hidden_size) == (op_type, direction, config.hidden_size)
    (proto,) = (node for node in lifted.graph.node if node.op_type == op_type)
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in proto.attribute}
    assert given["clip"] == 3.0
    assert not judge.differences(judge.run(lowered, inputs), judge.run(lifted, inputs), "float32")
