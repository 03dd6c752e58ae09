"""LowerRecurrentPass: the emitted nodes, their number, and the untouched nodes."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data
from support.configs import Config
from support.judge import STRATEGIES, all_nodes, differences, run
from support.small_models import info, model_of, recurrent_model, weights

import rnnlower
from rnnlower.passes.lower_recurrent import LowerRecurrentPass

FLOAT = onnx.TensorProto.FLOAT
COUPLED = {"input_forget": 1}
LINEAR = {"linear_before_reset": 1}
CLIPPED = {"clip": 2.0}
STEPS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "lstm": (
        "LSTM",
        {},
        "Gemm*2 Sigmoid Split Tanh*2 Mul*3 Add",
        "Gemm*2 Sigmoid Split Tanh*2 Mul*3 Add",
    ),
    "lstm_coupled": (
        "LSTM",
        COUPLED,
        "Gemm*2 Sigmoid Split Tanh*2 Mul*3 Add Sub",
        "Gemm*3 Sigmoid*2 Tanh*2 Mul*3 Add Sub",
    ),
    "lstm_clip": (
        "LSTM",
        CLIPPED,
        "Gemm*2 Clip*2 Sigmoid Split Tanh*2 Mul*3 Add",
        "Gemm*2 Clip*2 Sigmoid Split Tanh*2 Mul*3 Add",
    ),
    "gru": ("GRU", {}, "Gemm*2 Sigmoid Split Tanh Mul*2 Sub Add", "Gemm*3 Sigmoid*2 Tanh Mul*2 Sub Add"),
    "gru_linear": (
        "GRU",
        LINEAR,
        "Gemm*2 Sigmoid Split Tanh Mul*2 Sub Add*2",
        "Gemm*3 Sigmoid*2 Tanh Mul*2 Sub Add*2",
    ),
    "rnn": ("RNN", {}, "Gemm Tanh", "Gemm Tanh Identity"),
    "rnn_clip": ("RNN", CLIPPED, "Gemm Clip Tanh", "Gemm Clip Tanh Identity"),
}
"""The operators of one time step in one direction, in a straight line and in the body of a Scan."""


def operators(text: str) -> collections.Counter[str]:
    pairs = (word.partition("*") for word in text.split())
    return collections.Counter({op_type: int(count or 1) for op_type, _, count in pairs})


def lowered_cell(
    strategy: str, op_type: str = "LSTM", steps: int = 10, *, unroll_factor: int = 1, **options: Any
) -> onnx.ModelProto:
    """Return a small node of this length, lowered."""
    hidden_size = options.get("hidden_size", 4)
    directions = 2 if options.get("direction") == "bidirectional" else 1
    constants = weights(op_type, hidden_size=hidden_size, directions=directions)
    inputs = {"X": (FLOAT, [steps, 2, 3])}
    model = recurrent_model(op_type, constants=constants, inputs=inputs, **options)
    factor = {} if strategy == "unroll" else {"unroll_factor": unroll_factor}
    return getattr(rnnlower, strategy)(model, **factor)


def counts(nodes: Sequence[onnx.NodeProto]) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in nodes)


def body_of(model: onnx.ModelProto, op_type: str) -> onnx.GraphProto:
    (node,) = (node for node in model.graph.node if node.op_type == op_type)
    return next(attribute.g for attribute in node.attribute if attribute.name == "body")


def stored_bytes(model: onnx.ModelProto) -> int:
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer)


def test_an_unrolled_rnn_has_a_product_for_all_inputs_and_one_for_each_later_step() -> None:
    own = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 1, 3] X, float[1, 4, 3] W, float[1, 4, 4] R) => (float[1, 1, 4] Y_h)
        <float[2, 1, 3] x>
        {
            x = Neg (X)
            , Y_h = RNN <hidden_size = 4> (x, W, R)
        }
    """)
    lowering = LowerRecurrentPass("unroll")
    assert lowering(own).modified
    ops = [node.op_type for node in own.graph]
    # All input products at once, and the one recurrent product that two steps need.
    assert ops.count("Gemm") == 2
    assert ops.count("Tanh") == 2
    assert ops[0] == "Neg"
    assert [(node.op_type, node.steps, node.strategy) for node in lowering.lowered] == [("RNN", 2, "unroll")]
    assert lowering.lowered[0].emitted_ops == len(ops) - 1
    onnx.checker.check_model(ir.to_proto(own), full_check=True)


