"""AdaptRecurrentPass: the ops around an operator, the untouched nodes, and the oracle's numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.configs import Config
from support.judge import differences, interface, recurrent_left, run

from rnnlower.passes import AdaptRecurrentPass, InferTypesPass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.targets import find_target
from rnnlower.targets.format import RecurrentRule
from rnnlower.targets.native import NativeCheck
from rnnlower.targets.target import Target
from rnnlower.targets.vocabulary import ADAPTABLE

EVERYTHING = (*ADAPTABLE,)


def target(**fields: Any) -> Target:
    """Return a runtime of forward nodes of which everything must be written."""
    rule = RecurrentRule(
        source="-",
        **{
            "ops": ("LSTM", "GRU", "RNN"),
            "directions": ("forward",),
            "inputs": ("B", "initial_h", "initial_c", "P"),
            "attributes": {"layout": [0], "clip": [], "input_forget": [0], "activations": []},
            "activations": ("default",),
            "needs": ("B", "initial_h", "hidden_size"),
            "not_empty": ("Y", "Y_h"),
            "adapt": EVERYTHING,
            **fields,
        },
    )
    return msgspec.structs.replace(find_target("onnxruntime"), recurrent=(rule,))


def adapted(config: Config, to: Target | None = None) -> tuple[onnx.ModelProto, AdaptRecurrentPass]:
    source = config.build()
    own = ir.from_proto(source)
    InferTypesPass()(own)
    adapting = AdaptRecurrentPass(to or target())
    adapting(own)
    if adapting.adapted:
        InferTypesPass()(own)
        assert not any(NativeCheck(each, to or target(), "ort").misfits() for each in find_recurrent(own))
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert interface(result) == interface(source)
    return result, adapting


def agrees(config: Config, result: onnx.ModelProto) -> None:
    inputs = config.make_inputs(np.random.default_rng(1))
    assert differences(config.expected(inputs), run(result, inputs), config.dtype) == []


CONFIGS = {
    "nothing written": Config(B="omitted", hidden_size_given=False),
    "reverse at opset 7": Config(opset=7, direction="reverse", Y_h="graph", op_type="GRU"),
    "both directions": Config(direction="bidirectional", Y_h="both", Y_c="graph", initial_h="input"),
    "open length": Config(op_type="RNN", direction="forward", x_dims="symbolic"),
    "layout 1": Config(direction="bidirectional", initial_h="initializer", initial_c="input", P="input"),
    "full lengths": Config(op_type="GRU", direction="reverse", sequence_lens="omitted", place="if"),
    "default activations": Config(direction="bidirectional", activations=("Sigmoid", "Tanh", "Tanh") * 2),
    "Y_h alone": Config(op_type="GRU", Y="omitted", Y_h="graph", direction="bidirectional"),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_adapted_node_computes_the_same(config: Config) -> None:
    result, adapting = adapted(config)
    assert adapting.adapted
    assert len(recurrent_left(result)) == (2 if config.direction == "bidirectional" else 1)
    agrees(config, result)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_adapted_nodes_compute_the_same(data: st.DataObject) -> None:
    def choose(*choices: Any) -> Any:
        return data.draw(st.sampled_from(choices))

    config = Config(
        op_type=choose("LSTM", "GRU", "RNN"),
        opset=choose(7, 9, 10, 11, 13, 17, 22),
        direction=choose(None, "reverse", "bidirectional"),
        seq_length=choose(1, 2, 5),
        batch_size=choose(1, 2, 16),
        input_size=choose(1, 3),
        hidden_size_given=choose(True, False),
        W=choose("initializer", "input"),
        B=choose("omitted", "empty", "input"),
        initial_h=choose("omitted", "empty", "initializer", "input"),
        Y_h=choose("omitted", "empty", "graph"),
        place=choose("main", "if", "loop"),
    )
    result, adapting = adapted(config)
    assert adapting.adapted
    agrees(config, result)


def test_batch_first_becomes_transposes() -> None:
    config = Config(opset=14, layout=1, direction="reverse", Y_h="graph", initial_h="initializer")
    own = ir.from_proto(config.build())
    InferTypesPass()(own)
    AdaptRecurrentPass(target())(own)
    ops = [node.op_type for node in own.graph]
    assert ops == ["Transpose", "Gather", "LSTM", "Gather", "Transpose", "Transpose"]


def test_a_reverse_lstm_becomes_a_forward_one_between_gathers() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 14]>
        main (float[3, 2, 1] X) => (float[3, 1, 2, 1] Y, float[1, 2, 1] Y_h)
        <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {4, 3, 2, 1}>
        { Y, Y_h = LSTM <direction = "reverse"> (X, W, R) }
    """)
    assert AdaptRecurrentPass(target(needs=("initial_h", "initial_c")))(model).modified
    before, lstm, after = model.graph
    assert [before.op_type, lstm.op_type, after.op_type] == ["Gather", "LSTM", "Gather"]
    assert before.inputs[1].const_value.numpy().tolist() == [2, 1, 0]
    assert [None if value is None else value.shape for value in lstm.inputs[3:]] == [
        None,
        None,
        [1, 2, 1],
        [1, 2, 1],
    ]
    assert {name: each.value for name, each in lstm.attributes.items()} == {"hidden_size": 1}


LEFT = {
    "clip": Config(clip=0.5),
    "lengths": Config(sequence_lens="input", direction="reverse"),
    "activations": Config(activations=("Relu", "Tanh", "Tanh")),
    "input_forget": Config(input_forget=1),
    "reverse of an open length": Config(op_type="RNN", direction="reverse", x_dims="symbolic"),
}


@pytest.mark.parametrize("config", LEFT.values(), ids=LEFT)
def test_a_node_that_cannot_be_adapted_is_left_alone(config: Config) -> None:
    source = ir.to_proto(ir.from_proto(config.build()))
    result, adapting = adapted(config)
    assert not adapting.adapted
    assert [node.op_type for node in result.graph.node] == [node.op_type for node in source.graph.node]


def test_only_what_the_target_allows_is_adapted() -> None:
    _, adapting = adapted(Config(direction="reverse", B="omitted"), target(adapt=("B", "hidden_size")))
    assert not adapting.adapted
