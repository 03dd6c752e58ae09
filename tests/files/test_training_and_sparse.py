"""Training info, sparse initializers and annotations, which `onnx_ir` cannot represent."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.folded_rows import FOLDED_ROWS
from support.opset_engines import run_ort
from support.small_models import recurrent_model, run_onnxruntime, weights

import rnnlower
from rnnlower.files.model_io import read_model, stage_model, to_proto
from rnnlower.opset import convert_opset

FLOAT = TensorProto.FLOAT
STATES = ("initial_h", "initial_c")


def model_with_everything() -> onnx.ModelProto:
    """Return y = Squeeze(x + w + sparse), trained by w -= Squeeze(gradient)."""
    values = helper.make_tensor("sparse", FLOAT, [2], [5.0, 7.0])
    indices = helper.make_tensor("sparse_indices", TensorProto.INT64, [2, 2], [0, 1, 1, 2])
    graph = helper.make_graph(
        [
            helper.make_node("Add", ["x", "w"], ["a"], name="first"),
            helper.make_node("Add", ["a", "sparse"], ["b"], name="second"),
            helper.make_node("Unsqueeze", ["b"], ["y"], name="third", axes=[0]),
        ],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", FLOAT, [1, 2, 3])],
        [helper.make_tensor("w", FLOAT, [3], [1.0, 2.0, 3.0])],
        sparse_initializer=[helper.make_sparse_tensor(values, indices, [2, 3])],
    )
    for name in ("a", "w", "sparse", "somewhere else"):
        annotation = graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
    info = model.training_info.add()
    info.algorithm.name = "step"
    info.algorithm.node.extend(
        [
            helper.make_node("Squeeze", ["y"], ["s"], axes=[0]),
            helper.make_node("ReduceSum", ["s"], ["g"], axes=[0], keepdims=0),
            helper.make_node("Sub", ["w", "g"], ["new_w"]),
        ]
    )
    info.algorithm.output.append(helper.make_tensor_value_info("new_w", FLOAT, [3]))
    info.update_binding.add(key="w", value="new_w")
    onnx.checker.check_model(model)
    return model


def check_kept(result: onnx.ModelProto) -> None:
    """Check that everything is still in the model."""
    onnx.checker.check_model(result)
    assert {each.tensor_name for each in result.graph.quantization_annotation} == {
        "a",
        "w",
        "sparse",
        "somewhere else",
    }
    assert [each.name for each in result.graph.initializer if each.name in ("w", "sparse")] == ["w"]
    (sparse,) = result.graph.sparse_initializer
    assert sparse == model_with_everything().graph.sparse_initializer[0]
    (info,) = result.training_info
    assert [node.op_type for node in info.algorithm.node if node.op_type != "Constant"] == [
        "Squeeze",
        "ReduceSum",
        "Sub",
    ]
    assert info.update_binding[0].value == "new_w"


def test_reading_and_writing_keeps_everything(tmp_path: pathlib.Path) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(model_with_everything(), path)
    model = read_model(path)
    check_kept(to_proto(model))
    with stage_model(model, out) as stage:
        stage.accepted = True
    check_kept(onnx.load(out))


def test_conversion_keeps_and_converts_everything() -> None:
    source = model_with_everything()
    before = source.SerializeToString(deterministic=True)
    result = rnnlower.convert(source, opset=13)
    assert source.SerializeToString(deterministic=True) == before
    check_kept(result)
    squeeze = next(node for node in result.training_info[0].algorithm.node if node.op_type == "Squeeze")
    assert len(squeeze.input) == 2
    assert not result.training_info[0].algorithm.input
    x = np.zeros((2, 3), np.float32)
    (y,) = run_ort(result, {"x": x})
    np.testing.assert_array_equal(y, np.array([[[1, 7, 3], [1, 2, 10]]], np.float32))


def test_training_that_cannot_be_converted_is_refused() -> None:
    model = model_with_everything()
    model.training_info[0].algorithm.node.append(helper.make_node("Round", ["g"], ["r"], name="rounding"))
    with pytest.raises(rnnlower.OpsetError, match=r"in the model's training info: \w+ node 'rounding'"):
        rnnlower.convert(model, opset=9)


def test_a_sparse_constant_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    model = model_with_everything()
    node = model.graph.node.add(op_type="Constant", name="few", output=["c"])
    node.attribute.append(helper.make_attribute("sparse_value", model.graph.sparse_initializer[0]))
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"'few'.*sparse"):
        rnnlower.convert(model, opset=13)


def sparse_weight(value: float) -> onnx.SparseTensorProto:
    """Return `w`: the value, then zero."""
    values = helper.make_tensor("w", FLOAT, [1], [value])
    return helper.make_sparse_tensor(values, helper.make_tensor("", TensorProto.INT64, [1], [0]), [2])


def branch(weight: onnx.SparseTensorProto | onnx.TensorProto) -> onnx.GraphProto:
    """Return x + w, with a `w` of its own, and an annotation of a value from outside."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["o"])],
        "g",
        [],
        [helper.make_tensor_value_info("o", FLOAT, [2])],
    )
    if isinstance(weight, onnx.SparseTensorProto):
        graph.sparse_initializer.append(weight)
    else:
        graph.initializer.append(weight)
    for name in ("o", "x"):
        annotation = graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    return graph


