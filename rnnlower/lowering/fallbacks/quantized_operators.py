"""Quantized operators, of which most are onnxruntime's own: the float operator between integers.

The kernels of onnxruntime compute some of them in integers or by tables, within one step of the quantizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from rnnlower.graph.walk import trim_omitted
from rnnlower.lowering.fallbacks.arithmetic import Fallback

if TYPE_CHECKING:
    from rnnlower.lowering.emitter import Emitter

_SINCE = {
    **dict.fromkeys((ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT32), 10),
    **dict.fromkeys((ir.DataType.INT16, ir.DataType.UINT16), 21),
}
"""The first opset at which QuantizeLinear and DequantizeLinear have the type."""
_PER_AXIS = 13
"""The first opset at which they take a scale for each element of an axis."""

_Values = ir.Value | None


def _dequantized_by_parts(
    e: Emitter,
    x: ir.Value,
    scale: ir.Value,
    zero: _Values = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> ir.Value | None:
    kind, factor = e.type_of(scale), _broadcast_along(e, scale, x, axis)
    shift = None if zero is None else _broadcast_along(e, zero, x, axis)
    if block_size or e.type_of(x) not in _SINCE:
        return None
    if kind is None or factor is None or (shift is None) != (zero is None):
        return None
    wide = _compute_type(kind)
    made = e.cast(x, wide)
    made = made if shift is None else e.op("Sub", made, e.cast(shift, wide))
    made = e.op("Mul", made, _emit_as(e, factor, wide))
    return _emit_as(e, made, ir.DataType(output_dtype or kind))


def _compute_type(kind: ir.DataType) -> ir.DataType:
    """Return the type to compute in: halves do not hold integers of 16 bits."""
    return ir.DataType.FLOAT if kind in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else kind


def _emit_as(e: Emitter, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    return value if e.type_of(value) == dtype else e.cast(value, dtype)


def _emit_standard(
    op_type: str, e: Emitter, x: ir.Value, scale: ir.Value, zero: _Values = None, *, axis: int = 1
) -> ir.Value | None:
    """Emit the operator of the standard where it has the type, or else its parts."""
    integer = x if op_type == "DequantizeLinear" else zero
    dtype = ir.DataType.UINT8 if integer is None else e.type_of(integer)
    if dtype not in _SINCE:
        return None
    shape = e.shape(scale)
    is_vector = shape is None or (len(shape) > 0 and shape != (1,))
    if e.opset >= max(_SINCE[dtype], _PER_AXIS if is_vector else 10) and e.has(op_type):
        more = {"axis": axis} if is_vector else {}
        return e.op(op_type, x, scale, *([] if zero is None else [zero]), **more)
    parts = _dequantized_by_parts if op_type == "DequantizeLinear" else _quantized_by_parts
    return parts(e, x, scale, zero, axis=axis)


_dequantized = partial(_emit_standard, "DequantizeLinear")
_quantized = partial(_emit_standard, "QuantizeLinear")


def _quantized_by_parts(
    e: Emitter,
    x: ir.Value,
    scale: ir.Value,
    zero: _Values = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    saturate: int = 1,
    output_dtype: int = 0,
    precision: int = 0,
) -> ir.Value | None:
    written = ir.DataType(output_dtype) if output_dtype else ir.DataType.UINT8
    dtype = written if zero is None else e.type_of(zero)
    kind, factor = e.type_of(scale), _broadcast_along(e, scale, x, axis)
    shift = None if zero is None else _broadcast_along(e, zero, x, axis)
    if block_size or precision or dtype not in _SINCE or dtype == ir.DataType.INT32:
        return None
    if kind is None or factor is None or (shift is None) != (zero is None):
        return None
    e = e.with_dtype(_compute_type(kind))
    x, factor = _emit_as(e, x, e.dtype), _emit_as(e, factor, e.dtype)
    made = e.op("Round", e.op("Div", x, factor), since=11)
    made = made if shift is None else e.op("Add", made, e.cast(shift, e.dtype))
    limits = np.iinfo(dtype.numpy())
    return e.cast(e.clip(made, float(limits.min), float(limits.max)), dtype)


def _broadcast_along(e: Emitter, parameter: ir.Value, x: ir.Value, axis: int) -> ir.Value | None:
    """Return a scale or zero point in a shape that broadcasts along the axis."""
    shape, sizes = e.shape(parameter), e.shape(x)
    if shape is None or len(shape) > 1:
        return None
    if shape in ((), (1,)):
        return parameter if sizes is None or len(sizes) or not shape else None
    if sizes is None:
        return None
    dims = [1] * len(sizes)
    dims[axis] = -1
    return e.op("Reshape", parameter, e.integers(*dims), since=5)


def _on_dequantized(form: Callable[..., ir.Value | None]) -> Fallback:
    """Return a form on floats for operators of which the outputs' scale and zero point are the last inputs.

    The form's own inputs come in threes: an integer tensor, its scale and its zero point.
    """

    def quantized(e: Emitter, *inputs: _Values, **attributes: object) -> ir.Value | None:
        first, scale = inputs[0], inputs[1]
        if first is None or scale is None:
            return None
        # A zero point at the end may be left out.
        padded = [*inputs, None] if len(inputs) % 3 == 1 else list(inputs)
        *given, out_scale, out_zero = padded
        e = e.with_dtype(e.type_of(scale) or ir.DataType.FLOAT)
        floats = [_dequantized(e, *given[k : k + 3]) for k in range(0, len(given), 3)]  # type: ignore[arg-type]
        if None in floats or out_scale is None:
            return None
        made = form(e, *floats, **attributes)
        kind = e.type_of(first)
        zero = out_zero or e.constant(np.array(0, np.uint8 if kind is None else kind.numpy()))
        return made if made is None else _quantized(e, made, out_scale, zero)

    own = inspect.signature(form).parameters.values()
    inputs = inspect.signature(lambda e, *inputs: None).parameters.values()
    attributes = (each for each in own if each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD))
    quantized.__signature__ = inspect.Signature([*inputs, *attributes])  # type: ignore[attr-defined]
    return quantized


def _plain(op_type: str) -> Fallback:
    return _on_dequantized(lambda e, *values: e.op(op_type, *values))


def _softmax(e: Emitter, x: ir.Value, *, opset: int, axis: int = -1) -> ir.Value | None:
    # Before opset 13 Softmax joins the axes from this one on.
    if (opset < 13) != (e.opset < 13):
        shape = e.shape(x)
        if shape is None or axis % len(shape) != len(shape) - 1:
            return None
    return e.op("Softmax", x, axis=axis)


def _pool(op_type: str, e: Emitter, x: ir.Value, *, channels_last: int = 0, **pool: Any) -> _Values:
    shape = e.shape(x)
    if not channels_last:
        return e.op(op_type, x, **pool)
    if shape is None:
        return None
    rank = len(shape)
    turned = e.op(op_type, e.transpose(x, [0, rank - 1, *range(1, rank - 1)]), **pool)
    return e.transpose(turned, [0, *range(2, rank), 1])


def _concat(e: Emitter, scale: ir.Value, zero: ir.Value, *inputs: _Values, axis: int) -> ir.Value | None:
    form = _on_dequantized(lambda e, *values: e.op("Concat", *values, axis=axis))
    return form(e, *inputs, scale, zero)  # type: ignore[return-value]


def _where(e: Emitter, condition: ir.Value, *inputs: _Values) -> ir.Value | None:
    form = _on_dequantized(lambda e, x, y: e.op("Where", condition, x, y, since=9))
    return form(e, *inputs)  # type: ignore[return-value]


def _qgemm(
    e: Emitter,
    a: ir.Value,
    a_scale: ir.Value,
    a_zero: ir.Value,
    b: ir.Value,
    b_scale: ir.Value,
    b_zero: ir.Value,
    c: _Values = None,
    y_scale: _Values = None,
    y_zero: _Values = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> ir.Value | None:
    e = e.with_dtype(ir.DataType.FLOAT)
    left = _dequantized(e, a, a_scale, a_zero)
    right = _dequantized(e, b, b_scale, b_zero, axis=0 if transB else 1)
    if left is None or right is None:
        return None
    made = e.op("Gemm", left, right, e.scalar(0.0), alpha=alpha, beta=1.0, transA=transA, transB=transB)
    if c is not None:
        # C is an integer in units of both scales and alpha.
        unit = e.op("Mul", e.op("Mul", a_scale, b_scale), e.scalar(alpha))
        made = e.op("Add", made, e.op("Mul", e.cast(c, ir.DataType.FLOAT), unit))
    return made if y_scale is None else _quantized(e, made, y_scale, y_zero)


def _matmul_to_float(
    e: Emitter,
    a: ir.Value,
    b: ir.Value,
    a_scale: ir.Value,
    b_scale: ir.Value,
    a_zero: _Values = None,
    b_zero: _Values = None,
    bias: _Values = None,
) -> ir.Value:
    e = e.with_dtype(e.type_of(a_scale) or ir.DataType.FLOAT)
    zeros = trim_omitted([a_zero, b_zero])
    made = e.cast(e.op("MatMulInteger", a, b, *zeros, since=10), e.dtype)
    made = e.op("Mul", made, e.op("Mul", a_scale, b_scale))
    return made if bias is None else e.op("Add", made, bias)


def _dynamic_matmul(
    e: Emitter, a: ir.Value, b: ir.Value, b_scale: ir.Value, b_zero: _Values = None, bias: _Values = None
) -> ir.Value:
    x, scale, zero = e.ops("DynamicQuantizeLinear", a, outputs=3, since=11)
    return _matmul_to_float(e, x, b, scale, b_scale, zero, b_zero, bias)


QUANTIZED: Mapping[str, Sequence[Fallback]] = {
    "DequantizeLinear": [_dequantized_by_parts],
    "QuantizeLinear": [_quantized_by_parts],
    "com.microsoft.DequantizeLinear": [_dequantized],
    "com.microsoft.DynamicQuantizeMatMul": [_dynamic_matmul],
    "com.microsoft.MatMulIntegerToFloat": [_matmul_to_float],
    "com.microsoft.QGemm": [_qgemm],
    "com.microsoft.QLinearAdd": [_plain("Add")],
    "com.microsoft.QLinearAveragePool": [_on_dequantized(partial(_pool, "AveragePool"))],
    "com.microsoft.QLinearConcat": [_concat],
    "com.microsoft.QLinearGlobalAveragePool": [_on_dequantized(partial(_pool, "GlobalAveragePool"))],
    "com.microsoft.QLinearLeakyRelu": [
        _on_dequantized(lambda e, x, *, alpha=0.01: e.op("LeakyRelu", x, alpha=alpha))
    ],
    "com.microsoft.QLinearMul": [_plain("Mul")],
    "com.microsoft.QLinearSigmoid": [_plain("Sigmoid")],
    "com.microsoft.QLinearSoftmax": [_on_dequantized(_softmax)],
    "com.microsoft.QLinearWhere": [_where],
    "com.microsoft.QuantizeLinear": [_quantized],
}
