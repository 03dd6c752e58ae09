"""Models over time in ONNX text, streamed and verified."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import rnnlower

HEADER = '<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'


def model(text: str, opset: int = 17, **weights: tuple[int, ...]) -> onnx.ModelProto:
    """Return the model with random weights of these shapes."""
    rng = np.random.default_rng(0)
    parsed = onnx.parser.parse_model(f"{HEADER.format(opset=opset)}\n main {text}")
    for name, shape in weights.items():
        array = (0.5 * rng.standard_normal(shape)).astype(np.float32)
        parsed.graph.initializer.append(numpy_helper.from_array(array, name))
    return parsed


def streamed_and_metadata(
    source: onnx.ModelProto, axes: dict[str, int], **options: Any
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Return the streamed model, which equals the source, and its metadata."""
    streamed = rnnlower.stream(source, time_axes=axes, **options)
    result = rnnlower.verify(source, streamed)
    assert result, result
    found = {each.key: json.loads(each.value) for each in streamed.metadata_props if "stream" in each.key}
    return streamed, found["rnnlower.stream"]


def stream(source: onnx.ModelProto, axes: dict[str, int], **options: Any) -> dict[str, Any]:
    """Return the metadata of the streamed model, which equals the source."""
    return streamed_and_metadata(source, axes, **options)[1]
