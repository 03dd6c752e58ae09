"""Operators that read windows of steps: convolutions, pools, and what pads or repeats steps."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from rnnlower.padding.flow import Axes, PadFlow, Rule
from rnnlower.padding.sizes import NoRuleError, Size


def _spatial(flow: PadFlow, node: ir.Node) -> Axes:
    axes = flow.axes_of(node.inputs[0])
    if 1 in axes or any(map(flow.axes_of, node.inputs[1:])):
        raise NoRuleError("has channels or weights over time")
    return axes


def _kernel(flow: PadFlow, node: ir.Node) -> list[int]:
    return [*(node.attributes.get_ints("kernel_shape") or flow.shape(node.inputs[1])[2:])]


def _windows(flow: PadFlow, node: ir.Node, axis: int, size: Size) -> Size:
    """Return the number of windows along an axis."""
    kernel = _kernel(flow, node)
    place, rank = axis - 2, len(kernel)
    stride = (node.attributes.get_ints("strides") or [1] * rank)[place]
    width = (kernel[place] - 1) * (node.attributes.get_ints("dilations") or [1] * rank)[place] + 1
    pads = node.attributes.get_ints("pads") or [0] * (2 * rank)
    both = pads[place] + pads[place + rank]
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        if stride != 1:
            raise NoRuleError("chooses its padding by the length (auto_pad)")
        both = width - 1
    if node.attributes.get_int("ceil_mode", 0) and stride != 1:
        raise NoRuleError("takes windows that begin behind the end (ceil_mode)")
    return flow.windows(size, both - width + stride, stride)


def _conv(flow: PadFlow, node: ir.Node) -> Axes:
    axes = _spatial(flow, node)
    for axis in axes:
        if axis >= 2:
            flow.fill(node, 0, axis, 0.0)
    return {axis: size if axis < 2 else _windows(flow, node, axis, size) for axis, size in axes.items()}


def _max_pool(flow: PadFlow, node: ir.Node) -> Axes:
    axes = _spatial(flow, node)
    for axis in axes:
        if axis >= 2:
            flow.fill(node, 0, axis, -math.inf)
    if len(node.outputs) > 1 and node.outputs[1].uses():
        raise NoRuleError("gives positions in the padded input")
    return {axis: size if axis < 2 else _windows(flow, node, axis, size) for axis, size in axes.items()}


def _average_pool(flow: PadFlow, node: ir.Node) -> Axes:
    """Divide by the number of valid steps in a window: the average of the mask is their share."""
    axes, found = _spatial(flow, node), _conv(flow, node)
    over = [axis for axis in axes if axis >= 2]
    if node.attributes.get_int("count_include_pad", 0) or not over:
        return found
    pads = node.attributes.get_ints("pads")
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if not any(pads or ()) and auto in ("NOTSET", "VALID"):
        # Valid windows have no padding.
        return found
    rank, dtype = len(flow.shape(node.inputs[0])), flow.dtype(node.inputs[0])
    emitter, result = flow.emitter_for(node), node.outputs[0]
    shape = flow.shape(node.inputs[0])
    mask = emitter.constant(
        np.ones([1, 1, *(s if i in over else shape[i] for i, s in enumerate(shape[2:], 2))], dtype)
    )
    zero = emitter.constant(np.array(0, dtype))
    for axis in over:
        mask = emitter.op("Where", flow.mask(axes[axis], axis, rank), mask, zero)
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    share = emitter.op("AveragePool", mask, **attributes)
    least = emitter.constant(np.array(1e-6, dtype))
    flow.replace(node, emitter.op("Div", result, emitter.op("Max", share, least)), emitter)
    return found


def _transposed(flow: PadFlow, node: ir.Node) -> Axes:
    axes, kernel = _spatial(flow, node), _kernel(flow, node)
    rank, found = len(kernel), dict(axes)
    for axis, size in axes.items():
        if axis < 2:
            continue
        place = axis - 2
        if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes:
            raise NoRuleError("chooses its padding by the length (auto_pad, output_shape)")
        flow.fill(node, 0, axis, 0.0)
        stride = (node.attributes.get_ints("strides") or [1] * rank)[place]
        width = (kernel[place] - 1) * (node.attributes.get_ints("dilations") or [1] * rank)[place] + 1
        pads = node.attributes.get_ints("pads") or [0] * (2 * rank)
        more = (node.attributes.get_ints("output_padding") or [0] * rank)[place]
        found[axis] = size.via(stride, width - stride + more - pads[place] - pads[place + rank])
    return found


def _global(fill: float) -> Rule:
    def rule(flow: PadFlow, node: ir.Node) -> Axes:
        axes = _spatial(flow, node)
        for axis in axes:
            if axis >= 2:
                flow.fill(node, 0, axis, fill)
        if node.op_type == "GlobalAveragePool" and any(axis >= 2 for axis in axes):
            emitter, sizes = flow.emitter_for(node), [size for axis, size in axes.items() if axis >= 2]
            flow.replace(node, flow.of_all(emitter, node.outputs[0], sizes), emitter)
        return {axis: size for axis, size in axes.items() if axis < 2}

    return rule


def _pad(flow: PadFlow, node: ir.Node) -> Axes:
    pads, axes = flow.ints(node, "pads", 1), flow.axes_of(node.inputs[0])
    assert pads is not None
    rank = len(flow.shape(node.inputs[0]))
    chosen = flow.ints(node, "axes", 3)
    places = [*range(rank)] if chosen is None else [axis % rank for axis in chosen[0]]
    mode, found = node.attributes.get_string("mode", "constant"), dict(axes)
    for number, axis in enumerate(places):
        begins, ends = ({each[number + shift] for each in pads} for shift in (0, len(places)))
        if axis not in axes or (begins == {0} and ends == {0}):
            continue
        if len(begins) > 1 or len(ends) > 1:
            raise NoRuleError("pads by a number that follows from the length")
        begin, end = begins.pop(), ends.pop()
        if end > 0:
            if mode != "constant":
                raise NoRuleError(f"repeats the end of the sequence (mode {mode})")
            value = flow.contents(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
            if value is None and len(node.inputs) > 2 and node.inputs[2] is not None:
                raise NoRuleError("pads by a value that is computed while it runs")
            flow.fill(node, 0, axis, 0.0 if value is None else float(value[0].reshape(-1)[0]))
        found[axis] = axes[axis].via(1, begin + end)
    return found


def _resize(flow: PadFlow, node: ir.Node) -> Axes:
    axes, before, after = flow.axes_of(node.inputs[0]), *map(flow.shape, (node.inputs[0], node.outputs[0]))
    found = dict(axes)
    for axis, size in axes.items():
        if before[axis] == after[axis]:
            continue
        is_copy = (
            node.attributes.get_string("mode", "nearest") == "nearest"
            and node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "asymmetric"
            and node.attributes.get_string("nearest_mode", "round_prefer_floor") == "floor"
        )
        if not is_copy or after[axis] % before[axis]:
            raise NoRuleError("stretches time in a way that reads beyond the end")
        found[axis] = size.via(after[axis] // before[axis])
    return found


WINDOWS: dict[str, Rule] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _transposed,
    "GlobalAveragePool": _global(0.0),
    "GlobalLpPool": _global(0.0),
    "GlobalMaxPool": _global(-math.inf),
    "MaxPool": _max_pool,
    "Pad": _pad,
    "Resize": _resize,
}
