"""Write docs/accuracy.md: the error of Sigmoid and Tanh on onnxruntime, alone and in a lowered graph.

python docs/accuracy.py
"""

from __future__ import annotations

import functools
import pathlib
import platform
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

import rnnlower

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
from support.judge import run

PAGE = pathlib.Path(__file__).with_name("accuracy.md")
INTRODUCTION = """\
# Accuracy of the activation functions

<!-- Written by docs/accuracy.py with {versions}. -->

SONNX requires the activation functions of LSTM to be within 1 ULP. A lowered graph has the
Sigmoid and Tanh of the runtime it runs on, so what is measured is the
runtime: here onnxruntime {onnxruntime} on {machine}.

Each result is compared with the exact value rounded once (mpmath with 60 digits wherever float64 leaves the
rounding in doubt); the distance counts representable numbers between the two. *Alone* is a model of that one
node; *in the graph* a lowered RNN of two steps with W = 1 and R = 0, whose second step runs the function
after the recurrent Gemm (onnxruntime fuses the two); *native* the RNN node itself. Inputs: every number of
the 16-bit types, {count:,} of float32 and {double:,} of float64, evenly spread over the bit patterns from
2^-40 to 2^7 on both sides, so that all magnitudes count equally.
"""

Array = np.ndarray
COLUMNS = (
    *("type", "function", "where", "largest distance (ULP)", "at x", "result", "right", "beyond 1 ULP"),
    *("largest distance for abs(x) <= 4", "largest absolute error"),
)
FLOAT32_INPUTS, FLOAT64_INPUTS = 1 << 21, 1 << 14
_TYPES: Mapping[str, tuple[Any, int]] = {
    "float16": (np.float16, onnx.TensorProto.FLOAT16),
    "bfloat16": (ml_dtypes.bfloat16, onnx.TensorProto.BFLOAT16),
    "float32": (np.float32, onnx.TensorProto.FLOAT),
    "float64": (np.float64, onnx.TensorProto.DOUBLE),
}
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
_EXACT: Mapping[str, Callable[[Any], Any]] = {
    "Sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "Tanh": mpmath.tanh,
}
_CLOSE: Mapping[str, Callable[[Array], Array]] = {
    "Sigmoid": lambda x: np.where(x >= 0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x))),
    "Tanh": np.tanh,
}


