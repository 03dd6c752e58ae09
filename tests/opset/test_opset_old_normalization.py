"""Old forms of normalization, Dropout and pooling, and new forms at old opsets, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.old_forms import DIMS, RNG, build, converted, values
from support.opset_engines import run_ort

import rnnlower
from rnnlower.errors import OpsetError


def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and population variance for each channel."""
    axes = (0, *range(2, x.ndim))
    return x.mean(axis=axes), x.var(axis=axes)


def normalized(x: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Return batch normalization with a scale of 2 and a bias of 1."""
    spread = (-1,) + (1,) * (x.ndim - 2)
    return (x - mean.reshape(spread)) / np.sqrt(var.reshape(spread) + 1e-5) * 2 + 1


NORM_INPUTS = {
    "scale": np.full(3, 2, np.float32),
    "bias": np.ones(3, np.float32),
    "mean": np.array([0.5, -1, 0], np.float32),
    "var": np.array([1, 2, 0.5], np.float32),
}


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("is_test", [None, 0, 1])
def test_batch_normalization_trains_unless_is_test(opset: int, is_test: int | None, dims: str) -> None:
    x = values(4, 3, 2, 2)
    attributes: dict[str, Any] = {} if is_test is None else {"is_test": is_test}
    if opset == 1:
        attributes["consumed_inputs"] = [0, 0, 0, 1, 1]
    node = helper.make_node("BatchNormalization", ["x", *NORM_INPUTS], ["y"], **attributes)
    model = build(node, opset, {"x": x}, dims, constants=NORM_INPUTS)
    used = (NORM_INPUTS["mean"], NORM_INPUTS["var"]) if is_test else statistics(x)
    for target in (14, 26):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_allclose(result, normalized(x, *used), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", DIMS)
def test_batch_normalization_for_each_activation(dims: str) -> None:
    x = values(4, 3, 2)
    given = {name: RNG.random((3, 2)).astype(np.float32) + 0.5 for name in NORM_INPUTS}
    node = helper.make_node("BatchNormalization", ["x", *given], ["y"], spatial=0)
    model = build(node, 7, {"x": x}, dims, given)
    expected = (x - given["mean"]) / np.sqrt(given["var"] + 1e-5) * given["scale"] + given["bias"]
    for target in (9, 15):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", DIMS)
def test_dropout_without_is_test_drops(dims: str) -> None:
    x = np.ones((100, 100), np.float32)
    model = build(helper.make_node("Dropout", ["x"], ["y"], ratio=0.25), 6, {"x": x}, dims)
    (result,) = run_ort(converted(model, 13), {"x": x})
    assert 0.7 < (result != 0).mean() < 0.8
    np.testing.assert_allclose(result[result != 0], 1 / 0.75, rtol=1e-6)
    with pytest.raises(OpsetError, match="is_test=0"):
        converted(model, 10)


@pytest.mark.parametrize("dims", DIMS)
def test_dropout_for_inference_copies(dims: str) -> None:
    x = values(3, 4)
    model = build(helper.make_node("Dropout", ["x"], ["y"], is_test=1), 6, {"x": x}, dims)
    for target in (7, 10, 12, 26):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize(("opset", "type_"), [(6, "float"), (7, "float"), (10, "bool")])
def test_a_dropout_mask_that_older_versions_leave_open_is_refused(opset: int, type_: str) -> None:
    attributes = "is_test=1" if opset < 7 else "ratio=0.3"
    model = onnx.parser.parse_model(
        f'<ir_version: 4, opset_import: ["": {opset}]> g (float[2] x) => (float[2] y, {type_}[2] mask) '
        f"{{ y, mask = Dropout<{attributes}>(x) }}"
    )
    if opset < 10:
        converted(model, 9)
    with pytest.raises(OpsetError, match=r"mask is read, which Dropout-10 does not define.* opset below 12$"):
        converted(model, 12)


@pytest.mark.parametrize(("read", "left"), [(", bool[2] mask", ["Dropout", "Cast"]), ("", ["Dropout"])])
def test_boolean_mask_of_a_dropout_crosses_downward(read: str, left: list[str]) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 5, opset_import: ["": 10]> g (float[2] x) => (float[2] y{read}) '
        "{ y, mask = Dropout(x) }"
    )
    result = converted(model, 9)
    onnx.checker.check_model(result, full_check=True)
    assert [node.op_type for node in result.graph.node] == left


def test_the_mask_of_a_dropout_that_trains_crosses() -> None:
    x = np.ones((100, 100), np.float32)
    node = helper.make_node("Dropout", ["x"], ["y", "mask"], ratio=0.25)
    model = build(node, 6, {"x": x}, types=[TensorProto.FLOAT] * 2)
    result, mask = run_ort(converted(model, 13), {"x": x})
    np.testing.assert_array_equal(mask != 0, result != 0)


def test_batch_normalization_that_trains_is_verified() -> None:
    x = values(4, 3, 2, 2)
    model = build(
        helper.make_node("BatchNormalization", ["x", *NORM_INPUTS], ["y"]),
        6,
        {"x": x},
        constants=NORM_INPUTS,
    )
    assert rnnlower.verify(model, converted(model, 15), trials=2)


@pytest.mark.parametrize("dims", DIMS)
def test_group_normalization_scales_groups(dims: str) -> None:
    x, given = values(2, 6, 4), {"scale": values(3), "bias": values(3)}
    node = helper.make_node("GroupNormalization", ["x", *given], ["y"], num_groups=3)
    model = build(node, 18, {"x": x}, dims, given)
    groups = x.reshape(2, 3, -1)
    normal = (groups - groups.mean(axis=2, keepdims=True)) / np.sqrt(groups.var(axis=2, keepdims=True) + 1e-5)
    expected = normal * given["scale"][:, None] + given["bias"][:, None]
    for target in (21, 26):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_allclose(result, expected.reshape(x.shape), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_pooling_of_opset_1(p: float, dims: str) -> None:
    x = values(1, 2, 4, 4)
    model = build(helper.make_node("GlobalLpPool", ["x"], ["y"], p=p), 1, {"x": x}, dims)
    (result,) = run_ort(converted(model, 7), {"x": x})
    expected = (np.abs(x) ** p).sum(axis=(2, 3), keepdims=True) ** (1 / p)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    node = helper.make_node("LpPool", ["x"], ["y"], p=p, kernel_shape=[2, 2], strides=[2, 2])
    (result,) = run_ort(converted(build(node, 1, {"x": x}, dims), 7), {"x": x})
    blocks = x.reshape(1, 2, 2, 2, 2, 2)
    np.testing.assert_allclose(result, (np.abs(blocks) ** p).sum(axis=(3, 5)) ** (1 / p), rtol=1e-5)


def test_lp_pool_of_a_broken_order_is_refused() -> None:
    node = helper.make_node("GlobalLpPool", ["x"], ["y"], name="pool", p=1.5)
    with pytest.raises(OpsetError, match=r"'pool'.*p=1.5"):
        converted(build(node, 1, {"x": values(1, 2, 4)}), 2)


@pytest.mark.parametrize("target", [13, 16])
@pytest.mark.parametrize("axis", [-2, 1])
def test_layer_normalization_of_unknown_rank(axis: int, target: int) -> None:
    """With a Scale of the normalized axes, the rank of X is not needed."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[N] x, int64[R] shape, float[3, 4] scale) => (float[D, 3, 4] y) {{
            any = Reshape (x, shape)
            y = LayerNormalization <axis = {axis}> (any, scale)
        }}
    """)
    x, scale = values(2, 3, 4), values(3, 4)
    feeds = {"x": x.reshape(-1), "shape": np.array(x.shape), "scale": scale}
    (result,) = run_ort(converted(model, target), feeds)
    normal = x - x.mean(axis=(1, 2), keepdims=True)
    normal /= np.sqrt((normal**2).mean(axis=(1, 2), keepdims=True) + 1e-5)
    np.testing.assert_allclose(result, normal * scale, rtol=1e-4, atol=1e-5)