BRANCHES = {
    "two sparse": (sparse_weight(1.0), sparse_weight(5.0)),
    "one dense": (sparse_weight(1.0), helper.make_tensor("w", FLOAT, [2], [7.0, 8.0])),
}


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("weights", BRANCHES.values(), ids=BRANCHES)
def test_branches_keep_their_own_sparse_initializers_and_annotations(
    weights: tuple[onnx.SparseTensorProto, onnx.TensorProto], in_function: bool, tmp_path: pathlib.Path
) -> None:
    then, other = map(branch, weights)
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    functions = []
    if in_function:
        opsets = [helper.make_opsetid("", 17)]
        functions.append(helper.make_function("local", "F", ["c", "x"], ["y"], [node], opsets))
        node = helper.make_node("F", ["c", "x"], ["y"], domain="local")
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("y", FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    for source in (model, tmp_path / "m.onnx"):
        result = rnnlower.convert(source, opset=18)
        nodes = result.functions[0].node if in_function else result.graph.node
        branches = {attribute.name: attribute.g for attribute in nodes[0].attribute}
        for name, before in (("then_branch", then), ("else_branch", other)):
            assert list(branches[name].sparse_initializer) == list(before.sparse_initializer)
            assert list(branches[name].initializer) == list(before.initializer)
            assert {each.tensor_name for each in branches[name].quantization_annotation} == {"o", "x"}


def test_a_sparse_constant_in_a_function_is_refused_by_name() -> None:
    node = helper.make_node("Constant", [], ["y"], name="few", sparse_value=sparse_weight(1.0))
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("local", "F", [], ["y"], [node], opsets)
    graph = helper.make_graph(
        [helper.make_node("F", [], ["y"], domain="local")],
        "g",
        [],
        [helper.make_tensor_value_info("y", FLOAT, [2])],
    )
    opsets.append(helper.make_opsetid("local", 1))
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"Constant node 'few' holds a sparse tensor"):
        rnnlower.convert(model, opset=18)


def test_nothing_to_convert_changes_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_with_everything(), path)
    model = read_model(path)
    assert not convert_opset(model, 11)
    check_kept(to_proto(model))


@pytest.mark.parametrize("computed", [False, True])
def test_weights_that_are_trained_stay(computed: bool) -> None:
    model = recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])})
    if computed:
        model.graph.node[0].input[1] = "doubled"
        model.graph.node.insert(0, onnx.helper.make_node("Add", ["W", "W"], ["doubled"]))
    training = model.training_info.add()
    training.algorithm.name = "step"
    training.algorithm.node.append(onnx.helper.make_node("Neg", ["W"], ["new"]))
    training.algorithm.output.append(onnx.helper.make_tensor_value_info("new", 1, [1, 16, 3]))
    training.update_binding.add(key="W", value="new")
    for strategy in ("unroll", "scan", "loop"):
        lowered = getattr(rnnlower, strategy)(model)
        assert list(lowered.training_info) == [training]
        names = {tensor.name for tensor in lowered.graph.initializer}
        assert "W" in names
        assert "R" not in names


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop"])
def test_a_state_of_zeros_that_is_trained_is_read(strategy: str) -> None:
    """Today it is zero; what training makes of it has to count."""
    model = recurrent_model(
        constants=weights("LSTM") | {name: np.zeros((1, 2, 4), np.float32) for name in STATES},
        inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])},
    )
    training = model.training_info.add()
    training.algorithm.node.append(onnx.helper.make_node("Neg", ["initial_h"], ["new"]))
    training.algorithm.output.append(onnx.helper.make_tensor_value_info("new", 1, [1, 2, 4]))
    training.update_binding.add(key="initial_h", value="new")
    lowered = getattr(rnnlower, strategy)(model)
    states = {tensor.name: tensor for tensor in lowered.graph.initializer if tensor.name in STATES}
    assert list(states) == ["initial_h"]
    X = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    trained = np.full((1, 2, 4), 0.5, np.float32)
    for each in (model, lowered):
        (state,) = (tensor for tensor in each.graph.initializer if tensor.name == "initial_h")
        state.CopyFrom(onnx.numpy_helper.from_array(trained, "initial_h"))
    expected, found = (run_onnxruntime(each, {"X": X}) for each in (model, lowered))
    np.testing.assert_allclose(found["Y"], expected["Y"], atol=1e-5)


def test_weights_that_are_trained_stay_where_nothing_is_computed() -> None:
    model = recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, [0, 2, 3])})
    training = model.training_info.add()
    training.algorithm.node.append(onnx.helper.make_node("Neg", ["W"], ["new"]))
    training.algorithm.output.append(onnx.helper.make_tensor_value_info("new", 1, [1, 16, 3]))
    training.update_binding.add(key="W", value="new")
    lowered = rnnlower.unroll(model)
    assert "W" in {tensor.name for tensor in lowered.graph.initializer}


def test_values_that_training_reads_keep_their_names_and_shapes() -> None:
    """A target gets rows computed on all axes, and sizes in int64, where training reads neither."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        main (float[N, T, 4] x) => (float[N, T, 2] y)
        <int64[2] rows = {-1, 4}, int64[1] zero = {0}, int64[1] two = {2}, int32[1] last = {2},
         float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
            FOLDED_ROWS
            g = MatMul (f, w)
            y = Reshape (g, shape)
        }""".replace("FOLDED_ROWS", FOLDED_ROWS)
    )
    assert [node.op_type for node in rnnlower.lower(model, target="onnxruntime").graph.node] == ["MatMul"]
    for name in ("f", "g", "shape", "narrow"):
        read = onnx.ModelProto.FromString(model.SerializeToString())
        read.training_info.add().algorithm.node.append(helper.make_node("Neg", [name], ["loss"]))
        lowered = rnnlower.lower(read, target="onnxruntime")
        assert {out for node in lowered.graph.node for out in node.output} >= {name, "f", "g"}
