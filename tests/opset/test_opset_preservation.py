"""Preservation by a conversion: functions, subgraphs, names, metadata, external data, other domains."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.graph_text import parse_text
from support.opset_engines import run_ort

from rnnlower.errors import OpsetError
from rnnlower.opset import convert_opset

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4) / 10
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def info(name: str, type_: int, shape: Any) -> onnx.ValueInfoProto:
    """Return a value's declaration with a comment and metadata."""
    value = helper.make_tensor_value_info(name, type_, shape, doc_string=f"about {name}")
    value.metadata_props.add(key="value", value=name)
    return value


def tag(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node with a name, a comment and metadata."""
    node.name = node.name or f"node_{node.output[0]}"
    node.doc_string = f"makes {node.output[0]}"
    node.metadata_props.add(key="node", value=node.output[0])
    return node


def rich_model() -> onnx.ModelProto:
    """Return a function, an If inside a Loop, metadata at every level, a quantization annotation."""
    softmax = tag(helper.make_node("Softmax", ["state"], ["kept"], axis=0))
    keep = helper.make_graph([softmax], "then", [], [info("kept", FLOAT, [2, 4])])
    turn = helper.make_graph(
        [
            tag(helper.make_node("ReduceMean", ["state", "axes"], ["most"], keepdims=0)),
            tag(helper.make_node("Clip", ["state", "", "most"], ["turned"])),
        ],
        "else",
        [],
        [info("turned", FLOAT, [2, 4])],
    )
    keep.metadata_props.add(key="graph", value="then")
    body = helper.make_graph(
        [
            tag(helper.make_node("Mod", ["i", "two"], ["odd"])),
            tag(helper.make_node("Cast", ["odd"], ["is_odd"], to=BOOL)),
            tag(helper.make_node("If", ["is_odd"], ["next"], then_branch=keep, else_branch=turn)),
            tag(helper.make_node("Identity", ["go"], ["go_on"])),
        ],
        "body",
        [info("i", INT64, []), info("go", BOOL, []), info("state", FLOAT, [2, 4])],
        [info("go_on", BOOL, []), info("next", FLOAT, [2, 4])],
        doc_string="about body",
    )
    body.metadata_props.add(key="graph", value="body")
    nodes = [
        tag(helper.make_node("Scaled", ["x", "weight"], ["h"], domain="local", factor=2.0)),
        tag(helper.make_node("Loop", ["times", "", "h"], ["y"], body=body)),
        tag(helper.make_node("Squeeze", ["wide", "axes_1"], ["narrow"])),
    ]
    constants = {
        "weight": WEIGHT,
        "two": np.array(2, np.int64),
        "times": np.array(3, np.int64),
        "axes": np.array([0, 1], np.int64),
        "wide": WEIGHT[:, None],
        "axes_1": np.array([1], np.int64),
    }
    graph = helper.make_graph(
        nodes,
        "main",
        [info("x", FLOAT, ["N", 3])],
        [info("y", FLOAT, ["N", 4]), info("narrow", FLOAT, [3, 4])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
        doc_string="about main",
        value_info=[info("h", FLOAT, ["N", 4])],
    )
    graph.metadata_props.add(key="graph", value="main")
    annotation = graph.quantization_annotation.add(tensor_name="h")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="weight")
    factor = helper.make_node("Constant", [], ["factor"], name="make_factor")
    factor.attribute.add(name="value_float", ref_attr_name="factor", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function(
        "local",
        "Scaled",
        ["a", "b"],
        ["c"],
        [
            factor,
            helper.make_node("MatMul", ["a", "b"], ["ab"]),
            helper.make_node("Mul", ["ab", "factor"], ["c"]),
        ],
        [helper.make_opsetid("", 21)],
        ["factor"],
        doc_string="about Scaled",
    )
    function.metadata_props.add(key="function", value="Scaled")
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("local", 1)],
        functions=[function],
        ir_version=10,
        producer_name="tests",
        doc_string="about the model",
    )
    helper.set_model_props(model, {"model": "rich"})
    onnx.checker.check_model(model, full_check=True)
    return model


def expected() -> np.ndarray:
    """Return the model's output for X."""
    state = X @ WEIGHT * 2
    for i in range(3):
        if i % 2:
            exponentials = np.exp(state - state.max(axis=0))
            state = exponentials / exponentials.sum(axis=0)
        else:
            state = np.minimum(state, state.mean())
    return state


def outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    """Return the model's outputs for X."""
    return run_ort(model, {"x": X})


def graphs_by_name(graph: onnx.GraphProto) -> dict[str, onnx.GraphProto]:
    """Return the graph and all below it."""
    found = {graph.name: graph}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= graphs_by_name(attribute.g)
    return found


def properties(entry: Any) -> dict[str, str]:
    """Return metadata as a dictionary."""
    return {each.key: each.value for each in entry.metadata_props}


def check_everything_is_kept(model: onnx.ModelProto) -> None:
    """Check names, comments and metadata at all levels."""
    assert (model.producer_name, model.doc_string) == ("tests", "about the model")
    assert properties(model) == {"model": "rich"}
    graphs = graphs_by_name(model.graph)
    assert set(graphs) >= {"main", "body", "then", "else"}
    for name in ("main", "body", "then"):
        assert properties(graphs[name]) == {"graph": name}
    assert graphs["main"].doc_string == "about main"
    assert graphs["body"].doc_string == "about body"
    for graph in graphs.values():
        for value in (*graph.input, *graph.output):
            assert value.doc_string == f"about {value.name}"
            assert properties(value) == {"value": value.name}
    nodes = {node.name: node for graph in graphs.values() for node in graph.node}
    kept = ["y", "is_odd", "next", "go_on", "narrow", "kept", "turned", "most", "odd"]
    for output in kept:
        node = nodes[f"node_{output}"]
        assert node.doc_string == f"makes {output}", output
        assert properties(node) == {"node": output}, output
    assert {tensor.name for tensor in model.graph.initializer} >= {
        "weight",
        "two",
        "times",
        "axes",
        "wide",
        "axes_1",
    }
    (annotation,) = model.graph.quantization_annotation
    assert annotation.tensor_name == "h"


@pytest.mark.parametrize("way", [(11,), (11, 21), (17, 26), (15, 21), (9, 21)])
def test_a_rich_model_keeps_everything(way: tuple[int, ...], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(rich_model(), path, save_as_external_data=True, location="weights", size_threshold=8)
    work = ir.load(path)
    weight = work.graph.initializers["weight"].const_value
    assert isinstance(weight, ir.ExternalTensor)
    for target in way:
        report = convert_opset(work, target)
        assert report.target == work.opset_imports[""] == target
        assert bool(report.inlined) is (target < 15 and "Scaled" in str(report.inlined))
    assert work.graph.initializers["weight"].const_value is weight
    result_path = tmp_path / "result.onnx"
    ir.save(work, result_path)
    result = onnx.load(result_path, load_external_data=False)
    assert {t.name for t in result.graph.initializer if t.external_data} >= {"weight", "wide"}
    onnx.load_external_data_for_model(result, str(tmp_path))
    onnx.checker.check_model(result, full_check=True)
    check_everything_is_kept(result)
    y, narrow = outputs(result)
    np.testing.assert_allclose(y, expected(), rtol=1e-5)
    np.testing.assert_array_equal(narrow, WEIGHT)


def test_functions_are_converted_too() -> None:
    work = ir.from_proto(rich_model())
    report = convert_opset(work, 26)
    (function,) = work.functions.values()
    assert function.opset_imports[""] == 26
    assert function.doc_string == "about Scaled"
    assert function.metadata_props == {"function": "Scaled"}
    assert report.inlined == []


def test_functions_are_inlined_below_15_and_the_report_says_so() -> None:
    work = ir.from_proto(rich_model())
    report = convert_opset(work, 14)
    assert not work.functions
    assert report.inlined == ["local::Scaled"]
    assert report.notes == ["opset 14 has no functions: 1 were inlined"]


def test_functions_that_nothing_calls_go_and_the_report_says_so() -> None:
    proto = rich_model()
    for name in ("Unused", "Forgotten"):
        proto.functions.append(proto.functions[0])
        proto.functions[-1].name = name
    report = convert_opset(ir.from_proto(proto), 14)
    assert report.inlined == ["local::Scaled"]
    assert report.unused == ["local::Unused", "local::Forgotten"]
    assert report.notes[0] == (
        "opset 14 has no functions: local::Unused, local::Forgotten are never called, and left out"
    )


def test_a_refused_model_stays_as_it_was() -> None:
    proto = rich_model()
    proto.graph.node.append(helper.make_node("BitwiseNot", ["times"], ["last"], name="not_sayable"))
    work = ir.from_proto(proto)
    before = ir.to_proto(work).SerializeToString(deterministic=True)
    with pytest.raises(OpsetError, match=r"BitwiseNot node 'not_sayable': .*does not exist before opset 18"):
        convert_opset(work, 13)
    assert ir.to_proto(work).SerializeToString(deterministic=True) == before


def test_a_refusal_after_other_nodes_have_changed_restores_comments_and_metadata() -> None:
    nodes = [
        tag(helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=1, layout=1)),
        tag(helper.make_node("Relu", ["i"], ["z"])),
    ]
    inputs = [info("x", FLOAT, [2, 3, 1]), info("w", FLOAT, [1, 4, 1]), info("r", FLOAT, [1, 4, 1])]
    graph = helper.make_graph(
        nodes, "g", [*inputs, info("i", INT64, [2])], [info("y", FLOAT, None), info("z", INT64, [2])]
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)]))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    with pytest.raises(OpsetError, match="Relu-13 does not take"):
        convert_opset(model, 13)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_the_same_input_gives_the_same_bytes() -> None:
    results = []
    for _ in range(2):
        work = ir.from_proto(rich_model())
        convert_opset(work, 9)
        results.append(ir.to_proto(work).SerializeToString(deterministic=True))
    assert results[0] == results[1]


