"""What the passes that analyse a copy of the model share."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Iterator

import onnx_ir as ir

from rnnlower.places import forget_negative_sizes

__all__ = ["bare_copy", "paused_collection", "quiet_libraries"]


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Keeps what onnx_ir and onnxscript log and warn about while they analyse a copy away from the user."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def bare_copy(model: ir.Model) -> ir.Model:
    """A copy without the shapes that the model gives to what its nodes compute.

    Exporters write shapes that hold for the example they traced, in branches that the example did not take or
    under a name that two sizes share: what follows from the inputs is worth more.
    """
    copy = model.clone()
    for graph in (copy.graph, *copy.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _alias(value.const_value)
        for node in graph:
            for out in node.outputs:
                out.shape = None
    forget_negative_sizes(copy)
    return copy


def _alias(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """The tensor under a name of its own: clones share tensors, and renaming a value renames its tensor."""
    return ir.LazyTensor(lambda: tensor, tensor.dtype, tensor.shape, name=tensor.name)  # type: ignore[arg-type]


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Pauses the garbage collector, which would walk the growing graph over and over and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
