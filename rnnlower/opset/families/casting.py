"""Cast, CastLike and Constant, with their types and values; QuantizeLinear and DequantizeLinear.

The latter have one scale per tensor, per channel (13), or per block (21).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.opset.adapters import both, only, refuse_unless
from rnnlower.opset.step import CONSTANT_1_TYPES, Row, Step

FLOAT8 = "only float 8 types depend on it, and the older version does not have them"


def cast_6_up(step: Step) -> None:
    """The target type was a name (some exporters wrote the number as a string) and became a number."""
    name = str(step.attr("to")).upper()
    numbers = {str(int(dtype)): dtype for dtype in ir.DataType}
    dtype = ir.DataType.__members__.get(name, numbers.get(name))
    if dtype is None:
        step.refuse(f"to={name!r} names no element type")
    step.set("to", int(dtype))


def cast_6_down(step: Step) -> None:
    """The target type was a name, which type inference does not read: the result's type is declared."""
    dtype = ir.DataType(step.attr("to"))
    step.set("to", dtype.name)
    made = step.output(0)
    if made is not None:
        made.type = made.type or ir.TensorType(dtype)


def cast_like_down(step: Step) -> None:
    """A Cast to the type of the other tensor, if that type is known."""
    dtype = step.known_dtype(step.x(1))
    step.replace(step.op("Cast", step.x(0), to=int(dtype)))


def one_value(step: Step) -> None:
    """Constant-11 holds a tensor: the number or list becomes one."""
    for name, attribute in list(step.node.attributes.items()):
        if not name.startswith("value_"):
            continue
        value = step.attr(name)
        step.drop(name)
        if attribute.type in (ir.AttributeType.STRING, ir.AttributeType.STRINGS):
            strings = [value] if attribute.type == ir.AttributeType.STRING else list(value)
            shape = [] if attribute.type == ir.AttributeType.STRING else [len(strings)]
            tensor: ir.TensorProtocol = ir.StringTensor(
                [each.encode() for each in strings], shape=ir.Shape(shape)
            )
        else:
            whole = attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS)
            tensor = ir.Tensor(np.array(value, np.int64 if whole else np.float32))
        step.set("value", ir.AttrTensor("value", tensor))


def to_initializer(step: Step) -> None:
    """Constant-1 holds floating point only: other tensors become initializers of the main graph."""
    tensor = step.attr("value")
    if tensor.dtype in CONSTANT_1_TYPES:
        return
    step.replace_with_initializer(tensor)


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
    step.set_input(2, step.const(np.zeros(shape), dtype))


def dequantized_type(step: Step) -> None:
    """Before 23 the scale determines the output type."""
    wanted = step.attr("output_dtype")
    if wanted and wanted != step.known_dtype(step.x(1)):
        step.refuse("output_dtype is not the type of the scale")
    step.drop("output_dtype")


ROWS = (
    Row("Cast", 1, 6, "the type was a name and is a number", cast_6_up, cast_6_down),
    Row("Cast", 13, 19, "saturate is new", down=refuse_unless("saturate", (1,), FLOAT8)),
    Row("CastLike", 15, 19, "saturate is new", down=refuse_unless("saturate", (1,), FLOAT8)),
    Row("Cast CastLike", 23, 24, "round_mode is new", down=refuse_unless("round_mode", ("up",), FLOAT8)),
    Row("CastLike", 0, 15, "new in 15; Cast does the same if the type is known", down=cast_like_down),
    Row("Constant", 1, 9, "only floating point tensors were allowed", down=to_initializer),
    Row(
        "Constant",
        9,
        11,
        "sparse values are new",
        down=refuse_unless("sparse_value", (None,), "sparse values are new"),
    ),
    Row("Constant", 11, 12, "numbers, strings and lists of them are new", down=one_value),
    Row("QuantizeLinear", 10, 13, "a scale for each channel is new", down=one_scale),
    only("QuantizeLinear", 13, 19, "saturate is new", "saturate", (1,), "only float 8 types depend on it"),
    Row("QuantizeLinear", 19, 21, "blocks and output_dtype are new", down=both(NO_BLOCKS, quantized_type)),
    Row("DequantizeLinear", 19, 21, "blocks are new", down=NO_BLOCKS),
    only("QuantizeLinear", 21, 23, "precision is new", "precision", (0,), "before, it follows the scale"),
    Row("DequantizeLinear", 21, 23, "output_dtype is new", down=dequantized_type),
)
