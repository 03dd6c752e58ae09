"""LegacyConstantsPass: constants for IR versions whose initializers have to be inputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run

from rnnlower.passes.constant_inputs import LegacyConstantsPass


def constant_model(ir_version: int, opset: int) -> ir.Model:
    return ir.from_onnx_text(f"""
        <ir_version: {ir_version}, opset_import: ["" : {opset}]>
        main (float[2, 3] X, float[3] w) => (float[3, 2] Y)
        <float[3] w = {{1, 2, 3}}, float[3] b = {{4, 5, 6}}, int64[2] shape = {{3, 2}}>
        {{
            product = Mul (X, w)
            sum = Add (product, b)
            Y = Reshape (sum, shape)
        }}
    """)


@pytest.mark.parametrize(
    ("opset", "ops"), [(7, ["Constant", "Constant", "Cast"]), (9, ["Constant", "Constant"])]
)
def test_before_ir_version_4(opset: int, ops: list[str]) -> None:
    own = constant_model(3, opset)
    assert LegacyConstantsPass()(own).modified
    assert list(own.graph.initializers) == ["w"]
    assert [node.op_type for node in own.graph] == [*ops, "Mul", "Add", "Reshape"]
    proto = ir.to_proto(own)
    onnx.checker.check_model(proto, full_check=True)
    X = np.arange(6, dtype=np.float32).reshape(2, 3)
    (Y,) = run(proto, {"X": X}).values()
    np.testing.assert_array_equal(Y, (X * [1, 2, 3] + [4, 5, 6]).reshape(3, 2))


def test_values_keep_their_names() -> None:
    own = constant_model(3, 9)
    LegacyConstantsPass()(own)
    names = {out.name for node in own.graph for out in node.outputs}
    assert {"b", "shape"} <= names


def test_from_ir_version_4_on_nothing_happens() -> None:
    own = constant_model(4, 9)
    assert not LegacyConstantsPass()(own).modified
    assert list(own.graph.initializers) == ["w", "b", "shape"]


def test_a_graph_without_nodes() -> None:
    own = ir.from_onnx_text("""<ir_version: 3, opset_import: ["" : 9]>
        main (float[2] x) => (float[2] x) <float[2] w = {1, 2}> {}""")
    assert LegacyConstantsPass()(own).modified
    assert [node.op_type for node in own.graph] == ["Constant"]


def test_a_value_has_the_name_of_the_numbers_before_a_cast() -> None:
    own = ir.from_onnx_text("""<ir_version: 3, opset_import: ["" : 7]>
        main (float[2] x) => (float[4] y) <int64[1] two = {2}>
        { "two.float64" = Neg (x)  y = Tile ("two.float64", two) }""")
    assert LegacyConstantsPass()(own).modified
    (y,) = run(ir.to_proto(own), {"x": np.ones(2, np.float32)}).values()
    np.testing.assert_array_equal(y, [-1] * 4)