@pytest.mark.parametrize(("op_type", "attributes", "ops", "scanned"), STEPS.values(), ids=STEPS)
def test_a_step_has_the_listed_operators(
    op_type: str, attributes: dict[str, Any], ops: str, scanned: str
) -> None:
    expected = operators(ops)
    ten, eleven = (
        counts(list(all_nodes(lowered_cell("unroll", op_type, n, **attributes)))) for n in (10, 11)
    )
    assert eleven - ten == expected
    scan = counts(body_of(lowered_cell("scan", op_type, **attributes), "Scan").node)
    assert scan == operators(scanned)
    loop = counts(body_of(lowered_cell("loop", op_type, **attributes), "Loop").node)
    assert set(loop - operators(scanned)) == {"Identity", "Gather"}
    assert operators(scanned) <= loop


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_input_products_are_hoisted(strategy: str) -> None:
    model = lowered_cell(strategy, steps=6)
    products = [node for node in model.graph.node if node.op_type == "Gemm"]
    shapes = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    # Both biases are in one, and W is read as it is stored.
    assert [[shapes[name] for name in node.input[1:]] for node in products[:2]] == [
        [[12, 3], [12]],
        [[4, 3], [4]],
    ]


@pytest.mark.parametrize(("strategy", "op"), [("scan", "Scan"), ("loop", "Loop")])
def test_unroll_factor_is_the_number_of_steps_in_the_body(strategy: str, op: str) -> None:
    model = lowered_cell(strategy, steps=12, unroll_factor=4)
    assert counts(body_of(model, op).node)["Gemm"] == 4 * 2
    # The inputs of the steps are cut and their outputs joined outside of the body.
    assert counts(body_of(model, op).node)["Concat"] == 0
    with_rest = lowered_cell(strategy, steps=13, unroll_factor=4)
    assert counts(with_rest.graph.node)[op] == 2
    short = lowered_cell(strategy, steps=3, unroll_factor=4)
    assert counts(body_of(short, op).node)["Gemm"] == 2


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_no_node_of_a_long_sequence_has_more_than_128_inputs_or_outputs(direction: str) -> None:
    model = lowered_cell("unroll", steps=1000, direction=direction)
    for node in model.graph.node:
        assert len(node.output) <= 128
        assert len(node.input) <= 128
    splits = [node for node in model.graph.node if node.op_type == "Split" and len(node.output) > 3]
    directions = 2 if direction == "bidirectional" else 1
    assert len(splits) <= directions * 2 * 10


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_nothing_is_stored_twice(strategy: str, op_type: str, direction: str) -> None:
    directions = 2 if direction == "bidirectional" else 1
    source = recurrent_model(
        op_type,
        constants=weights(op_type, input_size=80, hidden_size=96, directions=directions),
        inputs={"X": (FLOAT, [20, 2, 80])},
        hidden_size=96,
        direction=direction,
    )
    result = getattr(rnnlower, strategy)(source)
    assert result.ByteSize() <= 1.05 * source.ByteSize() + 20 * 420 * directions
    assert stored_bytes(result) <= 1.01 * stored_bytes(source)


