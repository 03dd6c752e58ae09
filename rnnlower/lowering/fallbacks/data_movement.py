"""Operators that move data, and Einsum, expressed by others where sizes are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from rnnlower.graph.einsum import einsum_terms, write_einsum
from rnnlower.lowering.fallbacks.arithmetic import Fallback

if TYPE_CHECKING:
    from rnnlower.lowering.emitter import Emitter
    from rnnlower.lowering.node_emitter import AttributeValue

_INT32_MAX = (1 << 31) - 1
_PAD_MODES = ("reflect", "edge", "wrap")
"""The names used by the standard and by NumPy."""


def _as_reshape(
    op_type: str, e: Emitter, x: ir.Value, *more: ir.Value | None, **attributes: Any
) -> ir.Value | None:
    dims = e.result_shape(op_type, x, *more, **attributes)
    if dims is None or 0 in dims or dims.count(None) > 1:
        return None
    return e.op("Reshape", x, e.integers(*(-1 if dim is None else dim for dim in dims)), since=5)


def _squeeze_named(e: Emitter, x: ir.Value, *, axes: Sequence[int] = ()) -> ir.Value | None:
    """The axes, left out, follow from the shape."""
    dims = e.shape(x)
    if axes or dims is None or None in dims or 1 not in dims:
        return None
    ones = [axis for axis, dim in enumerate(dims) if dim == 1]
    # Not by `op`, which would ask for a fallback again.
    if e.opset < 13:
        return e.ops("Squeeze", x, outputs=1, axes=ones)[0]
    return e.ops("Squeeze", x, e.integers(*ones), outputs=1)[0]


def _value_written(e: Emitter, shape: ir.Value, *, value: ir.TensorProtocol | None = None) -> ir.Value | None:
    """The value, left out, is 0 in float32."""
    zero = ir.Tensor(np.zeros(1, np.float32))
    return None if value is not None else e.ops("ConstantOfShape", shape, outputs=1, since=9, value=zero)[0]


def _constant_of_shape_by_expand(
    e: Emitter, shape: ir.Value, *, value: ir.TensorProtocol | None = None
) -> ir.Value:
    scalar = np.zeros((), np.float32) if value is None else value.numpy().reshape(())
    return e.op("Expand", e.constant(scalar), shape, since=8)


def _split(
    e: Emitter,
    x: ir.Value,
    sizes: ir.Value | None = None,
    *,
    axis: int = 0,
    split: Sequence[int] | None = None,
    num_outputs: int = 1,
) -> Sequence[ir.Value] | None:
    known, dims = split if sizes is None else e.content(sizes), e.shape(x)
    if known is None:
        total = None if dims is None else dims[axis]
        if sizes is not None or total is None:
            return None
        size = -(-total // num_outputs)
        known = [min(size, total - number * size) for number in range(num_outputs)]
    ends = np.cumsum(known).tolist()
    return [e.slice(x, [start], [end], [axis]) for start, end in zip([0, *ends], ends, strict=False)]


def _pad_by_gathers(
    e: Emitter,
    x: ir.Value,
    pads: ir.Value | None = None,
    fill: ir.Value | None = None,
    axes: ir.Value | None = None,
    *,
    mode: str = "constant",
) -> ir.Value | None:
    shape, amounts = e.shape(x), e.content(pads)
    if shape is None or mode not in _PAD_MODES or amounts is None or axes is not None or np.any(amounts < 0):
        return None
    before, after = np.split(amounts, 2)
    for axis, (first, last) in enumerate(zip(before, after, strict=True)):
        size = shape[axis]
        if not first and not last:
            continue
        if not size:
            return None
        indices = np.pad(np.arange(size), (int(first), int(last)), mode=mode)  # type: ignore[call-overload]
        x = _gather(e, x, indices, axis)
    return x


def _pad_after_slice(
    e: Emitter, x: ir.Value, pads: ir.Value, fill: ir.Value | None = None, *, mode: str = "constant"
) -> ir.Value | None:
    """Cut off what negative pads remove."""
    amounts = e.content(pads)
    if amounts is None or not np.any(amounts < 0):
        return None
    (before, after), added = np.split(np.minimum(amounts, 0), 2), np.maximum(amounts, 0)
    cut = [int(axis) for axis in np.flatnonzero(before + after)]
    ends = [int(after[axis]) or _INT32_MAX for axis in cut]
    x = e.slice(x, [-int(before[axis]) for axis in cut], ends, cut)
    return e.op("Pad", x, e.integers(*added.tolist()), fill, mode=mode) if np.any(added) else x


def _slice_by_gathers(e: Emitter, x: ir.Value, *bounds: ir.Value | None) -> ir.Value | None:
    shape = e.shape(x)
    known = [array.tolist() for each in bounds if (array := e.content(each)) is not None]
    if shape is None or len(known) < 4:
        return None
    for start, end, axis, step in zip(*known, strict=True):
        size = shape[axis]
        if not size:
            return None
        x = _gather(e, x, np.arange(size)[start:end:step], axis)
    return x


def _slice_by_scan(e: Emitter, x: ir.Value, *bounds: ir.Value | None) -> ir.Value | None:
    """Only if one whole axis of any size is reversed."""
    known = [array.tolist() for each in bounds if (array := e.content(each)) is not None]
    if len(known) < 4 or len(known[0]) != 1:
        return None
    (start,), (end,), (axis,), (step,) = known
    return _reverse_by_scan(e, x, axis) if (start, step) == (-1, -1) and end < -_INT32_MAX else None


def _reverse(
    e: Emitter, x: ir.Value, lengths: ir.Value, *, time_axis: int = 0, batch_axis: int = 1
) -> ir.Value | None:
    """Only if the lengths are the whole sequence, as Keras writes a layer that goes backwards."""
    shape = e.shape(x)
    if shape is None or not e.covers(lengths, x, time_axis):
        return None
    size = shape[time_axis]
    if size is None:
        return _reverse_by_scan(e, x, time_axis)
    return _gather(e, x, np.arange(size)[::-1], time_axis)


def _reverse_by_scan(e: Emitter, x: ir.Value, axis: int) -> ir.Value | None:
    """A Scan that returns its steps from last to first."""
    shape, dtype = e.shape(x), e.type_of(x)
    if shape is None or dtype is None or not e.has("Scan"):
        return None
    sizes = [size for place, size in enumerate(shape) if place != axis % len(shape)]
    step, result = (
        ir.Value(name=e.names.fresh(name), shape=ir.Shape(sizes), type=ir.TensorType(dtype))
        for name in ("step", "same_step")
    )
    same = ir.node("Identity", [step], outputs=[result])
    attributes: dict[str, AttributeValue] = {
        "body": ir.Graph([step], [result], nodes=[same], name=e.names.fresh("reversed")),
        "num_scan_inputs": 1,
        "scan_input_axes": [axis % len(shape)],
        "scan_output_axes": [axis % len(shape)],
        "scan_output_directions": [1],
    }
    return e.ops("Scan", x, outputs=1, since=9, **attributes)[0]


def _gather_by_vector(e: Emitter, x: ir.Value, indices: ir.Value, *, axis: int = 0) -> ir.Value | None:
    known, dims = e.content(indices), e.result_shape("Gather", x, indices, axis=axis)
    if known is None or known.ndim < 2 or dims is None or None in dims or 0 in dims:
        return None
    gathered = _gather(e, x, known.reshape(-1), axis)
    return e.op("Reshape", gathered, e.integers(*(dim for dim in dims if dim is not None)), since=5)


def _gather(e: Emitter, x: ir.Value, indices: np.ndarray, axis: int) -> ir.Value:
    return e.op("Gather", x, e.integers(*indices.tolist()), axis=int(axis))


def _scatter_around_box(
    e: Emitter, x: ir.Value, indices: ir.Value, updates: ir.Value, *, reduction: str = "none"
) -> ir.Value | None:
    known, places = e.shape(x), e.content(indices)
    if known is None or None in known or places is None or reduction != "none":
        return None
    shape = [size for size in known if size is not None]
    box = _exact_box(places, shape)
    if box is None:
        return None
    sizes = [end - start for start, end in box]
    inner = e.op("Reshape", updates, e.integers(*sizes, *shape[len(box) :]), since=5)
    # From outside inwards: what lies before and after the box on each axis that it does not fill.
    around = []
    for axis, (start, end) in enumerate(box):
        if (start, end) != (0, shape[axis]):
            bounds = [(0, start), (start, end), (end, shape[axis])]
            before, x, after = (e.slice(x, [a], [b], [axis]) if a < b else None for a, b in bounds)  # type: ignore[assignment]
            around.append((axis, before, after))
    for axis, first, last in reversed(around):
        inner = e.concat([part for part in (first, inner, last) if part is not None], axis)
    return inner


def _exact_box(indices: np.ndarray, shape: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return first and end of a box on each axis, if the indices are exactly the box, in order."""
    depth = indices.shape[-1]
    places = indices.reshape(-1, depth)
    if not places.size or depth > len(shape):
        return None
    places = np.where(places < 0, places + np.array(shape[:depth]), places)
    first, end = places.min(axis=0), places.max(axis=0) + 1
    whole = np.indices(tuple(end - first)).reshape(depth, -1).T + first
    if places.shape != whole.shape or not np.array_equal(places, whole):
        return None
    return [(int(start), int(stop)) for start, stop in zip(first, end, strict=True)]


