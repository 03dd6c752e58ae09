"""ConformSonnxPass: written-out defaults, computed outputs, and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.configs import Config
from support.judge import differences, interface, run

from rnnlower.errors import UnsupportedModelError
from rnnlower.passes import ConformSonnxPass, FoldWeightsPass, InferTypesPass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.sonnx import find_departures

FOLDED = range(1, 8)


def conformed(model: onnx.ModelProto) -> onnx.ModelProto:
    own = ir.from_proto(model)
    conform = ConformSonnxPass()
    passes = [InferTypesPass(), FoldWeightsPass(positions=FOLDED, may_grow=True), conform]
    for each in passes:
        each(own)
    left = [d for located in find_recurrent(own) for d in find_departures(located) if d.level == "error"]
    assert left == []
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert interface(result) == interface(model)
    return result


CONFIGS = {
    "defaults": Config(opset=14),
    "everything left out": Config(opset=14, B="omitted", hidden_size_given=False),
    "reverse, Y_h": Config(opset=14, direction="reverse", Y_h="graph"),
    "bidirectional, Y_h alone": Config(opset=14, direction="bidirectional", Y="omitted", Y_h="graph"),
    "layout 1": Config(opset=14, layout=1, Y_h="both", initial_h="initializer", direction="bidirectional"),
    "layout 1, nothing else": Config(opset=14, layout=1),
    "Relu": Config(opset=17, activations=("Relu", "Tanh", "Tanh"), clip=0.5, weight_scale=0.3),
    "input_forget, P": Config(opset=17, input_forget=1, P="initializer"),
    "computed weights": Config(opset=17, W="computed", R="computed", B="computed", P="computed"),
    "quantized weights": Config(opset=21, W="dequantized", R="dequantized"),
    "sequence_lens": Config(opset=14, sequence_lens="initializer", seed=3),
    "float16": Config(opset=14, dtype="float16"),
    "in an If": Config(opset=14, place="if", W="constant", captured=False),
    "states are one tensor": Config(opset=14, initial_h="initializer", initial_c="same"),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_result_conforms_and_computes_the_same(config: Config) -> None:
    inputs = config.make_inputs(np.random.default_rng(1))
    model = conformed(config.build())
    assert differences(config.expected(inputs), run(model, inputs), config.dtype) == []


def test_defaults_are_written_out_and_outputs_are_computed() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 14]>
        main (float[2, 5, 1] X) => (float[2, 5, 1, 1] Y, float[2, 1, 1] Y_h)
        <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {4, 3, 2, 1}>
        {
            Y, Y_h = LSTM <hidden_size = 1, layout = 1> (X, W, R)
        }
    """)
    conform = ConformSonnxPass()
    assert conform(model).modified
    nodes = list(model.graph)
    assert [node.op_type for node in nodes] == [
        "Transpose",
        "LSTM",
        "Slice",
        "Squeeze",
        "Transpose",
        "Transpose",
    ]
    (lstm,) = (node for node in nodes if node.op_type == "LSTM")
    assert {name: attribute.value for name, attribute in lstm.attributes.items()} == {
        "activations": ("Sigmoid", "Tanh", "Tanh"),
        "hidden_size": 1,
        "input_forget": 0,
        "layout": 0,
    }
    given = {
        name: value.const_value.numpy()
        for name, value in zip(("B", "lens", "h", "c", "P"), lstm.inputs[3:], strict=True)
    }
    assert {name: (array.shape, array.dtype.name) for name, array in given.items()} == {
        "B": ((1, 8), "float32"),
        "lens": ((2,), "int32"),
        "h": ((1, 2, 1), "float32"),
        "c": ((1, 2, 1), "float32"),
        "P": ((1, 3), "float32"),
    }
    assert given["lens"].tolist() == [5, 5]
    assert not any(given[name].any() for name in ("B", "h", "c", "P"))


def test_a_conforming_model_is_left_alone() -> None:
    own = ir.from_proto(conformed(Config(opset=14).build()))
    before = ir.to_proto(own).SerializeToString()
    assert not ConformSonnxPass()(own).modified
    assert ir.to_proto(own).SerializeToString() == before


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "weights at run time": ({"W": "input"}, "W comes at run time"),
    "states at run time": ({"initial_h": "input"}, "initial_h comes at run time"),
    "lengths at run time": ({"sequence_lens": "input"}, "sequence_lens comes at run time"),
    "another activation": ({"activations": ("Tanh", "Tanh", "Tanh")}, "activations are Tanh, Tanh, Tanh"),
    "Y_c": ({"Y_c": "graph"}, "Y_c is read"),
    "Y_h of unequal rows": (
        {"Y_h": "graph", "sequence_lens": "initializer", "batch_size": 3, "seed": 3},
        "Y_h is read",
    ),
    "symbolic": ({"x_dims": "symbolic"}, "batch_size is not a number"),
    "GRU": ({"op_type": "GRU"}, "is not LSTM"),
    "old opset": ({"opset": 13}, "layout does not exist in LSTM-7"),
}


@pytest.mark.parametrize(("fields", "message"), REFUSED.values(), ids=REFUSED)
def test_a_node_that_cannot_conform_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    config = dataclasses.replace(Config(opset=14), **fields)
    own = ir.from_proto(config.build())
    InferTypesPass()(own)
    with pytest.raises(UnsupportedModelError, match=r"node '(LSTM|GRU)_0': ") as error:
        ConformSonnxPass()(own)
    assert message in str(error.value)