def two_nodes(second: Sequence[str], extra: Sequence[onnx.NodeProto] = ()) -> onnx.ModelProto:
    """Return two GRUs in a row; the second one's W, R and B are given by name."""
    constants = weights("GRU", input_size=16, hidden_size=16)
    constants |= {f"{name}2": value for name, value in weights("GRU", 16, 16, seed=1).items()}
    constants["axis"] = np.array([1], np.int64)
    nodes = [
        *extra,
        helper.make_node("GRU", ["X", "W", "R", "B"], ["first"], name="a", hidden_size=16),
        helper.make_node("Squeeze", ["first", "axis"], ["x"]),
        helper.make_node("GRU", ["x", *second], ["Y", "Y_h"], name="b", hidden_size=16),
    ]
    used = {name for node in nodes for name in node.input}
    return model_of(
        nodes,
        [info("X", FLOAT, ["T", 2, 16])],
        [info("Y", FLOAT, None), *(info(node.output[0], FLOAT, None) for node in extra)],
        {name: value for name, value in constants.items() if name in used},
    )


@pytest.mark.parametrize("strategy", ["scan", "loop"])
def test_shared_weights_stay_shared(strategy: str) -> None:
    source = two_nodes(["W", "R", "B"])
    result = getattr(rnnlower, strategy)(source)
    assert stored_bytes(result) <= 1.05 * stored_bytes(source)
    X = {"X": np.ones((3, 2, 16), np.float32)}
    assert differences(run(source, X), run(result, X), "float32") == []


def test_weight_that_another_node_reads_is_not_stored_twice() -> None:
    source = two_nodes(["W2", "R2", "B2"], [helper.make_node("Neg", ["W"], ["negated"])])
    result = rnnlower.scan(source)
    assert isinstance(result, onnx.ModelProto)
    assert stored_bytes(result) <= 1.05 * stored_bytes(source)
    assert "W" in {tensor.name for tensor in result.graph.initializer}


