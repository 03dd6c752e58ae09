"""The verification of lifted models: it accepts them, and notices what is wrong in a lifted node."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import pytest
from support import judge
from support.configs import Config
from support.faults import SOURCE_FAULTS

import rnnlower

SIZES = {"opset": 17, "seq_length": 5, "batch_size": 3, "Y_h": "graph", "initial_h": "input", "clip": 2.0}
CONFIGS = {
    "LSTM": Config(**SIZES, sequence_lens="input", initial_c="input", P="initializer", Y_c="graph"),
    "GRU": Config(**SIZES, op_type="GRU", direction="bidirectional", linear_before_reset=1),
    "RNN": Config(
        **SIZES,
        op_type="RNN",
        activations=("ScaledTanh",),
        activation_alpha=(1.2,),
        activation_beta=(0.7,),
        sequence_lens="input",
    ),
}


@functools.cache
def lower_and_lift(op_type: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return a lowered model, and the same lifted."""
    config = CONFIGS[op_type]
    lowered = judge.lower(config, "scan", config.make_inputs(np.random.default_rng(0)))
    lifted = rnnlower.lift(lowered)
    assert judge.recurrent_left(lifted) == [op_type]
    return lowered, lifted


@pytest.mark.parametrize("op_type", CONFIGS)
def test_a_lifted_model_is_accepted(op_type: str) -> None:
    assert rnnlower.verify(*lower_and_lift(op_type))


@pytest.mark.parametrize("fault", SOURCE_FAULTS)
def test_a_fault_in_a_lifted_node_is_noticed(fault: str) -> None:
    noticed = []
    for op_type, config in CONFIGS.items():
        lowered, lifted = lower_and_lift(op_type)
        mutant = onnx.ModelProto()
        mutant.CopyFrom(lifted)
        inputs = config.make_inputs(np.random.default_rng(2))
        if SOURCE_FAULTS[fault](mutant, np.random.default_rng(1)) and is_visible(lowered, mutant, inputs):
            noticed.append(not rnnlower.verify(lowered, mutant))
    assert all(noticed)
    assert noticed or fault in NOT_PLANTED


def is_visible(lowered: onnx.ModelProto, mutant: onnx.ModelProto, inputs: judge.Arrays) -> bool:
    return bool(judge.differences(judge.run(lowered, inputs), judge.run(mutant, inputs), "float32"))


NOT_PLANTED = {
    "directions of initial_h swapped",
    "reverse ignores sequence_lens",
    "Rb dropped",
    "Y not zero past the end",
}
"""Faults in what no node has here, or that change nothing: Rb is part of Wb, and a mask is behind Y."""
