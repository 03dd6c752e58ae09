"""Operators that read windows of steps: convolutions, pools, and what pads or repeats steps."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np
import onnx_ir as ir

from rnnlower.graph.walk import operand, required_input
from rnnlower.padding.sizes import Axes, NoRuleError, Size
from rnnlower.padding.validity import emit_max, emit_min, emit_numbers
from rnnlower.padding.validity_walk import PadFlow, Rule
from rnnlower.timeflow.convolutions import make_window

_POOLS = ("AveragePool", "LpPool", "MaxPool")
_WEIGHTS = {"ConvInteger": 1, "QLinearConv": 3}
_FIRST_WITHOUT_WINDOWS_IN_PADDING = 22
_ZERO_POINTS = {"ConvInteger": 2, "QLinearConv": 2}


def _spatial(flow: PadFlow, node: ir.Node) -> Axes:
    # The channels of a pool do not meet.
    channels = [] if node.op_type in _POOLS else [1]
    return flow.feature_axes(node, channels, "has channels or weights over time")


def _kernel(flow: PadFlow, node: ir.Node) -> list[int]:
    weights = operand(node, _WEIGHTS.get(node.op_type, 1))
    return [*(node.attributes.get_ints("kernel_shape") or flow.shape(weights)[2:])]


def _window_count(flow: PadFlow, node: ir.Node, axis: int, size: Size) -> Size:
    """Return the number of windows along an axis."""
    window = make_window(node, _kernel(flow, node), axis - 2)
    width, stride, begin, end = window.span, window.stride, window.left, window.right
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        found = size.affine(1, stride - 1, stride)
        both = {
            max((many - 1) * stride + width - steps, 0)
            for many, steps in zip(
                *(each.table[flow.least[size.symbol] :] for each in (found, size)), strict=True
            )
        }
        if len({each // 2 if auto == "SAME_UPPER" else each - each // 2 for each in both}) > 1:
            raise NoRuleError("chooses its padding by the length (auto_pad)")
        return found
    if auto == "VALID":
        begin = end = 0
    if node.attributes.get_int("ceil_mode", 0):
        # Windows starting in the end padding do not count.
        most = size.affine(1, begin + stride - 1, stride)
        found = size.affine(1, begin + end - width + 2 * stride - 1, stride)
        flow.require(size, max(1, width - begin - end))
        fewer = size.with_table(map(min, most.table, found.table))
        if fewer != found and flow.opset < _FIRST_WITHOUT_WINDOWS_IN_PADDING:
            raise NoRuleError(
                "has windows that begin past the end (ceil_mode), which is defined only from opset 22 on"
            )
        return fewer
    found = size.affine(1, begin + end - width + stride, stride)
    if not found.full:
        raise NoRuleError("reads windows that are longer than the maximum")
    # Lengths that fill no window are below the source's least one.
    flow.require(found, 1)
    return found


def _fill_and_slide(flow: PadFlow, node: ir.Node, fill: float | ir.Value) -> Axes:
    """Fill the padding; return the sizes of the result."""
    axes = _spatial(flow, node)
    for axis in axes:
        if axis >= 2:
            flow.fill(node, 0, axis, fill)
    return {axis: size if axis < 2 else _window_count(flow, node, axis, size) for axis, size in axes.items()}


def _conv(flow: PadFlow, node: ir.Node) -> Axes:
    zero = operand(node, _ZERO_POINTS[node.op_type]) if node.op_type in _ZERO_POINTS else None
    return _fill_and_slide(flow, node, 0.0 if zero is None else zero)


def _fused_conv(flow: PadFlow, node: ir.Node) -> Axes:
    if len(node.inputs) > 3:
        raise NoRuleError("adds another value to a convolution")
    return _conv(flow, node)


def _average_pool(flow: PadFlow, node: ir.Node) -> Axes:
    """Divide by the number of valid steps in a window: the average of the mask is their share.

    Where the zeros around the sequence count, they are valid; a window may still end past them (ceil_mode).
    """
    axes, found = _spatial(flow, node), _fill_and_slide(flow, node, 0.0)
    over = [axis for axis in axes if axis >= 2]
    counts, ceil = (node.attributes.get_int(name, 0) for name in ("count_include_pad", "ceil_mode"))
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    is_same = auto.startswith("SAME")
    around = is_same or any(node.attributes.get_ints("pads") or ())
    # The number of windows of SAME is rounded up already.
    if not over or ((is_same or not ceil) and (counts or not around)):
        # Valid windows have no padding, or it counts.
        return found
    emitter, rank = flow.emitter_for(node), len(flow.shape(node.inputs[0]))
    sizes = [1, 1, *flow.sizes(emitter, required_input(node), range(2, rank))]
    if counts and around:
        pads = node.attributes.get_ints("pads") or ()
        more = [0, 0, *map(sum, zip(pads[: rank - 2], pads[rank - 2 :], strict=True))]
        sizes = [emitter.dim_arithmetic("Add", size, each) for size, each in zip(sizes, more, strict=True)]
        axes = {axis: size.affine(1, more[axis]) for axis, size in axes.items()}
        _pad_with_zeros(flow, node)
    mask, zeros = emitter.scalar(1), emitter.zeros(sizes)
    for axis in over:
        mask = emitter.op("Where", flow.masks.mask(axes[axis], axis, axes, rank), mask, zeros)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    share = emitter.op("AveragePool", mask, **attributes)
    least = emitter.scalar(1e-6)
    mean = emitter.op("Div", node.outputs[0], emitter.op("Max", share, least))
    if counts and around:
        # Windows starting in the zeros do not count.
        for axis in over:
            mean = emitter.slice(mean, [0], [found[axis].full], [axis])
    flow.replace(node, mean, emitter)
    return found


def _pad_with_zeros(flow: PadFlow, node: ir.Node) -> None:
    """Pad the sequence with zeros before a pool, which then counts them as steps."""
    pads = [*(node.attributes.get_ints("pads") or ())]
    half, emitter = len(pads) // 2, flow.emitter_for(node)
    both = [0, 0, *pads[:half], 0, 0, *pads[half:]]
    if flow.opset < 11:
        padded = emitter.op("Pad", node.inputs[0], pads=both)
    else:
        padded = emitter.op("Pad", node.inputs[0], emitter.integers(*both))
    emitter.insert_before(node)
    node.replace_input_with(0, padded)
    node.attributes["pads"] = ir.AttrInt64s("pads", [0] * len(pads))
    node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 0)


def _conv_transpose(flow: PadFlow, node: ir.Node) -> Axes:
    axes = _spatial(flow, node)
    kernel, found = _kernel(flow, node), dict(axes)
    for axis, size in axes.items():
        if axis < 2:
            continue
        if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes:
            raise NoRuleError("chooses its padding by the length (auto_pad, output_shape)")
        flow.fill(node, 0, axis, 0.0)
        window = make_window(node, kernel, axis - 2)
        more = (node.attributes.get_ints("output_padding") or [0] * len(kernel))[axis - 2]
        found[axis] = size.affine(
            window.stride, window.span - window.stride + more - window.left - window.right
        )
    return found


def _stft(flow: PadFlow, node: ir.Node) -> Axes:
    """Take only whole windows: no valid one reads padding."""
    axes, window = dict(flow.axes_of(node.inputs[0])), operand(node, 2)
    hops, widths = ({each[0] for each in flow.ints(node, f"input {k}", k) or ()} for k in (1, 3))
    widths = widths or {flow.shape(window)[0]}
    if any(map(flow.axes_of, node.inputs[1:])) or not len(hops) == len(widths) == 1 or max(axes) > 1:
        raise NoRuleError("takes frames whose length follows from that of the sequence")
    if 1 in axes:
        (hop,), (width,) = hops, widths
        axes[1] = axes[1].affine(1, hop - width, hop)
        flow.require(axes[1], 1)
    return axes


def _col2im(flow: PadFlow, node: ir.Node) -> Axes:
    """Add blocks to an image of one row, where those after the end are zero."""
    axes, image = flow.axes_of(node.inputs[0]), flow.ints(node, "image_shape", 1) or [[]]
    blocks = (flow.ints(node, "block_shape", 2) or [[]])[0]
    if {*axes} - {0, 2} or any(map(flow.axes_of, node.inputs[1:])):
        raise NoRuleError("has channels or blocks over time")
    if 2 not in axes:
        return axes
    if image[0][:-1] != blocks[:-1] or any(node.attributes.get_ints("pads") or ()):
        raise NoRuleError("adds blocks over time to an image of several rows, or with padding")
    flow.fill(node, 0, 2, 0.0)
    flow.require(axes[2], 1)
    found = flow.varying_axes(node.outputs[0])
    return {axis: size for axis, size in axes.items() if axis != 2} | found


def _global_pool(fill: float, flow: PadFlow, node: ir.Node) -> Axes:
    axes, rank = flow.axes_of(node.inputs[0]), len(flow.shape(node.inputs[0]))
    left = flow.fill_along(node, range(2, rank), fill)
    if node.op_type == "GlobalAveragePool" and left != axes:
        emitter, filled = flow.emitter_for(node), required_input(node)
        flow.replace(node, flow.masks.mean(emitter, filled, range(2, rank), axes, rank), emitter)
    return left


def _pad(flow: PadFlow, node: ir.Node) -> Axes:
    pads, axes = flow.ints(node, "pads", 1) or [], flow.axes_of(node.inputs[0])
    rank = len(flow.shape(node.inputs[0]))
    chosen = flow.ints(node, "axes", 3)
    places = [*range(rank)] if chosen is None else [axis % rank for axis in chosen[0]]
    mode, found = node.attributes.get_string("mode", "constant"), dict(axes)
    for number, axis in enumerate(places):
        begins, ends = ({each[number + shift] for each in pads} for shift in (0, len(places)))
        begins |= flow.short_numbers(operand(node, 1), number)
        if len(begins) > 1 or (len(ends) > 1 and (axis not in axes or mode != "constant" or min(ends) < 0)):
            raise NoRuleError("pads by an amount that depends on the length")
        begin, end = begins.pop(), max(ends)
        if axis not in axes or (begin == 0 and ends == {0}):
            continue
        found[axis] = axes[axis].affine(1, begin + end)
        if len(ends) > 1:
            own = flow.varying_axes(node.outputs[0])
            found.pop(axis)
            found |= {axis: own[axis]} if axis in own else {}
        flow.require(axes[axis], max(begin, end) + 1 if mode == "reflect" else 0)
        if end <= 0 and (mode != "wrap" or begin <= 0):
            continue
        if mode != "constant":
            more = {place: (pads[0][k], pads[0][k + len(places)]) for k, place in enumerate(places)}
            _mirror(flow, node, axis, more, found[axis], mode)
            continue
        value = operand(node, 2)
        given = node.attributes.get_float("value", 0.0) if value is None else value
        if isinstance(given, ir.Value) and flow.shape(given):
            raise NoRuleError("pads with a value that is not a scalar")
        flow.fill(node, 0, axis, given)
    return found


def _mirror(
    flow: PadFlow, node: ir.Node, axis: int, pads: dict[int, tuple[int, int]], size: Size, mode: str
) -> None:
    """Gather the steps that the padding repeats, by their positions within the sequence."""
    if flow.rows is not None:
        raise NoRuleError(f"repeats the ends of rows, each of which has a length of its own (mode {mode})")
    emitter, source = flow.emitter_for(node), required_input(node)
    begin, _ = pads.pop(axis)
    others = {other: pad for other, pad in pads.items() if any(pad)}
    lengths = flow.axes_of(source)
    if any(axis in lengths or flow.is_dynamic(source, axis) or min(pad) < 0 for axis, pad in others.items()):
        raise NoRuleError(f"repeats the end of the sequence, and pads another open axis (mode {mode})")
    places = emitter.constant(np.arange(size.full, dtype=np.int64) - begin)
    count = flow.masks.count(lengths[axis])
    last, zero = emitter.op("Sub", count, emitter.integers(1)), emitter.integers(0)

    if mode == "reflect":
        places = emitter.op("Abs", places)
        places = emitter.op("Sub", last, emitter.op("Abs", emitter.op("Sub", last, places)))
    elif mode == "wrap":
        places = emitter.op("Mod", emitter.op("Add", places, count), count)
    places = emit_max(emitter, emit_min(emitter, places, last), zero)
    result = emitter.op("Gather", source, places, axis=axis)
    for other, pad in others.items():
        # Axes of known sizes repeat elements at places that are known.
        repeated = np.pad(np.arange(flow.shape(source)[other]), pad, mode)  # type: ignore[call-overload]
        result = emitter.op("Gather", result, emitter.constant(repeated), axis=other)
    flow.replace(node, result, emitter)


def _resize(flow: PadFlow, node: ir.Node) -> Axes:
    """Repeat the last step after the end, so that it reads as the edge does in the source."""
    axes, before, after = flow.axes_of(node.inputs[0]), *map(flow.shapes, (node.inputs[0], node.outputs[0]))
    found = dict(axes)
    kept = [axis for axis in axes if all(a[axis] == b[axis] for a, b in zip(before, after, strict=True))]
    if kept:
        # onnxruntime reads neighbors there with a weight of zero.
        flow.fill_elements(node, 0, 0.0)
    for axis, size in axes.items():
        if axis in kept:
            continue
        where = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
        excludes = node.attributes.get_int("antialias", 0) or node.attributes.get_int("exclude_outside", 0)
        if where in ("tf_crop_and_resize", "half_pixel_symmetric") or excludes or "axes" in node.attributes:
            raise NoRuleError("stretches time in a way that depends on the length, or reads beyond the end")
        scale = _scale(flow, node, axis, [(a[axis], b[axis]) for a, b in zip(before, after, strict=True)])
        if flow.rows is not None:
            raise NoRuleError("stretches rows, each of which has a length of its own")
        if scale is None or where == "align_corners":
            others = [number for number in range(len(before[0])) if number != axis]
            if any(before[0][number] != after[0][number] for number in others):
                raise NoRuleError("stretches time by a scale that depends on the length, and another axis")
            found[axis] = flow.varying_axes(node.outputs[0])[axis]
            _stretch(flow, node, axis, size, found[axis], where)
        else:
            _repeat_last_step(flow, node, axis, size)
            found[axis] = size.affine(scale.numerator, 0, scale.denominator)
        if where in ("align_corners", "pytorch_half_pixel"):
            # A single step is read from another place.
            flow.require(found[axis], 2)
    return found


def _scale(flow: PadFlow, node: ir.Node, axis: int, sizes: list[tuple[int, int]]) -> Fraction | None:
    """Return by how much an axis is stretched, or ``None`` if that depends on the length."""
    scales = operand(node, 1 if node.op_type == "Upsample" else 2) if len(node.inputs) < 4 else None
    contents = flow.contents(scales)
    if contents is not None and contents[0].size:
        scale = Fraction(float(contents[0][axis])).limit_denominator(1024)
        if all(np.array_equal(each, contents[0]) for each in contents) and float(scale) == contents[0][axis]:
            return scale
        raise NoRuleError("stretches time by a scale that depends on the length")
    scale = Fraction(sizes[0][1], sizes[0][0])
    return None if any(after != before * scale for before, after in sizes) else scale


def _stretch(flow: PadFlow, node: ir.Node, axis: int, size: Size, wanted: Size, where: str) -> None:
    """Read each step from its place, which follows from both lengths, as onnxruntime computes it."""
    mode = node.attributes.get_string("mode", "nearest")
    rounding = node.attributes.get_string("nearest_mode", "round_prefer_floor")
    emitter, source = flow.emitter_for(node), required_input(node)
    real = emitter.with_dtype(ir.DataType.FLOAT)
    have, want = (flow.masks.count(each, ir.DataType.FLOAT) for each in (size, wanted))
    half, one, zero = map(real.scalar, (0.5, 1, 0))
    last = emitter.op("Sub", have, one)
    place = emitter.constant(np.arange(wanted.full, dtype=np.float32))
    if where == "align_corners":
        place = emitter.op("Div", emitter.op("Mul", place, last), emitter.op("Sub", want, one))
    else:
        scale = emitter.op("Div", want, have)
        if where == "asymmetric":
            place = emitter.op("Div", place, scale)
        else:
            place = emitter.op("Sub", emitter.op("Div", emitter.op("Add", place, half), scale), half)

    def read(at: ir.Value) -> ir.Value:
        at = emit_max(emitter, emit_min(emitter, at, last), zero)
        return emitter.op("Gather", source, emitter.cast(at, ir.DataType.INT64), axis=axis)

    if mode == "nearest":
        if rounding.startswith("round"):
            place = emitter.op("Sub" if rounding == "round_prefer_floor" else "Add", place, half)
        is_up = rounding in ("ceil", "round_prefer_floor")
        flow.replace(node, read(emitter.op("Ceil" if is_up else "Floor", place)), emitter)
    elif mode == "linear":
        place = emit_max(emitter, emit_min(emitter, place, last), zero)
        lower = emitter.op("Floor", place)
        rank = len(flow.shape(source))
        share = emitter.reshape(emitter.op("Sub", place, lower), [-1, *[1] * (rank - axis - 1)])
        share = emitter.cast(share, emitter.dtype)
        first, second = read(lower), read(emitter.op("Add", lower, one))
        more = emitter.op("Mul", emitter.op("Sub", second, first), share)
        flow.replace(node, emitter.op("Add", first, more), emitter)
    else:
        raise NoRuleError("stretches time by a scale that depends on the length, with cubic weights")


def _repeat_last_step(flow: PadFlow, node: ir.Node, axis: int, size: Size) -> None:
    emitter, source = flow.emitter_for(node), required_input(node)
    places = emit_numbers(emitter, size.full)
    last = emitter.op("Sub", flow.masks.count(size), emitter.integers(1))
    places = emit_min(emitter, places, last)
    extended = emitter.op("Gather", source, places, axis=axis)
    flow.record_origin(extended, source)
    emitter.insert_before(node)
    node.replace_input_with(0, extended)


WINDOWS: dict[str, Rule] = {
    "AveragePool": _average_pool,
    "Col2Im": _col2im,
    **dict.fromkeys(("Conv", "ConvInteger", "LpPool", "QLinearConv"), _conv),
    "ConvTranspose": _conv_transpose,
    "FusedConv": _fused_conv,
    **dict.fromkeys(("GlobalAveragePool", "GlobalLpPool"), functools.partial(_global_pool, 0.0)),
    "GlobalMaxPool": functools.partial(_global_pool, -math.inf),
    "MaxPool": lambda flow, node: _fill_and_slide(flow, node, -math.inf),
    "Pad": _pad,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "STFT": _stft,
}
