"""Padded models that fold time into the batch, and compute each step of each row by itself."""

from __future__ import annotations

import onnx
import pytest
from support.padded_models import MAXIMUM, difference, with_weights

import rnnlower

_FOLD = "f = Reshape (x, s_3) "
_UNFOLD = "n = Shape <end = 2> (x) k = Concat <axis = 0> (n, m1) z = Reshape (y, k)"
_ZEROS = (
    "q = Shape <end = 1> (f) h1 = Concat <axis = 0> (o1, q, t3) h = ConstantOfShape (h1) "
    "e = Constant <value_float = 0.0> () c = Expand (e, h1) "
)
_READS = "(float[N, T, 3] x) => (float[N, T, U] z)"
MODELS = {
    "a dense layer": (
        _READS,
        f"{_FOLD} d = Gemm (f, V) a = Relu (d) y = BatchNormalization (a, s, s, s, ones) {_UNFOLD}",
    ),
    "a batch of one number": (
        "(float[2, T, 3] x) => (float[2, T, U] z)",
        f"{_FOLD} y = Gemm <transB = 1> (f, table) {_UNFOLD}",
    ),
    "time first": ("(float[T, N, 3] x) => (float[T, N, U] z)", f"{_FOLD} y = MatMul (f, V) {_UNFOLD}"),
    "an axis between": (
        "(float[N, 2, T, 3] x) => (float[N, 2, T, U] z)",
        f"{_FOLD} y = MatMul (f, V) n = Shape <end = 3> (x) k = Concat <axis = 0> (n, m1) z = Reshape (y, k)",
    ),
    "an axis behind": (
        "(float[N, T, 2, 3] x) => (float[N, T, 2, U] z)",
        f"{_FOLD} y = MatMul (f, V) n = Shape <end = 3> (x) k = Concat <axis = 0> (n, m1) z = Reshape (y, k)",
    ),
    "parts of features": (
        "(float[N, T, 6] x) => (float[N, T, U] z)",
        "f = Reshape (x, s_2_3) r = ReduceMax <axes = [1], keepdims = 0> (f) g = Reshape (r, s_3) "
        f"y = MatMul (g, V) {_UNFOLD}",
    ),
    "convolutions of frames, and a network over time": (
        "(float[N, T, 3, 7] x) => (float[N, T, 1, U] z)",
        "f = Reshape (x, s_3_7) c = Conv <pads = [1, 1]> (f, C) a = GlobalAveragePool (c) "
        "n = Shape <end = 2> (x) k = Concat <axis = 0> (n, m1) y = Reshape (a, k) "
        "t = Transpose <perm = [1, 0, 2]> (y) "
        'g = LSTM <hidden_size = 3, direction = "reverse"> (t, W4, K) '
        "z = Transpose <perm = [2, 0, 1, 3]> (g)",
    ),
    "a network along features, from zeros": (
        "(float[N, T, 5, 3] x) => (float[N, T, 1, U] z)",
        "r = Reshape (x, s_5_3) f = Transpose <perm = [0, 1, 2]> (r) p = Transpose <perm = [1, 0, 2]> (f) "
        f"{_ZEROS} g, y, w = LSTM <hidden_size = 3> (p, F, K, , , h, c) j = Transpose <perm = [1, 0, 2]> (y) "
        "n = Shape <end = 2> (x) k = Concat <axis = 0> (n, o1, m1) z = Reshape (j, k)",
    ),
    "attention along features": (
        "(float[N, T, 5, 3] x) => (float[N, T, 5, U] z)",
        "f = Reshape (x, s_5_3) t = Transpose <perm = [0, 2, 1]> (f) a = MatMul (f, t) "
        "b = Softmax <axis = -1> (a) y = MatMul (b, f) k = Shape (x) z = Reshape (y, k)",
    ),
    "norms of each step": (
        "(float[N, T, 4, 3] x) => (float[N, T, 4, U] z)",
        "f = Reshape (x, s_4_3) i = InstanceNormalization (f, b, b) y = LayerNormalization (i, s, s) "
        "k = Shape (x) z = Reshape (y, k)",
    ),
    "pooled steps": (
        "(float[N, 3, T] x) => (float[N, U, 3] z)",
        "p = MaxPool <kernel_shape = [3], strides = [2]> (x) t = Transpose <perm = [0, 2, 1]> (p) "
        "f = Reshape (t, s_3) y = MatMul (f, V) n = Shape <end = 2> (t) k = Concat <axis = 0> (n, m1) "
        "z = Reshape (y, k)",
    ),
    "characters of words": (
        "(float[N, T, 2] x) => (float[N, T, U] z)",
        "d = Abs (x) i = Cast <to = 7> (d) f = Reshape (i, s_2) g = Gather (table, f) "
        f"y = ReduceMax <axes = [1], keepdims = 0> (g) {_UNFOLD}",
    ),
    "words": (
        "(float[N, T] x) => (float[N, T, U] z)",
        f"d = Abs (x) i = Cast <to = 7> (d) f = Reshape (i, m1) y = Gather (table, f) {_UNFOLD}",
    ),
    "frames that are stretched": (
        "(float[N, T, 6] x) => (float[N, T, U] z)",
        "f = Reshape (x, s_2_3) e = Constant <value_floats = [1.0, 1.0, 2.0]> () "
        f'y = Resize <mode = "linear"> (f, , e) {_UNFOLD}',
    ),
    "features that are repeated": (
        _READS,
        f"{_FOLD} r = Constant <value_ints = [1, 2]> () y = Tile (f, r) {_UNFOLD}",
    ),
    "a dense layer of integers": (
        _READS,
        f"{_FOLD} c, d, e = DynamicQuantizeLinear (f) "
        "g = Constant <value = int8[3, 2] {1, -2, 3, 4, 5, -6}> () "
        f"h = MatMulInteger (c, g, e) a = Cast <to = 1> (h) y = Mul (a, d) {_UNFOLD}",
    ),
    "an integer divisor for all steps": (
        _READS,
        f"{_FOLD} p = Shape <end = 1> (f) m = Concat <axis = 0> (p, o1) "
        "d = ConstantOfShape <value = int64[1] {3}> (m) g = Mul (f, hundred) u = Cast <to = 7> (g) "
        f"v = Div (u, d) y = Cast <to = 1> (v) {_UNFOLD}",
    ),
    "a mean of time behind it": (
        "(float[N, T, 3] x) => (float[N, U] z)",
        f"{_FOLD} y = MatMul (f, V) n = Shape <end = 2> (x) k = Concat <axis = 0> (n, m1) u = Reshape (y, k) "
        "z = ReduceMean <axes = [1], keepdims = 0> (u)",
    ),
}


