"""PlainLoopInputsPass: the number is a scalar, the condition constant, and a state has its own start."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import all_nodes, run

from rnnlower.passes import PlainLoopInputsPass

MODEL = """<ir_version: 8, opset_import: ["" : {opset}]>
    main (float[3, 2] x, float[2] h) => (float[2] last, int64[3] numbers)
    <int64 trips = {{3}}, bool go = {{1}}, int64 zero = {{0}}> {{
        last, numbers = Loop (trips, go, h) <body = each (int64 i, bool c, float[2] h_in)
            => (bool d, float[2] h_out, int64 {shown}) {{
            {nodes}
            h_out = Add (h_in, x_t)
            d = Identity (c)
        }}>
    }}"""
NESTED = """
    first = Equal (i, zero)
    x_t = If (first) <then_branch = at_first () => (float[2] a) { a = Gather (x, i) },
                      else_branch = later () => (float[2] b) { b = Gather (x, i) }>
    n = Identity (i)"""


@pytest.mark.parametrize("opset", [8, 11, 13, 21])
@pytest.mark.parametrize(
    ("nodes", "shown"),
    [("x_t = Gather (x, i) n = Mul (i, i)", "n"), ("x_t = Gather (x, i)", "i"), (NESTED, "n")],
    ids=["read", "returned", "read in a branch"],
)
def test_nothing_else_reads_the_inputs(nodes: str, shown: str, opset: int) -> None:
    own = ir.from_onnx_text(MODEL.format(nodes=nodes, shown=shown, opset=opset))
    assert PlainLoopInputsPass()(own).modified
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    (body,) = [node.attribute[0].g for node in after.graph.node if node.op_type == "Loop"]
    number, condition = (value.name for value in body.input[:2])
    read = {name: node.op_type for node in all_nodes(after) for name in node.input}
    assert read[number] == "Squeeze"
    assert not {number, condition} & {output.name for output in body.output}
    assert condition not in read
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "h": np.ones(2, np.float32)}
    results = run(after, feeds)
    np.testing.assert_array_equal(results["last"], feeds["x"].sum(axis=0) + 1)
    # onnxruntime gives three times the last number if the body returns its input as it is.
    np.testing.assert_array_equal(results["numbers"], [0, 1, 4] if "Mul" in nodes else [0, 1, 2])


def test_inputs_that_nobody_reads_get_nothing() -> None:
    text = MODEL.format(nodes="x_t = Gather (x, zero)", shown="zero", opset=13)
    assert not PlainLoopInputsPass()(ir.from_onnx_text(text.replace("(c)", "(go)"))).modified


def test_a_body_without_nodes() -> None:
    own = ir.from_onnx_text("""<ir_version: 8, opset_import: ["" : 17]>
        main (float[2] x, float[2] y) => (float[2] p, float[2] q) <int64 trips = {3}> {
            p, q = Loop (trips, , x, y) <body = step (int64 i, bool c, float[2] a, float[2] b)
                => (bool c, float[2] b, float[2] a) {}>
        }""")
    assert PlainLoopInputsPass()(own).modified
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    x, y = np.zeros(2, np.float32), np.ones(2, np.float32)
    np.testing.assert_array_equal(run(after, {"x": x, "y": y})["p"], y)


@pytest.mark.parametrize(
    ("starts", "after", "copies"),
    [("s, s", "Neg (p)", 2), ("s, e", "Add (p, s)", 1), ("s, e", "Neg (p)", 0), ("x, x", "Add (p, x)", 0)],
    ids=["two states", "read after the Loop", "one reader", "an input"],
)
def test_a_state_starts_from_a_value_of_its_own(starts: str, after: str, copies: int) -> None:
    own = ir.from_onnx_text(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[2] x) => (float[2] y, float[2] z) <int64 trips = {{3}}> {{
            s = Abs (x) e = Exp (x)
            p, q = Loop (trips, , {starts}) <body = step (int64 i, bool c, float[2] a, float[2] b)
                => (bool d, float[2] a_out, float[2] b_out) {{
                    d = Constant <value = bool {{1}}> () a_out = Add (a, b) b_out = Neg (a) }}>
            y = {after} z = Neg (q)
        }}""")
    feeds = {"x": np.array([-1, 2], np.float32)}
    expected = run(ir.to_proto(own), feeds)
    assert PlainLoopInputsPass()(own).modified == bool(copies)
    after_pass = ir.to_proto(own)
    onnx.checker.check_model(after_pass, full_check=True)
    assert [node.op_type for node in after_pass.graph.node].count("Cast") == copies
    np.testing.assert_equal(run(after_pass, feeds), expected)


@pytest.mark.parametrize("opset", [8, 13])
def test_a_number_that_is_declared_with_an_axis_keeps_it(opset: int) -> None:
    own = ir.from_onnx_text(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        main (float[3, 2] x, float[2] h) => (float[1, 2] last) <int64 trips = {{3}}> {{
            last = Loop (trips, , h) <body = step (int64[1] i, bool[1] c, float[n, 2] a)
                => (bool[1] d, float[1, 2] b) {{ b = Gather (x, i) d = Identity (c) }}>
        }}""")
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "h": np.ones(2, np.float32)}
    expected = run(ir.to_proto(own), feeds)
    assert PlainLoopInputsPass()(own).modified
    np.testing.assert_equal(run(ir.to_proto(own), feeds), expected)
    assert not PlainLoopInputsPass()(own).modified