def test_other_domains_are_left_alone() -> None:
    inner = helper.make_graph(
        [helper.make_node("Squeeze", ["x"], ["s"], axes=[0])], "inner", [], [info("s", FLOAT, [3])]
    )
    node = helper.make_node(
        "Odd", ["x"], ["y"], domain="private", name="odd", body=inner, consumed_inputs=[1]
    )
    graph = helper.make_graph([node], "g", [info("x", FLOAT, [1, 3])], [info("y", FLOAT, [3])])
    imports = [helper.make_opsetid("", 11), helper.make_opsetid("private", 7)]
    work = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=7))
    convert_opset(work, 13)
    result = ir.to_proto(work)
    assert {each.domain: each.version for each in result.opset_import} == {"": 13, "private": 7}
    (kept,) = result.graph.node
    assert (kept.domain, kept.op_type, kept.name) == ("private", "Odd", "odd")
    attributes = {attribute.name: attribute for attribute in kept.attribute}
    assert list(attributes["consumed_inputs"].ints) == [1]
    # Its subgraph holds nodes of the default domain, and those have to follow.
    squeeze = [each for each in attributes["body"].g.node if each.op_type == "Squeeze"]
    assert len(squeeze[0].input) == 2


def test_the_ir_version_follows_the_opset_and_never_falls() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [info("x", FLOAT, [2])], [info("y", FLOAT, [2])]
    )
    for source, ir_version, target, wanted in (
        (6, 3, 13, 7),
        (6, 3, 26, 13),
        (17, 8, 9, 8),
        (13, 12, 17, 12),
    ):
        proto = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", source)], ir_version=ir_version
        )
        work = ir.from_proto(proto)
        assert convert_opset(work, target).ir_version == work.ir_version == wanted