_CONSTANTS = """
    int64[2] s_2 = {-1, 2}, int64[2] s_3 = {-1, 3}, int64[3] s_2_3 = {-1, 2, 3}, int64[3] s_3_7 = {-1, 3, 7},
    int64[3] s_4_3 = {-1, 4, 3}, int64[3] s_5_3 = {-1, 5, 3}, int64[1] m1 = {-1}, int64[1] o1 = {1},
    int64[1] t3 = {3}, float[3] ones = {1, 1, 1}, float hundred = {100}
"""


def _model(reads: str, nodes: str, opset: int = 17) -> onnx.ModelProto:
    opsets = f'"" : {opset}, "com.microsoft" : 1'
    return with_weights(
        f"<ir_version: 8, opset_import: [{opsets}]> main {reads} <{_CONSTANTS}> {{ {nodes} }}"
    )


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", MODELS)
def test_each_step_goes_back_to_its_place(name: str, rows: int) -> None:
    source = _model(*MODELS[name])
    padded = rnnlower.pad(source, max={"T": MAXIMUM})
    assert difference(source, padded, 5.0, float("nan"), rows=rows) < 2e-6


@pytest.mark.parametrize("name", ["a network along features, from zeros", "an integer divisor for all steps"])
def test_what_is_equal_for_all_folded_steps_may_have_a_batch_of_one_number(name: str) -> None:
    source = _model(*MODELS[name])
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, dims={"N": 2})
    assert difference(source, padded, 5.0, float("nan"), rows=2) < 2e-6


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"a dense layer of integers"}))
def test_rows_of_different_lengths_go_back_to_their_places(name: str) -> None:
    source = _model(*MODELS[name])
    padded = rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True)
    assert rnnlower.verify(source, padded, trials=2)


