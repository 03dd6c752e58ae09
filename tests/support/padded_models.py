"""Small models over an open length, one for each way in which padding reaches valid steps."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from support.sessions import session

_SIZES = {
    "B": (2, 24),
    "W": (2, 12, 3),
    "R": (2, 12, 3),
    "F": (1, 12, 3),
    "K": (1, 12, 3),
    "P": (6, 4),
    "table": (4, 3),
    "C": (4, 3, 3),
    "D": (4, 3, 2),
    "E": (3, 4, 3),
    "E4": (4, 4, 3),
    "V": (3, 3),
    "V3": (3, 3, 3),
    "s": (3,),
    "b1": (4, 1),
    "c1": (1, 1, 3),
    "P3": (3, 4),
    "W26": (26, 3),
    "W4": (1, 12, 4),
    "W9": (1, 9, 3),
}
_CONSTANTS = {
    "zero1": np.array([0], np.int64),
    "four": np.array(4, np.int64),
    "zero": np.array(0, np.int64),
    "f2": np.array([1, 2], np.int64),
    "r2": np.array([1, 1, 2], np.float32),
    "r05": np.array([1, 1, 0.5], np.float32),
}
LSTM_BOTH = 'y, h, c = LSTM <hidden_size = 3, direction = "bidirectional"> (x, W, R, B)'

_STATE = (
    "last = Constant <value_ints = [2]> () zeroth = Constant <value_ints = [0]> () "
    "row = Shape <start = 1> (x) h0 = Expand (s, row)"
)
_CELL = "n1 = Mul (h, v) n2 = Sub (n1, v) n = Tanh (n2) o1 = Exp (v) o = Mul (n, o1)"


def scan(attributes: str = "", cell: str = _CELL, sequence: str = "x") -> str:
    """Return a Scan of a cell that is no recurrent operator: its last state and its outputs."""
    return (
        f"{_STATE} state, steps = Scan <num_scan_inputs = 1 {attributes}, body = step (float[B, 3] h, "
        f"float[B, 3] v) => (float[B, 3] n, float[B, 3] o) {{ {cell} }}> (h0, {sequence})"
    )


def loop(cell: str = _CELL, over: str = "x", trips: str = "Squeeze (sizes)") -> str:
    """Return the same as a Loop."""
    return (
        f"{_STATE} sizes = Shape <end = 1> ({over}) trips = {trips} "
        "state, steps = Loop <body = step (int64 i, bool c, float[B, 3] h) => (bool d, float[B, 3] n, "
        f"float[B, 3] o) {{ d = Identity (c) v = Gather <axis = 0> (x, i) {cell} }}> (trips, , h0)"
    )


_HALF = "n = Shape <end = 1> (x) two = Constant <value_ints = [2]> () h = Div (n, two)"
_DOWN = (
    "n = Shape <end = 1> (x) m = Squeeze (n) before = Constant <value_int = -1> () l = Add (m, before) "
    "r = Range (l, before, before)"
)
_ATTENTION = (
    "k1 = Mul (x, h) k = ReduceSum <keepdims = 1> (k1, last) p = Softmax <axis = 0> (k) "
    "a1 = Mul (p, x) a = ReduceSum <keepdims = 0> (a1, zeroth) n = Add (a, v) o = Identity (a)"
)

_SCORES = (
    "two = Constant <value_ints = [2]> () one = Constant <value_ints = [1]> () d = Mul (n, two) "
    "w = Sub (d, one) k = Constant <value_ints = [13]> () b = Sub (k, n) e1 = Add (k, n) e = Sub (e1, one) "
    "t0 = Slice (W26, b, e, zero1) t = Transpose <perm = [1, 0]> (t0) "
    "f = Constant <value_ints = [0, 3]> () r = Reshape (v, f) g = MatMul (r, t) "
)
_SHIFTED = (
    "s1 = Concat <axis = 0> (d, n) a1 = Reshape (p, s1) a2 = Slice (a1, one, d, zero1) "
    "s2 = Concat <axis = 0> (n, w) a3 = Reshape (a2, s2) a = Slice (a3, zero1, n, one) "
    "l = Softmax <axis = 1> (a) z = MatMul (l, r)"
)
RELATIVE_SHIFT = (
    f"n = Shape <end = 1> (x) v = Identity (x) {_SCORES} q = Constant <value_ints = [0, 1, 0, 0]> () "
    f"p = Pad (g, q) {_SHIFTED}"
)
"""Attention by distances, as Conformers compute it."""


SEQUENCES: Mapping[str, tuple[str, str]] = {
    # Each takes x[T, 1, 3].
    "bidirectional": ("float[T, 2, 1, 3] y", LSTM_BOTH),
    "tagger": (
        "float[T, 1, 4] z",
        f"{LSTM_BOTH} t = Transpose <perm = [0, 2, 1, 3]> (y) "
        "n = Constant <value_ints = [0, 0, -1]> () r = Reshape (t, n) z = MatMul (r, P)",
    ),
    "final states": ("float[2, 1, 3] h", LSTM_BOTH),
    "forward state": (
        "float[1, 1, 3] h",
        "y, h, c = LSTM <hidden_size = 3> (x, F, K)",
    ),
    "last step by Gather": (
        "float[1, 3] z",
        "i = Constant <value_int = -1> () z = Gather <axis = 0> (x, i)",
    ),
    "last steps by Slice": (
        "float[2, 1, 3] z",
        "b = Constant <value_ints = [-2]> () e = Constant <value_ints = [9223372036854775807]> () "
        "a = Constant <value_ints = [0]> () z = Slice (x, b, e, a)",
    ),
    "flip": (
        "float[T, 1, 3] z",
        "b = Constant <value_ints = [-1]> () e = Constant <value_ints = [-9223372036854775807]> () "
        "a = Constant <value_ints = [0]> () z = Slice (x, b, e, a, b)",
    ),
    "all but the first and the last": (
        "float[U, 1, 3] z",
        "b = Constant <value_ints = [1]> () e = Constant <value_ints = [-1]> () "
        "a = Constant <value_ints = [0]> () z = Slice (x, b, e, a)",
    ),
    "last steps, as Keras cuts them": (
        "float[3, B, 3] z",
        "b = Constant <value_ints = [0, -3, 0]> () a = Constant <value_ints = [1, 0, 2]> () "
        "m = Constant <value_ints = [2147483647]> () e = Concat <axis = 0> (m, m, m) z = Slice (x, b, e, a)",
    ),
    "parts of last steps": (
        "float[3, B, 2] z",
        "b = Constant <value_ints = [1, -3]> () e = Constant <value_ints = [3, 2147483647]> () "
        "a = Constant <value_ints = [2, 0]> () z = Slice (x, b, e, a)",
    ),
    "steps and parts of the last elements reversed": (
        "float[T, B, 2] z",
        "b = Constant <value_ints = [-1, -1]> () e = Constant <value_ints = [-9999, 0]> () "
        "a = Constant <value_ints = [0, 2]> () z = Slice (x, b, e, a, b)",
    ),
    "parts of the second half": (
        "float[U, B, 2] z",
        f"{_HALF} i = Constant <value_ints = [1]> () k = Constant <value_ints = [3]> () "
        "b = Concat <axis = 0> (h, i) e = Concat <axis = 0> (n, k) a = Constant <value_ints = [0, 2]> () "
        "z = Slice (x, b, e, a)",
    ),
    "second half": ("float[U, 1, 3] z", f"{_HALF} z = Slice (x, h, n, zero1)"),
    "every other step of the second half": (
        "float[U, 1, 3] z",
        f"{_HALF} v = Slice (x, h, n, zero1, two) z = Softmax <axis = 0> (v)",
    ),
    "three steps in the middle": (
        "float[3, 1, 3] z",
        f"{_HALF} one = Constant <value_ints = [1]> () b = Sub (h, one) e = Add (h, two) "
        "z = Slice (x, b, e, zero1)",
    ),
    "the second half in front": (
        "float[T, 1, 3] z",
        f"{_HALF} f = Slice (x, zero1, h, zero1) v = Slice (x, h, n, zero1) z = Concat <axis = 0> (v, f)",
    ),
    "half of the steps at the end": (
        "float[U, 1, 3] z",
        f"{_HALF} b = Neg (h) z = Slice (x, b, n, zero1)",
    ),
    "all but half of the steps": (
        "float[U, 1, 3] z",
        f"{_HALF} e = Neg (h) z = Slice (x, zero1, e, zero1)",
    ),
    "every other of the last six steps": (
        "float[3, 1, 3] z",
        f"{_HALF} b = Constant <value_ints = [-6]> () z = Slice (x, b, n, zero1, two)",
    ),
    "every other of the last five steps": (
        "float[3, 1, 3] z",
        f"{_HALF} b = Constant <value_ints = [-5]> () z = Slice (x, b, n, zero1, two)",
    ),
    "a part that is always empty": (
        "float[T, 1, 3] z",
        f"{_HALF} k = Constant <value_ints = [9]> () p = Slice (x, k, two, zero1) "
        "z = Concat <axis = 0> (p, x)",
    ),
    "few positions that count down, behind a window": (
        "float[1, 3, U] z",
        "t = Transpose <perm = [1, 2, 0]> (x) c = MaxPool <kernel_shape = [9]> (t) n = Shape <end = 1> (x) "
        "k = Constant <value_ints = [8]> () f = Min (n, k) o = Constant <value_int = -1> () q = Squeeze (f) "
        "b = Add (q, o) r = Range (b, o, o) g = Cast <to = 1> (r) p = ReduceSum <keepdims = 0> (g) "
        "z = Mul (c, p)",
    ),
    "weights that count down": (
        "float[1, 3] z",
        f"{_DOWN} f = Cast <to = 1> (r) k = Constant <value_float = 0.8> () p = Pow (k, f) "
        "a = Constant <value_ints = [1, 2]> () u = Unsqueeze (p, a) w = Mul (x, u) "
        "g = ReduceSum <keepdims = 0> (w, zero1) q = ReduceSum <keepdims = 0> (p) z = Div (g, q)",
    ),
    # Of int32, as onnxruntime's optimizations make an empty Slice of a Range down to -1.
    "turned by positions": ("float[T, 1, 3] z", f"{_DOWN} p = Cast <to = 6> (r) z = Gather (x, p)"),
    "positions that count down": ("float[T] z", f"{_DOWN} z = Cast <to = 1> (r)"),
    "turned in a Loop": (
        "float[1, 3] z",
        f"{_DOWN} k = Constant <value_ints = [1, 3]> () h0 = Expand (s, k) z = Loop <body = turn "
        "(int64 i, bool c, float[1, 3] h) => (bool d, float[1, 3] n1) { d = Identity (c) j = Gather (r, i) "
        "v = Gather (x, j) t = Tanh (h) n1 = Add (t, v) }> (m, , h0)",
    ),
    "a part of a table of distances": (
        "float[U, 3] z",
        "n = Shape <end = 1> (x) k = Constant <value_ints = [13]> () b = Sub (k, n) e = Add (k, n) "
        "z = Slice (W26, b, e, zero1)",
    ),
    "a relative shift": ("float[T, 3] z", RELATIVE_SHIFT),
    "a relative shift of frames": (
        "float[U, 3] z",
        "y = Transpose <perm = [1, 2, 0]> (x) h = MaxPool <kernel_shape = [3], pads = [1, 1], strides = [2]> "
        f"(y) v = Transpose <perm = [2, 0, 1]> (h) n = Shape <end = 1> (v) {_SCORES} "
        f"c1 = Concat <axis = 0> (n, one) q = ConstantOfShape (c1) p = Concat <axis = 1> (q, g) {_SHIFTED}",
    ),
    "mean": ("float[1, 3] z", "z = ReduceMean <axes = [0], keepdims = 0> (x)"),
    "mean by hand": (
        "float[1, 3] z",
        "a = Constant <value_ints = [0]> () s1 = ReduceSum <keepdims = 0> (x, a) n = Shape (x) "
        "f = Cast <to = 1> (n) i = Constant <value_int = 0> () d = Gather (f, i) z = Div (s1, d)",
    ),
    "largest": ("float[1, 3] z", "z = ReduceMax <axes = [0], keepdims = 0> (x)"),
    "largest integer": (
        "int32[1, 3] z",
        "c = Cast <to = 6> (x) z = ReduceMax <axes = [0], keepdims = 0> (c)",
    ),
    "stretched features": (
        "float[T, 1, 6] z",
        'z = Resize <mode = "linear"> (x, , r2)',
    ),
    "joined features": ("float[T, 1, 6] z", "z = Concat <axis = 2> (x, x)"),
    "shape from counted steps": (
        "float[T, 3] z",
        "n = Shape <end = 1> (x) o = ConstantOfShape <value = int64[1] {1}> (n) "
        "a = Constant <value_ints = [0]> () d = ReduceSum <keepdims = 1> (o, a) "
        "t = Constant <value_ints = [3]> () s1 = Concat <axis = 0> (d, t) z = Reshape (x, s1)",
    ),
    "smallest": ("float[1, 3] z", "z = ReduceMin <axes = [0], keepdims = 0> (x)"),
    "norm": ("float[1, 3] z", "z = ReduceL2 <axes = [0], keepdims = 0> (x)"),
    "position of the largest": ("int64[1, 1, 3] z", "z = ArgMax <axis = 0> (x)"),
    "softmax": ("float[T, 1, 3] z", "z = Softmax <axis = 0> (x)"),
    "log softmax": ("float[T, 1, 3] z", "z = LogSoftmax <axis = 0> (x)"),
    "sum from the end": (
        "float[T, 1, 3] z",
        "a = Constant <value_int = 0> () z = CumSum <reverse = 1> (x, a)",
    ),
    "number of steps, at most five": (
        "float[T, 1, 3] z",
        "n = Shape (x) i = Constant <value_int = 0> () d = Gather (n, i) m = Constant <value_int = 5> () "
        "l = Min (d, m) f = Cast <to = 1> (l) z = Mul (x, f)",
    ),
    "number of steps": ("int64[3] z", "z = Shape (x)"),
    "a mask of its own": (
        "float[T, 1, 3] z",
        "n = Shape (x) o = ConstantOfShape <value = float[1] {1.0}> (n) a = Constant <value_ints = [0]> () "
        "d = ReduceSum <keepdims = 1> (o, a) z = Div (x, d)",
    ),
    "the step before": (
        "float[T, 1, 3] z",
        "m = Constant <value_ints = [-1]> () one = Constant <value_ints = [1]> () "
        "a = Slice (x, zero1, m, zero1) q = Slice (x, zero1, one, zero1) k = Sub (q, q) "
        "c = Concat <axis = 0> (k, a) z = Sub (x, c)",
    ),
    "Loop as often as there are steps joined": (
        "float[T, 1, 3] steps",
        "m = Constant <value_ints = [-1]> () one = Constant <value_ints = [1]> () "
        "a = Slice (x, zero1, m, zero1) q = Slice (x, zero1, one, zero1) c = Concat <axis = 0> (q, a) "
        + loop(over="c").replace("float[B, 3]", "float[1, 3]"),
    ),
    "the third step before": (
        "float[T, 1, 3] z",
        "m = Constant <value_ints = [-3]> () a = Slice (x, zero1, m, zero1) "
        "p = Constant <value_ints = [3, 0, 0, 0, 0, 0]> () c = Pad (a, p) z = Sub (x, c)",
    ),
    "frames, as PyTorch's exporter writes them": (
        "float[U, 3, 1, 3] z",
        "n = Shape <end = 1> (x) l = Squeeze (n) two = Constant <value_int = 2> () m = Sub (l, two) "
        "r = Range (zero, m, two) a = Constant <value_ints = [-1]> () u = Unsqueeze (r, a) "
        "k = Constant <value_ints = [0, 1, 2]> () i = Add (u, k) z = Gather <axis = 0> (x, i)",
    ),
    "positions divided by the length": (
        "float[U, 1, 3] z",
        "n = Shape <end = 1> (x) l = Squeeze (n) two = Constant <value_int = 2> () m = Mul (l, two) "
        "one = Constant <value_int = 1> () r = Range (zero, m, one) t = Mul (r, l) h = Div (t, m) "
        "z = Gather <axis = 0> (x, h)",
    ),
    "each step twice, as PyTorch's exporter writes it": (
        "float[U, 1, 3] z",
        "n = Shape <end = 1> (x) l = Squeeze (n) two = Constant <value_int = 2> () m = Mul (l, two) "
        "one = Constant <value_int = 1> () r = Range (zero, m, one) h = Div (r, two) "
        "a = Constant <value_ints = [-1]> () i = Unsqueeze (h, a) z = GatherND (x, i)",
    ),
    "the largest and the last step of a row": (
        "float[2, 1, 3] z",
        "m = ReduceMax <axes = [2], keepdims = 0> (x) a = ArgMax <axis = 0> (m) "
        "last = Constant <value_ints = [-1]> () o = Constant <value_ints = [1, 1]> () l = Reshape (last, o) "
        "t = Concat <axis = 0> (a, l) b = Mul (t, zero) s = Constant <value_ints = [2]> () "
        "p = Unsqueeze (t, s) q = Unsqueeze (b, s) i = Concat <axis = 2> (p, q) z = GatherND (x, i)",
    ),
    "the second step and the last but two of a row": (
        "float[2, 3] z",
        "f = Constant <value_ints = [1, 0, -3, 0]> () s = Constant <value_ints = [2, 2]> () "
        "i = Reshape (f, s) z = GatherND (x, i)",
    ),
    "positions": (
        "float[T, 1, 3] z",
        "n = Shape (x) i = Constant <value_int = 0> () d = Gather (n, i) o = Constant <value_int = 1> () "
        "r = Range (i, d, o) f = Cast <to = 1> (r) e = Constant <value_ints = [1, 2]> () "
        "u = Unsqueeze (f, e) z = Add (x, u)",
    ),
    "attention": (
        "float[1, T, 3] z",
        "q = Transpose <perm = [1, 0, 2]> (x) v = MatMul (q, V) k = Transpose <perm = [0, 2, 1]> (q) "
        "w = MatMul (v, k) p = Softmax <axis = 2> (w) z = MatMul (p, v)",
    ),
    "something behind the end": (
        "float[U, 1, 3] z",
        "y = Concat <axis = 0> (c1, x, c1) z = CumSum <reverse = 1> (y, zero)",
    ),
    "twice, joined": (
        "float[U, 1, 3] z",
        "y = Concat <axis = 0> (x, c1, x) m = ReduceMean <axes = [0]> (y) z = Sub (y, m)",
    ),
    "the first step in front and behind": (
        "float[U, 1, 3] z",
        "e = Constant <value_ints = [1]> () f = Slice (x, zero1, e, zero1) y = Concat <axis = 0> (f, x, f) "
        "z = CumSum <reverse = 1> (y, zero)",
    ),
    "twice, with the first step between": (
        "float[U, 1, 3] z",
        "e = Constant <value_ints = [1]> () f = Slice (x, zero1, e, zero1) y = Concat <axis = 0> (x, f, x) "
        "m = ReduceMean <axes = [0]> (y) z = Sub (y, m)",
    ),
    "product with a vector": ("float[T, 1] z", "z = MatMul (x, s)"),
    "vector of steps": (
        "float[3] z",
        "a = Constant <value_ints = [1]> () y = Squeeze (x, a) w = ReduceSum <keepdims = 0> (x, f2) "
        "z = MatMul (w, y)",
    ),
    "step at a computed position": (
        "float[1, 3] z",
        "m = ReduceSum <keepdims = 0> (x, f2) a = ArgMax <axis = 0, keepdims = 0> (m) "
        "z = Gather <axis = 0> (x, a)",
    ),
    "norm over time": ("float[T, 1, 3] z", "z = LayerNormalization <axis = 0> (x, s, s)"),
    "norm of steps": ("float[T, 1, 3] z", "z = LayerNormalization (x, s, s)"),
    "variance": (
        "float[1, 3] z",
        "m = ReduceMean <axes = [0]> (x) d = Sub (x, m) q = Mul (d, d) "
        "z = ReduceMean <axes = [0], keepdims = 0> (q)",
    ),
    "logarithm of sums": ("float[1, 3] z", "z = ReduceLogSumExp <axes = [0], keepdims = 0> (x)"),
    "largest three": (
        "float[3, 1, 3] z",
        "n = Constant <value_ints = [3]> () z, i = TopK <axis = 0> (x, n)",
    ),
    "pools of each step": (
        "float[T, 1, 1] z",
        "y = Transpose <perm = [1, 0, 2]> (x) m = MaxPool <kernel_shape = [2]> (y) "
        "a = AveragePool <kernel_shape = [2]> (m) z = Transpose <perm = [1, 0, 2]> (a)",
    ),
    "hard maximum": ("float[T, 1, 3] z", "z = Hardmax <axis = 0> (x)"),
    "first two": (
        "float[1, 3] z",
        "b = Constant <value_ints = [0]> () e = Constant <value_ints = [2]> () "
        "y = Slice (x, b, e, b) z = ReduceSum <keepdims = 0> (y, b)",
    ),
    "every third": (
        "float[U, 1, 3] z",
        "b = Constant <value_ints = [1]> () e = Constant <value_ints = [9223372036854775807]> () "
        "a = Constant <value_ints = [0]> () p = Constant <value_ints = [3]> () z = Slice (x, b, e, a, p)",
    ),
    "ellipsis of Einsum": ("float[1, 3, 3] z", 'z = Einsum <equation = "t...i,t...j->...ij"> (x, x)'),
    "implicit Einsum": ("float[1, 3, 3] z", 'z = Einsum <equation = "tbi,tbj"> (x, x)'),
    "quantized product": (
        "float[1, 3, 3] z",
        "t = Transpose <perm = [1, 2, 0]> (x) u = Transpose <perm = [1, 0, 2]> (x) "
        "p, ps, pz = DynamicQuantizeLinear (t) q, qs, qz = DynamicQuantizeLinear (u) "
        "i = MatMulInteger (p, q, pz, qz) f = Cast <to = 1> (i) n = Mul (f, ps) z = Mul (n, qs)",
    ),
    "two heads": (
        "float[1, T, 4] z",
        "q0 = MatMul (x, P3) h0 = Constant <value_ints = [0, 2, 2]> () q = Reshape (q0, h0) "
        "k = Transpose <perm = [1, 0, 2]> (q) v = Transpose <perm = [1, 2, 0]> (q) w = MatMul (k, v) "
        "p = Softmax (w) o = MatMul (p, k) t = Transpose <perm = [1, 0, 2]> (o) "
        "n = Constant <value_ints = [1, -1, 4]> () z = Reshape (t, n)",
    ),
    "Scan": ("float[T, 1, 3] z", f"{scan()} z = Add (steps, state)"),
    "Scan without its state": ("float[T, 1, 3] z", f"{scan()} z = Identity (steps)"),
    "Scan from the end": (
        "float[T, 1, 3] z",
        scan(", scan_input_directions = [1], scan_output_directions = [1]") + " z = Add (steps, state)",
    ),
    "Scan along the last axis": (
        "float[1, 3, T] z",
        "y = Transpose <perm = [1, 2, 0]> (x) "
        + scan(", scan_input_axes = [-1], scan_output_axes = [2]", sequence="y")
        + "u = Unsqueeze (state, last) z = Add (steps, u)",
    ),
    "Scan with attention to all steps": (
        "float[T, 1, 3] z",
        f"{scan(cell=_ATTENTION)} z = Add (steps, state)",
    ),
    "Scan over features": (
        "float[3, T, 1] z",
        "h0 = ReduceSum <keepdims = 0> (x, f2) "
        "state, z = Scan <num_scan_inputs = 1, scan_input_axes = [2], "
        "body = step (float[T] h, float[T, B] v) => (float[T] n, float[T, B] o) "
        "{ m = ReduceMean <axes = [0]> (v) o = Sub (v, m) q = ReduceMean <axes = [1], keepdims = 0> (o) "
        "n = Add (h, q) }> (h0, x)",
    ),
    "Loop": ("float[T, 1, 3] z", f"{loop()} z = Add (steps, state)"),
    "Loop with attention to all steps": (
        "float[T, 1, 3] z",
        f"{loop(_ATTENTION)} z = Add (steps, state)",
    ),
    "Loop of a fixed number of steps": (
        "float[4, 1, 3] z",
        loop(_ATTENTION.replace("(a, v)", "(a, h)"), trips="Constant <value_int = 4> ()")
        + " z = Add (steps, state)",
    ),
    "Loop of tokens": (
        "float[1, 3] z",
        "i1 = Mul (x, x) i2 = Cast <to = 7> (i1) i3 = Mod (i2, four) "
        "tokens = ReduceMax <axes = [2], keepdims = 0> (i3)"
        ""
        + loop("t = Gather (tokens, i) w = Gather (table, t) n1 = Mul (h, w) n = Sub (n1, w) o = Exp (n)")
        + " z = Identity (state)",
    ),
    "Loop of computed positions": (
        "float[1, 3] z",
        loop(
            "f = ReduceMax <axes = [1], keepdims = 0> (v) g = Abs (f) k = Cast <to = 7> (g) "
            "w = Gather (table, k) n1 = Mul (h, w) n = Sub (n1, w) o = Exp (n)"
        )
        + " z = Identity (state)",
    ),
    "Scan that divides integers": (
        "float[1, 3] z",
        scan(
            cell="e = Exp (v) f = Ceil (e) i = Cast <to = 7> (f) j = Div (four, i) k = Cast <to = 1> (j) "
            "n = Add (h, k) o = Exp (v)"
        )
        + " z = Identity (state)",
    ),
    "Scan of a Loop that ends by a condition": (
        "float[1, 3] z",
        scan(
            cell="a = Abs (v) m = Loop <body = halve (int64 j, bool c, float[B, 3] p) "
            "=> (bool d, float[B, 3] q) { half = Constant <value_float = 0.5> () q = Mul (p, half) "
            "r = ReduceMax <keepdims = 0> (q) l = Less (r, half) d = Not (l) }> "
            "(, , a) n1 = Add (h, m) n = Tanh (n1) o = Exp (v)"
        )
        + " z = Identity (state)",
    ),
    "Loop of one iteration less": (
        "float[U, 1, 3] z",
        "counted = Shape <end = 1> (x) number = Squeeze (counted) one = Constant <value_int = 1> () "
        + loop(trips="Sub (number, one)")
        + " z = Add (steps, state)",
    ),
    "Loop with a longer sequence": (
        "float[U, 1, 3] z",
        "one = Constant <value_ints = [-1]> () y = Slice (x, zero1, one, zero1) "
        + loop(f"w = Gather (y, i) {_CELL.replace('Exp (v)', 'Exp (w)')}", over="y")
        + " z = Add (steps, state)",
    ),
    "Loop with a condition": (
        "float[T, 1, 3] z",
        loop(trips="Constant <value_int = 9223372036854775807> () size = Squeeze (sizes)").replace(
            "d = Identity (c)", "one = Constant <value_int = 1> () j = Add (i, one) d = Less (j, size)"
        )
        + " z = Add (steps, state)",
    ),
    "Loop with a number of one axis": (
        "float[T, 1, 3] z",
        loop().replace("int64 i", "int64[1] k").replace("v = ", "i = Squeeze (k) v = ")
        + " z = Add (steps, state)",
    ),
    "summed by Einsum": (
        "float[1, 3, 3] z",
        'z = Einsum <equation = "tbi,tbj->bij"> (x, x)',
    ),
}
_SPATIAL = {
    # Each takes x[1, 3, T].
    "convolution": ("float[1, 4, T] z", "z = Conv <pads = [1, 1]> (x, C)"),
    "a single window": (
        "float[1, 4] z",
        "a = Constant <value_ints = [2]> () y = Conv <strides = [20]> (x, C) z = Squeeze (y, a)",
    ),
    "convolutions": (
        "float[1, 4, T] z",
        "y = Conv <pads = [1, 1]> (x, C, b) r = Sigmoid (y) z = Conv <pads = [2, 2], dilations = [2]> (r, G)",
    ),
    "strided convolution": ("float[1, 4, U] z", "z = Conv <pads = [1, 1], strides = [2]> (x, C)"),
    "transposed convolution": ("float[1, 4, U] z", "z = ConvTranspose <strides = [2]> (x, E)"),
    "means of a signal and its spectrum": (
        "float[1] z",
        "hop = Constant <value_int = 2> () m = ReduceMax <axes = [1], keepdims = 0> (x) "
        "a = STFT (m, hop, , four) c = ReduceMean <axes = [1, 2, 3], keepdims = 0> (a) "
        "e = ReduceMean <axes = [1], keepdims = 0> (m) z = Add (c, e)",
    ),
    "short-time spectrum": (
        "float[1, U, 3, 2] z",
        "hop = Constant <value_int = 2> () m = ReduceMax <axes = [1], keepdims = 0> (x) "
        "z = STFT (m, hop, , four)",
    ),
    "transposed convolution, cut to the length": (
        "float[1, 4, T] z",
        "y = Conv <pads = [1, 1], strides = [2]> (x, C) t = ConvTranspose <strides = [2]> (y, E4) "
        "a = Constant <value_ints = [2]> () n = Shape <start = 2> (x) z = Slice (t, zero1, n, a)",
    ),
    "largest of a window": (
        "float[1, 3, U] z",
        "z = MaxPool <kernel_shape = [3], pads = [1, 1], strides = [2]> (x)",
    ),
    "mean of a window": (
        "float[1, 3, T] z",
        "z = AveragePool <kernel_shape = [3], pads = [1, 1]> (x)",
    ),
    "mean of a window with zeros": (
        "float[1, 3, T] z",
        "z = AveragePool <kernel_shape = [3], pads = [1, 1], count_include_pad = 1> (x)",
    ),
    "mean of a window, rounded up": (
        "float[1, 3, U] z",
        "z = AveragePool <kernel_shape = [3], strides = [2], ceil_mode = 1> (x)",
    ),
    "mean of a window with zeros, rounded up": (
        "float[1, 3, U] z",
        "z = AveragePool <kernel_shape = [4], strides = [3], pads = [1, 1], ceil_mode = 1, "
        "count_include_pad = 1> (x)",
    ),
    "mean of a window with zeros, as long as the input": (
        "float[1, 3, T] z",
        'z = AveragePool <kernel_shape = [3], auto_pad = "SAME_UPPER", ceil_mode = 1, '
        "count_include_pad = 1> (x)",
    ),
    "largest of a window, rounded up": (
        "float[1, 3, U] z",
        "z = MaxPool <kernel_shape = [3], strides = [2], ceil_mode = 1> (x)",
    ),
    "largest of a window that grows at the end": (
        "float[1, 3, U] z",
        'z = MaxPool <kernel_shape = [2], strides = [2], auto_pad = "SAME_UPPER"> (x)',
    ),
    "norm of a window": ("float[1, 3, T] z", "z = LpPool <kernel_shape = [3], pads = [1, 1], p = 2> (x)"),
    "uneven convolution": (
        "float[1, 4, U] z",
        "y = Conv <pads = [0, 3], strides = [3], dilations = [2]> (x, C, b) z = Softmax (y)",
    ),
    "transposed convolution with pads": (
        "float[1, 4, U] z",
        "y = ConvTranspose <strides = [3], pads = [1, 0], output_padding = [1]> (x, E) "
        "m = ReduceMean <axes = [2]> (y) z = Sub (y, m)",
    ),
    "mirrored ends": (
        "float[1, 4, T] z",
        'p = Constant <value_ints = [0, 0, 1, 0, 0, 1]> () y = Pad <mode = "reflect"> (x, p) z = Conv (y, C)',
    ),
    "mirrored ends of two axes": (
        "float[1, 7, T] z",
        'p = Constant <value_ints = [0, 2, 1, 0, 1, 1]> () y = Pad <mode = "reflect"> (x, p) '
        "z = MaxPool <kernel_shape = [3]> (y)",
    ),
    "repeated ends": (
        "float[1, 4, T] z",
        'p = Constant <value_ints = [0, 0, 0, 0, 0, 2]> () y = Pad <mode = "edge"> (x, p) z = Conv (y, C)',
    ),
    "stretched": (
        "float[1, 3, U] z",
        'z = Resize <mode = "linear"> (x, , r2)',
    ),
    "repeated steps": (
        "float[1, 3, U] z",
        'z = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", '
        'nearest_mode = "round_prefer_ceil"> (x, , r2)',
    ),
    "every other step": (
        "float[1, 3, U] z",
        'z = Resize <mode = "linear"> (x, , r05)',
    ),
    "mean of all": ("float[1, 3, 1] z", "z = GlobalAveragePool (x)"),
    "largest of all": ("float[1, 3, 1] z", "z = GlobalMaxPool (x)"),
    "mean of features, as Keras writes it": (
        "float[1, T, 1] z",
        "w = Transpose <perm = [0, 2, 1]> (x) z = GlobalAveragePool (w)",
    ),
    "norm of channels": ("float[1, 3, T] z", "z = InstanceNormalization (x, s, s)"),
    "norm of groups, as PyTorch writes it": (
        "float[1, 4, T] z",
        "y = Conv <pads = [1, 1]> (x, C) n = Constant <value_ints = [0, 2, -1]> () r = Reshape (y, n) "
        "o = Constant <value_floats = [1.0, 1.0]> () u = Constant <value_floats = [0.0, 0.0]> () "
        "i = InstanceNormalization (r, o, u) s1 = Shape (y) v = Reshape (i, s1) z = Mul (v, b1)",
    ),
    "stretched to the length, nearest": (
        "float[1, 3, T] z",
        "y = MaxPool <kernel_shape = [3], strides = [3], pads = [1, 1]> (x) n = Shape (x) "
        'z = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", '
        'nearest_mode = "floor"> (y, , , n)',
    ),
    "stretched to the length, nearest, by halves": (
        "float[1, 3, T] z",
        "y = MaxPool <kernel_shape = [3], strides = [3], pads = [1, 1]> (x) n = Shape (x) "
        'z = Resize <mode = "nearest"> (y, , , n)',
    ),
    "stretched to the length, linear": (
        "float[1, 3, T] z",
        "y = MaxPool <kernel_shape = [3], strides = [3], pads = [1, 1]> (x) n = Shape (x) "
        'z = Resize <mode = "linear"> (y, , , n)',
    ),
    "stretched to the length, linear, as PyTorch does": (
        "float[1, 3, T] z",
        "y = MaxPool <kernel_shape = [3], strides = [3], pads = [1, 1]> (x) n = Shape (x) "
        'z = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (y, , , n)',
    ),
    "stretched to the length, linear, by corners": (
        "float[1, 3, T] z",
        "y = MaxPool <kernel_shape = [3], strides = [3], pads = [1, 1]> (x) n = Shape (x) "
        'z = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (y, , , n)',
    ),
    "blocks added": (
        "float[1, 1, 1, U] z",
        "n = Shape <start = 2> (x) one = Constant <value_ints = [1]> () m = Sub (n, one) "
        "two = Constant <value_ints = [2]> () d = Mul (m, two) three = Constant <value_ints = [3]> () "
        "u = Add (d, three) image = Concat <axis = 0> (one, u) block = Concat <axis = 0> (one, three) "
        "z = Col2Im <strides = [1, 2]> (x, image, block)",
    ),
    "zeros up to a fixed length": (
        "float[1, 3, 40] z",
        "n = Shape <start = 2> (x) d = Constant <value_ints = [40]> () e = Sub (d, n) "
        "o = Constant <value_ints = [0, 0, 0, 0, 0]> () p = Concat <axis = 0> (o, e) z = Pad (x, p)",
    ),
    "a negative length divided": (
        "float[1, 3, U] z",
        "n = Shape <start = 2> (x) m = Neg (n) d = Constant <value_ints = [4]> () q = Div (m, d) "
        "f = Neg (q) c = Constant <value_ints = [1, 3]> () e = Concat <axis = 0> (c, f) "
        "y = ReduceMean <axes = [2]> (x) z = Expand (y, e)",
    ),
    "zeros up to a multiple": (
        "float[1, 3, U] z",
        "n = Shape <start = 2> (x) m = Neg (n) d = Constant <value_ints = [4]> () e = Mod (m, d) "
        "o = Constant <value_ints = [0, 0, 0, 0, 0]> () p = Concat <axis = 0> (o, e) y = Pad (x, p) "
        "z = AveragePool <kernel_shape = [4], strides = [4]> (y)",
    ),
    "zeros up to a multiple, and cut off": (
        "float[1, 3, T] z",
        "n = Shape <start = 2> (x) d = Constant <value_ints = [4]> () r = Constant <value_ints = [3]> () "
        "s3 = Add (n, r) q = Div (s3, d) m = Mul (q, d) e = Sub (m, n) "
        "o = Constant <value_ints = [0, 0, 0, 0, 0]> () p = Concat <axis = 0> (o, e) y = Pad (x, p) "
        "v = AveragePool <kernel_shape = [4], strides = [4]> (y) w = ConvTranspose <strides = [4]> (v, V4) "
        "ax = Constant <value_ints = [2]> () z = Slice (w, zero1, n, ax)",
    ),
    "the first half": (
        "float[1, 3, U] z",
        "n = Shape <start = 2> (x) two = Constant <value_ints = [2]> () h = Div (n, two) "
        "y = Slice (x, zero1, h, two) z = Softmax (y)",
    ),
    "pairs of steps": (
        "float[1, U, 4] z",
        "n = Shape <start = 2> (x) two = Constant <value_ints = [2]> () h = Div (n, two) e = Mul (h, two) "
        "y = Slice (x, zero1, e, two) w = Transpose <perm = [0, 2, 1]> (y) "
        "p = Constant <value_ints = [0, -1, 6]> () r = Reshape (w, p) m = MatMul (r, P) "
        "z = Softmax <axis = 1> (m)",
    ),
    "zeros at both ends": (
        "float[1, 4, T] z",
        "p = Constant <value_ints = [0, 0, 1, 0, 0, 1]> () y = Pad (x, p) z = Conv (y, C)",
    ),
}
MODELS = {**SEQUENCES, **_SPATIAL}
"""The output and the nodes of each model."""


def padded_case(name: str, length: str = "T", batch: str = "1") -> onnx.ModelProto:
    """Return the model of this name; its length may be a number, and its batch open."""
    output, nodes = MODELS[name]
    shape = f"[{batch}, 3, {length}]" if name in _SPATIAL else f"[{length}, {batch}, 3]"
    if length != "T":
        output = output.replace("T", length).replace("U", "_")
    if batch != "1":
        # The result has any shape.
        output = f"{output.partition('[')[0]} {output.split()[-1]}"
    opset = 18 if "Col2Im" in nodes else 17
    head = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    return with_weights(f"{head} main (float{shape} x) => ({output}) {{ {nodes} }}")


def with_weights(text: str) -> onnx.ModelProto:
    """Return the model of the text with weights of the names that it reads."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    bodies = [each.g for node in model.graph.node for each in node.attribute]
    read = {name for graph in (model.graph, *bodies) for node in graph.node for name in node.input}
    for name, array in _CONSTANTS.items():
        if name in read:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    for name, shape in {
        **_SIZES,
        "b": (4,),
        "Q": (3, 3, 2),
        "Q4": (4, 4, 2),
        "V4": (3, 3, 4),
        "G": (4, 4, 3),
    }.items():
        made = {out for node in model.graph.node for out in node.output}
        if name in read - made:
            array = rng.normal(0, 0.6, shape).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


