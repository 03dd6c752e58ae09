"""Probes of the types in which a runtime computes, and of the operators that each type lacks."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnnlower.engines.reference import evaluate
from rnnlower.probing.asking import Asker, Question, make_model, parse_nodes, question
from rnnlower.probing.writing import nonempty
from rnnlower.targets.vocabulary import Activations

_FLOATS = ("float16", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_UNARY = (
    *("Abs", "Elu", "Exp", "HardSigmoid", "Identity", "LeakyRelu", "Log", "Neg", "Relu", "Sigmoid"),
    *("Softplus", "Softsign", "Tanh", "ThresholdedRelu"),
)
_BINARY = ("Add", "Div", "MatMul", "Max", "Min", "Mul", "Sub")
_LINES = {
    **{op_type: f"Y = {op_type} (X)" for op_type in _UNARY},
    **{op_type: f"Y = {op_type} (X, W)" for op_type in _BINARY},
    "Clip": "Y = Clip (X, low, high)",
    "Concat": "Y = Concat <axis = 0> (X, W)",
    "Expand": "Y = Expand (X, shape)",
    "Gather": "Y = Gather (X, rows)",
    "Gemm": "Y = Gemm <transB = 1> (X, W, W)",
    "Reshape": "Y = Reshape (X, flat)",
    "Slice": "Y = Slice (X, start, end, axes)",
    "Split": "Y, Z = Split <axis = 0> (X, parts)",
    "Squeeze": "Y = Squeeze (X, none)",
    "Transpose": "Y = Transpose <perm = [1, 0]> (X)",
    "Unsqueeze": "Y = Unsqueeze (X, axes)",
    "Where": "Y = Where (on, X, W)",
}
"""Operators that a lowering emits for data of the node's type."""
_NUMBERS: Mapping[str, Any] = {
    "X": np.arange(1, 17, dtype=np.float32).reshape(4, 4) / 8,
    "W": np.arange(16, dtype=np.float32).reshape(4, 4) / 8 + 1,
    "low": np.float32(0.5),
    "high": np.float32(1.5),
    "shape": np.array([2, 4, 4]),
    "rows": np.array([2, 0]),
    "flat": np.array([16]),
    "start": np.array([1]),
    "end": np.array([3]),
    "axes": np.array([0]),
    "parts": np.array([1, 3]),
    "none": np.array([], np.int64),
    "on": np.eye(4) > 0,
}


def probe_dtypes(asker: Asker) -> list[str]:
    """Return the data types in which it computes; float32, and int64 for shapes, are assumed."""
    right = [dtype for dtype in _FLOATS if asker.is_right(f"a cell of {dtype}", _cell_question, dtype)]
    for dtype in _INTEGERS:
        answer = asker.ask(f"Add of {dtype}", _sum_question, dtype)
        # It may still support the type between quantizers.
        if answer == "refuses" and dtype in ("int8", "uint8", "int16", "uint16"):
            answer = asker.ask(f"quantized to {dtype}", _quantizer_question, dtype)
        if answer == "right":
            right.append(dtype)
    # bool comes from comparisons rather than from a model's input.
    right += ["bool"] if asker.is_right("Not between Casts", _bool_question) else []
    right += ["string"] if asker.is_right("strings beside constants", _string_question) else []
    return sorted({*right, "float32", "int64"})


def _quantizer_question(dtype: str) -> Question:
    # Multiples of the scale, since some runtimes remove a pair of quantizers.
    inputs = {"X": (np.arange(16, dtype=np.float32).reshape(2, 8) - 8) / 50, "s": np.float32(0.02)}
    text = "Q = QuantizeLinear (X, s, z)\nY = DequantizeLinear (Q, s, z)"
    return question(text, inputs | {"z": np.array(3, dtype)}, 21, {"s", "z"})


