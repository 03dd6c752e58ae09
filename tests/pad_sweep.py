"""A sweep over random stacks of layers: padded, and compared with the source at several lengths.

``python tests/pad_sweep.py 2000`` prints how many are wrong, how many are refused, and how many of the same
sources are wrong when they are merely padded with zeros; ``--first 1000`` begins at another seed. A third of
the models have rows of different lengths, a third take masks. Every other model has a Scan or Loop of a
random cell. Padding is noise, NaN, or large. Any wrong one is printed with its layers.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from support.sessions import session

import rnnlower

MAXIMUM, SIZE = 24, 4
LENGTHS = (5, 7, 8, 11, 16, 23, 24)
ROWS = 3
HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
Layer = tuple[str, str]


def _as_channels(nodes: str) -> str:
    """Return the nodes from i to o between Transposes: [T, 1, C] to [1, C, T] and back."""
    return f"@i = Transpose <perm = [1, 2, 0]> (@x) {nodes} @y = Transpose <perm = [2, 0, 1]> (@o)"


def _folded(nodes: str) -> str:
    """Return the nodes from i to o, of [rows * T, 4], between Reshapes."""
    return (
        "@k = Transpose <perm = [1, 0, 2]> (@x) @n = Constant <value_ints = [-1, 4]> () "
        f"@i = Reshape (@k, @n) {nodes} @s = Shape (@k) @r = Reshape (@o, @s) "
        "@y = Transpose <perm = [1, 0, 2]> (@r)"
    )


def _recurrent(op_type: str, direction: str) -> str:
    weights = {"LSTM": ("WL", "RL"), "GRU": ("WG", "RG"), "RNN": ("WN", "RN")}[op_type]
    many = direction == "bidirectional"
    own = ", ".join(f"{name}{2 if many else 1}" for name in weights)
    shape = f"@n = Constant <value_ints = [0, 0, -1]> () @r = Reshape (@t, @n) @y = MatMul (@r, P{1 + many})"
    return (
        f'@h = {op_type} <hidden_size = 4, direction = "{direction}"> (@x, {own}) '
        f"@t = Transpose <perm = [0, 2, 1, 3]> (@h) {shape}"
    )


def _state(op_type: str) -> str:
    own = {"LSTM": "WL2, RL2", "GRU": "WG2, RG2", "RNN": "WN2, RN2"}[op_type]
    return (
        f'@h, @s = {op_type} <hidden_size = 4, direction = "bidirectional"> (@x, {own}) '
        "@m = ReduceSum <keepdims = 1> (@s, first) @y = Add (@x, @m)"
    )


def _slice(begin: int, end: int, step: int) -> str:
    return (
        f"@b = Constant <value_ints = [{begin}]> () @e = Constant <value_ints = [{end}]> () "
        f"@a = Constant <value_ints = [0]> () @p = Constant <value_ints = [{step}]> () "
        "@y = Slice (@x, @b, @e, @a, @p)"
    )


_HALF = "@n = Shape <start = 0, end = 1> (@x) @t = Constant <value_ints = [2]> () @h = Div (@n, @t)"
_DOWN = (
    "@n = Shape <start = 0, end = 1> (@x) @o = Constant <value_ints = [-1]> () @l = Add (@n, @o) "
    "@i = Squeeze (@l) @d = Constant <value_int = -1> () @r = Range (@i, @d, @d)"
)
LAYERS: dict[str, str] = {
    **{
        f"{op} {direction}": _recurrent(op, direction)
        for op in ("LSTM", "GRU", "RNN")
        for direction in ("forward", "reverse", "bidirectional")
    },
    **{f"{op} final state": _state(op) for op in ("LSTM", "GRU", "RNN")},
    "linear": "@m = MatMul (@x, P1) @p = Add (@m, b) @y = Tanh (@p)",
    "folded linear": (
        "@n = Constant <value_ints = [-1, 4]> () @r = Reshape (@x, @n) @g = Gemm (@r, P1, b) "
        "@s = Shape (@x) @y = Reshape (@g, @s)"
    ),
    "folded norm": _folded("@a = LayerNormalization (@i, b, b) @o = MatMul (@a, P1)"),
    "folded pool": _folded("@u = Unsqueeze (@i, one1) @o = MaxPool <kernel_shape = [3], pads = [1, 1]> (@u)"),
    "folded network": _folded(
        "@m = Constant <value_ints = [-1, 1, 4]> () @u = Reshape (@i, @m) "
        "@v = Transpose <perm = [1, 0, 2]> (@u) @l, @o = GRU <hidden_size = 4> (@v, WG1, RG1)"
    ),
    "folded attention": _folded(
        "@u = Unsqueeze (@i, one1) @v = Transpose <perm = [0, 2, 1]> (@u) @w = MatMul (@v, @u) "
        "@p = Softmax (@w) @q = MatMul (@u, @p) @o = Tanh (@q)"
    ),
    "folded table": _folded(
        "@a = ArgMax <axis = 1, keepdims = 0> (@i) @t = Gather (table, @a) @o = Mul (@i, @t)"
    ),
    "conv": _as_channels("@c = Conv <pads = [1, 1]> (@i, C, b) @o = Sigmoid (@c)"),
    "dilated conv": _as_channels("@o = Conv <pads = [2, 2], dilations = [2]> (@i, C, b)"),
    "strided conv": _as_channels("@o = Conv <pads = [1, 1], strides = [2]> (@i, C, b)"),
    "uneven conv": _as_channels("@o = Conv <pads = [0, 3], dilations = [2]> (@i, C, b)"),
    "causal conv": _as_channels("@o = Conv <pads = [2, 0]> (@i, C, b)"),
    "depthwise conv": _as_channels('@o = Conv <auto_pad = "SAME_UPPER", group = 4> (@i, D1, b)'),
    "batch norm": _as_channels("@o = BatchNormalization (@i, b, b, b, v)"),
    "transposed conv": _as_channels("@o = ConvTranspose <strides = [2]> (@i, D)"),
    "transposed conv with pads": _as_channels("@o = ConvTranspose <strides = [2], pads = [1, 0]> (@i, C)"),
    "max pool": _as_channels("@o = MaxPool <kernel_shape = [3], pads = [1, 1]> (@i)"),
    "strided max pool": _as_channels("@o = MaxPool <kernel_shape = [2], strides = [2]> (@i)"),
    "rounded max pool": _as_channels("@o = MaxPool <kernel_shape = [3], strides = [2], ceil_mode = 1> (@i)"),
    "mean pool": _as_channels("@o = AveragePool <kernel_shape = [3], pads = [1, 1]> (@i)"),
    "mean pool with zeros": _as_channels(
        "@o = AveragePool <kernel_shape = [3], pads = [1, 1], count_include_pad = 1> (@i)"
    ),
    "rounded mean pool": _as_channels(
        "@o = AveragePool <kernel_shape = [3], strides = [2], ceil_mode = 1> (@i)"
    ),
    "rounded mean pool with zeros": _as_channels(
        "@o = AveragePool <kernel_shape = [4], strides = [3], pads = [1, 2], ceil_mode = 1, "
        "count_include_pad = 1> (@i)"
    ),
    "norm pool": _as_channels("@o = LpPool <kernel_shape = [3], pads = [1, 1]> (@i)"),
    "instance norm": _as_channels("@o = InstanceNormalization (@i, b, b)"),
    "group norm": _as_channels("@o = GroupNormalization <num_groups = 2> (@i, b, b)"),
    "squeeze excite": _as_channels("@g = GlobalAveragePool (@i) @s = Sigmoid (@g) @o = Mul (@i, @s)"),
    "largest of all": _as_channels("@g = GlobalMaxPool (@i) @o = Sub (@i, @g)"),
    "layer norm": "@y = LayerNormalization (@x, b, b)",
    "root mean square": "@y = RMSNormalization (@x, b)",
    "layer norm over time": _as_channels("@o = LayerNormalization <axis = 1> (@i, one, one)"),
    "layer norm over features and time": _as_channels("@o = LayerNormalization <axis = -1> (@i, one, one)"),
    "mean subtracted": "@m = ReduceMean (@x, first) @y = Sub (@x, @m)",
    "variance": (
        "@m = ReduceMean (@x, first) @d = Sub (@x, @m) @q = Mul (@d, @d) @v = ReduceMean (@q, first) "
        "@e = Add (@v, one) @s = Sqrt (@e) @y = Div (@d, @s)"
    ),
    "sum subtracted": "@m = ReduceSum (@x, first) @t = Tanh (@m) @y = Sub (@x, @t)",
    "norm of all": "@m = ReduceL2 (@x, first) @t = Tanh (@m) @y = Sub (@x, @t)",
    "absolute sum": "@m = ReduceL1 (@x, first) @t = Tanh (@m) @y = Sub (@x, @t)",
    "logarithm of exponentials": "@m = ReduceLogSumExp (@x, first) @y = Sub (@x, @m)",
    "largest subtracted": "@m = ReduceMax (@x, first) @y = Sub (@x, @m)",
    "smallest subtracted": "@m = ReduceMin (@x, first) @y = Sub (@x, @m)",
    "softmax gate": "@s = Softmax <axis = 0> (@x) @y = Add (@x, @s)",
    "log softmax": "@s = LogSoftmax <axis = 0> (@x) @t = Tanh (@s) @y = Add (@x, @t)",
    "hard maximum": "@s = Hardmax <axis = 0> (@x) @y = Add (@x, @s)",
    "largest three": (
        "@n = Constant <value_ints = [3]> () @k, @j = TopK <axis = 0> (@x, @n) "
        "@m = ReduceMean (@k, first) @y = Sub (@x, @m)"
    ),
    "place of the largest": (
        "@m = ArgMax <axis = 0> (@x) @f = Cast <to = 1> (@m) @s = Sin (@f) @y = Add (@x, @s)"
    ),
    "attention": (
        "@q = Transpose <perm = [1, 0, 2]> (@x) @k = Transpose <perm = [1, 2, 0]> (@x) "
        "@w = MatMul (@q, @k) @p = Softmax <axis = 2> (@w) @o = MatMul (@p, @q) "
        "@y = Transpose <perm = [1, 0, 2]> (@o)"
    ),
    "attention by Einsum": (
        '@w = Einsum <equation = "tbc,sbc->bts"> (@x, @x) @p = Softmax <axis = -1> (@w) '
        '@y = Einsum <equation = "bts,sbc->tbc"> (@p, @x)'
    ),
    "causal attention": (
        "@q = Transpose <perm = [1, 0, 2]> (@x) @k = Transpose <perm = [1, 2, 0]> (@x) "
        "@w = MatMul (@q, @k) @s = Shape (@w) @e = ConstantOfShape <value = float[1] {1.0}> (@s) "
        "@l = Trilu <upper = 0> (@e) @t = Cast <to = 9> (@l) @u = Where (@t, @w, lowest) "
        "@p = Softmax <axis = 2> (@u) @o = MatMul (@p, @q) @y = Transpose <perm = [1, 0, 2]> (@o)"
    ),
    "attention of heads": (
        "@q = Transpose <perm = [1, 0, 2]> (@x) "
        "@o = Attention <q_num_heads = 2, kv_num_heads = 2> (@q, @q, @q) "
        "@y = Transpose <perm = [1, 0, 2]> (@o)"
    ),
    "causal attention of heads": (
        "@q = Transpose <perm = [1, 0, 2]> (@x) "
        "@o = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (@q, @q, @q) "
        "@y = Transpose <perm = [1, 0, 2]> (@o)"
    ),
    "attention of onnxruntime": (
        "@q = Transpose <perm = [1, 0, 2]> (@x) "
        "@o = com.microsoft.MultiHeadAttention <num_heads = 2> (@q, @q, @q) "
        "@y = Transpose <perm = [1, 0, 2]> (@o)"
    ),
    "attention of onnxruntime with weights": (
        "@q = Transpose <perm = [1, 0, 2]> (@x) "
        "@o = com.microsoft.Attention <num_heads = 2> (@q, P3, b3) @y = Transpose <perm = [1, 0, 2]> (@o)"
    ),
    "heads": (
        "@n = Constant <value_ints = [0, -1, 2]> () @q = Reshape (@x, @n) "
        "@k = Transpose <perm = [1, 0, 2]> (@q) @v = Transpose <perm = [1, 2, 0]> (@q) "
        "@w = MatMul (@k, @v) @p = Softmax (@w) @o = MatMul (@p, @k) @t = Transpose <perm = [1, 0, 2]> (@o) "
        "@s = Shape (@x) @y = Reshape (@t, @s)"
    ),
    "positions": (
        "@n = Shape (@x) @z = Constant <value_int = 0> () @d = Gather (@n, @z) "
        "@o = Constant <value_int = 1> () @r = Range (@z, @d, @o) @f = Cast <to = 1> (@r) @g = Sin (@f) "
        "@a = Constant <value_ints = [1, 2]> () @u = Unsqueeze (@g, @a) @y = Add (@x, @u)"
    ),
    "mask of its own": (
        "@n = Shape (@x) @o = ConstantOfShape <value = float[1] {1.0}> (@n) "
        "@s = ReduceSum <keepdims = 1> (@o, first) @y = Div (@x, @s)"
    ),
    "where": (
        "@g = Greater (@x, zero) @w = Where (@g, @x, lowest) @p = Softmax <axis = 0> (@w) @y = Add (@x, @p)"
    ),
    "divided by the length": (
        "@n = Shape (@x) @f = Cast <to = 1> (@n) @z = Constant <value_int = 0> () @d = Gather (@f, @z) "
        "@q = Sqrt (@d) @y = Div (@x, @q)"
    ),
    "sum from the end": "@z = Constant <value_int = 0> () @c = CumSum <reverse = 1> (@x, @z) @y = Tanh (@c)",
    "sum": "@z = Constant <value_int = 0> () @c = CumSum <exclusive = 1> (@x, @z) @y = Tanh (@c)",
    "flip": _slice(-1, -(2**63), -1),
    "without the first": _slice(1, 2**63 - 1, 1),
    "without the last": _slice(0, -1, 1),
    "every second": _slice(0, 2**63 - 1, 2),
    "last two": _slice(-2, 2**63 - 1, 1).replace("@y", "@l")
    + " @m = ReduceMean (@l, first) @y = Add (@x, @m)",
    "first four": _slice(0, 4, 1).replace("@y", "@l") + " @m = ReduceMax (@l, first) @y = Sub (@x, @m)",
    "last step added": (
        "@z = Constant <value_ints = [-1]> () @l = Gather <axis = 0> (@x, @z) @y = Add (@x, @l)"
    ),
    "step at length - 1": (
        "@n = Shape <start = 0, end = 1> (@x) @o = Constant <value_ints = [1]> () @i = Sub (@n, @o) "
        "@l = Gather <axis = 0> (@x, @i) @y = Add (@x, @l)"
    ),
    "something in front": "@l = Slice (@x, zero1, one1, first) @y = Concat <axis = 0> (@l, @x)",
    "something behind": "@l = Slice (@x, zero1, one1, first) @y = Concat <axis = 0> (@x, @l)",
    "zeros at both ends": "@n = Constant <value_ints = [1, 0, 0, 2, 0, 0]> () @y = Pad (@x, @n)",
    "mirrored ends": (
        '@n = Constant <value_ints = [1, 0, 0, 2, 0, 0]> () @y = Pad <mode = "reflect"> (@x, @n)'
    ),
    "repeated ends": '@n = Constant <value_ints = [0, 0, 0, 2, 0, 0]> () @y = Pad <mode = "edge"> (@x, @n)',
    "stretched": _as_channels('@o = Resize <mode = "linear"> (@i, , double)'),
    "repeated steps": _as_channels(
        '@o = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (@i, , double)'
    ),
    "stretched to the length": _as_channels(
        "@h = MaxPool <kernel_shape = [3], strides = [3], pads = [1, 1]> (@i) @n = Shape (@i) "
        '@o = Resize <mode = "linear"> (@h, , , @n)'
    ),
    "halved, doubled and joined": _as_channels(
        "@h = MaxPool <kernel_shape = [2], strides = [2]> (@i) @u = ConvTranspose <strides = [2]> (@h, D) "
        "@o = Add (@u, @i)"
    ),
    "step before": (
        "@l = Slice (@x, zero1, one1, first) @e = Constant <value_ints = [-1]> () "
        "@b = Slice (@x, zero1, @e, first) @s = Concat <axis = 0> (@l, @b) @y = Sub (@x, @s)"
    ),
    "second step before": (
        "@e = Constant <value_ints = [-2]> () @b = Slice (@x, zero1, @e, first) "
        "@n = Constant <value_ints = [2, 0, 0, 0, 0, 0]> () @s = Pad (@b, @n) @y = Add (@x, @s)"
    ),
    "zeros up to a multiple": (
        "@n = Shape <end = 1> (@x) @m = Neg (@n) @f = Constant <value_ints = [4]> () @e = Mod (@m, @f) "
        "@a = Constant <value_ints = [0, 0, 0]> () @b = Constant <value_ints = [0, 0]> () "
        "@p = Concat <axis = 0> (@a, @e, @b) @y = Pad (@x, @p)"
    ),
    "means of frames": (
        "@n = Shape <end = 1> (@x) @l = Squeeze (@n) @t = Constant <value_int = 2> () @m = Sub (@l, @t) "
        "@z = Constant <value_int = 0> () @r = Range (@z, @m, @t) @a = Constant <value_ints = [-1]> () "
        "@u = Unsqueeze (@r, @a) @k = Constant <value_ints = [0, 1, 2]> () @j = Add (@u, @k) "
        "@g = Gather <axis = 0> (@x, @j) @y = ReduceMean <keepdims = 0> (@g, one1)"
    ),
    "each step twice": (
        "@n = Shape <end = 1> (@x) @l = Squeeze (@n) @t = Constant <value_int = 2> () @m = Mul (@l, @t) "
        "@z = Constant <value_int = 0> () @o = Constant <value_int = 1> () @r = Range (@z, @m, @o) "
        "@h = Div (@r, @t) @a = Constant <value_ints = [-1]> () @u = Unsqueeze (@h, @a) "
        "@y = GatherND (@x, @u)"
    ),
    "second half": f"{_HALF} @y = Slice (@x, @h, @n, first)",
    "halves exchanged": (
        f"{_HALF} @f = Slice (@x, zero1, @h, first) @s = Slice (@x, @h, @n, first) "
        "@y = Concat <axis = 0> (@s, @f)"
    ),
    "middle": (
        f"{_HALF} @o = Constant <value_ints = [1]> () @b = Sub (@h, @o) @e = Add (@h, @t) "
        "@m = Slice (@x, @b, @e, first) @c = ReduceMax (@m, first) @y = Sub (@x, @c)"
    ),
    "weights that count down": (
        f"{_DOWN} @f = Cast <to = 1> (@r) @p = Pow (small, @f) @a = Constant <value_ints = [1, 2]> () "
        "@u = Unsqueeze (@p, @a) @w = Mul (@x, @u) @g = ReduceSum (@w, first) @y = Add (@w, @g)"
    ),
    "turned by positions": f"{_DOWN} @p = Cast <to = 6> (@r) @y = Gather (@x, @p)",
    "quantized": (
        "@q, @s, @z = DynamicQuantizeLinear (@x) @i = MatMulInteger (@q, PI, @z) @f = Cast <to = 1> (@i) "
        "@g = Mul (@f, @s) @y = Mul (@g, small)"
    ),
    "quantized conv": _as_channels(
        "@q, @s, @z = DynamicQuantizeLinear (@i) @j = ConvInteger <pads = [1, 1]> (@q, CI, @z) "
        "@f = Cast <to = 1> (@j) @g = Mul (@f, @s) @o = Mul (@g, small)"
    ),
}
_STEPS = {
    # From f, of [rows, 4], and a number of their own.
    "tanh": "@r = Tanh (@f)",
    "sine": "@r = Sin (@f)",
    "product": "@p = MatMul (@f, P1) @r = Tanh (@p)",
    "with the step": "@p = Mul (@f, step) @r = Sin (@p)",
    "with the other state": "@p = Sub (@f, g) @r = Sin (@p)",
    "with all steps": "@p = ReduceMean <keepdims = 0> (@x, first) @s = Add (@f, @p) @r = Sin (@s)",
    "with the largest": "@p = ReduceMax <keepdims = 0> (@x, first) @s = Mul (@f, @p) @r = Sin (@s)",
    "attention": (
        "@k = Mul (@x, @f) @w = ReduceSum <keepdims = 1> (@k, third) @p = Softmax <axis = 0> (@w) "
        "@m = Mul (@p, @x) @r = ReduceSum <keepdims = 0> (@m, first)"
    ),
    "table": (
        "@a = ReduceMax <keepdims = 0> (@f, one1) @b = Abs (@a) @c = Cast <to = 7> (@b) "
        "@t = Gather (table, @c) @s = Add (@f, @t) @r = Sin (@s)"
    ),
    "place": "@a = ArgMax <axis = 1, keepdims = 0> (@f) @t = Gather (table, @a) @r = Mul (@f, @t)",
    "division": (
        "@a = Abs (@f) @b = Ceil (@a) @c = Cast <to = 7> (@b) @d = Max (@c, one1) @e = Div (hundred, @d) "
        "@t = Cast <to = 1> (@e) @p = Add (@f, @t) @r = Sin (@p)"
    ),
    "number of steps": "@n = Shape <end = 1> (@x) @c = Cast <to = 1> (@n) @r = Div (@f, @c)",
    "inner Scan": (
        "@r = Scan <num_scan_inputs = 1, body = i (float[R, 4] @h, float[R, 4] @v) => (float[R, 4] @m) "
        "{ @p = Mul (@h, @v) @m = Sin (@p) }> (@f, @x)"
    ),
}
"""The parts of a cell."""


def _body(rng: np.random.Generator, rows: int | str) -> tuple[str, str]:
    """Return a Scan or Loop of a random cell with four states, and a description."""
    text, values, names = "", ["step", "h", "g"], list[str]()
    for number in range(rng.integers(2, 6)):
        name = str(rng.choice([*_STEPS]))
        names.append(name)
        own = (
            _STEPS[name]
            .replace("@x", "%x")
            .replace("@f", str(rng.choice(values)))
            .replace("@", f"%s{number}_")
        )
        text += own + " "
        values.append(f"%s{number}_r")
    new_h, new_g, out = (str(each) for each in rng.choice(values, 3))
    shape = f"float[{rows}, 4]"
    kind = str(rng.choice(["Scan", "Scan from the end", "Loop", "Loop of sequences"]))
    text += f"nh = Identity ({new_h}) ng = Identity ({new_g}) o = Identity ({out}) "
    text += "c1 = Add (c0, countone) sign = Less (step, zero) b1 = Xor (b0, sign) "
    text = text.replace("%", "@")
    # A number and booleans as states; with lengths of rows the number is one per row.
    before = f"{shape} h, {shape} g, int64[{rows}] c0, bool[{rows}, 4] b0"
    after = f"{shape} nh, {shape} ng, int64[{rows}] c1, bool[{rows}, 4] b1"
    initial = (
        "@i0 = ReduceMean <keepdims = 0> (@x, first) @i1 = Neg (@i0) "
        "@i2 = ArgMax <axis = 1, keepdims = 0> (@i0) @i3 = Less (@i0, zero) "
    )
    states = "@i0, @i1, @i2, @i3"
    results = "@h, @g, @c, @b, @o"
    if kind.startswith("Scan"):
        back = ", scan_input_directions = [1], scan_output_directions = [1]" if "end" in kind else ""
        node = (
            f"{results} = Scan <num_scan_inputs = 1{back}, body = s ({before}, {shape} step) "
            f"=> ({after}, {shape} o) {{ {text} }}> ({states}, @x) "
        )
    else:
        passed = kind == "Loop of sequences"
        read = f"d = Identity (c) step = Gather <axis = 0> ({'q' if passed else '@x'}, n) "
        more = f", float[T, {rows}, 4] q" if passed else ""
        node = (
            "@l = Shape <end = 1> (@x) @t = Squeeze (@l) "
            f"{results.replace('@o', '@q, @o') if passed else results} = Loop <body = s (int64 n, bool c, "
            f"{before}{more}) => (bool d, {after}{more.replace(' q', ' q1')}, {shape} o) "
            f"{{ {read}{'q1 = Identity (q) ' if passed else ''}{text} }}> "
            f"(@t, , {states}{', @x' if passed else ''}) "
        )
    read_states = [name for name in "hgcb" if rng.random() < 0.6]
    last = "@o"
    for name in read_states:
        node += f"@f{name} = Cast <to = 1> (@{name}) "
        if name == "c":
            node += "@u = Unsqueeze (@fc, one1) @e = Sin (@u) "
        node += f"@w{name} = Add ({last}, {'@e' if name == 'c' else f'@f{name}'}) "
        last = f"@w{name}"
    return f"{initial}{node}@y = Identity ({last})", f"{kind} of {', '.join(names)}; reads {read_states}"


MEETING = (
    "mask of its own",
    "mirrored ends",
    "quantized",
    "quantized conv",
    "repeated ends",
    "repeated steps",
    "something behind",
    "stretched",
    "stretched to the length",
)
"""Layers in which rows of different lengths would meet, or move."""
HEADS = {
    "all steps": "y = Identity (@x)",
    "mean": "y = ReduceMean (@x, first)",
    "last": "z = Constant <value_int = -1> () y = Gather <axis = 0> (@x, z)",
    "largest": "y = ReduceMax <keepdims = 0> (@x, first)",
}
_SHAPES = {
    **{f"W{c}{d}": (d, g * SIZE, SIZE) for c, g in (("L", 4), ("G", 3), ("N", 1)) for d in (1, 2)},
    **{f"R{c}{d}": (d, g * SIZE, SIZE) for c, g in (("L", 4), ("G", 3), ("N", 1)) for d in (1, 2)},
    "P1": (SIZE, SIZE),
    "P2": (2 * SIZE, SIZE),
    "C": (SIZE, SIZE, 3),
    "D": (SIZE, SIZE, 2),
    "b": (SIZE,),
    "v": (SIZE,),
    "P3": (SIZE, 3 * SIZE),
    "b3": (3 * SIZE,),
    "D1": (SIZE, 1, 3),
    "table": (64, SIZE),
}
_CONSTANTS = {
    "first": np.array([0], np.int64),
    "zero": np.array(0, np.float32),
    "one": np.array([1], np.float32),
    "lowest": np.array(-np.inf, np.float32),
    "small": np.array(0.01, np.float32),
    "third": np.array([2], np.int64),
    "countone": np.array(1, np.int64),
    "hundred": np.array(100, np.int64),
    "zero1": np.array([0], np.int64),
    "one1": np.array([1], np.int64),
    "double": np.array([1, 1, 2], np.float32),
    "PI": np.arange(-8, 8, dtype=np.int8).reshape(SIZE, SIZE),
    "CI": (np.arange(48, dtype=np.int8) % 11 - 5).reshape(SIZE, SIZE, 3),
}
TOLERANCE = 5e-4
"""A norm over steps that are nearly equal makes 1e-7 as large as this."""
FORMS = ("length", "mask", "rows")


def make(seed: int) -> tuple[list[str], str, onnx.ModelProto]:
    """Return a random model with the names of its layers, and in which form it is told lengths."""
    rng = np.random.default_rng(seed)
    form = FORMS[seed % len(FORMS)]
    layers = [name for name in LAYERS if form != "rows" or name not in MEETING]
    names = [str(name) for name in rng.choice(layers, rng.integers(1, 6))]
    head = str(rng.choice([*HEADS]))
    text, last = "", "x"
    cells = {}
    rows = ROWS if form == "rows" else rng.choice([1, "R"])
    if seed // len(FORMS) % 2:
        names.insert(int(rng.integers(len(names) + 1)), "")
        cells[""], described = _body(rng, rows)
    for number, name in enumerate(names):
        text += (cells.get(name) or LAYERS[name]).replace("@x", last).replace("@", f"n{number}_") + " "
        last = f"n{number}_y"
    text += HEADS[head].replace("@x", last)
    rank = f"float[A, {rows}, 4] y" if head not in ("last", "largest") else f"float[{rows}, 4] y"
    model = onnx.parser.parse_model(f"{HEAD} main (float[T, {rows}, 4] x) => ({rank}) {{ {text} }}")
    bodies = [inner for node in model.graph.node for each in node.attribute for inner in each.g.node]
    read = {name for node in (*model.graph.node, *bodies) for name in node.input}
    for name, shape in _SHAPES.items():
        if name in read:
            array = np.abs(rng.normal(1, 0.2, shape)) if name == "v" else rng.normal(0, 0.5, shape)
            model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    for name, array in _CONSTANTS.items():
        if name in read:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return [*(name or described for name in names), head, form], form, model


def _moves_by_rounding(
    source: onnxruntime.InferenceSession, x: np.ndarray, expected: np.ndarray, row: int | None
) -> bool:
    """Return whether differences as small as rounding move what the source computes."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        (moved,) = source.run(None, {"x": (x * (1 + rng.normal(0, 2e-7, x.shape))).astype(np.float32)})
        moved = moved if row is None else moved.take([row], moved.ndim - 2)
        if float(np.nanmax(np.abs(moved - expected), initial=0)) > TOLERANCE / 2:
            return True
    return False


