"""Old forms of Pad, Split, Tile, OneHot and Concat, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, parser
from support.old_forms import DIMS, build, converted, values
from support.opset_engines import run_ort

import rnnlower
from rnnlower.errors import OpsetError


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("opset", [1, 2])
def test_pad_value_has_the_type_of_the_data(dtype: Any, opset: int, dims: str) -> None:
    x = values(2, 3, dtype=dtype)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    name = "paddings" if opset == 1 else "pads"
    node = helper.make_node("Pad", ["x"], ["y"], value=0.25, **{name: [0, 1, 2, 0]})
    model = build(node, opset, {"x": x}, dims, types=[element])
    for target in (11, 26):
        (result,) = run_ort(converted(model, target), {"x": x})
        np.testing.assert_array_equal(result, np.pad(x, [(0, 2), (1, 0)], constant_values=0.25))


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("as_input", [False, True])
def test_split_of_opset_1(as_input: bool, dims: str) -> None:
    x, sizes = values(2, 5), np.array([2, 3], np.float32)
    names = ["x", "sizes"] if as_input else ["x"]
    attributes: dict[str, Any] = {} if as_input else {"split": [2, 3]}
    node = helper.make_node("Split", names, ["a", "b"], axis=1, **attributes)
    constants = {"sizes": sizes} if as_input else None
    model = build(node, 1, {"x": x}, dims, constants=constants, types=[TensorProto.FLOAT] * 2)
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


@pytest.mark.parametrize("dims", DIMS)
def test_one_hot_9_does_not_count_from_the_back(dims: str) -> None:
    indices, depth = np.array([0, 2, -1, 5], np.int64), {"depth": np.array(3, np.int64)}
    constants = {**depth, "both": np.array([0, 1], np.float32)}
    node = helper.make_node("OneHot", ["i", "depth", "both"], ["y"])
    model = build(node, 9, {"i": indices}, dims, constants=constants)
    (result,) = run_ort(converted(model, 11), {"i": indices})
    expected = [[1, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0]]
    np.testing.assert_array_equal(result, np.array(expected, np.float32))


@pytest.mark.parametrize("dims", DIMS)
def test_a_missing_import_means_opset_1(dims: str) -> None:
    x = values(2, 3)
    model = build(helper.make_node("Concat", ["x", "x"], ["y"]), 1, {"x": x}, dims)
    del model.opset_import[:]
    (result,) = run_ort(converted(model, 13), {"x": x})
    np.testing.assert_array_equal(result, np.concatenate([x, x], axis=1))


@pytest.mark.parametrize(
    ("opset", "target", "node"),
    [
        (11, 10, "y = Pad (x, pads, none)"),
        (10, 9, "y, i = TopK (x, nothing)"),
        (20, 19, "y = DFT (x, , nothing)"),
        (11, 10, "y = Resize (x, none, ones, nothing)"),
    ],
)
def test_inputs_without_elements_are_refused(opset: int, target: int, node: str) -> None:
    model = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        main (float[2, 2] x) => (float[a, b] y)
            <int64[4] pads = {{0, 0, 0, 0}}, float[2] ones = {{1, 1}}, float[0] none = {{}},
             int64[0] nothing = {{}}>
        {{ {node} }}
    """)
    with pytest.raises(OpsetError, match=r"is empty|needs scales"):
        rnnlower.convert(model, opset=target)