@pytest.mark.parametrize("target", [0, -1, 1000])
def test_an_opset_that_does_not_exist(target: int) -> None:
    with pytest.raises(OpsetError, match="is not one of 1 to"):
        convert_opset(ir.from_proto(rich_model()), target)


def test_an_operator_that_does_not_exist_is_named() -> None:
    graph = helper.make_graph(
        [helper.make_node("Affine", ["x"], ["y"], name="affine")],
        "g",
        [info("x", FLOAT, [2])],
        [info("y", FLOAT, [2])],
    )
    work = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=4))
    with pytest.raises(OpsetError, match=r"Affine node 'affine': opset 7 has no operator Affine"):
        convert_opset(work, 13)


def model_with_a_parameter(op_type: str, name: str, opset: int, value: Any) -> onnx.ModelProto:
    """Return a function whose node takes its attribute from the call."""
    inner = helper.make_node(op_type, ["a"], ["b"])
    kind = onnx.AttributeProto.INTS if isinstance(value, list) else onnx.AttributeProto.INT
    inner.attribute.add(name=name, ref_attr_name="given", type=kind)
    imports = [helper.make_opsetid("", opset)]
    function = helper.make_function("local", "F", ["a"], ["b"], [inner], imports, ["given"])
    graph = helper.make_graph(
        [helper.make_node("F", ["x"], ["y"], domain="local", given=value)],
        "g",
        [info("x", FLOAT, ["N", 3])],
        [info("y", FLOAT, [None, None])],
    )
    imports = [*imports, helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)


