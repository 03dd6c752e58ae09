"""Models without time steps or rows, at the first opset that each strategy supports."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from support.judge import STRATEGIES, recurrent_left, run
from support.small_models import info, model_of, weights

import rnnlower


@pytest.mark.parametrize("semantics", ["ort", "spec"])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_nothing_to_compute_at_the_first_opset(op_type: str, strategy: str, semantics: str) -> None:
    sizes: tuple[tuple[int | str, int | str], ...] = ((0, "N"), (0, 2), (0, 0), ("T", 0))
    for (time, batch), with_state in itertools.product(sizes, (False, True)):
        if strategy == "unroll" and time == "T":
            continue
        inputs = ["X", "W", "R", "B"] + ["", "h"] * with_state
        given = [info("X", onnx.TensorProto.FLOAT, [time, batch, 3])]
        given += [info("h", onnx.TensorProto.FLOAT, [1, batch, 4])] * with_state
        outputs = [
            info("Y", onnx.TensorProto.FLOAT, [None] * 4),
            info("Y_h", onnx.TensorProto.FLOAT, [None] * 3),
        ]
        node = onnx.helper.make_node(op_type, inputs, ["Y", "Y_h"], hidden_size=4)
        model = model_of([node], given, outputs, weights(op_type), opset=7)
        lowered = getattr(rnnlower, strategy)(model, semantics=semantics)
        onnx.checker.check_model(lowered, full_check=True)
        assert recurrent_left(lowered) == []
        T, N = (3 if isinstance(size, str) else size for size in (time, batch))
        feeds = {"X": np.zeros((T, N, 3), np.float32), "h": np.ones((1, N, 4), np.float32)}
        results = run(lowered, {value.name: feeds[value.name] for value in given})
        assert results["Y"].shape == (T, 1, N, 4)
        expected = 1.0 if with_state and semantics == "spec" else 0.0
        assert np.array_equal(results["Y_h"], np.full((1, N, 4), expected, np.float32))
