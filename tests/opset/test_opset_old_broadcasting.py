"""broadcast and axis of the operators before opset 7, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.grids import pairs_of
from support.old_forms import DIMS, build, converted, values
from support.opset_engines import run_ort

from rnnlower.errors import OpsetError

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


@pytest.mark.parametrize(("op_type", "broadcast", "dims"), pairs_of(ARITHMETIC, BROADCASTS, DIMS))
def test_broadcast_and_axis_agree_with_numpy(op_type: str, broadcast: Any, dims: str) -> None:
    a_shape, b_shape, axis, spread = broadcast
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


# Of b of two elements, o of one and f of four: operators of whose first versions inference says nothing.
OF_OLD_OPERATORS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "r = Tanh(b)": lambda b, o, f: np.tanh(b),
    "r = Clip<max = 0.5>(b)": lambda b, o, f: np.minimum(b, 0.5),
    "r = PRelu(b, o)": lambda b, o, f: np.where(b < 0, o * b, b),
    "r = Dropout<is_test = 1>(b)": lambda b, o, f: b,
    "r = Max(b, b)": lambda b, o, f: b,
    "r = Mean(b, b)": lambda b, o, f: b,
    "r = Mul<broadcast = 1>(b, o)": lambda b, o, f: b * o,
    'q = Less<broadcast = 1>(b, o)  p = Not(q)  r = Cast<to = "FLOAT">(p)': lambda b, o, f: 1.0 * (b >= o),
    "r = Tile(o, t, u)": lambda b, o, f: np.tile(o, 2),
    "r = Reshape<shape = [-1]>(b)": lambda b, o, f: b,
    "r = Pad<paddings = [0, 1]>(o)": lambda b, o, f: np.pad(o, (0, 1)),
    "r = Concat<axis = 0>(o, o)": lambda b, o, f: np.concatenate([o, o]),
    "p, r = Split<axis = 0, split = [2, 2]>(f)": lambda b, o, f: f[2:],
    "p = Tanh(b)  q = Unsqueeze<axes = [0]>(p)  s = Abs(q)  r = Squeeze<axes = [0]>(s)": lambda b, o, f: (
        np.abs(np.tanh(b))
    ),
}


@pytest.mark.parametrize("target", [7, 9, 26])
@pytest.mark.parametrize("nodes", OF_OLD_OPERATORS)
def test_axis_applies_to_results_of_old_operators(nodes: str, target: int) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 1]> g (float[2, 8] x, float[2] b, float[1] o, float[4] f, '
        "float t, float u) => (float[2, 8] y) <float t = {2.0}, float u = {0.0}> "
        f"{{ {nodes}  y = Add<broadcast = 1, axis = 0>(x, r) }}"
    )
    given = {"x": values(2, 8), "b": values(2), "o": values(1), "f": values(4)}
    r = OF_OLD_OPERATORS[nodes](given["b"], given["o"], given["f"])
    (result,) = run_ort(converted(model, target), given)
    np.testing.assert_allclose(result, given["x"] + r[:, None], rtol=1e-5, atol=1e-6)


def test_axis_with_nothing_known_is_refused_by_name() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"], name="sum", broadcast=1, axis=1)
    model = build(node, 6, {"a": values(2, 3, 4), "b": values(3)})
    model.graph.input[1].type.tensor_type.ClearField("shape")
    with pytest.raises(OpsetError, match=r"'sum'.*Add-6 cannot become Add-7.*rank of 'b'"):
        converted(model, 7)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_number_broadcasts_its_old_way_to_a_tensor_of_unknown_rank(order: str) -> None:
    model = build(helper.make_node("Add", list(order), ["c"]), 7, {"a": values(2, 3), "b": np.float32(2)})
    model.graph.input[0].type.tensor_type.ClearField("shape")
    (node,) = converted(model, 6).graph.node
    assert list(node.input) == ["a", "b"]
    assert [(each.name, each.i) for each in node.attribute] == [("broadcast", 1)]


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
