"""Elementwise operators, Cast, Constant and quantizers: bounds as inputs, types that came later, defaults."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.initializers import FLOATS
from rnnlower.opset.adapters import Row, both, only, refuse_unless
from rnnlower.opset.families.along_axes import not_of_integers
from rnnlower.opset.step import VersionStep

LOWEST, HIGHEST = float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)
EXACT_IN_DOUBLE = frozenset(each for each in ir.DataType if each.is_integer() and 8 <= each.bitwidth <= 32)


def clip_11_up(step: VersionStep) -> None:
    """The bounds became inputs of the data's type; a bound that was the default is left out."""
    low, high = step.take("min"), step.take("max")
    bounds = [
        None if bound is None or bound == open_end else bound
        for bound, open_end in ((low, LOWEST), (high, HIGHEST))
    ]
    if bounds == [None, None]:
        return
    dtype = step.known_dtype(step.required_input())
    inputs = [None if bound is None else step.const(bound, dtype) for bound in bounds]
    step.set_inputs(step.required_input(), *inputs)


def clip_11_down(step: VersionStep) -> None:
    """Constant bounds become attributes, which are float32; other bounds are applied by Max and Min."""
    low, high = step.input(1), step.input(2)
    bounds = {name: step.array(value) for name, value in (("min", low), ("max", high)) if value is not None}
    given = {name: float(each.flat[0]) for name, each in bounds.items() if each is not None and each.size}
    # The default bounds are the limits of float32.
    most = 2 if step.dtype(step.required_input()) == ir.DataType.DOUBLE else len(bounds)
    if len(given) >= most and all(float(np.float32(each)) == each for each in given.values()):
        step.set_inputs(step.required_input())
        highest = given.get("max", HIGHEST)
        if given.get("min", LOWEST) > highest:
            # Clip-11 then returns max everywhere; runtimes do not load a Clip-6 with min above max.
            given["min"] = highest
        for name, number in given.items():
            step.set(name, number)
        return
    x = step.required_input()
    if low is not None:
        x = step.op("Max", x, low)
    if high is not None:
        x = step.op("Min", x, high)
    step.replace(x if bounds else step.op("Identity", x))


def clip_12_down(step: VersionStep) -> None:
    """Clip-11 takes floating point only: integers are compared and selected."""
    if step.known_dtype(step.required_input()) in FLOATS:
        return
    x = step.required_input()
    for position, op_type in ((1, "Max"), (2, "Min")):
        bound = step.input(position)
        if bound is not None:
            x = _select(step, op_type, x, bound)
    step.replace(x)


def extremes_down(step: VersionStep) -> None:
    """Max-8 and Min-8 take floating point only: integers are compared and selected."""
    first, *rest = (value for value in step.node.inputs if value is not None)
    if step.known_dtype(first) in FLOATS:
        return
    for value in rest:
        first = _select(step, step.node.op_type, first, value)
    step.replace(first)


def _select(step: VersionStep, op_type: str, a: ir.Value, b: ir.Value) -> ir.Value:
    keep = step.op("Less" if op_type == "Min" else "Greater", a, b)
    return step.op("Where", keep, a, b)


def pow_12_down(step: VersionStep) -> None:
    """Both operands have one type: the exponent is cast to that of the base."""
    base, exponent = step.known_dtype(step.required_input(0)), step.known_dtype(step.required_input(1))
    if base not in FLOATS:
        step.refuse(f"Pow-7 takes floating point only, not {base.name.lower()}")
    if exponent != base:
        step.set_input(1, step.cast(step.required_input(1), base))


def equal_11_down(step: VersionStep) -> None:
    """Equal-7 compares integers and booleans: floats are equal if neither is smaller and none is NaN."""
    dtype = step.known_dtype(step.required_input())
    a, b = step.required_input(0), step.required_input(1)
    if dtype in EXACT_IN_DOUBLE - {ir.DataType.INT32, ir.DataType.UINT32}:
        step.set_inputs(step.cast(a, ir.DataType.INT32), step.cast(b, ir.DataType.INT32))
    elif dtype in FLOATS:
        differs = step.op("Or", step.op("Less", a, b), step.op("Greater", a, b))
        missing = step.op("Or", step.op("IsNaN", a), step.op("IsNaN", b))
        step.replace(step.op("Not", step.op("Or", differs, missing)))


