"""CaptureStatesPass: what a Loop hands on unchanged is read from outside."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.graph.walk import walk
from rnnlower.passes import CaptureStatesPass

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[5, 2] x, float[2] h, float[2] w, float[2] b) => ({outputs}) <int64 n = {{5}}, bool go = {{1}}>
    {{
        w_last, last, b_last, y = Loop (n, go, w, h, b) <body = body
            (int64 i, bool c, float[2] w_in, float[2] h_in, float[2] b_in)
            => (bool c_out, float[2] w_in, float[2] h_out, float[2] b_in, float[2] {row})
        {{
            c_out = Identity (c)
            t = Gather (x, i)
            p = Mul (h_in, w_in)
            s = Add (p, b_in)
            a = Add (s, t)
            h_out = Tanh (a)
            row = Identity (h_out)
        }}>
        z = Sub (w_last, b_last)
        v = Neg (last)
    }}
"""
ALL = "float[5, 2] y, float[2] z, float[2] v"


def captured(text: str) -> tuple[onnx.ModelProto, onnx.NodeProto]:
    source = onnx.parser.parse_model(text)
    own = ir.from_proto(source)
    CaptureStatesPass()(own)
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(source, result)
    return result, next(node for node in result.graph.node if node.op_type == "Loop")


def test_a_weight_is_read_from_outside() -> None:
    _, loop = captured(MODEL.format(outputs=ALL, row="row"))
    assert list(loop.input) == ["n", "go", "h"]
    assert list(loop.output) == ["last", "y"]
    body = loop.attribute[0].g
    assert [value.name for value in body.input] == ["i", "c", "h_in"]
    assert {"w", "b"} <= {name for node in body.node for name in node.input}


def test_an_identity_of_a_state_changes_nothing() -> None:
    text = MODEL.replace(
        "float[2] w_in, float[2] h_out, float[2] b_in", "float[2] w_out, float[2] h_out, float[2] b_in"
    )
    _, loop = captured(
        text.format(outputs=ALL, row="row").replace("p = Mul", "w_out = Identity (w_in)  p = Mul")
    )
    assert list(loop.input) == ["n", "go", "h"]
    assert "w_out" not in [name for node in loop.attribute[0].g.node for name in node.output]


@pytest.mark.parametrize("result", ["float[2] w_last", "float[2] b_last"])
def test_a_final_value_that_is_an_output_stays(result: str) -> None:
    _, loop = captured(MODEL.format(outputs=f"{ALL}, {result}", row="row"))
    assert len(loop.input) == 4
    assert result.split()[1] in loop.output


def test_results_keep_their_metadata() -> None:
    own = ir.from_proto(onnx.parser.parse_model(MODEL.format(outputs=ALL, row="row")))
    own.graph.outputs[0].metadata_props["unit"] = "mV"
    CaptureStatesPass()(own)
    assert own.graph.outputs[0].metadata_props == {"unit": "mV"}


def test_scan_outputs_of_the_body_stay() -> None:
    _, loop = captured(MODEL.format(outputs=ALL, row="b_in"))
    assert list(loop.input) == ["n", "go", "h", "b"]


def test_a_loop_in_a_loop() -> None:
    source = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[3, 2] x, float[2] w) => (float[3, 3, 2] y) <int64 n = {3}> {
            same, y = Loop (n, , w) <body = outer (int64 i, bool c, float[2] w_in)
                => (bool c, float[2] w_in, float[3, 2] rows) {
                again, rows = Loop (n, , w_in) <body = inner (int64 k, bool d, float[2] v)
                    => (bool d, float[2] v, float[2] row) {
                    t = Gather (x, k)
                    row = Mul (t, v)
                }>
            }>
        }
    """)
    own = ir.from_proto(source)
    CaptureStatesPass()(own)
    assert [len(node.inputs) for node, _ in walk(own.graph) if node.op_type == "Loop"] == [2, 2]
    assert rnnlower.verify(source, ir.to_proto(own))


def test_a_lowering_for_a_runtime_captures() -> None:
    source = onnx.parser.parse_model(MODEL.format(outputs=ALL, row="row"))
    lowered = rnnlower.lower(source, target="openvino")
    loop = next(node for node in lowered.graph.node if node.op_type == "Loop")
    assert list(loop.input) == ["n", "go", "h"]


@pytest.mark.parametrize(("opset", "states"), [(10, 1), (11, 0)])
def test_a_loop_of_an_old_opset_keeps_a_state(opset: int, states: int) -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["" : {opset}]>
            main (float[2] w, float[2] b) => (float[3, 2] y) <int64 n = {{3}}, bool go = {{1}}> {{
                w_last, b_last, y = Loop (n, go, w, b) <body = each (int64 i, bool c, float[2] w_in,
                    float[2] b_in) => (bool c, float[2] w_in, float[2] b_in, float[2] row) {{
                    row = Add (w_in, b_in)
                }}>
            }}
        """)
    )
    CaptureStatesPass()(model)
    onnx.checker.check_model(ir.to_proto(model))
    assert len(model.graph[0].inputs) == 2 + states
