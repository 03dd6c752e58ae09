"""Models in float16, and models that another tool converted to a smaller type."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.helper import np_dtype_to_tensor_dtype
from support.small_models import info, lowered_by, model_of, weights

from rnnlower.verification import verify

UNITS = 16


def classifier(fault: str = "", kind: Any = np.float16) -> onnx.ModelProto:
    """Return an LSTM with a dense layer and a sigmoid after it; a `fault` is in one of its weights."""
    constants = weights("LSTM", input_size=8, hidden_size=UNITS)
    constants["D"] = np.random.default_rng(0).standard_normal((UNITS, 6)) * 0.3
    if fault == "dense layer 2%":
        constants["D"] = constants["D"] * 1.02
    elif fault == "recurrence 1%":
        constants["R"] = constants["R"] * 1.01
    elif fault == "a weight 5%":
        constants["W"] = constants["W"].copy()
        constants["W"].reshape(-1)[np.abs(constants["W"]).argmax()] *= 1.05
    nodes = [
        helper.make_node("LSTM", ["X", "W", "R", "B"], ["", "h"], hidden_size=UNITS, name="cell"),
        helper.make_node("MatMul", ["h", "D"], ["d"], name="dense"),
        helper.make_node("Sigmoid", ["d"], ["Z"]),
    ]
    elem_type = np_dtype_to_tensor_dtype(np.dtype(kind))
    return model_of(
        nodes,
        [info("X", elem_type, ["T", 2, 8])],
        [info("Z", elem_type, None)],
        {name: value.astype(kind) for name, value in constants.items()},
    )


@pytest.mark.parametrize("fault", ["", "dense layer 2%", "recurrence 1%", "a weight 5%"])
def test_a_wrong_weight_does_not_hide_in_float16(fault: str) -> None:
    """Float16's row allows more than it changes; in float32 it shows."""
    result = verify(classifier(), lowered_by(classifier(fault), "scan"))
    assert bool(result) is not bool(fault), str(result)
    assert any("in float32 instead of float16" in note for note in result.skipped) is bool(fault)