def probe_arithmetic(asker: Asker, types: Sequence[str]) -> dict[str, Any]:
    """Return the type in which float16 products are summed, and the integers it computes or leaves out."""
    key = "a float16 sum of 1 and 4,096 times 2^-11"
    answer = asker.ask(key, _sum_of_small_terms) if "float16" in types else ""
    right = [kind for kind in _PRODUCTS if asker.is_right(f"a product of {kind}", _product_question, kind)]
    kinds = dict.fromkeys(kind for pair in _PRODUCTS.values() for kind in pair)
    loose = [
        kind
        for kind in kinds
        if asker.ask(f"numbers beyond {kind}", _clipping_question, kind, 1) == "wrong"
        and asker.is_right(f"numbers of {kind}", _clipping_question, kind, 4)
    ]
    return nonempty(
        accumulates={"right": "float32", "wrong": "float16"}.get(answer),
        quantized=right if len(right) < len(_PRODUCTS) else [],
        unclipped=loose,
    )


def _clipping_question(dtype: str, largest: float) -> Question:
    """Ask about numbers up to 3 between quantizers whose range ends at `largest`."""
    text = "Q = QuantizeLinear (X, s, z)\nD = DequantizeLinear (Q, s, z)\nY = Add (D, D)"
    scale = np.float32(2 * largest / 2 ** np.iinfo(dtype).bits)
    inputs = {"X": np.array([[-3, -1, -0.25, 0, 0.5, 3]], np.float32), "s": scale, "z": _zero_point(dtype)}
    return question(text, inputs, 21, {"s", "z"})


def _product_question(kind: str) -> Question:
    """Ask about a product between quantizers, as `quantize` writes it.

    The last quantizer is coarse, since a runtime may be one step off in those before it. Its input is on its
    grid, since a runtime may leave it out and compute in float32.
    """
    reads, writes = _PRODUCTS[kind]
    lines = (
        "x = QuantizeLinear (X, sx, zx)",
        "a = DequantizeLinear (x, sx, zx)",
        "b = DequantizeLinear <axis = 1> (W, sw)",
        "P = MatMul (a, b)",
        "p = QuantizeLinear (P, sp, zp)",
        "c = DequantizeLinear (p, sp, zp)",
        "S = Add (c, c)",
        "s = QuantizeLinear (S, sy, zp)",
        "Y = DequantizeLinear (s, sy, zp)",
    )
    inputs = {
        # Rounded to 8 bits by the largest number of a row, as onnxruntime does in its MatMulNBits, X stays.
        "X": np.array([[127, 127, 2, 1], [63, 127, 66, 1], [-127, -127, -2, -1]], np.float32) / 1024,
        "W": np.array([[1, 0, 1], [1, 1, 0], [1, 0, 0], [0, 1, 1]], np.int8),
        "sx": np.float32(2**-10 if reads == "uint8" else 2**-13),
        "sw": np.array([1 / 8, 1 / 4, 1 / 2], np.float32),
        "sp": np.float32(2**-8 if writes == "uint8" else 2**-14),
        "sy": np.float32(1 / 16),
        "zx": _zero_point(reads),
        "zp": _zero_point(writes),
    }
    return question("\n".join(lines), inputs, 21, {*inputs} - {"X"})


