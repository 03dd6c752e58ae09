"""Nodes that cannot cross a step between two opsets, in onnx's textual syntax."""

from __future__ import annotations

import onnx
from refusal_models import text

F23, F4D = "float[2, 3] X", "float[1, 2, 4, 4] X"
RESIZE = 'mode = "nearest", coordinate_transformation_mode = "asymmetric"'
ROI = "roi = Constant <value = float[0] {}> ()"
SCALES = "s = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()"
BRANCHES = (
    "then_branch = p () => (float[2, 3] a) {a = Neg (X)}, else_branch = q () => (float[6] b) {b = Neg (Z)}"
)

# The operator, the opsets to move from and to, the inputs, the nodes.
CONVERSIONS: list[tuple[str, int, int, str, str]] = [
    # Broadcasting
    ("Add", 6, 7, "float[2, 3, 4] X, float[3, 4] B", "Y = Add <axis = 2, broadcast = 1> (X, B)"),
    ("Add", 13, 6, "float[N, 3] X, float[M, 3] B", "Y = Add (X, B)"),
    ("Gemm", 13, 6, "float[2, 3] X, float[3, 4] B, float[] C", "Y = Gemm (X, B, C)"),
    ("Gemm", 13, 6, "float[2, 3] X, float[3, 4] B, float[2, 1] C", "Y = Gemm (X, B, C)"),
    ("PRelu", 6, 7, "float[2, 3] X, float[2, 3] S", "Y = PRelu (X, S)"),
    ("PRelu", 9, 6, "float[2, 3] X, float[] S", "Y = PRelu (X, S)"),
    ("PRelu", 9, 6, "float[2, 3, 4] X, float[4] S", "Y = PRelu (X, S)"),
    ("Max", 8, 7, "float[2, 3] X, float[3] B", "Y = Max (X, B)"),
    # Elementwise
    ("Mod", 28, 27, "float[2] X, float[2] B", "Y = Mod (X, B)"),
    ("Mod", 10, 9, "float[2] X, float[2] B", "Y = Mod <fmod = 1> (X, B)"),
    ("Pow", 13, 11, "int32[2] X, int32[2] B", "Y = Pow (X, B)"),
    ("Greater", 9, 8, "uint64[2] X, uint64[2] B", "Y = Greater (X, B)"),
    ("Where", 9, 8, "bool[2] C, float[2] X, float[2] B", "Y = Where (C, X, B)"),
    ("Expand", 8, 7, "float[2] X, int64[N] S", "Y = Expand (X, S)"),
    ("Einsum", 12, 11, "float[2, 3] X", 'Y = Einsum <equation = "...i,...i->"> (X)'),
    # Types
    ("Add", 14, 13, "int8[2] X", "Y = Add (X, X)"),
    ("Identity", 14, 13, "float[2] X", "some = own.Mystery (X)  Y = Identity (some)"),
    ("Tile", 6, 5, "int32[2] X", "n = Constant <value = int64[1] {2}> ()  Y = Tile (X, n)"),
    ("Cast", 5, 6, "float[2] X", 'Y = Cast <to = "WORD"> (X)'),
    ("CastLike", 15, 14, "float[2] X", "like = own.Mystery (X)  Y = CastLike (X, like)"),
    ("OptionalHasElement", 18, 17, "float[2] X", "some = own.Mystery (X)  Y = OptionalHasElement (some)"),
    # Control flow
    ("If", 11, 10, "bool c, float[2, 3] X, float[6] Z", f"Y = If (c) <{BRANCHES}>"),
    (
        "Loop",
        11,
        10,
        "int64 n, bool c, float x",
        "Y = Loop (n, c) <body = b (int64 i, bool k) => (bool l, float z) {l = Not (k)  z = Neg (x)}>",
    ),
    (
        "Scan",
        9,
        8,
        "float[2, 3] X",
        "Y = Scan <num_scan_inputs = 1, scan_input_axes = [1], "
        "body = b (float[2] x) => (float[2] z) {z = Neg (x)}> (X)",
    ),
    # Normalization
    ("LayerNormalization", 17, 16, "float[2, 3] X, float[2, 3] S", "Y = LayerNormalization (X, S)"),
    (
        "BatchNormalization",
        14,
        13,
        f"{F4D}, float[2] s, float[2] b, float[2] m, float[2] v",
        "Y, rm, rv = BatchNormalization <training_mode = 1> (X, s, b, m, v)",
    ),
    (
        "BatchNormalization",
        6,
        7,
        f"{F4D}, float[2] s, float[2] b, float[2] m, float[2] v",
        "Z, M, V, N, W = BatchNormalization <is_test = 1> (X, s, b, m, v)  Y = Add (M, V)",
    ),
    ("Dropout", 6, 10, F23, "Y = Dropout (X)"),
    ("Dropout", 12, 11, f"{F23}, float r, bool t", "Y = Dropout (X, r, t)"),
    ("Dropout", 12, 11, F23, "Z, Y = Dropout (X)"),
    ("Dropout", 10, 12, F23, "Z, Y = Dropout (X)"),
    # Pooling
    ("LpPool", 1, 2, F4D, "Y = LpPool <kernel_shape = [2, 2], p = 2.5> (X)"),
    ("MaxPool", 8, 7, F4D, "Z, Y = MaxPool <kernel_shape = [2, 2]> (X)"),
    ("MaxPool", 10, 9, F4D, "Y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (X)"),
    ("AveragePool", 7, 6, F4D, "Y = AveragePool <kernel_shape = [2, 2], count_include_pad = 1> (X)"),
    (
        "AveragePool",
        22,
        21,
        "float[1, 2, H, 4] X",
        "Y = AveragePool <kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1> (X)",
    ),
    (
        "AveragePool",
        22,
        21,
        "float[1, 2, 4, 4] X",
        "Y = AveragePool <kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1> (X)",
    ),
    # Quantization
    ("QuantizeLinear", 13, 12, "float[2, 3] X, float[3] s, uint8[3] z", "Y = QuantizeLinear (X, s, z)"),
    ("QuantizeLinear", 21, 20, "float[2, 3] X, float[] s", "Y = QuantizeLinear <output_dtype = 3> (X, s)"),
    ("DequantizeLinear", 23, 22, "int8[2, 3] X, float s", "Y = DequantizeLinear <output_dtype = 10> (X, s)"),
    # Recurrent
    (
        "GRU",
        3,
        2,
        "float[2, 1, 3] X, float[1, 6, 3] W, float[1, 6, 2] R",
        "Y = GRU <hidden_size = 2, linear_before_reset = 1> (X, W, R)",
    ),
    # Reductions
    ("ReduceSum", 13, 12, "float[2, 3] X, int64[1] axes", "Y = ReduceSum (X, axes)"),
    ("ReduceLogSum", 27, 28, "int32[2, 3] X", "Y = ReduceLogSum (X)"),
    # Resizing
    ("Upsample", 7, 6, F4D, "Y = Upsample <scales = [1.0, 2.0, 2.0, 2.0]> (X)"),
    ("Upsample", 9, 8, f"{F4D}, float[4] s", "Y = Upsample (X, s)"),
    ("Resize", 10, 9, f"{F4D}, float[4] s", "Y = Resize (X, s)"),
    ("Resize", 11, 10, F4D, f'{ROI}  {SCALES}  Y = Resize <mode = "cubic"> (X, roi, s)'),
    ("Resize", 11, 10, F4D, f'{ROI}  {SCALES}  Y = Resize <mode = "linear"> (X, roi, s)'),
    ("Resize", 11, 10, f"{F4D}, int64[4] n", f"{ROI}  Y = Resize <{RESIZE}> (X, roi, roi, n)"),
    (
        "Resize",
        11,
        10,
        "float[1, 1, 33554433, 1] X",
        f"{ROI}  n = Constant <value = int64[4] {{1, 1, 33554435, 1}}> ()  "
        f"Y = Resize <{RESIZE}> (X, roi, roi, n)",
    ),
    (
        "Resize",
        11,
        13,
        F4D,
        f'{ROI}  {SCALES}  Y = Resize <coordinate_transformation_mode = "tf_half_pixel_for_nn"> (X, roi, s)',
    ),
    (
        "Resize",
        18,
        17,
        f"{F4D}, float[4] roi",
        "s = Constant <value = float[2] {2.0, 2.0}> ()  "
        'Y = Resize <axes = [2, 3], coordinate_transformation_mode = "tf_crop_and_resize"> (X, roi, s)',
    ),
    ("Resize", 18, 17, f"{F4D}, int64[2] n", "Y = Resize <axes = [2, 3]> (X, , , n)"),
    ("Resize", 18, 17, f"{F4D}, float[2] s", "Y = Resize <axes = [2, 3]> (X, , s)"),
    # Shapes
    ("Squeeze", 13, 12, "float[1, 3] X, int64[1] axes", "Y = Squeeze (X, axes)"),
    ("Flatten", 11, 10, "float[] X", "Y = Flatten <axis = -1> (X)"),
    (
        "Reshape",
        14,
        13,
        "float[N, M] X",
        "n = Constant <value_ints = [0, 3]> ()  Y = Reshape <allowzero = 1> (X, n)",
    ),
    ("Split", 1, 2, "float[4] X, float[2] n", "Y, Z = Split (X, n)"),
    ("Split", 18, 11, "float[N] X", "Y, Z = Split <num_outputs = 2> (X)"),
    ("Split", 18, 17, "float[5] X", "Y, A, B, C = Split <num_outputs = 4> (X)"),
    ("Slice", 11, 10, "float[4] X, int64[1] b, int64[1] e, int64[1] a", "Y = Slice (X, b, e, a)"),
    ("Slice", 10, 9, "float[4] X, int64[1] b, int64[1] e", "Y = Slice (X, b, e)"),
    (
        "Slice",
        10,
        9,
        "float[4] X",
        "b = Constant <value = int64[1] {0}> ()  e = Constant <value = int64[1] {4}> ()  "
        "n = Constant <value = int64[1] {2}> ()  Y = Slice (X, b, e, b, n)",
    ),
    ("Tile", 1, 6, "float[] X, float t, float a", "Y = Tile (X, t, a)"),
    ("Tile", 6, 5, "float[2, 3] X, int64[2] n", "Y = Tile (X, n)"),
    ("Pad", 11, 10, "float[4] X, int64[2] n", "Y = Pad (X, n)"),
    ("Pad", 11, 10, "float[4] X, float v", "n = Constant <value = int64[2] {1, 1}> ()  Y = Pad (X, n, v)"),
    (
        "Pad",
        11,
        10,
        "double[4] X",
        "n = Constant <value = int64[2] {1, 1}> ()  v = Constant <value = double {0.1}> ()  "
        "Y = Pad (X, n, v)",
    ),
    ("Pad", 18, 17, "float[2, 3] X, int64[2] n, int64[1] a", "Y = Pad (X, n, , a)"),
    ("TopK", 10, 9, "float[4] X, int64[1] k", "Y, I = TopK (X, k)"),
    ("TopK", 11, 10, "int32[4] X, int64[1] k", "Y, I = TopK <largest = 0> (X, k)"),
    ("GridSample", 20, 19, "float[1, 1, 2, 2, 2] X, float[1, 2, 2, 2, 3] g", "Y = GridSample (X, g)"),
    ("DFT", 20, 19, "float[1, 4, 1] X, int64 a", "Y = DFT (X, , a)"),
    (
        "RotaryEmbedding",
        23,
        22,
        "float[] X, float[9, 2] C, int64[1, 3] p",
        "Y = RotaryEmbedding (X, C, C, p)",
    ),
]


def model(opset: int, inputs: str, nodes: str) -> onnx.ModelProto:
    """Return the nodes; Y is what they make."""
    made = text(opset, inputs, nodes)
    made.graph.output[0].ClearField("type")
    return made
