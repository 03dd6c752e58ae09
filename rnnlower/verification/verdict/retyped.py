"""Models in another float type, or with constants rounded to one.

In float64, neither rounding nor range matters much; in float16 both do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rnnlower.verification.models import HeldModel

__all__ = ["SMALL_FLOATS", "moved_by_rounding", "moved_weights", "retyped", "small_floats"]

SMALL_FLOATS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
# onnxconverter_common and onnxruntime.transformers replace smaller numbers by this one.
_LEAST_OF_CONVERTERS = 1e-7
_FLOATS = {TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
# Attributes by which a node states its output type.
_TYPE_ATTRIBUTES = {"to", "dtype"}


def retyped(model: HeldModel, dtype: np.dtype[Any], kinds: Collection[int] = _FLOATS) -> HeldModel:
    """Return the model with a type in place of all these: of inputs, weights, constants and casts."""
    other = onnx.ModelProto()
    other.CopyFrom(model.with_data())
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    for graph in _graphs(other.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in kinds:
                value.type.tensor_type.elem_type = kind
    for node in _nodes(other):
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in kinds:
                attribute.i = kind

    def cast(array: NDArray[Any]) -> NDArray[Any]:
        with np.errstate(over="ignore"):
            return array.astype(dtype)

    _change_tensors(other, kinds, cast)
    return HeldModel(model.role, other, None)


def moved_by_rounding(array: NDArray[Any], kind: str, rng: np.random.Generator) -> NDArray[Any]:
    """Return floats as far off as rounding to a type may take them; of an integer type, to the largest one.

    The small numbers of a type are coarse: an epsilon of 1e-12 is 0 in float16, or what converters make of
    it. It keeps its sign. A whole number that the type has, such as an exponent, is not rounded.
    """
    sizes = np.abs(array.astype(np.float64))
    finite = np.where(np.isfinite(sizes), sizes, 0.0)
    if kind in SMALL_FLOATS.values():
        limits = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
        steps = np.maximum(float(limits.eps) * finite, 2 * _LEAST_OF_CONVERTERS if kind == "float16" else 0.0)
    else:
        steps = np.full(array.shape, finite.max(initial=0.0) / np.iinfo(kind).max)
    with np.errstate(over="ignore"):
        moved = (array + rng.uniform(-0.5, 0.5, array.shape) * steps).astype(array.dtype)
    if kind not in SMALL_FLOATS.values():
        return moved
    with np.errstate(over="ignore", invalid="ignore"):
        exact = (array.astype(kind).astype(array.dtype) == array) & (array == np.rint(array))
    return np.where(exact, array, np.copysign(moved, array))


def moved_weights(model: HeldModel, kind: str, seed: int) -> HeldModel:
    """Return the model with its float constants as far off as rounding to a type may take them.

    For an integer type, those with two axes or more.
    """
    other = onnx.ModelProto()
    other.CopyFrom(model.with_data())
    rng = np.random.default_rng(seed)
    whole = kind not in SMALL_FLOATS.values()

    def move(array: NDArray[Any]) -> NDArray[Any]:
        return array if whole and array.ndim < 2 else moved_by_rounding(array, kind, rng)

    _change_tensors(other, _FLOATS, move)
    # A clip is such a constant, too: lowered, it is a tensor.
    for node in () if whole else _nodes(other):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.FLOAT:
                attribute.f = float(move(np.array(attribute.f, np.float32)))
            attribute.floats[:] = [float(move(np.array(value, np.float32))) for value in attribute.floats]
    return HeldModel(model.role, other, None)


def small_floats(model: onnx.ModelProto) -> set[str]:
    """Return the names of the floats of two bytes that the model computes in."""
    found = {value.type.tensor_type.elem_type for graph in _graphs(model.graph) for value in graph.input}
    found |= {tensor.data_type for graph in _graphs(model.graph) for tensor in graph.initializer}
    for node in _nodes(model):
        for attribute in node.attribute:
            found |= {attribute.t.data_type}
            found |= {attribute.i} if attribute.name in _TYPE_ATTRIBUTES else set()
    return {SMALL_FLOATS[kind] for kind in found if kind in SMALL_FLOATS}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(inner)


def _nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    for graph in _graphs(model.graph):
        yield from graph.node
    for function in model.functions:
        for node in function.node:
            yield node
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    yield from (inner for graph in _graphs(attribute.g) for inner in graph.node)


def _change_tensors(
    model: onnx.ModelProto, kinds: Collection[int], change: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    """Change the arrays of initializers and constants of these types."""

    def tensor(own: TensorProto) -> None:
        if own.data_type in kinds:
            own.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(own)), own.name))

    for graph in _graphs(model.graph):
        for own in graph.initializer:
            tensor(own)
    for node in _nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                tensor(attribute.t)
            elif TensorProto.FLOAT in kinds and attribute.name in ("value_float", "value_floats"):
                given = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                values = change(np.array(given, np.float32))
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
