"""Parts that several rules share."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.padding.flow import PadFlow
from rnnlower.padding.sizes import Axes, NoRuleError


def broadcast(flow: PadFlow, node: ir.Node, indices: Sequence[int], rank: int) -> Axes:
    """Return the axes of operands that are aligned at their ends."""
    axes: Axes = {}
    for index in indices:
        value = node.inputs[index]
        for axis, size in flow.axes_of(value).items():
            place = rank - len(flow.shape(value)) + axis
            if axes.setdefault(place, size) != size:
                raise NoRuleError("combines values of different lengths")
    return axes


def along(flow: PadFlow, node: ir.Node, axes: Sequence[int], fill: float, keeps: bool = True) -> Axes:
    """Fill the padding on these axes; they are no longer over time, or removed unless kept."""
    rank = len(flow.shape(node.inputs[0]))
    along = {axis % rank for axis in axes}
    for axis in along & {*flow.axes_of(node.inputs[0])}:
        flow.fill(node, 0, axis, fill)
    return {
        axis - (0 if keeps else sum(other < axis for other in along)): size
        for axis, size in flow.axes_of(node.inputs[0]).items()
        if axis not in along
    }


def features(flow: PadFlow, node: ir.Node, over: Sequence[int], what: str) -> Axes:
    rank, axes = len(flow.shape(node.inputs[0])), flow.axes_of(node.inputs[0])
    if {axis % rank for axis in over} & {*axes} or any(map(flow.axes_of, node.inputs[1:])):
        raise NoRuleError(what)
    return axes