def compare_9_down(step: VersionStep) -> None:
    """Greater-7 and Less-7 take floating point only; a double holds 32-bit integers exactly."""
    dtype = step.known_dtype(step.required_input())
    if dtype in EXACT_IN_DOUBLE:
        step.set_inputs(*(step.cast(step.required_input(place), ir.DataType.DOUBLE) for place in (0, 1)))
    elif dtype == ir.DataType.INT64:
        step.replace(_compared_by_halves(step))
    elif dtype not in FLOATS:
        step.refuse(
            f"the older version takes floating point only, and {dtype.name.lower()} does not fit exactly"
        )


def _compared_by_halves(step: VersionStep) -> ir.Value:
    """Divide by 2**32, and compare the remainders if the quotients are equal: a double holds both exactly."""
    size = step.const(2**32)
    halves = []
    for value in (step.required_input(0), step.required_input(1)):
        high = step.op("Div", value, size)
        low = step.op("Sub", value, step.op("Mul", high, size))
        halves.append((high, step.cast(high, ir.DataType.DOUBLE), step.cast(low, ir.DataType.DOUBLE)))
    (a, a_high, a_low), (b, b_high, b_low) = halves
    op_type = step.node.op_type
    decided = step.op(op_type, a_high, b_high)
    tied = step.op("And", step.op("Equal", a, b), step.op(op_type, a_low, b_low))
    return step.op("Or", decided, tied)


def float_mod_down(step: VersionStep) -> None:
    """fmod=0 of floating point is new in 28."""
    if step.attr("fmod") or step.known_dtype(step.required_input()) not in FLOATS | {ir.DataType.BFLOAT16}:
        return
    step.refuse("fmod=0 of floating point numbers is new in 28, and has cases that no composition keeps")


FLOAT8 = "only float 8 types depend on it, and the older version does not have them"


def cast_6_up(step: VersionStep) -> None:
    """The target type was a name (some exporters wrote the number as a string) and became a number."""
    name = str(step.attr("to")).upper()
    numbers = {str(int(dtype)): dtype for dtype in ir.DataType}
    dtype = ir.DataType.__members__.get(name, numbers.get(name))
    if dtype is None:
        step.refuse(f"to={name!r} names no element type")
    step.set("to", int(dtype))


def cast_6_down(step: VersionStep) -> None:
    """The target type was a name, which type inference does not read: the result's type is declared."""
    dtype = ir.DataType(step.attr("to"))
    step.set("to", dtype.name)
    (made,) = step.node.outputs
    made.type = made.type or ir.TensorType(dtype)


def cast_like_down(step: VersionStep) -> None:
    """A Cast to the type of the other tensor, if that type is known."""
    dtype = step.known_dtype(step.required_input(1))
    step.replace(step.op("Cast", step.required_input(0), to=int(dtype)))


def one_value(step: VersionStep) -> None:
    """Constant-11 holds a tensor: the number or list becomes one."""
    for name, attribute in list(step.node.attributes.items()):
        if not name.startswith("value_"):
            continue
        value = step.take(name)
        tensor: ir.TensorProtocol
        if attribute.type in (ir.AttributeType.STRING, ir.AttributeType.STRINGS):
            strings = [value] if attribute.type == ir.AttributeType.STRING else value
            shape = ir.Shape(np.shape(value))
            tensor = ir.StringTensor([each.encode() for each in strings], shape=shape)
        else:
            whole = attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS)
            tensor = ir.Tensor(np.array(value, np.int64 if whole else np.float32))
        step.set("value", ir.AttrTensor("value", tensor))


def to_initializer(step: VersionStep) -> None:
    """Constant-1 holds floating point only: other tensors become initializers of the main graph."""
    tensor = step.attr("value")
    if tensor.dtype not in FLOATS:
        step.replace_with_initializer(tensor)


WHOLE = frozenset({ir.DataType.INT32, ir.DataType.INT64})