def _of_rows(op_type: str, e: Emitter, x: ir.Value, *, axis: int) -> ir.Value | None:
    """Below opset 13, the axes from the attribute axis on are one."""
    dims = e.shape(x)
    if e.opset >= 13 or dims is None:
        return None
    rows = e.ops(op_type, e.op("Flatten", x, axis=axis), outputs=1, axis=1)[0]
    sizes = [-1 if dim is None else dim for dim in dims]
    shape = e.op("Shape", x) if sizes.count(-1) > 1 or 0 in sizes else e.integers(*sizes)
    return e.op("Reshape", rows, shape, since=5)


def _cumulative_sum(e: Emitter, x: ir.Value, axis: ir.Value, **attributes: Any) -> ir.Value | None:
    """The axis is a scalar."""
    number = e.content(axis)
    if number is None or not number.ndim:
        return None
    return e.op("CumSum", x, e.constant(number.reshape(())), **attributes)


def _spelled_einsum(e: Emitter, *operands: ir.Value, equation: str) -> ir.Value | None:
    """The equation has a letter for each axis of an ellipsis."""
    if "." not in equation:
        return None
    terms, result = einsum_terms(equation, _ranks(e, operands))
    return e.op("Einsum", *operands, equation=f"{','.join(terms)}->{result}") if terms else None