def test_a_list_that_is_a_parameter_of_a_function_becomes_an_input() -> None:
    work = ir.from_proto(model_with_a_parameter("ReduceMean", "axes", 17, [1]))
    convert_opset(work, 18)
    result = ir.to_proto(work)
    assert [node.op_type for node in result.functions[0].node] == ["Constant", "ReduceMean"]
    np.testing.assert_allclose(outputs(result)[0], X.mean(axis=1, keepdims=True), rtol=1e-6)


def test_a_list_that_a_call_leaves_out_is_refused() -> None:
    model = model_with_a_parameter("ReduceMean", "axes", 17, [1])
    outer = helper.make_node("F", ["a"], ["b"], domain="local")
    outer.attribute.add(name="given", ref_attr_name="outer", type=onnx.AttributeProto.INTS)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model.functions.append(helper.make_function("local", "G", ["a"], ["b"], [outer], imports, ["outer"]))
    call = model.graph.node[0]
    call.op_type, call.attribute[0].name = "G", "outer"
    assert convert_opset(ir.from_proto(model), 18)
    del call.attribute[:]
    with pytest.raises(OpsetError, match=r"in function:local::F: .* a call .* leaves out 'given'"):
        convert_opset(ir.from_proto(model), 18)


def test_an_attribute_that_has_to_be_known_is_refused_as_a_parameter() -> None:
    model = model_with_a_parameter("GroupNormalization", "num_groups", 18, 1)
    del model.functions[0].node[0].input[:]
    model.functions[0].node[0].input.extend(["a", "a", "a"])
    work = ir.from_proto(model)
    with pytest.raises(
        OpsetError, match=r"in function:local::F: .*'num_groups' is a parameter of the function"
    ):
        convert_opset(work, 21)


def test_a_function_that_is_called_with_two_types() -> None:
    body = [helper.make_node("Clip", ["a", "low"], ["b"])]
    function = helper.make_function("local", "F", ["a", "low"], ["b"], body, [helper.make_opsetid("", 17)])
    graph = helper.make_graph(
        [
            helper.make_node("F", ["x", "low"], ["y"], domain="local"),
            helper.make_node("Cast", ["x"], ["i"], to=INT64),
            helper.make_node("F", ["i", "zero"], ["z"], domain="local"),
        ],
        "g",
        [info("x", FLOAT, [2, 3])],
        [info("y", FLOAT, [2, 3]), info("z", INT64, [2, 3])],
        [numpy_helper.from_array(np.float32(-0.5), "low"), numpy_helper.from_array(np.int64(0), "zero")],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    for target in (21, 15, 13, 11):
        work = ir.from_proto(model)
        convert_opset(work, target)
        y, z = outputs(ir.to_proto(work))
        np.testing.assert_array_equal(y, np.maximum(X, -0.5))
        np.testing.assert_array_equal(z, np.maximum(X.astype(np.int64), 0))


@pytest.mark.parametrize("target", [11, 22])
def test_a_loop_with_neither_condition_nor_state(target: int) -> None:
    """Its second input is omitted, and counts."""
    body = "go_on = Identity (go) y = Identity (x)"
    model = parse_text(
        "(float[2] x) => (float[3, 2] ys) <int64 times = {3}> { ys = Loop <body = step (int64 i, bool go) => "
        f"(bool go_on, float[2] y) {{ {body} }}> (times) }}"
    )
    model.graph.node[0].input.append("")
    onnx.checker.check_model(model)
    work = ir.from_proto(model)
    convert_opset(work, target)
    result = ir.to_proto(work)
    onnx.checker.check_model(result)
    np.testing.assert_array_equal(*(run_ort(each, {"x": X[0, :2]})[0] for each in (model, result)))
