"""The axes of operators, compared with what onnx's reference evaluator does to an array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from rnnlower.graph.operator_kinds import axes_along, reduced_axes, source_axes

SHAPE = (2, 1, 3, 1)


def run(
    op_type: str, opset: int, array: np.ndarray, axes: Sequence[int] | None, **attributes: int
) -> np.ndarray:
    given = {} if axes is None else {"a": np.array(axes, np.int64)}
    node = onnx.helper.make_node(op_type, ["x", *given], ["y"], **attributes)
    values = [onnx.helper.make_tensor_value_info(name, 1, None) for name in "xy"]
    initializers = [onnx.numpy_helper.from_array(each, name) for name, each in given.items()]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], initializers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, {"x": array})[0]


def node(op_type: str, attributes: Mapping[str, int | Sequence[int]]) -> ir.Node:
    return ir.node(op_type, [ir.val("x")], dict(attributes))


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("axis", [None, *range(4)])
def test_a_softmax_is_over_one_axis_from_opset_13_on(axis: int | None, opset: int) -> None:
    attributes = {} if axis is None else {"axis": axis}
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2)
    along = tuple(axes_along(node("Softmax", attributes), 4, opset))
    powers = np.exp(array - array.max(along, keepdims=True))
    if opset >= 13:
        np.testing.assert_allclose(
            run("Softmax", opset, array, None, **attributes), powers / powers.sum(along, keepdims=True)
        )
    else:
        assert along == tuple(range(1 if axis is None else axis, 4))


@pytest.mark.parametrize(
    ("op_type", "attributes", "along"),
    [
        ("ArgMax", {}, [0]),
        ("ArgMin", {"axis": -1}, [3]),
        ("LayerNormalization", {}, [3]),
        ("LayerNormalization", {"axis": 2}, [2, 3]),
        ("LpNormalization", {}, [3]),
        ("TopK", {"axis": 1}, [1]),
    ],
)
def test_an_operator_works_along_its_axis(op_type: str, attributes: dict[str, int], along: list[int]) -> None:
    assert [*axes_along(node(op_type, attributes), 4, 18)] == along


@pytest.mark.parametrize("noop", [0, 1])
@pytest.mark.parametrize("axes", [None, [], [-2], [3, 0]])
def test_a_reduction_is_over_its_axes(axes: list[int] | None, noop: int) -> None:
    attributes = {"noop_with_empty_axes": noop}
    over = tuple(reduced_axes(node("ReduceSum", attributes), 4, axes))
    array = np.arange(6, dtype=np.float32).reshape(SHAPE)
    np.testing.assert_equal(run("ReduceSum", 18, array, axes, **attributes), array.sum(over, keepdims=True))


@pytest.mark.parametrize(
    ("op_type", "attributes", "axes"),
    [
        ("Transpose", {}, None),
        ("Transpose", {"perm": [2, 0, 3, 1]}, None),
        ("Squeeze", {}, None),
        ("Squeeze", {}, [-1]),
        ("Squeeze", {}, [3, 1]),
        ("Unsqueeze", {}, [0]),
        ("Unsqueeze", {}, [-1, 2]),
        ("Unsqueeze", {}, [5, 0]),
    ],
)
def test_each_axis_of_a_result_is_one_of_the_input_or_new(
    op_type: str, attributes: dict[str, list[int]], axes: list[int] | None
) -> None:
    sources = source_axes(node(op_type, attributes), SHAPE, axes)
    array = np.arange(6, dtype=np.float32).reshape(SHAPE)
    kept = [axis for axis in sources if axis is not None]
    removed = tuple({*range(4)} - {*kept})
    moved = array.transpose(*kept, *removed).reshape([1 if axis is None else SHAPE[axis] for axis in sources])
    np.testing.assert_equal(run(op_type, 18, array, axes, **attributes), moved)
