"""Functions that import another opset than the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.opset_engines import run_ort
from support.small_models import info, model_of, weights

import rnnlower
from rnnlower.errors import OpsetError

FLOAT = TensorProto.FLOAT
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
AXES = helper.make_node("Constant", [], ["axes"], value=numpy_helper.from_array(np.array([1])))
MEAN = [
    AXES,
    helper.make_node("ReduceMean", ["a", "axes"], ["m"]),
    helper.make_node("Sub", ["a", "m"], ["b"]),
]
BITS = [
    helper.make_node("Cast", ["a"], ["i"], to=TensorProto.INT32),
    helper.make_node("BitwiseNot", ["i"], ["n"]),
    helper.make_node("Cast", ["n"], ["b"], to=FLOAT),
]


def function(
    name: str, nodes: list[onnx.NodeProto], opset: int = 18, inputs: str = "a"
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, inputs.split(), ["b"], nodes, imports)


def call(name: str, inputs: str, output: str) -> onnx.NodeProto:
    return helper.make_node(name, inputs.split(), [output], domain="own")


def model_with(opset: int, *functions: onnx.FunctionProto) -> onnx.ModelProto:
    """Call the first function, and continue with operators of its own opset."""
    nodes = [
        call(functions[0].name, "x", "h"),
        helper.make_node("Softmax", ["h"], ["y"], axis=1),
    ]
    inputs, outputs = [info("x", FLOAT, [2, 3])], [info("y", FLOAT, [2, 3])]
    return model_of(nodes, inputs, outputs, opset=opset, functions=functions, extra_domains=["own"])


@pytest.mark.parametrize("target", [7, 9, 13, 14, 15, 18, 26])
@pytest.mark.parametrize("opset", [7, 11, 13, 17])
def test_a_function_of_a_newer_opset_than_the_model(opset: int, target: int) -> None:
    nested = function("outer", [call("inner", "a", "b")], opset=opset), function("inner", MEAN)
    for source in (model_with(opset, function("F", MEAN)), model_with(opset, *nested)):
        result = rnnlower.convert(source, opset=target)
        onnx.checker.check_model(result, full_check=True)
        assert {each.version for each in result.opset_import if each.domain == ""} == {target}
        assert bool(result.functions) is (target >= 15)
        centered = X - X.mean(axis=1, keepdims=True)
        exponentials = np.exp(centered)
        (found,) = run_ort(result, {"x": X})
        np.testing.assert_allclose(found, exponentials / exponentials.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(
    ("own", "source", "targets"), [(11, 16, (9, 10, 12)), (11, 11, (9, 13)), (9, 7, (13,))]
)
def test_a_function_is_inlined_at_the_opset_next_to_its_own(
    own: int, source: int, targets: tuple[int, ...]
) -> None:
    softmax = helper.make_node("Softmax", ["a"], ["b"])
    softmax.attribute.add(name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT)
    called = function("F", [softmax], opset=own)
    called.attribute.append("axis")
    caller = model_with(source, called)
    caller.graph.node[0].attribute.append(helper.make_attribute("axis", 1))
    for target in targets:
        result = rnnlower.convert(caller, opset=target)
        onnx.checker.check_model(result, full_check=True)
        assert not result.functions
        (found,) = run_ort(result, {"x": X})
        np.testing.assert_allclose(found, softmax_of(softmax_of(X)), rtol=1e-5)
    if source > 12:
        # From 15 on functions stay, and the axis of Softmax-13 says something else.
        with pytest.raises(
            OpsetError, match="inline the model's functions first, or ask for an opset below 13"
        ):
            rnnlower.convert(caller, opset=15)


def softmax_of(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def test_a_node_in_a_function_is_refused_with_the_functions_name() -> None:
    source = model_with(13, function("F", BITS))
    for target in (13, 17):
        with pytest.raises(
            OpsetError, match=r"BitwiseNot node \(output 'n'\) in function:own::F: .*ask for opset 18"
        ):
            rnnlower.convert(source, opset=target)
    assert rnnlower.convert(source, opset=18).functions


def test_a_function_that_nothing_calls_does_not_stand_in_the_way() -> None:
    source = model_with(13, function("F", MEAN), function("unused", BITS))
    assert not rnnlower.convert(source, opset=11).functions
    with pytest.raises(OpsetError, match="in function:own::unused"):
        rnnlower.convert(source, opset=17)


@pytest.mark.parametrize("strategy", ["scan", "loop"])
def test_lowering_raises_the_model_to_what_the_function_needs(strategy: str) -> None:
    cell = helper.make_node("LSTM", ["x", "w", "r"], ["", "a"], hidden_size=4)
    given = {name: value for name, value in weights("LSTM").items() if name != "B"}
    outputs = [info("y", FLOAT, [1, 2, 4])]
    for body, raised in ((BITS, 18), ([helper.make_node("Identity", ["a"], ["b"])], 13)):
        source = model_of(
            [call("F", "x W R", "y")],
            [info("x", FLOAT, ["T", 2, 3])],
            outputs,
            given,
            opset=13,
            functions=[function("F", [cell, *body], inputs="x w r")],
            extra_domains=["own"],
        )
        lowered = getattr(rnnlower, strategy)(source)
        assert max(each.version for each in lowered.opset_import if not each.domain) == raised
        assert rnnlower.verify(source, lowered, trials=2)
    source.functions[0].node.pop()
    source.functions[0].node.extend(BITS)
    with pytest.raises(OpsetError, match=r"BitwiseNot node 'F.BitwiseNot': .*ask for opset 18"):
        getattr(rnnlower, strategy)(source, opset=13)


def test_a_node_without_a_name_is_found_by_its_place() -> None:
    def branch(name: str, node: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph([node], name, [], [info(node.output[0], TensorProto.INT32, [2])])

    inner = helper.make_node(
        "If",
        ["c"],
        ["a"],
        then_branch=branch("then", helper.make_node("BitwiseNot", ["z"], ["n"])),
        else_branch=branch("else", helper.make_node("Identity", ["z"], ["k"])),
    )
    outer = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("outer_then", inner),
        else_branch=branch("outer_else", helper.make_node("Identity", ["z"], ["l"])),
    )
    nodes = [helper.make_node("Identity", ["x"], ["z"]), outer]
    inputs = [info("c", TensorProto.BOOL, []), info("x", TensorProto.INT32, [2])]
    source = model_of(nodes, inputs, [info("y", TensorProto.INT32, [2])], opset=18)
    where = r"unnamed BitwiseNot node \(output 'n'\) in If_1/then_branch/If_0/then_branch: "
    with pytest.raises(OpsetError, match=f"^{where}"):
        rnnlower.convert(source, opset=13)


def test_an_overload_that_calls_another() -> None:
    source = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main (float[2, 3] x) => (float[2, 3] y) { y = own.F : one (x) }
        <domain: "own", overload: "one", opset_import: ["" : 17, "own" : 1]>
        F (x) => (y) { z = own.F : two (x) y = Exp (z) }
        <domain: "own", overload: "two", opset_import: ["" : 17]> F (x) => (y) { y = Neg (x) }
    """)
    (y,) = run_ort(rnnlower.convert(source, opset=13), {"x": X})
    np.testing.assert_allclose(y, np.exp(-X), rtol=1e-6)
