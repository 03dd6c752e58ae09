"""The search for the time axis, which tries every axis of the inputs."""

from __future__ import annotations

import onnx
import pytest
from support.streamed import model

import rnnlower
from rnnlower.errors import UnsupportedModelError


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


def test_the_open_axis_is_named_where_none_leads_to_a_recurrent_node() -> None:
    source = model(
        """(float[2, 6, T] X) => (float[T, 2, 6] y) {
            even = InstanceNormalization (X, scale, shift)  flat = Reshape (even, whole)
            steps = Transpose <perm = [2, 0, 1]> (flat)
            all = GRU <hidden_size = 6> (steps, W, R)  y = Squeeze (all, axis)
        }""",
        scale=(6,),
        shift=(6,),
        W=(1, 18, 6),
        R=(1, 18, 6),
    )
    for name, values in {"axis": [1], "whole": [2, 6, -1]}.items():
        array = onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values)
        source.graph.initializer.append(array)
    with pytest.raises(UnsupportedModelError, match="axis 2 of 'X' ends where InstanceNormalization"):
        rnnlower.stream(source)


def test_pools_compute_each_channel_by_itself() -> None:
    source = model(
        """(float[1, T, 8] X) => (float[1, T, 3] y) {
            most = MaxPool <kernel_shape = [2]> (X)
            y = AveragePool <kernel_shape = [3], strides = [2]> (most)
        }"""
    )
    assert rnnlower.verify(source, rnnlower.stream(source, chunk=2, time_axes={"X": 1}))
