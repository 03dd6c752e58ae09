"""Faults planted into the quantizers of a role, while a model is quantized."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import constant_of
from rnnlower.lowering.node_emitter import NodeEmitter
from rnnlower.quantizing.quantizers import Quantizers


def _double_scale(e: NodeEmitter, made: ir.Value, value: ir.Value) -> ir.Value:
    """Let what is read have twice the scale of what is written."""
    _change(e, made, 1, lambda array: array * np.float32(2))
    return made


def _move_zero(e: NodeEmitter, made: ir.Value, value: ir.Value) -> ir.Value:
    """Move the zero point of what is read by an eighth of the integers."""
    _change(e, made, 2, lambda array: array + np.array(2 ** (8 * array.dtype.itemsize - 3), array.dtype))
    return made


def _leave_out(e: NodeEmitter, made: ir.Value, value: ir.Value) -> ir.Value:
    """Leave the value as it is."""
    return value


def _change(e: NodeEmitter, made: ir.Value, index: int, change: Callable[[Any], Any]) -> None:
    reading = made.producer()
    assert reading is not None
    old = reading.inputs[index]
    tensor = None if old is None else constant_of(old)
    assert tensor is not None
    reading.replace_input_with(index, e.constant(np.asarray(change(tensor.numpy()))))


QUANTIZER_FAULTS = {
    "scale doubled": _double_scale,
    "zero point moved": _move_zero,
    "pair left out": _leave_out,
}


@contextlib.contextmanager
def planted(fault: str, role: str) -> Iterator[None]:
    """Plant a fault into the quantizers of a role."""
    right = Quantizers._quantize

    def wrong(self: Quantizers, e: NodeEmitter, value: ir.Value, name: str, direction: str) -> ir.Value:
        if name == role and fault == "pair left out":
            return value
        made = right(self, e, value, name, direction)
        maker = made.producer()
        if name == role and maker is not None and maker.op_type == "DequantizeLinear":
            return QUANTIZER_FAULTS[fault](e, made, value)
        return made

    Quantizers._quantize = wrong  # type: ignore[method-assign]
    try:
        yield
    finally:
        Quantizers._quantize = right  # type: ignore[method-assign]
