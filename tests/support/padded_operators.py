"""Every operator that padding may reach, in a model of its own over an open length."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

_HEAD = '<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
_CHANNELS = "c = Transpose <perm = [0, 2, 1]> (x)"
_SPATIAL = "c1 = Transpose <perm = [0, 2, 1]> (x) c = Unsqueeze (c1, three)"
_QUANTIZED = "q = QuantizeLinear (x, step, middle) qc = Transpose <perm = [0, 2, 1]> (q)"
_DECAY = "a1 = Abs (x) d = Neg (a1) r1 = Sigmoid (x) r, r2 = Split <axis = 2> (r1, halves)"
_PLACES = (
    "i0 = Constant <value_int = 0> () i1 = Constant <value_int = 1> () n1 = Shape <end = 2> (x) "
    "n = Gather (n1, i1) p1 = Range (i0, n, i1) places = Expand (p1, n1)"
)


def _past(state: str, sizes: str) -> str:
    """Return the nodes that give each row the same state, as `past`."""
    return (
        f"b1 = Shape <end = 1> (x) b2 = Constant <value_ints = [{sizes}]> () "
        f"b3 = Concat <axis = 0> (b1, b2) past = Expand ({state}, b3)"
    )


def _attention(rule: str, inputs: str) -> str:
    attributes = f'q_num_heads = 2, kv_num_heads = 2, update_rule = "{rule}"'
    return (
        f"{_past('p0', '2, 2, 2')} {_DECAY} "
        f"y, z = com.microsoft.LinearAttention <{attributes}> (x, x, x, past{inputs})"
    )


OPERATORS: Mapping[str, str] = {
    # Each takes x[B, T, 4] and gives z.
    "ArgMin": "z = ArgMin <axis = 1> (x)",
    "Attention": "z = Attention <q_num_heads = 2, kv_num_heads = 2> (x, x, x)",
    "Attention of onnxruntime": "z = com.microsoft.Attention <num_heads = 2> (x, f_4_12, f_12)",
    "BatchNormalization": f"{_CHANNELS} n = BatchNormalization (c, f_4, f_4, f_4, p_4) "
    "z = Conv <pads = [1, 1]> (n, f_4_4_3)",
    "BiasGelu": "z = com.microsoft.BiasGelu (x, f_4)",
    "CausalConvWithState": f"{_CHANNELS} z, y = com.microsoft.CausalConvWithState (c, f_4_1_3)",
    "CausalConvWithState, state of zeros": f"{_CHANNELS} "
    "y, z = com.microsoft.CausalConvWithState (c, f_4_1_3)",
    "CausalConvWithState, its state": f"{_CHANNELS} {_past('c0', '4, 2')} "
    'y, z = com.microsoft.CausalConvWithState <activation = "silu"> (c, f_4_1_3, f_4, past)',
    "CausalConvWithState, dilated": f"{_CHANNELS} {_past('f_1_4_4', '4, 4')} "
    "y, z = com.microsoft.CausalConvWithState <dilation = 2, channels_last = 0> (c, f_4_1_3, f_4, past)",
    "CausalConvWithState, channels last": f"{_past('f_1_2_4', '2, 4')} "
    "y, z = com.microsoft.CausalConvWithState <channels_last = 1> (x, f_4_1_3, f_4, past)",
    "CausalConvWithState, channels last, state of zeros": "y, z = com.microsoft.CausalConvWithState "
    "<channels_last = 1, dilation = 3> (x, f_4_1_3)",
    "ConvInteger": f"{_QUANTIZED} i = ConvInteger <pads = [1, 1]> (qc, s_4_4_3, middle) z = Identity (i)",
    "DequantizeLinear": "q = QuantizeLinear (x, step, middle) f = DequantizeLinear (q, step, middle) "
    "z = ReduceMean (f, last1)",
    "DepthToSpace": "w = Unsqueeze (x, first1) y = Transpose <perm = [1, 3, 2, 0]> (w) "
    "d = DepthToSpace <blocksize = 2> (y) z = ReduceMean (d, two)",
    "DynamicQuantizeLSTM": "t = Transpose <perm = [1, 0, 2]> (x) "
    'y, z = com.microsoft.DynamicQuantizeLSTM <hidden_size = 3, direction = "bidirectional"> '
    "(t, s_2_4_12, s_2_3_12, f_2_24, , , , , step2, zero2, step2, zero2)",
    "DynamicQuantizeLSTM of steps": "y, z = com.microsoft.DynamicQuantizeLSTM <hidden_size = 3, direction = "
    '"bidirectional"> (x, s_2_4_12, s_2_3_12, f_2_24, , , , , step2, zero2, step2, zero2)',
    "DynamicQuantizeMatMul": f"{_CHANNELS} b = Constant <value_float = 0.01> () "
    "z = com.microsoft.DynamicQuantizeMatMul (x, s_4_5, b)",
    "Expand": "m = ReduceSum <keepdims = 1> (x, last1) s1 = Shape (x) y = Expand (m, s1) "
    "w = Mul (y, x) z = ReduceSum (w, last1)",
    "EyeLike": "w = Squeeze (x, first1) e = EyeLike (w) z = Add (e, w)",
    "FastGelu": "z = com.microsoft.FastGelu (x, f_4)",
    "Flatten": "w = Flatten <axis = 2> (x) y = MatMul (w, f_4_4) z = ReduceMean (y, first1)",
    "FusedConv": f"{_CHANNELS} "
    'z = com.microsoft.FusedConv <pads = [1, 1], activation = "LeakyRelu", activation_params = [0.1]> '
    "(c, f_4_4_3, f_4)",
    "FusedGemm": "w = Squeeze (x, first1) "
    'z = com.microsoft.FusedGemm <transA = 1, activation = "Relu"> (w, w, f_4)',
    "FusedMatMul": "z = com.microsoft.FusedMatMul <transA = 1, alpha = 0.5> (x, x)",
    "FusedMatMul, attention": "w = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (x, x) "
    "s1 = Softmax (w) z = MatMul (s1, x)",
    "GRU": 't = Transpose <perm = [1, 0, 2]> (x) y, z = GRU <hidden_size = 3, direction = "bidirectional"> '
    "(t, f_2_9_4, f_2_9_3)",
    "Gemm": "w = Squeeze (x, first1) z = Gemm <transA = 1> (w, w, f_4)",
    "GatherElements": "a1 = Abs (x) m = ArgMax <axis = 1> (a1) z = GatherElements <axis = 1> (x, m)",
    "GatherElements of features": "a1 = Abs (x) m = ArgMax <axis = 2> (a1) "
    "y = GatherElements <axis = 2> (x, m) z = ReduceMax (y, last1)",
    "GatherElements from the end": "y = GatherElements <axis = 1> (x, places2) z = Neg (y)",
    "GatherND": "t = Transpose <perm = [2, 0, 1]> (x) y = GatherND (t, places3) z = ReduceMax (y, two)",
    "GlobalLpPool": f"{_CHANNELS} z = GlobalLpPool (c)",
    "GroupNormalization": f"{_CHANNELS} z = GroupNormalization <num_groups = 2> (c, f_4, f_4)",
    "LRN": f"{_SPATIAL} z = LRN <size = 3> (c)",
    "LinearAttention, linear": _attention("linear", ""),
    "LinearAttention, gated": _attention("gated", ", d"),
    "LinearAttention, delta": _attention("delta", ", , r"),
    "LinearAttention, gated delta": _attention("gated_delta", ", d, r"),
    "LpNormalization": "z = LpNormalization <axis = 1> (x)",
    "MatMulIntegerToFloat": "q = QuantizeLinear (x, step, middle) qc = Transpose <perm = [0, 2, 1]> (q) "
    "z = com.microsoft.MatMulIntegerToFloat (qc, q, step, step, middle, middle)",
    "MultiHeadAttention": "z = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x)",
    "OneHot": "m = ArgMax <axis = 2, keepdims = 0> (x) n = Constant <value_int = 5> () "
    "z = OneHot (m, n, bounds)",
    "QLinearAdd": "q = QuantizeLinear (x, step, middle) "
    "z = com.microsoft.QLinearAdd (q, step, middle, u_4, step, middle, step, middle)",
    "QLinearConv": f"{_QUANTIZED} "
    "z = QLinearConv <pads = [1, 1]> (qc, step, middle, s_4_4_3, step, zero8, step, middle)",
    "QLinearLeakyRelu": "q = QuantizeLinear (x, step, middle) "
    "z = com.microsoft.QLinearLeakyRelu <alpha = 0.1> (q, step, middle, step, middle)",
    "QLinearMatMul": f"{_QUANTIZED} z = QLinearMatMul (qc, step, middle, q, step, middle, one, middle)",
    "QLinearMul": "q = QuantizeLinear (x, step, middle) "
    "z = com.microsoft.QLinearMul (q, step, middle, q, step, middle, one, middle)",
    "QLinearSigmoid": "q = QuantizeLinear (x, step, middle) "
    "z = com.microsoft.QLinearSigmoid (q, step, middle, step, middle)",
    "QuantizeLinear": "m = ReduceMax (x, last1) y = Sub (x, m) z = QuantizeLinear (y, step, middle)",
    "RMSNormalization": f"{_CHANNELS} z = RMSNormalization <axis = 1> (c, one1)",
    "RNN": 't = Transpose <perm = [1, 0, 2]> (x) y, z = RNN <hidden_size = 3, direction = "reverse"> '
    "(t, f_1_3_4, f_1_3_3)",
    "ReduceL1": "z = ReduceL1 (x, last1)",
    "ReduceLogSum": "a1 = Exp (x) z = ReduceLogSum (a1, last1)",
    "ReduceProd": "z = ReduceProd (x, last1)",
    "ReduceSumSquare": "z = ReduceSumSquare (x, last1)",
    "ReverseSequence": "s1 = Shape <start = 1, end = 2> (x) b = Shape <start = 0, end = 1> (x) "
    "n = Expand (s1, b) z = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)",
    "RotaryEmbedding": f"{_PLACES} z = RotaryEmbedding <num_heads = 2> (x, f_40_1, f_40_1, places)",
    "RotaryEmbedding of onnxruntime": f"{_PLACES} z = com.microsoft.RotaryEmbedding <num_heads = 2> "
    "(x, places, f_40_1, f_40_1)",
    "ScatterND": "t = Transpose <perm = [2, 0, 1]> (x) y = ReduceSum (t, first1) "
    "v = ScatterND (t, places1, y) z = ReduceMax (v, two)",
    "SimplifiedLayerNormalization": f"{_CHANNELS} z = SimplifiedLayerNormalization <axis = 1> (c, one1)",
    "SkipLayerNormalization": "y = com.microsoft.SkipLayerNormalization (x, x, f_4, f_4, f_4) "
    "z = ReduceMean (y, last1)",
    "SkipSimplifiedLayerNormalization": "y = com.microsoft.SkipSimplifiedLayerNormalization (x, x, f_4, f_4) "
    "z = ReduceMean (y, last1)",
    "Split": "y, w = Split <axis = 2> (x, halves) s1 = ReduceMax (y, last1) z = Sub (w, s1)",
    "Tile": "n = Constant <value_ints = [1, 1, 2]> () y = Tile (x, n) z = ReduceMean (y, last1)",
    "Trilu": "t = Transpose <perm = [0, 2, 1]> (x) w = MatMul (x, t) y = Trilu <upper = 0> (w) "
    "z = MatMul (y, x)",
    "Upsample": f'{_CHANNELS} z = Upsample <mode = "nearest"> (c, stretch)',
}
"""The nodes of each model, by the operator it is about."""
_ARRAYS = {
    "bounds": np.array([0, 1], np.float32),
    "halves": np.array([2, 2], np.int64),
    "first1": np.array([0], np.int64),
    "last1": np.array([1], np.int64),
    "middle": np.array(120, np.uint8),
    "one": np.array(1, np.float32),
    "one1": np.array([1], np.float32),
    "c0": np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 4, 2),
    "p0": np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 2, 2, 2),
    "places1": np.array([[2]], np.int64),
    "places2": np.array([[[-1, 0, -2, 1]]], np.int64),
    "places3": np.array([[2], [0], [-1]], np.int64),
    "step": np.array(0.05, np.float32),
    "step2": np.array([0.02, 0.02], np.float32),
    "stretch": np.array([1, 1, 2], np.float32),
    "two": np.array([2], np.int64),
    "three": np.array([3], np.int64),
    "zero2": np.zeros(2, np.int8),
    "zero8": np.array(0, np.int8),
}


_OPSETS = {"GlobalLpPool": 21, "Upsample": 9}


def operator_case(name: str, batch: str = "1") -> onnx.ModelProto:
    """Return the model of this name; its batch may be open."""
    nodes = OPERATORS[name]
    head, shape = _HEAD.format(opset=_OPSETS.get(name, 23)), f"[{batch}, T, 4]"
    model = onnx.parser.parse_model(
        f"{head} main (float{shape} x) => (float o) {{ {nodes} o = Cast <to = 1> (z) }}"
    )
    made = {out for node in model.graph.node for out in node.output} | {"x", ""}
    rng = np.random.default_rng(0)
    for each in sorted({each for node in model.graph.node for each in node.input} - made):
        model.graph.initializer.append(numpy_helper.from_array(_weight(each, rng), each))
    return model


def _weight(name: str, rng: np.random.Generator) -> np.ndarray:
    """Return the array of this name, such as ``f_4_3``: a kind (float, positive, int8, uint8) and a shape."""
    if name in _ARRAYS:
        return _ARRAYS[name]
    kind, *shape = name.split("_")
    sizes = [*map(int, shape)]
    if kind in "su":
        return (
            rng.integers(-20, 20, sizes).astype(np.int8)
            if kind == "s"
            else rng.integers(90, 150, sizes).astype(np.uint8)
        )
    array = rng.normal(0, 0.6, sizes).astype(np.float32)
    return np.abs(array) + np.float32(0.5) if kind == "p" else array