def _einsum(e: Emitter, *operands: ir.Value, equation: str) -> ir.Value | None:
    return write_einsum(e, equation, operands, _ranks(e, operands))


def _ranks(e: Emitter, values: Sequence[ir.Value]) -> list[int | None]:
    shapes = map(e.shape, values)
    return [None if shape is None else len(shape) for shape in shapes]


def _indices_from_front(
    op_type: str, e: Emitter, x: ir.Value, indices: ir.Value, *updates: ir.Value, **attributes: Any
) -> ir.Value | None:
    """Constant indices that count from the end of known axes count from the front."""
    found, shape = e.content(indices), e.shape(x)
    if found is None or shape is None or not (found < 0).any():
        return None
    if op_type.endswith("ND"):
        first, count = attributes.get("batch_dims", 0), found.shape[-1]
    else:
        first, count = attributes.get("axis", 0) % len(shape), 1
    sizes = shape[first : first + count]
    if None in sizes:
        return None
    places = np.where(found < 0, found + np.array(sizes, found.dtype), found)
    return e.op(op_type, x, e.constant(places), *updates, **attributes)


def _gather_nd_by_gather(
    e: Emitter, x: ir.Value, indices: ir.Value, *, batch_dims: int = 0
) -> ir.Value | None:
    """Constant indices of one axis are those of a Gather."""
    found = e.content(indices)
    if found is None or found.shape[-1] != 1 or batch_dims:
        return None
    return e.op("Gather", x, e.constant(found[..., 0]), axis=0)


def _normalized_as_images(
    e: Emitter, x: ir.Value, *parameters: ir.Value, **attributes: Any
) -> ir.Value | None:
    """Channels over time are images of width 1."""
    if len(e.shape(x) or ()) != 3:
        return None
    made = e.op("InstanceNormalization", e.with_axes("Unsqueeze", x, [3]), *parameters, **attributes)
    return e.with_axes("Squeeze", made, [3])


SHAPING: Mapping[str, Sequence[Fallback]] = {
    **{op_type: [partial(_as_reshape, op_type)] for op_type in ("Flatten", "Reshape", "Unsqueeze")},
    **{op_type: [partial(_of_rows, op_type)] for op_type in ("Hardmax", "LogSoftmax", "Softmax")},
    "ConstantOfShape": [_value_written, _constant_of_shape_by_expand],
    "CumSum": [_cumulative_sum],
    "Einsum": [_spelled_einsum, _einsum],
    "Gather": [_gather_by_vector],
    "GatherElements": [partial(_indices_from_front, "GatherElements")],
    "GatherND": [_gather_nd_by_gather, partial(_indices_from_front, "GatherND")],
    "InstanceNormalization": [_normalized_as_images],
    "Pad": [_pad_by_gathers, _pad_after_slice],
    "ReverseSequence": [_reverse],
    "ScatterElements": [partial(_indices_from_front, "ScatterElements")],
    "ScatterND": [partial(_indices_from_front, "ScatterND"), _scatter_around_box],
    "Slice": [_slice_by_gathers, _slice_by_scan],
    "Split": [_split],
    "Squeeze": [_squeeze_named, partial(_as_reshape, "Squeeze")],
}
