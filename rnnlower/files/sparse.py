"""Sparse tensors: the checks of the ONNX spec for a SparseTensorProto, and the equivalent dense tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from rnnlower.errors import InvalidModelError, UnsupportedModelError

_MOST_DENSE_BYTES = 2**31
"""The largest dense tensor that fits into a file: a protobuf message holds 2 GiB."""


def check_sparse(sparse: onnx.SparseTensorProto, label: str) -> None:
    """Refuse a sparse tensor whose parts do not fit together; both are known to be complete.

    The spec requires values of shape [NNZ] and int64 indices of shape [NNZ] (positions in the flattened
    tensor) or [NNZ, rank], in ascending order, without duplicates, each within `dims`.

    Args:
        sparse: The tensor.
        label: What messages call it.

    Raises:
        InvalidModelError: It breaks the spec.
        UnsupportedModelError: Its parts are external data or strings, or it is too large as a dense tensor.
    """
    values, indices = sparse.values, sparse.indices
    if TensorProto.EXTERNAL in (values.data_location, indices.data_location):
        raise UnsupportedModelError(f"{label} is external data; store sparse tensors in the model")
    if values.data_type == TensorProto.STRING:
        raise UnsupportedModelError(f"{label} holds strings; make it a dense tensor")
    shape, count = list(sparse.dims), list(values.dims)
    if not shape or min(shape) < 1:
        raise InvalidModelError(f"{label} has the shape {shape}; a sparse tensor has sizes of at least 1")
    size = math.prod(shape) * numpy_helper.to_array(values).itemsize
    if size > _MOST_DENSE_BYTES:
        raise UnsupportedModelError(
            f"{label} has {size:,} bytes as a dense tensor, which runtimes convert it to; the limit is 2 GiB"
        )
    if len(count) != 1:
        raise InvalidModelError(f"{label} has values of shape {count}; they must be one list")
    if indices.data_type != TensorProto.INT64 or list(indices.dims) not in (count, [*count, len(shape)]):
        kind = TensorProto.DataType.Name(indices.data_type)
        raise InvalidModelError(
            f"{label} has indices of type {kind} and shape {list(indices.dims)}; they must be INT64 of shape "
            f"{count} or {[*count, len(shape)]}"
        )
    _check_indices(numpy_helper.to_array(indices), shape, label)


def _check_indices(indices: NDArray[Any], shape: list[int], label: str) -> None:
    ends = np.array([math.prod(shape)] if indices.ndim == 1 else shape, dtype=object)
    rows = indices.reshape(len(indices), -1)
    outside = (rows < 0) | (rows >= ends)
    if outside.any():
        row = int(np.argwhere(outside)[0][0])
        raise InvalidModelError(
            f"{label} has the index {indices[row].tolist()}, outside of its shape {shape}"
        )
    pairs = zip(rows.tolist(), rows.tolist()[1:], strict=False)
    wrong = next((later for earlier, later in pairs if earlier >= later), None)
    if wrong is not None:
        raise InvalidModelError(
            f"{label} has the index {wrong if len(wrong) > 1 else wrong[0]} after one that is not below it; "
            "indices must ascend without duplicates"
        )


def dense_array(sparse: onnx.SparseTensorProto) -> NDArray[Any]:
    """Return the dense tensor; `sparse` has passed `check_sparse`."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    where = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
    dense.reshape(-1)[where] = values
    return dense
