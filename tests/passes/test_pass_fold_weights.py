"""FoldWeightsPass: computed weights become initializers, unless that stored something twice."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.small_models import ops

from rnnlower.errors import InvalidModelError
from rnnlower.graph.walk import walk
from rnnlower.passes.folding import FoldWeightsPass

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
TWO_HALVES = """
    front = Slice (stored, one, two, zero)
    back = Slice (stored, zero, one, zero)
    joined = Concat <axis = 0> (front, back)
"""
CONSTANTS = """
<float[2, 1] stored = {1, 2}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>
"""


def fold(text: str) -> tuple[ir.Model, bool]:
    """Return the model after the pass over all its recurrent nodes."""
    own = ir.from_onnx_text(HEADER + text)
    nodes = [node for node, _ in walk(own.graph) if node.op_type == "RNN"]
    return own, FoldWeightsPass(nodes)(own).modified


def stored(own: ir.Model, name: str) -> list[float]:
    tensor = own.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy().ravel().tolist()


def test_a_computed_weight_becomes_an_initializer() -> None:
    own, modified = fold(f"""
        main (float[3, 1, 1] X, float[1, 2, 2] R) => (float[3, 1, 1, 2] Y) {CONSTANTS}
        {{
            {TWO_HALVES}
            W = Unsqueeze (joined, zero)
            Y = RNN <hidden_size = 2> (X, W, R)
        }}
    """)
    assert modified
    assert ops(own) == ["RNN"]
    assert set(own.graph.initializers) == {"W"}
    assert stored(own, "W") == [2.0, 1.0]
    assert own.graph.initializers["W"].shape == [1, 2, 1]


def test_a_weight_from_a_constant_node_becomes_an_initializer() -> None:
    own, modified = fold("""
        main (float[3, 1, 1] X, float[1, 2, 2] R) => (float[3, 1, 1, 2] Y)
        {
            flat = Constant <value = float[2] {3, 4}> ()
            axes = Constant <value = int64[2] {0, 2}> ()
            W = Unsqueeze (flat, axes)
            Y = RNN <hidden_size = 2> (X, W, R)
        }
    """)
    assert modified
    assert ops(own) == ["RNN"]
    assert stored(own, "W") == [3.0, 4.0]


def test_weights_computed_in_a_branch_move_out_of_it() -> None:
    own, _ = fold(f"""
        main (float[3, 1, 1] X, float[1, 2, 2] R, bool c) => (float[3, 1, 1, 2] Y) {CONSTANTS}
        {{
            {TWO_HALVES}
            Y = If (c) <
                then_branch = yes () => (float[3, 1, 1, 2] a) {{
                    W = Unsqueeze (joined, zero)
                    a = RNN <hidden_size = 2> (X, W, R)
                }},
                else_branch = no () => (float[3, 1, 1, 2] b) {{
                    W2 = Unsqueeze (joined, zero)
                    b = RNN <hidden_size = 2, activations = ["Relu"]> (X, W2, R)
                }}
            >
        }}
    """)
    assert ops(own) == ["If", "RNN", "RNN"]
    nodes = [node for node, _ in walk(own.graph) if node.op_type == "RNN"]
    # Equal weights are stored once.
    assert nodes[0].inputs[1] is nodes[1].inputs[1]
    assert set(own.graph.initializers) == {nodes[0].inputs[1].name}


@pytest.mark.parametrize(
    "reader",
    ["other = Neg (stored)", "other = Neg (joined)"],
    ids=["the_source", "in_between"],
)
def test_a_computed_value_that_another_node_reads_stays(reader: str) -> None:
    own, modified = fold(f"""
        main (float[3, 1, 1] X, float[1, 2, 2] R) => (float[3, 1, 1, 2] Y, float other) {CONSTANTS}
        {{
            {TWO_HALVES}
            W = Unsqueeze (joined, zero)
            {reader}
            Y = RNN <hidden_size = 2> (X, W, R)
        }}
    """)
    assert not modified
    assert ops(own) == ["Slice", "Slice", "Concat", "Unsqueeze", "Neg", "RNN"]


def test_a_weight_that_something_else_reads_too_is_an_initializer_for_both() -> None:
    own, modified = fold(f"""
        main (float[3, 1, 1] X, float[1, 2, 2] R) => (float[3, 1, 1, 2] Y, float other) {CONSTANTS}
        {{
            {TWO_HALVES}
            W = Unsqueeze (joined, zero)
            other = Neg (W)
            Y = RNN <hidden_size = 2> (X, W, R)
        }}
    """)
    assert modified
    assert ops(own) == ["Neg", "RNN"]
    assert set(own.graph.initializers) == {"W"}


def test_a_weight_that_is_an_output_stays_computed() -> None:
    own, modified = fold(f"""
        main (float[3, 1, 1] X, float[1, 2, 2] R) => (float[3, 1, 1, 2] Y, float[1, 2, 1] W) {CONSTANTS}
        {{
            {TWO_HALVES}
            W = Unsqueeze (joined, zero)
            Y = RNN <hidden_size = 2> (X, W, R)
        }}
    """)
    assert not modified
    assert "Unsqueeze" in ops(own)


def test_a_weight_that_depends_on_an_input_stays_computed() -> None:
    own, modified = fold("""
        main (float[3, 1, 1] X, float[1, 2, 2] R, float[2, 1] given) => (float[3, 1, 1, 2] Y)
        <int64[1] zero = {0}>
        {
            W = Unsqueeze (given, zero)
            Y = RNN <hidden_size = 2> (X, W, R)
        }
    """)
    assert not modified
    assert ops(own) == ["Unsqueeze", "RNN"]


def test_an_overridable_initializer_is_no_constant() -> None:
    _, modified = fold("""
        main (float[3, 1, 1] X, float[1, 2, 2] R, float[2, 1] given) => (float[3, 1, 1, 2] Y)
        <float[2, 1] given = {1, 2}, float[1, 2, 2] R, int64[1] zero = {0}>
        {
            W = Unsqueeze (given, zero)
            Y = RNN <hidden_size = 2> (X, W, R)
        }
    """)
    assert not modified


def _quantized(hidden_size: int) -> tuple[ir.Model, bool]:
    own = ir.from_onnx_text(
        HEADER
        + f"""
        main (float[3, 1, 1] X, float[1, {hidden_size}, 1] W) => (float[3, 1, 1, {hidden_size}] Y)
        <float scale = {{0.5}}, int8[1] quantized = {{0}}>
        {{
            R = DequantizeLinear (quantized, scale)
            Y = RNN <hidden_size = {hidden_size}> (X, W, R)
        }}
    """
    )
    values = np.full((1, hidden_size, hidden_size), 3, np.int8)
    own.graph.initializers["quantized"].const_value = ir.Tensor(values, name="quantized")
    own.graph.initializers["quantized"].shape = ir.Shape(values.shape)
    return own, FoldWeightsPass([own.graph.node(1)])(own).modified


def test_quantized_weights_are_not_stored_at_full_size() -> None:
    own, modified = _quantized(32)
    assert not modified
    assert ops(own) == ["DequantizeLinear", "RNN"]


def test_small_quantized_weights_are_folded() -> None:
    own, modified = _quantized(2)
    assert modified
    assert stored(own, "R") == [1.5] * 4


def test_weights_of_bfloat16_are_folded() -> None:
    own, modified = fold("""
        main (bfloat16[3, 1, 1] X, bfloat16[1, 2, 1] W) => (bfloat16[3, 1, 1, 2] Y)
        <float single = {0.5}, int8[1, 2, 2] quantized = {1, 2, 3, 4}>
        {
            half = Cast <to = 16> (single)
            R = DequantizeLinear (quantized, half)
            Y = RNN <hidden_size = 2> (X, W, R)
        }
    """)
    assert modified
    assert ops(own) == ["RNN"]
    assert own.graph.initializers["R"].dtype == ir.DataType.BFLOAT16
    assert stored(own, "R") == [0.5, 1.0, 1.5, 2.0]


def test_a_constant_weight_that_cannot_be_computed_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="'RNN_0': its constant input W 'W' cannot be computed"):
        fold("""
            main (float[3, 1, 1] X, float[1, 2, 2] R) => (float[3, 1, 1, 2] Y)
            <float[5] flat = {1, 2, 3, 4, 5}, int64[3] shape = {1, 2, 1}>
            {
                W = Reshape (flat, shape)
                Y = RNN <hidden_size = 2> (X, W, R)
            }
        """)


def test_a_state_that_cannot_be_computed_is_named_as_one() -> None:
    own = ir.from_onnx_text(
        HEADER
        + """
        main (float[3, 2, 1] X, float[1, 1, 1] W, float[1, 1, 1] R) => (float[3, 1, 2, 1] Y)
        <float[2] h = {1, 2}, int64[1] four = {4}>
        {
            start = Reshape (h, four)
            Y = RNN <hidden_size = 1> (X, W, R, , , start)
        }
    """
    )
    with pytest.raises(InvalidModelError, match="its constant input initial_h 'start' cannot be computed"):
        FoldWeightsPass(positions=[5], may_grow=True)(own)


def _state_of_shape(x_dims: str, state: str) -> ir.Model:
    """Return a state of zeros, as many rows as X has."""
    return ir.from_onnx_text(
        HEADER
        + f"""
        main (float[{x_dims}] X, float[1, 2, 1] W, float[1, 2, 2] R) => (float[T, 1, N, 2] Y)
        <int64 one = {{1}}, int64[1] zero = {{0}}, int64[1] directions = {{1}}, int64[1] hidden = {{2}}>
        {{
            x = Transpose <perm = [1, 0, 2]> (X)
            {state}
            h = ConstantOfShape (sizes)
            Y = RNN <hidden_size = 2> (x, W, R, , , h)
        }}
    """
    )


ALL_SIZES = """
    shape = Shape (x)
    rows = Gather (shape, one)
    row = Unsqueeze (rows, zero)
    sizes = Concat <axis = 0> (directions, row, hidden)
