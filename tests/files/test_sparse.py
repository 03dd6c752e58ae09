"""Sparse initializers: they are checked against the ONNX spec before a dense tensor is made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.small_models import recurrent_model, weights

import rnnlower

Sparse = onnx.SparseTensorProto


def sparse_model(change: Callable[[Sparse], object] = lambda sparse: None) -> onnx.ModelProto:
    """Return a GRU whose B is sparse, 1 x 24 with three values."""
    made = recurrent_model("GRU", inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])})
    (dense,) = (each for each in made.graph.initializer if each.name == "B")
    made.graph.initializer.remove(dense)
    values = numpy_helper.from_array(np.float32([0.5, -0.25, 0.125]), "B")
    sparse = onnx.helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([0, 7, 23])), [1, 24])
    change(sparse)
    made.graph.sparse_initializer.append(sparse)
    return made


def indices(*given: int | list[int]) -> Callable[[Sparse], object]:
    return lambda sparse: sparse.indices.CopyFrom(numpy_helper.from_array(np.array(given)))


@pytest.mark.parametrize("given", [[0, 7, 23], [[0, 0], [0, 7], [0, 23]]])
def test_flat_and_coordinate_indices_are_read(given: list[int] | list[list[int]]) -> None:
    bias = np.zeros((1, 24), np.float32)
    bias[0, [0, 7, 23]] = [0.5, -0.25, 0.125]
    dense = recurrent_model(
        "GRU",
        constants=weights("GRU") | {"B": bias},
        inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])},
    )
    assert rnnlower.verify(dense, rnnlower.unroll(sparse_model(indices(*given))))
    result = rnnlower.verify(sparse_model(indices(*given)), dense, engine="rnnlower-reference")
    assert result
    assert result.engines == {"reference": "rnnlower-reference", "candidate": "rnnlower-reference"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (indices(0, 7, -1), "index -1, outside"),
        (indices(0, 7, 24), "index 24, outside"),
        (indices([0, 0], [0, 7], [1, 0]), r"index \[1, 0\], outside"),
        (indices([0, 0], [0, 7], [0, -1]), r"index \[0, -1\], outside"),
        (indices(0, 23, 7), "index 7 after one that is not below it"),
        (indices(0, 7, 7), "must ascend without duplicates"),
        (indices([0, 7], [0, 0], [0, 23]), r"index \[0, 0\] after"),
        (indices(0, 7), r"shape \[2\]"),
        (indices([0], [7], [23]), r"shape \[3, 1\]"),
        (lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.int32([0, 7, 23]))), "type INT32"),
        (lambda s: s.dims.__setitem__(0, 0), r"shape \[0, 24\]"),
        (lambda s: s.dims.__setitem__(0, -1), r"shape \[-1, 24\]"),
        (lambda s: s.dims.__delitem__(slice(None)), r"shape \[\]"),
        (lambda s: s.values.dims.__setitem__(slice(None), [3, 1]), "they must be one list"),
        (lambda s: s.dims.__setitem__(slice(None), [2**20, 2**20]), "the limit is 2 GiB"),
        (lambda s: s.values.__setattr__("data_location", onnx.TensorProto.EXTERNAL), "external data"),
    ],
)
def test_an_invalid_sparse_tensor_is_refused(change: Callable[[Sparse], object], message: str) -> None:
    broken = sparse_model(change)
    for call in (rnnlower.inspect, rnnlower.unroll, lambda proto: rnnlower.verify(proto, proto)):
        with pytest.raises((rnnlower.InvalidModelError, rnnlower.UnsupportedModelError), match=message):
            call(broken)
