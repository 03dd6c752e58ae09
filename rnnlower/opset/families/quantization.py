"""QuantizeLinear and DequantizeLinear: one scale per tensor, per channel (13), or per block (21)."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.opset.adapters import both, only, refuse_unless
from rnnlower.opset.step import Row, Step

NO_BLOCKS = refuse_unless("block_size", (0,), "the older version has no blocks")


def one_scale(step: Step) -> None:
    """Before 13 there is one scale."""
    if step.known_rank(step.x(1)) != 0 and step.static_shape(step.x(1)) != (1,):
        step.refuse("it has one scale per channel, the older version has one per tensor")
    step.drop("axis")


def quantized_type(step: Step) -> None:
    """Before 21 the zero point determines the output type."""
    wanted = step.attr("output_dtype")
    step.drop("output_dtype")
    if not wanted or step.input(2) is not None:
        return
    shape = step.static_shape(step.x(1))
    if shape is None:
        step.refuse("output_dtype without a zero point, and the shape of the scale is not known")
    dtype = ir.DataType(wanted)
    import numpy as np

    step.set_input(2, step.const(np.zeros(shape), dtype))


def dequantized_type(step: Step) -> None:
    """Before 23 the scale determines the output type."""
    wanted = step.attr("output_dtype")
    if wanted and wanted != step.known_dtype(step.x(1)):
        step.refuse("output_dtype is not the type of the scale")
    step.drop("output_dtype")


ROWS = (
    Row("QuantizeLinear", 10, 13, "a scale for each channel is new", down=one_scale),
    only("QuantizeLinear", 13, 19, "saturate is new", "saturate", (1,), "only float 8 types depend on it"),
    Row("QuantizeLinear", 19, 21, "blocks and output_dtype are new", down=both(NO_BLOCKS, quantized_type)),
    Row("DequantizeLinear", 19, 21, "blocks are new", down=NO_BLOCKS),
    only("QuantizeLinear", 21, 23, "precision is new", "precision", (0,), "before, it follows the scale"),
    Row("DequantizeLinear", 21, 23, "output_dtype is new", down=dequantized_type),
)