def _zero_point(dtype: str) -> Any:
    info = np.iinfo(dtype)
    return np.array((int(info.min) + int(info.max) + 1) // 2, dtype)


_TYPE_PAIRS = (("uint8", "int16"), ("int16", "int16"), ("uint16", "uint16"), ("uint8", "uint8"))
_PRODUCTS: Mapping[str, tuple[str, str]] = dict(zip(get_args(Activations), _TYPE_PAIRS, strict=True))
"""The types that a product reads and writes, by `--activations`."""


def _sum_of_small_terms() -> Question:
    """Ask for a product whose sum is 3, of terms that float16 loses when they are added to 1 one by one."""
    x = np.full((1, 4097), 2**-11, np.float16)
    x[0, 0] = 1
    ones = {"W": np.ones((4097, 1), np.float16)}
    return _typed_question("Y = MatMul (X, W)", {"X": x}, np.array([[3]], np.float16), ones)


def _bool_question() -> Question:
    text = "x = Cast <to = 9> (X)\ny = Not (x)\nY = Cast <to = 1> (y)"
    return question(text, {"X": np.array([0, 1, 1, 0], np.float32)}, 14)


def _cell_question(dtype: str) -> Question:
    """Ask about the ops of a recurrence in this type."""
    text = "A = MatMul (X, W)\nC = Gemm <transB = 1> (X, W, b)\nD = Add (A, C)\nE = Sigmoid (D)"
    x, w = (np.array(rows, dtype) for rows in ([[0, 1, 2], [1, 0, 3]], np.eye(3) + 1))
    b = np.array([1, -1, 0], dtype)
    c = x @ w.T + b
    y = (np.tanh(c) / (1 + np.exp(-(x @ w + c)))).astype(dtype)
    return _typed_question(f"{text}\nF = Tanh (C)\nY = Mul (E, F)", {"X": x}, y, {"W": w, "b": b})


def _sum_question(dtype: str) -> Question:
    x = np.array([[1, 0, 1]] * 3, dtype)
    return _typed_question("Y = Add (X, W)", {"X": x, "W": x}, x + x, {})


def _typed_question(text: str, feeds: Mapping[str, Any], y: Any, weights: Mapping[str, Any]) -> Question:
    """Ask about nodes whose graph inputs and outputs are not cast to float32."""
    out = helper.make_tensor_value_info("Y", helper.np_dtype_to_tensor_dtype(y.dtype), y.shape)
    model = make_model(parse_nodes(text), feeds, [out], 14, weights)
    onnx.checker.check_model(model, full_check=True)
    return Question(model, [(feeds, {"Y": y})])


def probe_type_limits(asker: Asker, ops: Sequence[str], types: Sequence[str]) -> list[dict[str, Any]]:
    """Return the limits ``dtypes`` of operators that support fewer types than the others, without sources.

    Args:
        ops: The operators that the runtime supports.
        types: The types that it supports.
    """
    missing: dict[tuple[str, ...], list[str]] = collections.defaultdict(list)
    for op_type in sorted(_LINES.keys() & {*ops}):
        absent = [
            dtype
            for dtype in _FLOATS
            if dtype in types and not asker.is_right(f"{op_type} of {dtype}", _float_question, op_type, dtype)
        ]
        if absent:
            missing[tuple(absent)].append(op_type)
    return [
        {"ops": names, "dtypes": [dtype for dtype in types if dtype not in absent]}
        for absent, names in sorted(missing.items())
    ]


def _float_question(op_type: str, dtype: str) -> Question:
    nodes = parse_nodes(_LINES[op_type])
    inputs = {name: _NUMBERS[name] for name in nodes[0].input}
    return retype_question(question(nodes, inputs, 13, {*inputs} - {"X"}), dtype)


def retype_question(asked: Question, dtype: str) -> Question:
    """Return a question about float32 data as one about another float type; the model has no bodies.

    The expected outputs are computed in float32 from numbers that the type can represent.
    """
    model = onnx.ModelProto.FromString(asked.model.SerializeToString())
    graph, kind = model.graph, np.dtype(dtype)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    rounded, *trials = (
        _cast(_cast(values, np.float32, kind), kind, np.float32)
        for values in (weights, *(fed for fed, _ in asked.trials))
    )
    _set_weights(graph, rounded)
    expected = [evaluate(model, feeds) for feeds in trials]
    _set_weights(graph, _cast(rounded, np.float32, kind))
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(kind)
    onnx.checker.check_model(model, full_check=True)
    typed = [[_cast(each, np.float32, kind) for each in pair] for pair in zip(trials, expected, strict=True)]
    return Question(model, [(fed, right) for fed, right in typed])


def _cast(values: Mapping[str, Any], old: Any, new: Any) -> dict[str, Any]:
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return {name: array.astype(new) if array.dtype == old else array for name, array in arrays.items()}


def _set_weights(graph: onnx.GraphProto, weights: Mapping[str, Any]) -> None:
    del graph.initializer[:]
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())


def _string_question() -> Question:
    """Ask about strings between Casts, with constants, so that no runtime can leave out the Casts."""
    text = "x = Cast <to = 8> (X)\ny = Concat <axis = 0> (x, more)\nY = Cast <to = 1> (y)"
    x = np.array([0, 1, -2, 0.5], np.float32)
    inputs = {"X": x, "more": np.array(["7", "-0.5"], object)}
    right = {"Y": np.append(x, np.array([7, -0.5], np.float32))}
    return question(text, inputs, 14, {"more"}, expected=right)
