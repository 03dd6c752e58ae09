"""The search for the time axis, which tries every axis of the inputs."""

from __future__ import annotations

import onnx
from support.streamed import model

import rnnlower


def test_an_axis_of_one_element_may_be_broadcast() -> None:
    source = model(
        """(float[T, 1, 6] X, float[1, 1] gap) => (float[T, 1, 6] y) {
            all = GRU <hidden_size = 6> (X, W, R)  one = Squeeze (all, axis)
            shift = Sub (gap, row)  y = Add (one, shift)
        }""",
        W=(1, 18, 6),
        R=(1, 18, 6),
        row=(6,),
    )
    source.graph.initializer.append(onnx.helper.make_tensor("axis", onnx.TensorProto.INT64, [1], [1]))
    assert rnnlower.verify(source, rnnlower.stream(source))
