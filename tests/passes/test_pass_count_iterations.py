"""CountIterationsPass: a Loop that ends by a condition on its counters has a trip count."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.passes import CountIterationsPass

MODEL = """
    <ir_version: 8, opset_import: ["" : {opset}]>
    main (float[T, 2] x, float[2] h) => (float[2] z, float[T, 2] y{more})
        <int64 first = {{0}}, int32 zero = {{0}}, int32 one = {{1}}, int64 few = {{3}}, bool go = {{1}},
        float low = {{-9}}>
    {{
        sizes = Shape (x)
        long = Gather (sizes, first)
        steps = Cast <to = 6> (long)
        starts = Less (zero, steps)
        end, turn, z, y = Loop ({count}, {begin}, zero, zero, h) <body = body
            (int64 i, bool c, int32 t, int32 k, float[2] h_in)
            => (bool goes, int32 t_out, int32 k_out, float[2] h_out, float[2] row)
        {{
            v = Gather (x, {place})
            s = Add (h_in, v)
            h_out = Tanh (s)
            row = Identity (h_out)
            t_out = Add (t, one)
            k_out = Add (one, k)
            in_time = Less (t_out, steps)
            in_turn = Greater (steps, k_out)
            least = ReduceMin <keepdims = 0> (h_out)
            above = Greater (least, {limit})
            both = And (in_time, in_turn)
            goes = {goes}
        }}>
    }}
"""
USUAL = {
    "opset": 17,
    "more": "",
    "count": "",
    "begin": "starts",
    "place": "t",
    "limit": "low",
    "goes": "Identity (both)",
}


def counted(**changes: str | int) -> tuple[onnx.NodeProto, bool]:
    source = onnx.parser.parse_model(MODEL.format(**(USUAL | changes)))
    own = ir.from_proto(source)
    modified = CountIterationsPass()(own).modified
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(source, result)
    return next(node for node in result.graph.node if node.op_type == "Loop"), modified


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize(("count", "begin"), [("", "starts"), ("long", "starts"), ("long", "go")])
def test_the_condition_becomes_a_trip_count(count: str, begin: str, opset: int) -> None:
    loop, modified = counted(count=count, begin=begin, opset=opset)
    assert modified
    assert list(loop.input) == ["long", "", "h"]
    body = loop.attribute[0].g
    assert len(body.input) == 3
    assert {"Less", "Greater", "And", "ReduceMin"} & {node.op_type for node in body.node} == {
        "ReduceMin",
        "Greater",
    }


def test_a_loop_that_always_begins_stays() -> None:
    """It runs once for no steps, where one with a trip count does not run."""
    _, modified = counted(begin="go")
    assert not modified


def test_a_limit_between_two_numbers_stays() -> None:
    """Less than 2.5 are 0, 1 and 2; the number of iterations is not 2."""
    text = MODEL.format(**(USUAL | {"goes": "Less (at, steps)"}))
    for old, new in {
        "float[2] h)": "float[2] h, float steps)",
        "steps = Cast <to = 6> (long)": "none = Cast <to = 1> (zero)",
        "Less (zero, steps)": "Less (none, steps)",
        "in_time = Less (t_out, steps)": "at = Cast <to = 1> (t_out)",
        "in_turn = Greater (steps, k_out)": "",
        "both = And (in_time, in_turn)": "",
    }.items():
        text = text.replace(old, new, 1)
    assert not CountIterationsPass()(ir.from_proto(onnx.parser.parse_model(text))).modified


def test_a_known_number_of_iterations_becomes_a_constant() -> None:
    text = MODEL.replace("float[T, 2]", "float[5, 2]").format(**USUAL)
    own = ir.from_proto(source := onnx.parser.parse_model(text))
    CountIterationsPass()(own)
    loop = next(node for node in own.graph if node.op_type == "Loop")
    assert loop.inputs[0] is not None
    assert loop.inputs[0].const_value is not None
    assert loop.inputs[0].const_value.numpy() == 5
    assert rnnlower.verify(source, ir.to_proto(own))


def test_a_counter_that_is_read_afterward_stays() -> None:
    loop, _ = counted(more=", int32 end")
    assert list(loop.input) == ["long", "", "zero", "h"]


def test_an_end_by_a_value_stays() -> None:
    loop, modified = counted(goes="And (both, above)")
    assert not modified
    assert len(loop.input) == 5


def test_an_end_before_the_limit_stays() -> None:
    loop, modified = counted(count="few")
    assert not modified
    assert len(loop.input) == 5


def test_a_loop_that_may_not_begin_stays() -> None:
    begin = "begins"
    text = MODEL.replace(
        "starts = Less", "low_x = ReduceMin <keepdims = 0> (x) begins = Greater (low_x, low) starts = Less"
    )
    source = onnx.parser.parse_model(text.format(**(USUAL | {"begin": begin})))
    assert not CountIterationsPass()(ir.from_proto(source)).modified
