"""QuantizeLinear and DequantizeLinear: one scale, one for each channel, blocks, output types."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.opset.adapters import Row, both, only, refuse_unless
from rnnlower.opset.step import VersionStep

NO_BLOCKS = refuse_unless("block_size", (0,), "the older version has no blocks")


def dequantize_down(step: VersionStep) -> None:
    """(x - zero point) scale, with one scale."""
    step.opset = 9
    _dequantize(step, [])


def dequantize_channels_down(step: VersionStep) -> None:
    """A single scale stays; one per channel is reshaped along its axis."""
    sizes = step.static_shape(step.required_input(1))
    if step.known_rank(step.required_input(1)) == 0 or sizes == (1,):
        step.drop("axis")
        return
    rank = step.known_rank(step.required_input())
    _dequantize(step, range(1, rank - step.attr("axis") % rank))


def _dequantize(step: VersionStep, axes: Sequence[int]) -> None:
    x, scale, zero_point = step.required_input(0), step.required_input(1), step.input(2)
    dtype = step.known_dtype(scale)
    shifted = step.cast(x, dtype)
    if zero_point is not None:
        shifted = step.op("Sub", shifted, _spread(step, step.cast(zero_point, dtype), axes))
    step.replace(step.op("Mul", shifted, _spread(step, scale, axes)))


def _spread(step: VersionStep, value: ir.Value, axes: Sequence[int]) -> ir.Value:
    return step.with_axes("Unsqueeze", value, axes) if axes else value


def one_scale(step: VersionStep) -> None:
    """Before 13 there is one scale."""
    if step.known_rank(step.required_input(1)) != 0 and step.static_shape(step.required_input(1)) != (1,):
        step.refuse("it has one scale per channel, the older version has one per tensor")
    step.drop("axis")


def quantized_type(step: VersionStep) -> None:
    """Before 21 the zero point determines the output type."""
    wanted = step.take("output_dtype")
    if not wanted or step.input(2) is not None:
        return
    shape = step.static_shape(step.required_input(1))
    if shape is None:
        step.refuse("output_dtype without a zero point, and the shape of the scale is not known")
    dtype = ir.DataType(wanted)
    step.set_input(2, step.const(np.zeros(shape), dtype))


def dequantized_type(step: VersionStep) -> None:
    """Before 23 the scale determines the output type."""
    wanted = step.attr("output_dtype")
    if wanted and wanted != step.known_dtype(step.required_input(1)):
        step.refuse("output_dtype is not the type of the scale")
    step.drop("output_dtype")


ROWS = (
    Row("DequantizeLinear", 0, 10, "new in 10; Cast, Sub and Mul do the same", down=dequantize_down),
    Row("DequantizeLinear", 10, 13, "a scale for each channel is new", down=dequantize_channels_down),
    Row("QuantizeLinear", 10, 13, "a scale for each channel is new", down=one_scale),
    only("QuantizeLinear", 13, 19, "saturate is new", "saturate", (1,), "only float 8 types depend on it"),
    Row("QuantizeLinear", 19, 21, "blocks and output_dtype are new", down=both(NO_BLOCKS, quantized_type)),
    Row("DequantizeLinear", 19, 21, "blocks are new", down=NO_BLOCKS),
    only("QuantizeLinear", 21, 23, "precision is new", "precision", (0,), "before, it follows the scale"),
    Row("DequantizeLinear", 21, 23, "output_dtype is new", down=dequantized_type),
)
