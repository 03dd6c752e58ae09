"""Upsample and Resize-10, against NumPy and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from support.old_forms import DIMS, build, converted, values
from support.opset_engines import run_ort


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("opset", [1, 7, 9])
def test_upsample_becomes_resize(opset: int, dims: str) -> None:
    x = values(1, 2, 2, 3)
    forms: dict[int, tuple[list[str], dict[str, Any], dict[str, np.ndarray]]] = {
        1: (["x"], {"height_scale": 2.0, "width_scale": 3.0}, {}),
        7: (["x"], {"scales": [1.0, 1.0, 2.0, 3.0]}, {}),
        9: (["x", "scales"], {}, {"scales": np.array([1, 1, 2, 3], np.float32)}),
    }
    names, attributes, constants = forms[opset]
    node = helper.make_node("Upsample", names, ["y"], mode="nearest", **attributes)
    model = build(node, opset, {"x": x}, dims, constants=constants)
    for target in (9, 10, 11, 13, 26):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_array_equal(result, x.repeat(2, axis=2).repeat(3, axis=3))


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.6, 0.6), (1.5, 1.25), (2.0, 0.5)])
@pytest.mark.parametrize("constant", [False, True])
def test_resize_10_keeps_its_coordinates(
    mode: str, scales: tuple[float, float], constant: bool, dims: str
) -> None:
    x, factors = values(1, 1, 4, 4), {"scales": np.array([1, 1, *scales], np.float32)}
    given = {"x": x} if constant else {"x": x, **factors}
    node = helper.make_node("Resize", ["x", "scales"], ["y"], mode=mode)
    model = build(node, 10, given, dims, constants=factors if constant else None)
    (expected,) = run_ort(model, given)
    for target in (11, 13, 19):
        (result,) = run_ort(converted(model, target), given)
        np.testing.assert_allclose(result, expected, rtol=1e-5)
