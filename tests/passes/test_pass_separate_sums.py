"""SeparateSumsPass: a Max between a sum and an activation."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run

from rnnlower.passes.exact_numbers import SeparateSumsPass

BODY = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2] X) => (float[2] H, float[T, 2] Y) <int64 trips = {3}, bool go = {1}> {
        H, Y = Loop (trips, go, X) <body: graph = step (int64 i, bool c, float[2] h)
            => (bool d, float[2] next, float[2] y) {
            d = Identity (c)
            s = Add (h, X)
            next = Tanh (s)
            y = Identity (next)
        }>
    }
"""


def model(nodes: str) -> ir.Model:
    return ir.from_onnx_text(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 3] a, float[2, 3] b) => (float[2, 3] y)
        <int64[1] flat = {{6}}, int64[2] back = {{2, 3}}> {{
            {nodes}
        }}
    """)


def ops(own: ir.Model) -> list[str]:
    return [node.op_type for node in ir.traversal.RecursiveGraphIterator(own.graph)]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("s = Add (a, b) y = Tanh (s)", ["Add", "Max", "Tanh"]),
        ("s = Sum (a, b) y = Sigmoid (s)", ["Sum", "Max", "Sigmoid"]),
        (
            "t = Transpose (b) g = Gemm (a, t) h = Sigmoid (g) y = Gemm (h, b)",
            ["Transpose", "Gemm", "Max", "Sigmoid", "Gemm"],
        ),
        ("s = Sub (a, b) y = Tanh (s)", ["Sub", "Tanh"]),
        ("s = Add (a, b) y = Relu (s)", ["Add", "Relu"]),
        ("y = Tanh (a)", ["Tanh"]),
        (
            "s = Add (a, b) r = Reshape (s, flat) t = Tanh (r) y = Reshape (t, back)",
            ["Add", "Reshape", "Max", "Tanh", "Reshape"],
        ),
        (
            "s = Add (a, b) r = Transpose (s) t = Tanh (r) y = Transpose (t)",
            ["Add", "Transpose", "Max", "Tanh", "Transpose"],
        ),
        ("s = Add (a, b) c = Abs (s) y = Tanh (c)", ["Add", "Abs", "Tanh"]),
    ],
    ids=["Add", "Sum", "Gemm", "no sum", "another op", "an input", "reshaped", "transposed", "computed with"],
)
def test_a_max_is_inserted_only_between_a_sum_and_an_activation(nodes: str, expected: list[str]) -> None:
    own = model(nodes)
    before = ir.to_proto(own)
    assert SeparateSumsPass(["Sigmoid", "Tanh"])(own).modified == ("Max" in expected)
    assert ops(own) == expected
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    feeds = {name: np.linspace(-2, 3, 6, dtype=np.float32).reshape(2, 3) for name in "ab"}
    np.testing.assert_array_equal(run(after, feeds)["y"], run(before, feeds)["y"])
    assert not SeparateSumsPass(["Sigmoid", "Tanh"])(own).modified


def test_a_max_is_inserted_in_the_body_of_a_loop() -> None:
    own = ir.from_onnx_text(BODY)
    SeparateSumsPass(["Tanh"])(own)
    assert ops(own) == ["Loop", "Identity", "Add", "Max", "Tanh", "Identity"]


def test_a_long_chain_of_shapes_is_looked_through_once() -> None:
    joined = "\n".join(f"c{i + 1} = Concat <axis = 0> (c{i}, c{i})" for i in range(40))
    own = model(f"c0 = Mul (a, b) {joined} t = Tanh (c40) y = Abs (t)")
    assert not SeparateSumsPass(["Tanh"])(own).modified
