"""Old forms of elementwise operators, Cast and the Softmax family, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.old_forms import DIMS, build, converted, values
from support.opset_engines import run_ort


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bounds", [{}, {"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.25}])
@pytest.mark.parametrize("opset", [1, 6])
def test_clip_bounds_have_the_type_of_the_data(
    dtype: Any, bounds: dict[str, float], opset: int, dims: str
) -> None:
    x = values(3, 4, dtype=dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = build(helper.make_node("Clip", ["x"], ["y"], **bounds), opset, {"x": x}, dims, types=[element])
    (result,) = run_ort(converted(model, 13), {"x": x})
    np.testing.assert_array_equal(result, x.clip(bounds.get("min", -np.inf), bounds.get("max", np.inf)))


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("to", ["INT32", "int64", "FLOAT16", "BOOL", "6"])
def test_cast_to_a_name(to: str, dims: str) -> None:
    x = values(5)
    wanted = helper.tensor_dtype_to_np_dtype(int(to) if to == "6" else TensorProto.DataType.Value(to.upper()))
    element = helper.np_dtype_to_tensor_dtype(wanted)
    model = build(helper.make_node("Cast", ["x"], ["y"], to=to), 1, {"x": x}, dims, types=[element])
    (result,) = run_ort(converted(model, 13), {"x": x})
    assert result.dtype == wanted
    np.testing.assert_array_equal(result, x.astype(wanted))


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_over_all_dimensions_behind_the_axis(op_type: str, axis: int | None, dims: str) -> None:
    x = values(2, 3, 4, 5)
    node = helper.make_node(op_type, ["x"], ["y"], **({} if axis is None else {"axis": axis}))
    first = 1 if axis is None else axis % 4
    flat = x.reshape(int(np.prod(x.shape[:first])), -1)
    exponentials = np.exp(flat - flat.max(axis=1, keepdims=True))
    soft = exponentials / exponentials.sum(axis=1, keepdims=True)
    results = {
        "Softmax": soft,
        "LogSoftmax": np.log(soft),
        "Hardmax": (flat == flat.max(axis=1, keepdims=True)) * 1.0,
    }
    for target in (13, 26):
        (result,) = run_ort(converted(build(node, 11, {"x": x}, dims), target), {"x": x})
        np.testing.assert_allclose(result, results[op_type].reshape(x.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", DIMS)
def test_selu_keeps_its_old_constants(dims: str) -> None:
    x = -np.abs(values(5))
    (result,) = run_ort(
        converted(build(helper.make_node("Selu", ["x"], ["y"]), 1, {"x": x}, dims), 22), {"x": x}
    )
    np.testing.assert_allclose(result, 1.6732 * np.expm1(x) * 1.0507, rtol=1e-5, atol=1e-6)
