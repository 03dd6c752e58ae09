"""Operators that take or put elements at positions, which may count from the end of the sequence."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array
from rnnlower.graph.walk import required_input
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.sizes import ROWS, Axes, NoRuleError, Size
from rnnlower.padding.validity_walk import PadFlow, Rule


def _gather(flow: PadFlow, node: ir.Node) -> Axes:
    data, indices = node.inputs[:2]
    rank, axes, own = len(flow.shape(data)), flow.axes_of(data), flow.axes_of(indices)
    along = node.attributes.get_int("axis", 0) % rank
    flow.fill_positions(node, 1)
    if along in axes:
        _gather_steps(flow, node, along, axes)
    more = len(flow.shape(indices)) - 1
    found = {axis + (more if axis > along else 0): size for axis, size in axes.items() if axis != along}
    return found | {along + axis: size for axis, size in own.items()}


def _gather_elements(flow: PadFlow, node: ir.Node) -> Axes:
    """Take single elements; the axes of the result are those of the indices."""
    data, indices = node.inputs[:2]
    axes, own = flow.axes_of(data), flow.axes_of(indices)
    along = node.attributes.get_int("axis", 0) % len(flow.shape(data))
    flow.fill_positions(node, 1)
    # What is not over time has its elements in their order.
    flow.refuse_rows(indices, *(axis for axis in own if axis != along and axis not in axes))
    for axis, size in axes.items():
        if axis == along and flow.rows is not None:
            _gather_elements_of_rows(flow, node, size)
        elif axis == along:
            _gather_steps(flow, node, along, axes)
        elif own.get(axis, size) != size:
            raise NoRuleError("combines values of different lengths")
        elif axis not in own:
            flow.require(size, flow.shape(indices)[axis])
    return own


def _gather_elements_of_rows(flow: PadFlow, node: ir.Node, size: Size) -> None:
    """Make positions that count from the end count from the last valid step of their row."""
    data, value = required_input(node), required_input(node, 1)
    rows = flow.row_axes_of(value)
    if size.symbol == ROWS or not rows or rows != flow.row_axes_of(data):
        raise NoRuleError("reads steps at positions that differ from row to row")
    for contents in flow.numbers(value) or []:
        _require_steps(flow, size, contents)
    emitter = flow.emitter_for(node)
    count = flow.masks.count(size, flow.dtype(value))
    count = flow.masks.per_row(emitter, count, flow.axes_of(value), len(flow.shape(value)))
    _add_to_negative(flow, node, count, emitter)


def _gather_nd(flow: PadFlow, node: ir.Node) -> Axes:
    """Take parts at positions in the first axes; positions below 0 count from the last valid step."""
    data, indices = node.inputs[:2]
    axes, own, batch = flow.axes_of(data), flow.axes_of(indices), node.attributes.get_int("batch_dims", 0)
    shape = flow.shape(indices)
    first = batch + shape[-1]
    if 0 in axes and (batch, shape[-1]) == (0, 1) and indices is not None:
        # PyTorch stretches sequences by such positions.
        emitter = flow.emitter_for(node)
        places = emitter.squeeze(indices, -1, [*shape[:-1]])
        flow.axes[places] = {axis: size for axis, size in own.items() if axis < len(shape) - 1}
        emitter.insert_before(node)
        node.op_type = "Gather"
        node.attributes.pop("batch_dims", None)
        node.replace_input_with(1, places)
        return _gather(flow, node)
    cut = [axis for axis in axes if batch <= axis < first]
    if len(shape) - 1 in own or (cut and flow.rows is not None):
        raise NoRuleError("reads steps at positions that consist of several numbers")
    if any(own.get(axis, size) != size for axis, size in axes.items() if axis < batch):
        raise NoRuleError("combines values of different lengths")
    flow.fill_positions(node, 1)
    if cut:
        emitter = flow.emitter_for(node)
        counts = [flow.masks.count(axes[axis]) if axis in cut else 0 for axis in range(batch, first)]
        contents = flow.numbers(indices) or []
        # Positions that follow from the length are within it.
        if contents and not own and all(np.array_equal(each, contents[0]) for each in contents):
            for axis in cut:
                _require_steps(flow, axes[axis], contents[0][..., axis - batch])
        _add_to_negative(flow, node, emitter.size_vector(counts), emitter)
    return own | {axis - first + len(shape) - 1: size for axis, size in axes.items() if axis >= first}


def _scatter_nd(flow: PadFlow, node: ir.Node) -> Axes:
    """Put parts at positions in the first axes; neither may be over time."""
    data, indices, updates = node.inputs[:3]
    axes, shape = flow.axes_of(data), flow.shape(indices)
    if flow.axes_of(indices) or any(axis < shape[-1] for axis in axes):
        raise NoRuleError("writes steps at positions that consist of several numbers")
    if {axis - shape[-1] + len(shape) - 1: size for axis, size in axes.items()} != flow.axes_of(updates):
        raise NoRuleError("combines values of different lengths")
    return axes


def _gather_steps(flow: PadFlow, node: ir.Node, along: int, axes: Axes) -> None:
    """Make positions that count from the end count from the last valid step."""
    data, value = required_input(node), required_input(node, 1)
    size, contents = axes[along], flow.numbers(value)
    size.refuse_rows()
    counts = [shape[along] for shape in flow.shapes(data)]
    if flow.lengths_of(value):
        if contents is not None and flow.is_fixed(value) and (contents[0] >= 0).all():
            # As many positions as steps, each of which is a number of the source.
            return
        contents = None
    if contents is not None and not all(np.array_equal(each, contents[0]) for each in contents):
        # A position that follows from the length is that number already, unless rows have their own.
        from_end = [each - count for each, count in zip(contents, counts, strict=True)]
        if flow.rows is not None and (
            contents[0].size != 1 or any((each != from_end[0]).any() for each in from_end)
        ):
            raise NoRuleError("reads steps at positions that differ from row to row")
        contents = [each - counts[0] for each in contents[:1]] if flow.rows is not None else None
    elif contents is not None:
        _require_steps(flow, size, contents[0])
        if (contents[0] >= 0).all():
            return
    elif flow.rows is not None:
        raise NoRuleError("reads steps at positions that are computed while it runs")
    emitter = flow.emitter_for(node)
    if flow.rows is not None and contents is not None:
        if contents[0].size != 1:
            raise NoRuleError("reads several steps that count from the ends of rows")
        place, rank = int(contents[0].item()), len(flow.shape(data))
        step = flow.masks.last_steps(emitter, data, along, axes, range(place, place + 1), rank)
        step = step if contents[0].ndim else emitter.with_axes("Squeeze", step, [along])
        flow.replace(node, step, emitter)
        return
    count = flow.masks.count(size, flow.dtype(value))
    if not len(flow.shape(value)):
        count = emitter.squeeze(count, 0, [])
    _add_to_negative(flow, node, count, emitter)


def _require_steps(flow: PadFlow, size: Size, positions: Array) -> None:
    """Record that sequences have steps at fixed positions, which may count from the end."""
    flow.require(size, max(int(positions.max(initial=0)) + 1, int(-positions.min(initial=0))))


def _add_to_negative(flow: PadFlow, node: ir.Node, counts: ir.Value, emitter: Emitter) -> None:
    """Add numbers of steps to the positions of a node that are below 0."""
    value = required_input(node, 1)
    dtype = flow.dtype(value)
    is_negative = emitter.op("Less", value, emitter.with_dtype(dtype).scalar(0), since=9)
    steps = emitter.op("Where", is_negative, emitter.op("Add", value, counts), value)
    steps.dtype = dtype
    emitter.insert_before(node)
    node.replace_input_with(1, steps)


def _one_hot(flow: PadFlow, node: ir.Node) -> Axes:
    rank = len(flow.shape(node.outputs[0]))
    axis = node.attributes.get_int("axis", -1) % rank
    return {place + (place >= axis): size for place, size in flow.axes_of(node.inputs[0]).items()}


POSITION_OPERATORS: dict[str, Rule] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ScatterND": _scatter_nd,
}