MAXIMUM = 13


def difference(source: onnx.ModelProto, padded: onnx.ModelProto, *fills: float, rows: int = 2) -> float:
    """Return the largest difference of the valid part at any length with any padding; NaN if one is that.

    Args:
        rows: The size of open axes other than time, ``T``.
    """
    entry = {each.key: each.value for each in padded.metadata_props}["rnnlower.pad"]
    told, whole, fixed = json.loads(entry), session(source), session(padded)
    axis, found = told["inputs"]["x"], [0.0]
    (output,) = whole.get_outputs()
    for length in range(told["least"]["T"], MAXIMUM + 1):
        shape = [
            size if isinstance(size, int) else length if size == "T" else rows
            for size in whole.get_inputs()[0].shape
        ]
        x = np.random.default_rng(length).normal(size=shape).astype(np.float32)
        shape[axis] = MAXIMUM - length
        given = {"length": np.array([length])}
        if told["form"] == "mask":
            given = {"mask": (np.arange(MAXIMUM)[None] < length).astype(np.float32)}
        (expected,) = whole.run(None, {"x": x})
        for fill in fills:
            padding = np.full(shape, fill, np.float32)
            (actual,) = fixed.run(None, {"x": np.concatenate([x, padding], axis), **given})
            if output.name in told["outputs"]:
                valid = told["outputs"][output.name]
                size = eval(valid["size"], {"T": length})
                assert size == expected.shape[valid["axis"]]
                actual = actual.take(range(size), valid["axis"])
            assert actual.shape == expected.shape
            found.append(np.abs(actual.astype(float) - expected).max(initial=0))
    return float(np.max(found))
