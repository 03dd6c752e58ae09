"""UnfoldRowsPass: layers of rows are computed on all axes, and everything else stays folded."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run

from rnnlower.passes import UnfoldRowsPass

MODEL = """<ir_version: 8, opset_import: ["" : {opset}]>
    main ({inputs}) => ({outputs})
    <float[4, 2] w = {{1, -2, 3, 4, -5, 6, 7, 8}}, float[2, 4] v = {{2, 1, -1, 3, 4, 0.5, -2, 1}},
     float[2] b = {{0.5, -1}}, float[2] v2 = {{2, 3}}, float[1, 2] c = {{-3, 2}}, float half = {{0.5}},
     int64[2] rows = {{-1, 4}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}>
    {{
        sizes = Shape (x)
        n = Slice (sizes, zero, one)
        t = Slice (sizes, one, two)
        shape = Concat <axis = 0> (n, t, two)
        f = Reshape (x, rows)
        {layers}
    }}"""
INPUTS, OUTPUTS = "float[N, T, 4] x", "float[N, T, 2] y"
MATMUL = "g = MatMul (f, w)"


def build(layers: str, inputs: str = INPUTS, outputs: str = OUTPUTS, opset: int = 17) -> ir.Model:
    return ir.from_onnx_text(MODEL.format(layers=layers, inputs=inputs, outputs=outputs, opset=opset))


@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize(
    "layers",
    [
        f"{MATMUL} y = Reshape (g, shape)",
        "g = Gemm (f, w, b) y = Reshape (g, shape)",
        "g = Gemm (f, w) y = Reshape (g, shape)",
        "g = Gemm <transB = 1> (f, v, c) y = Reshape (g, shape)",
        f"{MATMUL} h = Add (g, b) i = Relu (h) j = Mul (i, h) k = Sub (c, j) y = Reshape (k, shape)",
        f"{MATMUL} h = Softmax <axis = 1> (g) i = LogSoftmax <axis = 1> (h) y = Reshape (i, shape)",
        f"{MATMUL} h = Gemm <transB = 1> (f, v, b) i = Mul (g, h) y = Reshape (i, shape)",
        f"{MATMUL} h = Reshape (g, shape) i = Tanh (g) j = Reshape (i, shape) y = Add (h, j)",
        f"{MATMUL} same = Identity (v2) h = BatchNormalization <epsilon = 0.1> (g, b, same, b, v2) "
        "y = Reshape (h, shape)",
        "m = Constant <value = int64[1] {-1}> () s = Concat <axis = 0> (n, m, two)"
        f"{MATMUL} y = Reshape (g, s)",
    ],
)
def test_layers_of_rows(layers: str, opset: int) -> None:
    own = build(layers, opset=opset)
    before = ir.to_proto(own)
    assert UnfoldRowsPass()(own).modified
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    assert not {"Gemm", "Reshape"} & {node.op_type for node in after.graph.node}
    for sizes in ((1, 1), (2, 3), (3, 50), *(() if "-1" in layers else [(0, 2)])):
        feeds = {"x": np.random.default_rng(0).standard_normal((*sizes, 4), np.float32)}
        expected = run(before, feeds)["y"]
        np.testing.assert_allclose(run(after, feeds)["y"], expected, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize(
    "layers",
    [
        # The last axis is not the one of rows, or sizes are in another order.
        f"s = Concat <axis = 0> (t, n, two) {MATMUL} y = Reshape (g, s)",
        f"s = Concat <axis = 0> (n, two, t) {MATMUL} y = Reshape (g, s)",
        # Rows depend on each other.
        f"{MATMUL} h = Softmax <axis = 0> (g) y = Reshape (h, shape)",
        f"{MATMUL} h = CumSum (g, half) y = Reshape (h, shape)".replace("half", "zero"),
        "g = Transpose (f) h = MatMul (w, g) y = Reshape (h, shape)".replace("(w, g)", "(v, g)"),
        # Each row has another bias.
        f"{MATMUL} h = Add (g, z) y = Reshape (h, shape)",
        "g = Gemm (f, w, z) y = Reshape (g, shape)",
        "g = Gemm <alpha = 2.0> (f, w, b) y = Reshape (g, shape)",
        # Something else reads the rows.
        f"{MATMUL} y = Reshape (g, shape) folded = Neg (g)",
        f"{MATMUL} y = Reshape (g, shape) folded = Reshape (g, rows)",
        f"{MATMUL} folded = Identity (g)  y = Reshape (folded, shape)",
    ],
)
def test_other_nodes_stay(layers: str) -> None:
    outputs = f"{OUTPUTS}, float[r, k] folded" if "folded" in layers else OUTPUTS
    own = build(layers, inputs=f"{INPUTS}, float[R, 2] z", outputs=outputs)
    assert not UnfoldRowsPass()(own).modified


@pytest.mark.parametrize(("sizes", "opset"), [("2, 3, 4", 17), ("N, T, 4", 6)])
def test_fixed_sizes_and_the_first_opsets_stay(sizes: str, opset: int) -> None:
    layers = f"{MATMUL} y = Reshape (g, shape)"
    own = build(layers, inputs=f"float[{sizes}] x", outputs="float[a, b, 2] y", opset=opset)
    assert not UnfoldRowsPass()(own).modified


def test_rows_that_a_branch_reads_stay() -> None:
    layers = f"""{MATMUL} y = Reshape (g, shape)
        z = If (on) <then_branch = first () => (float[r, 2] p) {{ p = Neg (g) }},
                     else_branch = other () => (float[r, 2] q) {{ q = Abs (g) }}>"""
    own = build(layers, inputs=f"{INPUTS}, bool on", outputs=f"{OUTPUTS}, float[r, 2] z")
    assert not UnfoldRowsPass()(own).modified


def test_a_weight_with_other_readers_is_stored_once() -> None:
    """Models whose embedding is also their last layer write it so."""
    own = build(
        "g = Gemm <transB = 1> (f, v, b) y = Reshape (g, shape) z = MatMul (v, w)",
        outputs=f"{OUTPUTS}, float[2, 2] z",
    )
    before = ir.to_proto(own)
    assert UnfoldRowsPass()(own).modified
    assert set(own.graph.initializers) <= {tensor.name for tensor in before.graph.initializer}
    after = ir.to_proto(own)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4), np.float32)}
    expected = run(before, feeds)
    for name, array in run(after, feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6, strict=True)