"""
SOME_SIZES = """
    row = Shape <start = 1, end = -1> (x)
    sizes = Concat <axis = 0> (directions, row, hidden)
"""


@pytest.mark.parametrize("state", [ALL_SIZES, SOME_SIZES], ids=["all", "some"])
def test_static_shapes_are_constants(state: str) -> None:
    own = _state_of_shape("4, 3, 1", state)
    assert FoldWeightsPass(positions=[5], may_grow=True)(own).modified
    assert ops(own) == ["Transpose", "RNN"]
    assert own.graph.initializers["h"].shape == [1, 4, 2]
    assert stored(own, "h") == [0.0] * 8


@pytest.mark.parametrize("x_dims", ["N, 3, 1", "N, T, 1"])
def test_open_sizes_are_no_constants(x_dims: str) -> None:
    own = _state_of_shape(x_dims, ALL_SIZES)
    assert not FoldWeightsPass(positions=[5], may_grow=True)(own).modified


def test_a_weight_that_cannot_be_computed_leaves_the_model_as_it_was() -> None:
    own = ir.from_onnx_text(
        HEADER
        + """
        main (float[3, 2, 1] X) => (float[3, 1, 2, 1] Y)
        <float[1, 1] w = {1}, float[1] r = {1}, int64[1] zero = {0}, int64[1] four = {4}>
        {
            W = Unsqueeze (w, zero)
            R = Reshape (r, four)
            Y = RNN <hidden_size = 1> (X, W, R)
        }
    """
    )
    before = ir.to_proto(own).SerializeToString(deterministic=True)
    with pytest.raises(InvalidModelError, match="'R' cannot be computed"):
        FoldWeightsPass(may_grow=True)(own)
    assert ir.to_proto(own).SerializeToString(deterministic=True) == before
