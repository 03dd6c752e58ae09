"""Shape inference that cannot take the process down.

onnx's shape inference aborts the process at a Slice or GatherND of a value with a size below 0. Sizes
fall below 0 where a pooling, a Split or the like takes more than there is, often because of a size given by
the user. It is therefore tried in another process first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import InvalidModelError
from rnnlower.processes import Child, ChildDiedError

__all__ = ["guarded"]

Model = TypeVar("Model", ir.Model, onnx.ModelProto)
T = TypeVar("T")

_ENDING = {"Slice", "GatherND"}
_SHRINKING = {
    "AveragePool",
    "CenterCropPad",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "LpPool",
    "MaxPool",
    "MaxUnpool",
    "OneHot",
    "Pad",
    "QLinearConv",
    "Resize",
    "STFT",
    "Split",
    "Tile",
    "TopK",
    "Upsample",
}
# Larger constants do not determine sizes; the other process gets zeros in their place.
_LARGE = 1024
_LEFT_OUT = "left-out"
_CHILD = Child()


def guarded(ops: Collection[str], infer: Callable[[Model], T], model: Model) -> T:
    """Run `infer`, shape inference over a model of these operators, after a trial in another process.

    Args:
        ops: The operators of the model.
        infer: A function that can be imported by its module and name; it may change the model.
        model: The model.

    Raises:
        InvalidModelError: It would abort the process, or takes too long.
    """
    if not (_ENDING.isdisjoint(ops) or _SHRINKING.isdisjoint(ops)):
        _check_comes_back(infer, model)
    return infer(model)


def _check_comes_back(infer: Callable[[Model], object], model: Model) -> None:
    """Try `infer` in another process.

    Raises:
        InvalidModelError: It aborts that process, or takes too long.
    """
    serialized = model.SerializeToString() if isinstance(model, onnx.ModelProto) else _serialized(model)
    try:
        _CHILD.call(_try, infer, serialized, isinstance(model, ir.Model))
    except ChildDiedError as error:
        if error.late:
            raise InvalidModelError(
                "shape inference aborts or takes too long",
                remedy="give it more time with the environment variable RNNLOWER_ENGINE_SECONDS",
            ) from error
        raise InvalidModelError(
            "a size in the model falls below 0, where a pooling, Split or the like takes more than there is",
            remedy="look at the sizes that the model declares, or that "
            f"{wording.option('dim')} and {wording.option('input-shape')} give",
        ) from error


def _serialized(model: ir.Model) -> bytes:
    """Serialize the model with the constants that may determine a size, and without the others."""
    held = {value: value.const_value for value in _initializers(model)}
    try:
        for value, tensor in held.items():
            if tensor is None:
                continue
            if tensor.size > _LARGE:
                value.const_value = ir.ExternalTensor(
                    _LEFT_OUT, 0, 0, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=value.name or ""
                )
            elif isinstance(tensor, ir.ExternalTensor):
                value.const_value = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=value.name)
        return bytes(ir.to_proto(model).SerializeToString())
    finally:
        for value, tensor in held.items():
            value.const_value = tensor


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.initializers.values()


def _try(infer: Callable[[ir.Model | onnx.ModelProto], object], serialized: bytes, is_ir: bool) -> None:
    """Run the other process's side: it only matters whether the process survives."""
    proto = onnx.ModelProto.FromString(serialized)
    # The caller's own run raises the same error again.
    with contextlib.suppress(Exception):
        infer(_with_zeros(ir.from_proto(proto)) if is_ir else proto)


def _with_zeros(model: ir.Model) -> ir.Model:
    """Return the model with zeros for the constants that were left out."""
    for value in _initializers(model):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            zeros = np.broadcast_to(np.zeros((), tensor.dtype.numpy()), tensor.shape.numpy())
            value.const_value = ir.Tensor(zeros, dtype=tensor.dtype, name=value.name)
    return model