@pytest.mark.parametrize(
    ("nodes", "refused"),
    [
        ("y = CumSum (f, zero)", "CumSum"),
        ("y = Softmax <axis = 0> (f)", "Softmax"),
        ("y = Trilu (f)", "Trilu"),
        ("p = Constant <value_int = -1> () g = Gather (f, p) y = Add (f, g)", "Gather"),
        ("p = ReduceMax <axes = [0]> (f) y = Add (f, p)", "ReduceMax"),
        ("p = Transpose <perm = [1, 0, 2]> (x) g = Reshape (p, s_3) y = Add (f, g)", "Add"),
        ("p = Transpose <perm = [1, 0]> (f) a = MatMul (f, p) y = MatMul (a, f)", "MatMul"),
        ("a = Unsqueeze (f, o1) b, c = GRU <hidden_size = 3> (a, W9, W9) y = Squeeze (c, zero1)", "GRU"),
        ("y = Slice (f, o1, m1, zero1)", "Slice"),
        ("i = ArgMax <axis = 1> (f) y = GatherElements <axis = 1> (W26, i)", "GatherElements"),
        (
            "i = Constant <value_ints = [1, -1, 6]> () q = Concat <axis = 1> (f, f) r = Reshape (q, i) "
            "y = com.microsoft.RotaryEmbedding (r, zero1, W26, W26)",
            "RotaryEmbedding",
        ),
    ],
)
def test_operators_that_combine_folded_steps_are_refused(nodes: str, refused: str) -> None:
    source = _model(_READS, f"{_FOLD} {nodes} {_UNFOLD}")
    message = rf"^{refused} .*steps that are folded with another axis.* give the other open sizes"
    with pytest.raises(rnnlower.UnsupportedModelError, match=message):
        rnnlower.pad(source, max={"T": MAXIMUM})


def test_folded_steps_are_no_output() -> None:
    source = _model("(float[N, T, 3] x) => (float[U, 3] z)", "z = Reshape (x, s_3)")
    with pytest.raises(rnnlower.UnsupportedModelError, match="returns steps that are folded"):
        rnnlower.pad(source, max={"T": MAXIMUM})
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, dims={"N": 1}))


def test_heads_in_another_order_than_those_of_keys_are_refused() -> None:
    nodes = (
        "a = Constant <value_ints = [1, -1, 2, 3]> () k = Reshape (x, a) q = Reshape (w, a) "
        "y = Attention (q, k, k) s = Shape (w) z = Reshape (y, s)"
    )
    reads = "(float[N, T, 2, 3] x, float[2, N, T, 2, 3] w) => (float[2, N, T, 2, 3] z)"
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"^Attention .*combines values of different"):
        rnnlower.pad(_model(reads, nodes, opset=23), max={"T": MAXIMUM})


def test_a_number_of_steps_and_rows_is_that_of_each_row() -> None:
    nodes = (
        "n = Shape (x) a = Gather (n, zero1) b = Gather (n, o1) c = Mul (a, b) d = Cast <to = 1> (c) "
        "z = Div (x, d)"
    )
    source = _model("(float[N, T, 3] x) => (float[N, T, 3] z)", nodes)
    assert rnnlower.verify(source, rnnlower.pad(source, max={"T": MAXIMUM}, per_row=True))
    whole = _model(
        "(float[N, T, 3] x) => (float[N, T, 3] z)", "c = Size (x) d = Cast <to = 1> (c) z = Div (x, d)"
    )
    with pytest.raises(
        rnnlower.UnsupportedModelError, match=r"^Div .*reads 'c', which differs from row to row"
    ):
        rnnlower.pad(whole, max={"T": MAXIMUM}, per_row=True)