def judge(seed: int) -> tuple[str, bool, str]:
    """Return the verdict on a random model, whether mere padding is wrong, and a description."""
    names, form, model = make(seed)
    try:
        source = session(model)
    except Exception as error:
        return "not run by onnxruntime", False, f"{names}: {error}"
    try:
        padded = rnnlower.pad(model, max={"T": MAXIMUM}, mask=form == "mask", per_row=form == "rows")
    except (rnnlower.OptionError, rnnlower.UnsupportedModelError) as error:
        return "refused", False, f"{names}: {error}"
    (entry,) = (each.value for each in padded.metadata_props if each.key == "rnnlower.pad")
    told, fixed = json.loads(entry), session(padded)
    outputs, rows = told["outputs"], source.get_inputs()[0].shape[1]
    # An open number of rows, all of one length.
    rows = 2 if isinstance(rows, str) else rows
    rng, worst, naive, ran, moves = np.random.default_rng([seed, 1]), 0.0, False, 0, False
    for length in LENGTHS:
        if length < told["least"]["T"]:
            continue
        x = rng.normal(size=(length, rows, SIZE)).astype(np.float32)
        try:
            (expected,) = source.run(None, {"x": x})
            # The first row has this length, the others have other ones.
            lengths = np.full(rows, length)
            if form == "rows":
                lengths[1:] = rng.integers(told["least"]["T"], MAXIMUM + 1, rows - 1)
            whole = rng.normal(size=(MAXIMUM, rows, SIZE)).astype(np.float32)
            whole[:length] = x
            for other in lengths[1:]:
                source.run(None, {"x": whole[:other]})
        except Exception:
            continue  # The source itself takes no sequence as short as this, or no such values.
        ran += 1
        behind = np.arange(MAXIMUM)[:, None] >= lengths
        whole[behind] = (whole[behind] * 100, np.nan, 1e30, -np.inf)[seed % 4]
        zeros = np.concatenate([x, np.zeros((MAXIMUM - length, rows, SIZE), np.float32)])
        given = {"length": lengths if form == "rows" else lengths[:1]}
        if form == "mask":
            given = {"mask": (np.arange(MAXIMUM) < lengths[:1, None]).astype(np.float32)}
        found = fixed.run(None, {"x": whole} | given)[0]
        merely = source.run(None, {"x": zeros})[0]
        if "y" in outputs:
            size = eval(outputs["y"]["size"], {"T": length})
            found, merely = found[:size], merely[:size]
        if form == "rows":
            axis = told["rows"]["y"]
            found, merely, expected = (each.take([0], axis) for each in (found, merely, expected))
        if found.shape != expected.shape:
            return "wrong", naive, f"{names}: {found.shape} for {expected.shape} at {length}"
        scale = max(1.0, float(np.nanmax(np.abs(expected), initial=0)))
        if (np.isnan(found) != np.isnan(expected)).any():
            return "wrong", naive, f"{names}: NaN at {length}"
        error = float(np.nanmax(np.abs(found - expected), initial=0)) / scale
        if error > TOLERANCE and _moves_by_rounding(source, x, expected, row=0 if form == "rows" else None):
            moves = True
            continue
        worst = max(worst, error)
        naive |= float(np.nanmax(np.abs(merely - expected), initial=0)) / scale > 1e-3
    if not ran:
        return "too short", naive, str(names)
    verdict = "wrong" if worst >= TOLERANCE else "not decided: moved by rounding" if moves else "right"
    return verdict, naive, f"{names}: {worst:.1e}"


def main(count: int, first: int = 0) -> int:
    """Judge this many models; return the number of wrong ones."""
    verdicts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    merely = 0
    for seed in range(first, first + count):
        verdict, naive, words = judge(seed)
        verdicts[verdict] += 1
        merely += naive
        if verdict == "refused":
            reasons[words.partition("]: ")[2][:110]] += 1
        elif verdict == "wrong":
            print(f"seed {seed} {words}", flush=True)
    print(
        f"{count} models x {len(LENGTHS)} lengths: {dict(verdicts)}; merely padded with zeros: {merely} wrong"
    )
    for reason, times in reasons.most_common(12):
        print(f"{times:5} {reason}")
    return verdicts["wrong"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(bool(main(arguments.count, arguments.first)))
