"""Messages, reports and results of lifting name nodes that the model leaves unnamed."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import compose
from support.repeated_steps import model_of
from support.small_models import recurrent_model

import rnnlower
from rnnlower.inspection import find_liftable, find_warnings
from rnnlower.recurrent.suspicions import find_other_recurrences

SCAN = """<ir_version: 9, opset_import: ["" : 18]>
main (float[T, B, 4] K, float[T, B, 4] V, float[B, 4, 4] S) => (float[B, 4, 4] E, float[T, B, 4] O)
<int64[1] key = {{1}}, int64[1] value = {{2}}, int64 one = {{1}}> {{
    E, O = Scan <num_scan_inputs = 2, body = step (float[B, 4, 4] s, float[B, 4] k, float[B, 4] v)
    => (float[B, 4, 4] s3, float[B, 4] o) {{
        {step}
        s3 = Identity (s2)  p = Mul (s2, kw)  o = ReduceSum <keepdims = 0> (p, key)
    }}> (S, K, V)
}}"""
STEP = "kw = Unsqueeze (k, value)  vw = Unsqueeze (v, key)  w = Mul (kw, vw)  s2 = Add (s, w)"
REFUSED = {
    "unnamed Tanh node (output 's2') is not linear in the state": STEP.replace(
        "s2 = Add (s, w)", "a = Add (s, w)  s2 = Tanh (a)"
    ),
    "unnamed CumSum node (output 'kw') is not computed for all steps at once": STEP.replace(
        "kw = Unsqueeze (k, value)", "ku = Unsqueeze (k, value)  kw = CumSum (ku, one)"
    ),
}


def line(op_type: str = "GRU") -> onnx.ModelProto:
    """Return a straight line of unnamed nodes."""
    model = rnnlower.unroll(recurrent_model(op_type), dims={"T": 6, "N": 2})
    for node in model.graph.node:
        node.name = ""
    return model


@pytest.mark.parametrize("reason", REFUSED)
def test_a_reason_names_the_operator(reason: str) -> None:
    _, report = rnnlower.lift.with_report(onnx.parser.parse_model(SCAN.format(step=REFUSED[reason])))
    assert reason in str(report.nodes[0].reason)


def test_lines_are_named_by_operator_and_position() -> None:
    model = compose.merge_models(line("GRU"), line("RNN"), [], prefix1="a_", prefix2="b_")
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["GRU", "RNN"]
    for node in report.nodes:
        op_type, position = node.name.split("_")
        assert model.graph.node[int(position)].op_type == op_type
        assert node.name in {made.name for made in lifted.graph.node if made.op_type == node.op_type}


def test_convolutions_are_named_by_their_position() -> None:
    step = "h{0} = Concat <axis = 2> (p, x)  y{0} = Conv <group = 4> (h{0}, k)"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        main (float[1, 4, 3] p, float[1, 4, 9] x, float[4, 1, 4] k) => (float[1, 4, 9] y0, float[1, 4, 9] y1)
        {{ {step.format(0)} {step.format(1)} }}""")
    _, report = rnnlower.lift.with_report(model)
    assert [(node.name, node.op_type) for node in report.nodes] == [
        ("Conv_1", "CausalConvWithState"),
        ("Conv_3", "CausalConvWithState"),
    ]


@pytest.mark.parametrize("name", ["/Loop", "/Scan", "", "lstm"])
def test_lifted_nodes_have_names(name: str) -> None:
    """PyTorch's exporter calls a Loop of the main module /Loop; a Loop of this tool is called lstm/Loop."""
    model = model_of("loop", "LSTM")
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    loop.name = name
    lifted, report = rnnlower.lift.with_report(model)
    (node,) = (node for node in lifted.graph.node if node.op_type == "LSTM")
    assert node.name == (name or "Loop_3")
    assert f"LSTM {node.name!r} needs a step" in str(report.notes)


@pytest.mark.parametrize("name", ["", "loop"])
def test_a_liftable_loop_does_not_stay(name: str) -> None:
    model = model_of("loop", "LSTM")
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    loop.name = name
    parsed = ir.from_proto(model)
    assert find_warnings(parsed, find_liftable(parsed)) == []


def test_a_warning_names_a_loop_as_lifting_does() -> None:
    step = "kv = MatMul (s, w)  vw = Unsqueeze (v, key)  a = Add (kv, vw)  s2 = Softmax (a)  kw = Neg (s)"
    model = onnx.parser.parse_model(SCAN.format(step=f"w = Unsqueeze (k, value)  {step}"))
    _, report = rnnlower.lift.with_report(model)
    (warning,) = find_other_recurrences(ir.from_proto(model))
    assert [warning.node] == [f"Scan node {node.name!r}" for node in report.nodes]