def page() -> str:
    """Return the page."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("onnxruntime", "numpy", "mpmath"))
    introduction = INTRODUCTION.format(
        versions=versions,
        onnxruntime=metadata.version("onnxruntime"),
        machine=platform.machine(),
        count=FLOAT32_INPUTS,
        double=FLOAT64_INPUTS,
    )
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    within = []
    for dtype in _TYPES:
        x = _inputs(dtype)
        for function in _EXACT:
            want = _right(function, dtype)
            for where, model in _models(function, dtype).items():
                have = _run(model, x)
                cells = ["no kernel"] if have is None else _describe(x, have, want)
                cells += [""] * (len(COLUMNS) - 3 - len(cells))
                lines.append(f"| {' | '.join([dtype, function, where, *cells])} |")
                if have is not None and np.max(_distance(have, want)) <= 1:
                    within.append(f"{function} of {dtype} {where}")
    kept = f"Within 1 ULP everywhere: {', '.join(within)}. The rest is not."
    return "\n".join([introduction, *lines, "", kept]) + "\n"


def _describe(x: Array, have: Array, want: Array) -> list[str]:
    distance = _distance(have, want)
    worst = int(np.argmax(distance))
    small = np.abs(x.astype(np.float64)) <= 4
    error = np.max(np.abs(have.astype(np.float64) - want.astype(np.float64)))
    return [
        f"{distance[worst]:,}",
        f"{float(x[worst]):.9g}",
        f"{float(have[worst]):.9g}",
        f"{float(want[worst]):.9g}",
        f"{np.mean(distance > 1):.2%}",
        f"{distance[small].max():,}",
        f"{error:.2g}",
    ]


@functools.cache
def _inputs(dtype: str) -> Array:
    """Return finite numbers of both signs, evenly spread over the bit patterns."""
    kind = _TYPES[dtype][0]
    bits = _BITS[np.dtype(kind).itemsize]
    if bits is np.uint16:
        x = np.arange(1 << 16, dtype=bits).view(kind)
        return x[
            (np.arange(1 << 16) & int(np.array(np.inf, kind).view(bits))) != np.array(np.inf, kind).view(bits)
        ]
    low, high = (int(np.array(bound, kind).view(bits)) for bound in (2.0**-40, 2.0**7))
    count = FLOAT32_INPUTS if bits is np.uint32 else FLOAT64_INPUTS
    step = (high - low) // (count // 2)
    x = np.array(range(low, high, step), dtype=bits).view(kind)
    return np.concatenate([-x[::-1], x])


@functools.cache
def _right(function: str, dtype: str) -> Array:
    """Return the exact values, rounded once."""
    kind = _TYPES[dtype][0]
    x = _inputs(dtype)
    if kind is np.float64:
        with mpmath.workdps(60):
            return np.array([float(_EXACT[function](mpmath.mpf(float(value)))) for value in x])
    wide = x.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        close = _CLOSE[function](wide)
        rounded = close.astype(kind)
        # Where a few float64 ULPs more or less round to another number, only more digits tell.
        doubtful = (close * (1 - 1e-14)).astype(kind) != (close * (1 + 1e-14)).astype(kind)
    with mpmath.workdps(60):
        for index in np.flatnonzero(doubtful):
            rounded[index] = _rounded(_EXACT[function](mpmath.mpf(float(wide[index]))), kind)
    return rounded


def _rounded(exact: Any, kind: Any) -> Any:
    """Return the number of the type that is next to the exact value."""
    guess = np.array(float(exact)).astype(kind)
    bits = guess.view(_BITS[guess.itemsize])
    near = [np.array(int(bits) + shift).astype(bits.dtype).view(kind) for shift in (-1, 0, 1)]
    near = [value for value in near if np.isfinite(value.astype(np.float64))]
    # Of two that are equally near the one with an even last bit, as rounding has it.
    return min(
        near, key=lambda value: (abs(mpmath.mpf(float(value)) - exact), int(value.view(bits.dtype)) & 1)
    )


def _distance(have: Array, want: Array) -> Array:
    """Return the number of representable numbers between the two, with 0 and -0 as one."""

    def place(array: Array) -> Array:
        bits = _BITS[array.itemsize]
        magnitude = (array.view(bits) & bits(np.iinfo(bits).max >> 1)).astype(np.int64)
        return np.where(np.signbit(array), -magnitude, magnitude)

    return np.abs(place(have) - place(want))


def _models(function: str, dtype: str) -> dict[str, onnx.ModelProto]:
    kind, elem_type = _TYPES[dtype]
    opset = 22 if dtype == "bfloat16" else 17
    count = len(_inputs(dtype))
    one = np.ones((1, 1, 1)).astype(kind)
    cell = helper.make_node("RNN", ["X", "W", "R"], ["Y"], hidden_size=1, activations=[function])
    alone = helper.make_node(function, ["X"], ["Y"])

    def model(node: onnx.NodeProto, y_shape: list[int], constants: Mapping[str, Array]) -> onnx.ModelProto:
        graph = helper.make_graph(
            [node],
            "accuracy",
            [helper.make_tensor_value_info("X", elem_type, [2, count, 1])],
            [helper.make_tensor_value_info("Y", elem_type, y_shape)],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)

    native = model(cell, [2, 1, count, 1], {"W": one, "R": 0 * one})
    lowered = rnnlower.unroll(native)
    assert isinstance(lowered, onnx.ModelProto)
    return {"alone": model(alone, [2, count, 1], {}), "in the graph": lowered, "native": native}


def _run(model: onnx.ModelProto, x: Array) -> Array | None:
    """Return the results of the last step; ``None`` where onnxruntime has no kernel."""
    try:
        (Y,) = run(model, {"X": np.stack([x, x])[..., None]}).values()
    except (onnxruntime_pybind11_state.NotImplemented, onnxruntime_pybind11_state.InvalidGraph):
        return None
    return np.ascontiguousarray(Y[-1]).ravel()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
