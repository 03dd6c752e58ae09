"""A straight line with a dynamic batch: onnxruntime must see that all steps have equally many rows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from support.judge import differences, run
from support.small_models import recurrent_model, weights

import rnnlower

FLOAT = onnx.TensorProto.FLOAT


@pytest.mark.parametrize("batch", ["N", None])
@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        ("LSTM", {}),
        ("LSTM", {"clip": 0.5, "direction": "bidirectional"}),
        ("LSTM", {"input_forget": 1, "initial": True}),
        ("GRU", {"linear_before_reset": 1, "initial": True}),
        ("GRU", {"lengths": True, "initial": True}),
        ("GRU", {"activations": ["Affine", "LeakyRelu"]}),
        ("LSTM", {"activations": ["Softplus", "ScaledTanh", "ThresholdedRelu"]}),
        ("RNN", {"activations": ["ScaledTanh"]}),
    ],
)
def test_rows_of_all_steps_have_one_symbol(op_type: str, options: dict[str, Any], batch: str | None) -> None:
    attributes = dict(options)
    directions = 2 if "direction" in attributes else 1
    inputs: dict[str, Any] = {"X": (FLOAT, [6, batch, 3])}
    feeds = {"X": np.random.default_rng(0).standard_normal((6, 4, 3)).astype(np.float32)}
    if attributes.pop("initial", False):
        inputs["initial_h"] = (FLOAT, [directions, batch, 4])
        feeds["initial_h"] = np.ones((directions, 4, 4), np.float32)
    if attributes.pop("lengths", False):
        inputs["sequence_lens"] = (onnx.TensorProto.INT32, [batch])
        feeds["sequence_lens"] = np.array([6, 1, 0, 4], np.int32)
    source = recurrent_model(
        op_type, constants=weights(op_type, directions=directions), inputs=inputs, **attributes
    )
    result = rnnlower.unroll(source)
    assert isinstance(result, onnx.ModelProto)
    inferred = onnx.shape_inference.infer_shapes(result, check_type=True, strict_mode=True)
    rows = {
        dims[0].dim_param or dims[0].dim_value
        for value in inferred.graph.value_info
        if re.match("[a-z]+[0-9]|.*/[tr][0-9]", value.name)
        if len(dims := value.type.tensor_type.shape.dim) == 2
    }
    assert len(rows) == 1
    assert batch is None or rows == {batch}
    assert differences(run(source, feeds), run(result, feeds), "float32") == []
