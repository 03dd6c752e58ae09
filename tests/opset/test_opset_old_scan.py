"""Scan-8, which runs over a batch, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.old_forms import DIMS, build, converted, values
from support.opset_engines import run_ort


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