def test_nodes_that_are_not_chosen_stay_as_they_are() -> None:
    source = two_nodes(["W2", "R2", "B2"])
    result = rnnlower.scan(source, nodes=["b"])
    assert isinstance(result, onnx.ModelProto)
    kept = [node for node in result.graph.node if node.op_type == "GRU"]
    assert kept == [source.graph.node[0]]
    stored = {tensor.name: tensor for tensor in result.graph.initializer}
    for tensor in source.graph.initializer[:3]:
        assert (numpy_helper.to_array(stored[tensor.name]) == numpy_helper.to_array(tensor)).all()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_external_matrices_stay_external_and_unread(strategy: str, tmp_path: Path) -> None:
    constants = weights("LSTM", hidden_size=16)
    del constants["B"]
    model = recurrent_model(constants=constants, inputs={"X": (FLOAT, [5, 2, 3])}, hidden_size=16)
    before = rnnlower.loop(model)
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, tmp_path / "model.onnx")
    own = ir.load(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").rename(tmp_path / "hidden.bin")
    result = getattr(rnnlower, strategy)(own)
    (tmp_path / "hidden.bin").rename(tmp_path / "weights.bin")
    tensors = {value.const_value for value in result.graph.initializers.values()}
    assert sum(isinstance(tensor, ir.ExternalTensor) for tensor in tensors) == 4
    X = {"X": np.ones((5, 2, 3), np.float32)}
    ir.save(result, tmp_path / "result.onnx")
    assert differences(run(before, X), run(onnx.load(tmp_path / "result.onnx"), X), "float32") == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_names_do_not_collide(strategy: str) -> None:
    source = recurrent_model(inputs={"X": (FLOAT, [5, 2, 3])}, outputs=["Y", "Y_h"])
    for name in ("r0", "r1", "rr0", "W_1", "R_1", "B_1", "r"):
        source.graph.node.append(helper.make_node("Neg", ["Y"], [name], name=name))
        source.graph.output.append(info(name, FLOAT, [None] * 4))
    result = getattr(rnnlower, strategy)(source)
    onnx.checker.check_model(result, full_check=True)
    names = [name for node in all_nodes(result) for name in node.output]
    names += [tensor.name for tensor in result.graph.initializer]
    assert len(names) == len(set(names))
    X = {"X": np.ones((5, 2, 3), np.float32)}
    assert differences(run(source, X), run(result, X), "float32") == []


def test_other_nodes_metadata_and_functions_stay() -> None:
    source = recurrent_model(inputs={"X": (FLOAT, ["T", "N", 3])})
    source.doc_string, source.producer_name, source.domain = "why", "someone", "org.example"
    source.model_version = 7
    source.metadata_props.add(key="license", value="none")
    source.graph.doc_string = "the graph"
    source.graph.metadata_props.add(key="place", value="graph")
    source.graph.input[0].doc_string = "features"
    source.graph.output[0].doc_string = "result"
    source.graph.node.append(
        helper.make_node("Odd", ["Y"], ["odd"], name="odd", domain="custom", doc_string="odd", level=3)
    )
    source.graph.output.append(info("odd", FLOAT, None))
    source.opset_import.add(domain="custom", version=3)
    function = helper.make_function(
        "custom", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], source.opset_import[:1]
    )
    function.doc_string = "doubles"
    source.functions.append(function)
    result = rnnlower.scan(source)
    assert isinstance(result, onnx.ModelProto)
    for field in ("doc_string", "producer_name", "domain", "model_version", "metadata_props", "ir_version"):
        assert getattr(result, field) == getattr(source, field)
    assert list(result.opset_import) == list(source.opset_import)
    assert (result.graph.doc_string, result.graph.name) == (source.graph.doc_string, source.graph.name)
    assert result.graph.metadata_props == source.graph.metadata_props
    assert list(result.graph.input) == list(source.graph.input)
    assert list(result.graph.output) == list(source.graph.output)
    assert result.graph.node[-1] == source.graph.node[-1]
    (kept,) = result.functions
    assert (kept.name, kept.doc_string) == (function.name, "doubles")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"strategy": "unrol"}, "the strategy is 'unrol'; it must be one of unroll, scan, loop"),
        ({"strategy": "scan", "semantics": "onnx"}, "the semantics are 'onnx'"),
        ({"strategy": "scan", "unroll_factor": 0}, "the unroll factor is 0"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(rnnlower.OptionError, match=said):
        LowerRecurrentPass(**arguments)


def test_unrolling_needs_a_length() -> None:
    model = ir.from_proto(recurrent_model(inputs={"X": (FLOAT, ["T", 2, 3])}))
    before = ir.to_proto(model).SerializeToString()
    with pytest.raises(rnnlower.UnsupportedModelError, match="'cell': its sequence length is 'T'"):
        LowerRecurrentPass("unroll")(model)
    assert ir.to_proto(model).SerializeToString() == before


def test_a_failure_at_the_second_node_leaves_the_model_as_it_was() -> None:
    model = ir.from_onnx_text("""
        <ir_version: 8, opset_import: ["" : 8]>
        main (float[3, 2, 2] X, int32[2] lens) => (float[1, 2, 2] A, float[1, 2, 2] B)
        <float[1, 2, 2] W = {1, 1, 1, 1}, float[1, 2, 2] R = {1, 1, 1, 1}>
        {
            y, A = RNN <hidden_size = 2> (X, W, R)
            z, B = RNN <hidden_size = 2> (X, W, R, , lens, A)
        }
    """)
    before = ir.to_proto(model)
    lowering = LowerRecurrentPass("unroll")
    with pytest.raises(rnnlower.OpsetError, match=r"RNN_1'.*needs opset 9"):
        lowering(model)
    assert ir.to_proto(model) == before
    assert all(node.graph is model.graph for value in model.graph.inputs for node, _ in value.uses())
    assert (lowering.lowered, lowering.notes) == ([], {})


@pytest.mark.parametrize("strategy", ["scan", "loop"])
def test_lengths_of_a_constant_node_need_no_declared_shape(strategy: str) -> None:
    """As `LegacyConstantsPass` and exporters write them."""
    config = Config(
        "LSTM",
        13,
        batch_size=13,
        x_dims="unknown",
        sequence_lens="constant",
        initial_c="initializer",
        Y_h="graph",
    )
    lowering = LowerRecurrentPass(strategy)
    lowering(ir.from_proto(config.build()))
    assert lowering.lowered
