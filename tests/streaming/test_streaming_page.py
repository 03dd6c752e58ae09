"""docs/streaming.md: its example runs, with the documented result, and its loop on models of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from support.streaming_page import ROOT, blocks, run_page_loop

_HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(blocks()) == 2
    monkeypatch.chdir(ROOT)
    exec("\n".join(blocks()), {})


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "a state of its own beside one that is added": (
        """
        main (float[1, S, 4] X, float[1, 1, 8] h_in) => (float[1, S, 8] Y, float[1, 1, 8] h_out)
        <int64[8] pads = {0, 0, 2, 0, 0, 0, 0, 0}, int64[3] shape = {-1, 1, 4}, int64[1] one = {1}>
        {
            row = Unsqueeze (X, one)
            padded = Pad (row, pads)
            smooth = AveragePool <kernel_shape = [3, 1]> (padded)
            steps = Reshape (smooth, shape)
            y, h_out = GRU <hidden_size = 8> (steps, W, R, , , h_in)
            whole = Squeeze (y, one)
            Y = Transpose <perm = [1, 0, 2]> (whole)
        }
        """,
        {"chunk": 2},
    ),
    "a state of its own without an output, and a dynamic batch": (
        """
        main (float[T, B, 4] X, float[1, B, 8] h) => (float[T, 1, B, 8] Y)
        { Y = GRU <hidden_size = 8> (X, W, R, , , h) }
        """,
        {"rows": 3},
    ),
    "a state of its own with a default": (
        """
        main (float[T, 1, 4] X, float[1, 1, 8] h) => (float[T, 1, 1, 8] Y)
        <float[1, 1, 8] h = {1, 2, 3, 4, 5, 6, 7, 8}>
        { Y = GRU <hidden_size = 8> (X, W, R, , , h) }
        """,
        {"chunk": None},
    ),
    "a batch with another axis folded in": (
        """
        main (float[T, B, 3, 4] X) => (float[T, 1, S, 8] Y) <int64[3] shape = {0, -1, 4}>
        { rows = Reshape (X, shape) Y = GRU <hidden_size = 8> (rows, W, R) }
        """,
        {"rows": 2, "time_axes": {"X": 0}},
    ),
    "a delay and a stride": (
        """
        main (float[1, 4, T] X) => (float[S, 1, 1, 8] Y)
        {
            half = Conv <pads = [1, 1], strides = [2]> (X, kernel)
            steps = Transpose <perm = [2, 0, 1]> (half)
            Y = GRU <hidden_size = 8> (steps, W, R)
        }
        """,
        {"chunk": 4, "allow_delay": True},
    ),
    "float16": (
        """
        main (float16[T, 1, 4] X) => (float16[T, 1, 1, 8] Y)
        {
            x = Cast <to = 1> (X)
            y = GRU <hidden_size = 8> (x, W, R)
            Y = Cast <to = 10> (y)
        }
        """,
        {},
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_the_loop_of_the_page_runs_a_model_of_each_kind(kind: str) -> None:
    text, options = MODELS[kind]
    model = onnx.parser.parse_model(_HEADER + text)
    rng = np.random.default_rng(0)
    for name, shape in (("W", (1, 24, 4)), ("R", (1, 24, 8)), ("kernel", (4, 4, 3))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    assert "Y" in run_page_loop(model, **options)
