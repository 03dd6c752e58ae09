"""Nodes that rnnlower lowered and lifted: the same recurrent nodes, the same numbers on onnxruntime."""

from __future__ import annotations

import collections
import itertools

import numpy as np
import onnx
import pytest
from support import judge
from support.configs import Config
from support.grids import pairs_in
from support.lifting import judge_lift, random_liftable

import rnnlower

MIN_SHARE = {"scan": 0.97, "loop": 0.97, "unroll": 0.9}
"""The share that must come back of a few; `tests/lift_sweep.py` counts thousands."""


@pytest.mark.parametrize("strategy", MIN_SHARE)
def test_random_nodes_round_trip(strategy: str) -> None:
    rng = np.random.default_rng(0)
    outcomes = collections.Counter(judge_lift(random_liftable(rng), strategy, rng) for _ in range(30))
    left = {outcome: count for outcome, count in outcomes.items() if outcome[0] not in ("back", "refused")}
    assert not [outcome for outcome in left if not outcome[0].startswith("stays: ")], left
    assert outcomes["back", ""] >= MIN_SHARE[strategy] * (30 - outcomes["refused", ""]), left


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("strategy", MIN_SHARE)
def test_every_cell_round_trips_with_its_attributes(strategy: str, direction: str, op_type: str) -> None:
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


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_line_of_an_open_batch_comes_back(op_type: str, opset: int) -> None:
    config = Config(op_type=op_type, opset=opset, seq_length=5, x_dims="batch", B="initializer", Y_h="graph")
    inputs = config.make_inputs(np.random.default_rng(0))
    lowered = rnnlower.unroll(config.build())
    lifted = rnnlower.lift(lowered)
    assert [node.op_type for node in rnnlower.inspect(lifted)] == [op_type]
    assert not judge.differences(judge.run(lowered, inputs), judge.run(lifted, inputs), "float32")


LINES = pairs_in(
    (cell, count, start, direction)
    for cell in itertools.product(("LSTM", "GRU", "RNN"), (False, True))
    for count, start, direction in (
        (1, "input", "forward"),
        *(
            (2, start, way)
            for start in ("omitted", "input")
            for way in ("forward", "reverse", "bidirectional")
        ),
    )
)


@pytest.mark.parametrize(("cell", "count", "start", "direction"), LINES)
def test_a_line_whose_weights_occur_once_round_trips(
    cell: tuple[str, bool], count: int, start: str, direction: str
) -> None:
    op_type, is_more = cell
    given: dict[str, object] = {"initial_c": start} if op_type == "LSTM" else {}
    if is_more:
        given |= {"LSTM": {"P": "initializer"}, "GRU": {"linear_before_reset": 1}, "RNN": {"clip": 1.0}}[
            op_type
        ]
    config = Config(
        op_type=op_type,
        opset=17,
        seq_length=count,
        direction=direction,
        initial_h=start,
        Y_h="graph",
        **given,
    )
    inputs = config.make_inputs(np.random.default_rng(0))
    lowered = judge.lower(config, "unroll", inputs)
    lifted = rnnlower.lift(lowered, steps=count)
    (node,) = rnnlower.inspect(lifted)
    assert (node.op_type, node.direction, node.hidden_size) == (op_type, direction, config.hidden_size)
    assert not judge.differences(judge.run(lowered, inputs), judge.run(lifted, inputs), "float32")
    kept, report = rnnlower.lift.with_report(lowered, steps=count + 1)
    assert rnnlower.inspect(kept) == []
    assert f"it has {count} step" in (report.nodes[0].reason or "")


def test_gates_may_be_constant() -> None:
    """Only one step of four is computed, whose state is zero."""
    config = Config(
        op_type="GRU",
        opset=23,
        seq_length=4,
        batch_size=1,
        input_size=2,
        hidden_size=1,
        direction="bidirectional",
        activations=("Sigmoid", "Tanh", "Softsign", "ScaledTanh"),
        activation_alpha=(1.0, 0.5, 0.2, 0.5, 0.2, 0.9),
        activation_beta=(1.5, 0.2, 0.2, 0.9, 0.9, 0.9),
        layout=1,
        B="empty",
        Y="both",
        Y_h="consumed",
        sequence_lens="initializer",
        weight_scale=0.1,
    )
    assert judge_lift(config, "unroll", np.random.default_rng(0))[0].startswith("stays: ")


def test_both_directions_of_an_open_length_come_back_from_one_scan() -> None:
    # A batch of 1 and an initial state: the size of the forward direction's lengths is that of a Slice.
    config = Config(
        op_type="GRU",
        batch_size=1,
        input_size=1,
        direction="bidirectional",
        initial_h="constant",
        x_dims="time",
    )
    assert judge_lift(config, "scan", np.random.default_rng(0))[0] == "back"


@pytest.mark.parametrize("strategy", MIN_SHARE)
def test_weights_stored_in_bfloat16_come_back(strategy: str) -> None:
    config = Config(op_type="GRU", opset=22, seq_length=4, dtype="bfloat16")
    inputs = config.make_inputs(np.random.default_rng(0))
    lowered = judge.lower(config, strategy, inputs)
    lifted = rnnlower.lift(lowered)
    assert [node.op_type for node in rnnlower.inspect(lifted)] == ["GRU"]
    assert not judge.differences(judge.run(lowered, inputs), judge.run(lifted, inputs), "bfloat16")


@pytest.mark.parametrize("strategy", ["scan", "loop"])
def test_a_name_that_is_no_expression_is_a_length(strategy: str) -> None:
    config = Config(op_type="GRU", opset=17, batch_size=2, initial_h="initializer", x_dims="time")
    inputs = config.make_inputs(np.random.default_rng(0))
    lowered = judge.lower(config, strategy, inputs)
    for dim in lowered.graph.input[0].type.tensor_type.shape.dim:
        if dim.dim_param:
            dim.dim_param = "seq len"
    lifted = rnnlower.lift(lowered)
    assert [node.op_type for node in rnnlower.inspect(lifted)] == ["GRU"]
    assert not judge.differences(judge.run(lowered, inputs), judge.run(lifted, inputs), "float32")
