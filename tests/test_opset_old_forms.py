"""Old forms of operators against NumPy: what onnx's own converter lacks, refuses or gets wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from opset_engines import run_ort

import rnnlower
from rnnlower.errors import OpsetError
from rnnlower.opset import convert_opset

RNG = np.random.default_rng(7)
DIMS: dict[str, Callable[[Sequence[int]], list[Any]]] = {
    "static": list,
    "symbolic": lambda shape: [f"d{axis}_{size}" for axis, size in enumerate(shape)],
    "unnamed": lambda shape: [None] * len(shape),
}


def build(
    node: onnx.NodeProto,
    opset: int,
    inputs: Mapping[str, np.ndarray],
    dims: str = "static",
    constants: Mapping[str, np.ndarray] | None = None,
    types: Sequence[int] = (TensorProto.FLOAT,),
) -> onnx.ModelProto:
    """A model of one node; the outputs have no shapes."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), DIMS[dims](x.shape))
        for name, x in inputs.items()
    ]
    names = [name for name in node.output if name]
    results = [
        helper.make_tensor_value_info(name, type_, None) for name, type_ in zip(names, types, strict=False)
    ]
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph([node], "g", infos, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def converted(model: onnx.ModelProto, target: int) -> onnx.ModelProto:
    """The model at another opset, checked."""
    work = ir.from_proto(model)
    convert_opset(work, target)
    result = ir.to_proto(work)
    inferred = onnx.shape_inference.infer_shapes(result, check_type=True, strict_mode=True)
    # The checker wants every output to have a shape; where none can be inferred there is none to check.
    if all(output.type.tensor_type.HasField("shape") for output in inferred.graph.output):
        onnx.checker.check_model(inferred, full_check=True)
    return result


def values(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Random numbers, integers from 1 to 4 for integer types."""
    if np.issubdtype(dtype, np.floating):
        return RNG.standard_normal(shape).astype(dtype)
    if dtype == np.bool_:
        return RNG.random(shape) < 0.5
    return RNG.integers(1, 5, shape).astype(dtype)


BROADCASTS = [
    # shape of A, shape of B, axis, shape of B for NumPy
    ((2, 3, 4, 5), (2, 3, 4, 5), None, (2, 3, 4, 5)),
    ((2, 3, 4, 5), (), None, ()),
    ((2, 3, 4, 5), (1, 1), None, (1, 1)),
    ((2, 3, 4, 5), (5,), None, (5,)),
    ((2, 3, 4, 5), (4, 5), None, (4, 5)),
    ((2, 3, 4, 5), (3, 4), 1, (1, 3, 4, 1)),
    ((2, 3, 4, 5), (2,), 0, (2, 1, 1, 1)),
    ((2, 3, 4, 5), (3,), 1, (1, 3, 1, 1)),
    ((3, 3, 3), (3,), 1, (1, 3, 1)),
    ((3, 3, 3), (3, 3), 0, (3, 3, 1)),
    ((2, 3, 4, 5), (4,), -2, (1, 1, 4, 1)),
    ((2, 3, 4, 5), (4, 5), -1, (4, 5)),
]
ARITHMETIC: dict[str, tuple[Any, Any]] = {
    "Add": (np.add, np.float32),
    "Sub": (np.subtract, np.float32),
    "Mul": (np.multiply, np.float32),
    "Div": (np.divide, np.float32),
    "Pow": (lambda a, b: np.power(np.abs(a), b), np.float32),
    "And": (np.logical_and, np.bool_),
    "Or": (np.logical_or, np.bool_),
    "Xor": (np.logical_xor, np.bool_),
    "Equal": (np.equal, np.int32),
    "Greater": (np.greater, np.float32),
    "Less": (np.less, np.float32),
}


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize(("a_shape", "b_shape", "axis", "spread"), BROADCASTS)
@pytest.mark.parametrize("op_type", ARITHMETIC)
def test_broadcast_and_axis(
    op_type: str, a_shape: Any, b_shape: Any, axis: int | None, spread: Any, dims: str
) -> None:
    function, dtype = ARITHMETIC[op_type]
    a, b = values(*a_shape, dtype=dtype), np.asarray(values(*b_shape, dtype=dtype))
    a = np.abs(a) if op_type == "Pow" else a
    attributes = {} if a_shape == b_shape else {"broadcast": 1}
    if axis is not None:
        attributes["axis"] = axis
    logical = op_type in ("And", "Or", "Xor", "Equal", "Greater", "Less")
    node = helper.make_node(op_type, ["a", "b"], ["c"], **attributes)
    model = build(node, 6, {"a": a, "b": b}, dims, types=[TensorProto.BOOL if logical else TensorProto.FLOAT])
    expected = function(a, b.reshape(spread))
    for target in (7, 14, 26):
        (result,) = run_ort(converted(model, target), {"a": a, "b": b})
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_axis_with_a_tensor_of_unknown_rank() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"], broadcast=1, axis=1)
    a, b = values(2, 3, 4, 5), values(3, 4)
    model = build(node, 6, {"a": a, "b": b})
    model.graph.input[0].type.tensor_type.ClearField("shape")
    (result,) = run_ort(converted(model, 7), {"a": a, "b": b})
    np.testing.assert_allclose(result, a + b[None, :, :, None])


def test_axis_with_nothing_known_is_refused_by_name() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"], name="sum", broadcast=1, axis=1)
    model = build(node, 6, {"a": values(2, 3, 4), "b": values(3)})
    model.graph.input[1].type.tensor_type.ClearField("shape")
    with pytest.raises(OpsetError, match=r"'sum'.*Add-6 cannot become Add-7.*rank of 'b'"):
        converted(model, 7)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("constant", [False, True])
def test_prelu_with_a_slope_for_each_channel(shape: Any, channels: int, dims: str, constant: bool) -> None:
    x, slope = values(*shape), values(channels)
    node = helper.make_node("PRelu", ["x", "slope"], ["y"])
    given = {"x": x} if constant else {"x": x, "slope": slope}
    model = build(node, 6, given, dims, {"slope": slope} if constant else None)
    spread = slope.reshape((channels,) + (1,) * (len(shape) - 2))
    for target in (7, 16, 26):
        (result,) = run_ort(converted(model, target), given)
        np.testing.assert_allclose(result, np.where(x < 0, spread * x, x), rtol=1e-6)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("c_shape", [(2, 4), (4,), (), (1,), (1, 1)])
def test_gemm_with_broadcast(c_shape: Any, dims: str) -> None:
    a, b, c = values(2, 3), values(3, 4), np.asarray(values(*c_shape))
    attributes = {} if c_shape == (2, 4) else {"broadcast": 1}
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"], **attributes)
    model = build(node, 6, {"a": a, "b": b, "c": c}, dims)
    for target in (7, 26):
        (result,) = run_ort(converted(model, target), {"a": a, "b": b, "c": c})
        np.testing.assert_allclose(result, a @ b + c, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bounds", [{}, {"min": -0.5}, {"max": 0.5}, {"min": -0.5, "max": 0.25}])
@pytest.mark.parametrize("opset", [1, 6])
def test_clip_bounds_have_the_type_of_the_data(dtype: Any, bounds: dict[str, float], opset: int) -> None:
    x = values(3, 4, dtype=dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = build(helper.make_node("Clip", ["x"], ["y"], **bounds), opset, {"x": x}, types=[element])
    (result,) = run_ort(converted(model, 13), {"x": x})
    np.testing.assert_array_equal(result, x.clip(bounds.get("min", -np.inf), bounds.get("max", np.inf)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("opset", [1, 2])
def test_pad_value_has_the_type_of_the_data(dtype: Any, opset: int) -> None:
    x = values(2, 3, dtype=dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    name = "paddings" if opset == 1 else "pads"
    node = helper.make_node("Pad", ["x"], ["y"], value=0.25, **{name: [0, 1, 2, 0]})
    model = build(node, opset, {"x": x}, types=[element])
    for target in (11, 26):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_array_equal(result, np.pad(x, [(0, 2), (1, 0)], constant_values=0.25))


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("directions", [None, [0, 1]])
def test_scan_over_a_batch(directions: list[int] | None, dims: str) -> None:
    state, xs, ys = values(2, 3), values(2, 5, 3), values(2, 5, 3)
    float_ = TensorProto.FLOAT
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["sum"]),
            helper.make_node("Mul", ["sum", "y"], ["out"]),
            helper.make_node("Identity", ["sum"], ["next"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, float_, [3]) for name in ("s", "x", "y")],
        [helper.make_tensor_value_info(name, float_, [3]) for name in ("next", "out")],
    )
    attributes: dict[str, Any] = {} if directions is None else {"directions": directions}
    node = helper.make_node(
        "Scan", ["", "s0", "xs", "ys"], ["last", "outs"], body=body, num_scan_inputs=2, **attributes
    )
    model = build(node, 8, {"s0": state, "xs": xs, "ys": ys}, dims, types=[float_, float_])
    y_order = ys[:, ::-1] if directions else ys
    sums = state[:, None] + np.cumsum(xs, axis=1)
    for target in (9, 16, 26):
        last, outs = run_ort(converted(model, target), {"s0": state, "xs": xs, "ys": ys})
        np.testing.assert_allclose(last, sums[:, -1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outs, sums * y_order, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("directions", [None, [0, 1]])
def test_scan_over_sequences_of_different_lengths(directions: list[int] | None, dims: str) -> None:
    state, xs, ys = values(3, 2), values(3, 5, 2), values(3, 5, 2)
    lengths = np.array([5, 2, 3], np.int64)
    float_ = TensorProto.FLOAT
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["sum"]),
            helper.make_node("Mul", ["sum", "y"], ["out"]),
        ],
        "body",
        [helper.make_tensor_value_info(name, float_, [2]) for name in ("s", "x", "y")],
        [helper.make_tensor_value_info(name, float_, [2]) for name in ("sum", "out")],
    )
    attributes: dict[str, Any] = {} if directions is None else {"directions": directions}
    names = ["lens", "s0", "xs", "ys"]
    node = helper.make_node("Scan", names, ["last", "outs"], body=body, num_scan_inputs=2, **attributes)
    feeds = dict(zip(names, (lengths, state, xs, ys), strict=True))
    model = build(node, 8, feeds, dims, types=[float_, float_])
    for target in (9, 11, 26):
        last, outs = run_ort(converted(model, target), feeds)
        for row, length in enumerate(lengths):
            sums = state[row] + np.cumsum(xs[row, :length], axis=0)
            others = ys[row, :length][::-1] if directions else ys[row, :length]
            np.testing.assert_allclose(last[row], sums[-1], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(outs[row, :length], sums * others, rtol=1e-5, atol=1e-6)


def statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population variance for each channel."""
    axes = (0, *range(2, x.ndim))
    return x.mean(axis=axes), x.var(axis=axes)


def normalized(x: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Batch normalization with a scale of 2 and a bias of 1."""
    spread = (-1,) + (1,) * (x.ndim - 2)
    return (x - mean.reshape(spread)) / np.sqrt(var.reshape(spread) + 1e-5) * 2 + 1


NORM_INPUTS = {
    "scale": np.full(3, 2, np.float32),
    "bias": np.ones(3, np.float32),
    "mean": np.array([0.5, -1, 0], np.float32),
    "var": np.array([1, 2, 0.5], np.float32),
}


@pytest.mark.parametrize("opset", [1, 6])
@pytest.mark.parametrize("is_test", [None, 0, 1])
def test_batch_normalization_trains_unless_is_test(opset: int, is_test: int | None) -> None:
    x = values(4, 3, 2, 2)
    attributes: dict[str, Any] = {} if is_test is None else {"is_test": is_test}
    if opset == 1:
        attributes["consumed_inputs"] = [0, 0, 0, 1, 1]
    node = helper.make_node("BatchNormalization", ["x", *NORM_INPUTS], ["y"], **attributes)
    model = build(node, opset, {"x": x}, constants=NORM_INPUTS)
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


def test_dropout_without_is_test_drops() -> None:
    x = np.ones((100, 100), np.float32)
    model = build(helper.make_node("Dropout", ["x"], ["y"], ratio=0.25), 6, {"x": x})
    (result,) = run_ort(converted(model, 13), {"x": x})
    assert 0.7 < (result != 0).mean() < 0.8
    np.testing.assert_allclose(result[result != 0], 1 / 0.75, rtol=1e-6)
    with pytest.raises(OpsetError, match="is_test=0"):
        converted(model, 10)


def test_dropout_for_inference_copies() -> None:
    x = values(3, 4)
    model = build(helper.make_node("Dropout", ["x"], ["y"], is_test=1), 6, {"x": x})
    for target in (7, 10, 12, 26):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_pooling_of_opset_1(p: float) -> None:
    x = values(1, 2, 4, 4)
    model = build(helper.make_node("GlobalLpPool", ["x"], ["y"], p=p), 1, {"x": x})
    (result,) = run_ort(converted(model, 7), {"x": x})
    expected = (np.abs(x) ** p).sum(axis=(2, 3), keepdims=True) ** (1 / p)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    node = helper.make_node("LpPool", ["x"], ["y"], p=p, kernel_shape=[2, 2], strides=[2, 2])
    (result,) = run_ort(converted(build(node, 1, {"x": x}), 7), {"x": x})
    blocks = x.reshape(1, 2, 2, 2, 2, 2)
    np.testing.assert_allclose(result, (np.abs(blocks) ** p).sum(axis=(3, 5)) ** (1 / p), rtol=1e-5)


def test_lp_pool_of_a_broken_order_is_refused() -> None:
    node = helper.make_node("GlobalLpPool", ["x"], ["y"], name="pool", p=1.5)
    with pytest.raises(OpsetError, match=r"'pool'.*p=1.5"):
        converted(build(node, 1, {"x": values(1, 2, 4)}), 2)


@pytest.mark.parametrize("as_input", [False, True])
def test_split_of_opset_1(as_input: bool) -> None:
    x, sizes = values(2, 5), np.array([2, 3], np.float32)
    names = ["x", "sizes"] if as_input else ["x"]
    attributes: dict[str, Any] = {} if as_input else {"split": [2, 3]}
    node = helper.make_node("Split", names, ["a", "b"], axis=1, **attributes)
    constants = {"sizes": sizes} if as_input else None
    model = build(node, 1, {"x": x}, constants=constants, types=[TensorProto.FLOAT] * 2)
    for target in (2, 13, 26):
        if target == 2:
            assert list(converted(model, 2).graph.node[0].input) == ["x"]
            continue
        first, second = run_ort(converted(model, target), {"x": x})
        np.testing.assert_array_equal(first, x[:, :2])
        np.testing.assert_array_equal(second, x[:, 2:])


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("known", [False, True])
def test_tile_of_one_axis(axis: int, dims: str, known: bool) -> None:
    x = values(2, 3, 4)
    arguments = {"tiles": np.array(3, np.float32), "axis": np.array(axis, np.float32)}
    given = {"x": x} if known else {"x": x, **arguments}
    node = helper.make_node("Tile", ["x", *arguments], ["y"])
    model = build(node, 1, given, dims, arguments if known else None)
    repeats = [3 if each == axis else 1 for each in range(3)]
    for target in (7, 13):
        (result,) = run_ort(converted(model, target), given)
        np.testing.assert_array_equal(result, np.tile(x, repeats))


def test_tile_of_a_tensor_of_unknown_rank() -> None:
    x, arguments = values(2, 3), {"tiles": np.array(2, np.float32), "axis": np.array(1, np.float32)}
    model = build(helper.make_node("Tile", ["x", *arguments], ["y"]), 1, {"x": x}, constants=arguments)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    (result,) = run_ort(converted(model, 7), {"x": x})
    np.testing.assert_array_equal(result, np.tile(x, [1, 2]))


@pytest.mark.parametrize("to", ["INT32", "int64", "FLOAT16", "BOOL", "6"])
def test_cast_to_a_name(to: str) -> None:
    x = values(5)
    wanted = helper.tensor_dtype_to_np_dtype(int(to) if to == "6" else TensorProto.DataType.Value(to.upper()))
    element = helper.np_dtype_to_tensor_dtype(wanted)
    model = build(helper.make_node("Cast", ["x"], ["y"], to=to), 1, {"x": x}, types=[element])
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


def test_selu_keeps_its_old_constants() -> None:
    x = -np.abs(values(5))
    (result,) = run_ort(converted(build(helper.make_node("Selu", ["x"], ["y"]), 1, {"x": x}), 22), {"x": x})
    np.testing.assert_allclose(result, 1.6732 * np.expm1(x) * 1.0507, rtol=1e-6)


@pytest.mark.parametrize("opset", [1, 7, 9])
def test_upsample_becomes_resize(opset: int) -> None:
    x = values(1, 2, 2, 3)
    forms: dict[int, tuple[list[str], dict[str, Any], dict[str, np.ndarray]]] = {
        1: (["x"], {"height_scale": 2.0, "width_scale": 3.0}, {}),
        7: (["x"], {"scales": [1.0, 1.0, 2.0, 3.0]}, {}),
        9: (["x", "scales"], {}, {"scales": np.array([1, 1, 2, 3], np.float32)}),
    }
    names, attributes, constants = forms[opset]
    node = helper.make_node("Upsample", names, ["y"], mode="nearest", **attributes)
    model = build(node, opset, {"x": x}, constants=constants)
    for target in (9, 10, 11, 13, 26):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_array_equal(result, x.repeat(2, axis=2).repeat(3, axis=3))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2.0, 3.0), (0.6, 0.6), (1.5, 1.25), (2.0, 0.5)])
@pytest.mark.parametrize("constant", [False, True])
def test_resize_10_keeps_its_coordinates(mode: str, scales: tuple[float, float], constant: bool) -> None:
    x, factors = values(1, 1, 4, 4), {"scales": np.array([1, 1, *scales], np.float32)}
    given = {"x": x} if constant else {"x": x, **factors}
    node = helper.make_node("Resize", ["x", "scales"], ["y"], mode=mode)
    model = build(node, 10, given, constants=factors if constant else None)
    try:
        (expected,) = run_ort(model, given)
    except Exception as error:
        pytest.skip(f"no reference: {error}")
    for target in (11, 13, 19):
        (result,) = run_ort(converted(model, target), given)
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_one_hot_9_does_not_count_from_the_back() -> None:
    indices, depth = np.array([0, 2, -1, 5], np.int64), {"depth": np.array(3, np.int64)}
    constants = {**depth, "both": np.array([0, 1], np.float32)}
    node = helper.make_node("OneHot", ["i", "depth", "both"], ["y"])
    model = build(node, 9, {"i": indices}, constants=constants)
    (result,) = run_ort(converted(model, 11), {"i": indices})
    expected = [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(result, np.array(expected, np.float32))


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


def test_a_missing_import_means_opset_1() -> None:
    x = values(2, 3)
    model = build(helper.make_node("Concat", ["x", "x"], ["y"]), 1, {"x": x})
    del model.opset_import[:]
    (result,) = run_ort(converted(model, 13), {"x": x})
    np.testing.assert_array_equal(result, np.concatenate([x, x], axis=1))


def test_batch_normalization_that_trains_is_verified() -> None:
    x = values(4, 3, 2, 2)
    model = build(
        helper.make_node("BatchNormalization", ["x", *NORM_INPUTS], ["y"]), 6, {"x": x}, constants=NORM_INPUTS
    )
    assert rnnlower.verify(model, converted(model, 15), trials=2)