def where_down(step: VersionStep) -> None:
    """Integers and booleans are chosen by arithmetic, which infinities of floating point would break."""
    condition, a, b = step.required_input(0), step.required_input(1), step.required_input(2)
    dtype = step.known_dtype(a)
    step.opset = 8
    if dtype == ir.DataType.BOOL:
        first = step.op("And", condition, a)
        step.replace(step.op("Or", first, step.op("And", step.op("Not", condition), b)))
    elif dtype in WHOLE:
        chosen = step.cast(condition, dtype)
        other = step.cast(step.op("Not", condition), dtype)
        step.replace(step.op("Add", step.op("Mul", chosen, a), step.op("Mul", other, b)))
    else:
        step.refuse(f"there is no other way to choose between tensors of {dtype.name.lower()}")


def mod_down(step: VersionStep) -> None:
    """The remainder has the divisor's sign: that of a truncated division, moved if its sign differs."""
    a, b = step.required_input(0), step.required_input(1)
    dtype = step.known_dtype(a)
    if dtype not in WHOLE or step.attr("fmod"):
        step.refuse("only the remainder of int32 and int64 tensors, with fmod=0, can be composed")
    step.opset = 9
    remainder = step.op("Sub", a, step.op("Mul", step.op("Div", a, b), b))
    zero = step.const(0, dtype)
    unlike = step.op("Xor", step.op("Less", remainder, zero), step.op("Less", b, zero))
    whole = step.op("Equal", remainder, zero)
    move = step.op("And", unlike, step.op("Not", whole))
    step.replace(step.op("Where", move, step.op("Add", remainder, b), remainder))


def thresholded_relu_down(step: VersionStep) -> None:
    """x where it is above alpha, else zero."""
    x = step.required_input()
    dtype = step.known_dtype(x)
    step.opset = 9
    above = step.op("Greater", x, step.const(step.attr("alpha"), dtype))
    step.replace(step.op("Where", above, x, step.const(0, dtype)))


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
    Row("Clip", 6, 11, "the bounds became inputs", clip_11_up, clip_11_down),
    Row("Clip", 11, 12, "integers are new", down=clip_12_down),
    Row("Max Min", 8, 12, "integers are new", down=extremes_down),
    Row("Pow", 7, 12, "integers, and an exponent of another type, are new", down=pow_12_down),
    Row("Equal", 7, 11, "floating point is new", down=equal_11_down),
    Row("Greater Less", 7, 9, "integers are new", down=compare_9_down),
    Row("Erf", 9, 13, "integers were removed", up=not_of_integers),
    Row("Mod", 13, 28, "fmod=0 of floating point is new", down=float_mod_down),
    Row("Cast", 1, 6, "the type was a name and is a number", cast_6_up, cast_6_down),
    only("Cast", 13, 19, "saturate is new", "saturate", (1,), FLOAT8),
    only("CastLike", 15, 19, "saturate is new", "saturate", (1,), FLOAT8),
    only("Cast CastLike", 23, 24, "round_mode is new", "round_mode", ("up",), FLOAT8),
    Row("CastLike", 0, 15, "new in 15; Cast does the same if the type is known", down=cast_like_down),
    Row("Constant", 1, 9, "only floating point tensors were allowed", down=to_initializer),
    only("Constant", 9, 11, "sparse values are new", "sparse_value", (None,), "sparse values are new"),
    Row("Constant", 11, 12, "numbers, strings and lists of them are new", down=one_value),
    Row("Where", 0, 9, "new in 9; integers and booleans are chosen by arithmetic", down=where_down),
    Row("Mod", 0, 10, "new in 10; of integers it is composed of Div, Mul and Sub", down=mod_down),
    Row("ThresholdedRelu", 0, 10, "new in 10; Greater and Where do the same", down=thresholded_relu_down),
    Row("DequantizeLinear", 0, 10, "new in 10; Cast, Sub and Mul do the same", down=dequantize_down),
    Row("DequantizeLinear", 10, 13, "a scale for each channel is new", down=dequantize_channels_down),
    Row("QuantizeLinear", 10, 13, "a scale for each channel is new", down=one_scale),
    only("QuantizeLinear", 13, 19, "saturate is new", "saturate", (1,), "only float 8 types depend on it"),
    Row("QuantizeLinear", 19, 21, "blocks and output_dtype are new", down=both(NO_BLOCKS, quantized_type)),
    Row("DequantizeLinear", 19, 21, "blocks are new", down=NO_BLOCKS),
    only("QuantizeLinear", 21, 23, "precision is new", "precision", (0,), "before, it follows the scale"),
    Row("DequantizeLinear", 21, 23, "output_dtype is new", down=dequantized_type),
)
