"""The exact arithmetic of com.microsoft.DynamicQuantizeLSTM: integer products around the float cell.

X is rounded to 8 bits once for all steps, H again in each step, all rows together. The product of integers
times both scales replaces the float product. Source: onnxruntime 1.31.1. Its kernel rounds the rows of each
thread separately; the arithmetic here is that of one thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import MissingOperatorError
from rnnlower.graph.names import Scope
from rnnlower.lowering.cells import CELLS, Inputs, NewState
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.forms import PLAIN, StepWeights
from rnnlower.lowering.lanes import Lane, cell_parameters, direction_scope, emit_initial_state, step_names
from rnnlower.lowering.masks import condition_type, emit_less, emit_where_else_zero
from rnnlower.lowering.timeseries import Axes, States, TimeSeries
from rnnlower.lowering.weights import DirectionWeights, Weights
from rnnlower.recurrent.node import ResolvedNode

_IOFC, _CARRIED = "iofc", "carried"


@dataclasses.dataclass(frozen=True)
class _Integers:
    """A tensor of 8 bits, with its scale and zero point; of W and R a direction, ``[inputs, 4 * units]``."""

    value: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None


@dataclasses.dataclass(frozen=True)
class QuantizedLane(Lane):
    """A direction whose step rounds H. Its optional input ``carried`` masks the rows of the product."""

    R: _Integers
    bias: ir.Value | None
    backwards: bool

    def scope(self, e: Emitter, number: int | None) -> Scope:
        """Return the scope of the direction, even if the steps are taken in the other order."""
        return super().scope(e, number) if number is not None else direction_scope(e.names, self.backwards)

    def step(self, e: Emitter, x: Inputs, state: States) -> NewState:
        h, c = state
        total = x[_IOFC]
        if h is not None:
            if _CARRIED in x:
                h = emit_where_else_zero(e, x[_CARRIED], h)
            total = e.op("Add", total, _emit_product(e, _quantize(e, h), self.R))
        if self.bias is not None:
            # Added after both products, as in the kernel, to get the same bits.
            total = e.op("Add", total, self.bias)
        node = self.parameters.node
        return CELLS[node.op_type](e, self.parameters, _split_gates(e, node, total), [None, c])


def quantized_lanes(e: Emitter, node: ResolvedNode, weights: Weights, X: TimeSeries) -> list[QuantizedLane]:
    """Return the lane of each direction.

    Raises:
        MissingOperatorError: An integer operator may not be emitted.
    """
    try:
        rounded = _quantize(e, _zero_past_longest_row(e, node, X.axes, X))
        return [_make_lane(e, node, weights, X.axes, rounded, d) for d in range(node.num_directions)]
    except MissingOperatorError as error:
        advice = f"make the weights float ({wording.option('dequantize', True)})"
        raise error.needed_by("integer arithmetic", advice) from None


def _make_lane(
    e: Emitter, node: ResolvedNode, weights: Weights, axes: Axes, X: _Integers, direction: int
) -> QuantizedLane:
    backwards = node.reversed_directions[direction]
    names = step_names(e, axes, reverse=backwards)
    with e.naming(direction_scope(e.names, backwards)):
        own = weights.of(e, direction)
        W, R = (_integer_weights(node, own, name, direction) for name in "WR")
        product, reverse = _emit_product(e, X, W), backwards
        if reverse and "sequence_lens" in node.inputs:
            product, reverse = _reverse_rows(e, node, product), False
        rows = 4 * node.hidden_size
        inputs = {_IOFC: TimeSeries(e, axes, rows, stacked=product, reverse=reverse).named(names, "x")}
        if "sequence_lens" in node.inputs and "Y" in node.outputs:
            inputs[_CARRIED] = _emit_active_rows(e, node, axes).named(names, "carried")
        B = node.inputs.get("B")
        return QuantizedLane(
            cell_parameters(node, own, PLAIN, StepWeights({})),
            inputs,
            [emit_initial_state(e, node, axes, name, direction) for name in node.state_names],
            axes,
            reverse,
            names,
            R,
            None if B is None else own.bias_sum(B, 0, rows, rows),
            backwards,
        )


def restore_order(e: Emitter, node: ResolvedNode, outputs: Sequence[TimeSeries]) -> list[TimeSeries]:
    """Emit H of each direction over time in the order of X; the lanes took each row from its own end."""
    if "sequence_lens" not in node.inputs:
        return list(outputs)
    return [
        TimeSeries(e, series.axes, series.width, stacked=_reverse_rows(e, node, series.stacked()))
        if reverse
        else series
        for series, reverse in zip(outputs, node.reversed_directions, strict=False)
    ]


def _reverse_rows(e: Emitter, node: ResolvedNode, value: ir.Value) -> ir.Value:
    """Emit each row's sequence in reverse, so that all rows start together, as the kernel rounds them."""
    lens = node.inputs["sequence_lens"]
    tensor = e.content(lens)
    lengths = e.cast(lens, ir.DataType.INT64) if tensor is None else e.integers(*tensor.tolist())
    return e.op("ReverseSequence", value, lengths, time_axis=0, batch_axis=1, since=10)


def _zero_past_longest_row(e: Emitter, node: ResolvedNode, axes: Axes, X: TimeSeries) -> ir.Value:
    """Emit X with zeros, which every range contains, past the end of the longest row.

    The kernel stops there.
    """
    lens = node.inputs.get("sequence_lens")
    if lens is None:
        return X.stacked()
    # The 0 covers a batch of no rows.
    lengths = e.concat([lens, e.constant(np.zeros(1, np.int32))], axis=0)
    longest = e.op("ReduceMax", lengths, keepdims=1)
    computed = e.reshape(emit_less(e, e.arange(axes.time), longest), [axes.time, 1, 1])
    return emit_where_else_zero(e, computed, X.stacked())


def _emit_active_rows(e: Emitter, node: ResolvedNode, axes: Axes) -> TimeSeries:
    """Emit the rows that had not ended in the previous step, as bool: the kernel treats the others as 0."""
    lens = node.inputs["sequence_lens"]
    steps = e.unsqueeze(e.arange(axes.time), 1, [axes.time, 1])
    before_end = emit_less(e, steps, e.op("Add", lens, e.constant(np.array(1, np.int32))))
    carried = e.unsqueeze(before_end, 2, [axes.time, axes.batch, 1])
    return TimeSeries(e, axes, 1, stacked=carried, dtype=condition_type(e))


def _integer_weights(node: ResolvedNode, weights: DirectionWeights, name: str, direction: int) -> _Integers:
    """Emit a direction's W or R."""
    e, value, size = weights.e, node.inputs[name], node.input_size if name == "W" else node.hidden_size
    if weights.constant(value) is not None and size is not None:
        matrix = weights.matrix(value, 0, size)
    else:
        matrix = e.op("Gather", value, e.constant(np.array(direction)), axis=0)
    scale, zero_point = node.inputs[f"{name}_scale"], node.inputs[f"{name}_zero_point"]
    return _Integers(matrix, _slice_direction(e, scale, direction), _zero_point(e, zero_point, direction))


def _slice_direction(e: Emitter, value: ir.Value, direction: int) -> ir.Value:
    array = e.content(value)
    if array is not None:
        return e.constant(array[direction], name=value.name or "")
    return e.op("Gather", value, e.constant(np.array(direction)), axis=0)


def _zero_point(e: Emitter, value: ir.Value, direction: int) -> ir.Value | None:
    """Emit a direction's zero point, of which the kernel takes only one; ``None`` if it is known to be 0."""
    array = e.content(value)
    if array is not None:
        number = array[direction].reshape(-1)[0]
        return e.constant(np.array(number, array.dtype)) if number else None
    own = e.op("Gather", value, e.constant(np.array(direction)), axis=0)
    flat = e.op("Reshape", own, e.integers(-1))
    return e.op("Gather", flat, e.constant(np.array(0)), axis=0)


def _quantize(e: Emitter, value: ir.Value) -> _Integers:
    """Emit the value rounded to 8 bits, with its range widened to contain 0."""
    return _Integers(*e.ops("DynamicQuantizeLinear", value, outputs=3, since=11))


def _emit_product(e: Emitter, x: _Integers, weight: _Integers) -> ir.Value:
    """Emit the value that ``x @ weight`` represents, in float32."""
    operands = [x.value, weight.value, x.zero_point]
    if weight.zero_point is not None:
        operands.append(weight.zero_point)
    integers = e.cast(e.op("MatMulInteger", *operands, since=10), e.dtype)
    return e.op("Mul", integers, e.op("Mul", x.scale, weight.scale))


def _split_gates(e: Emitter, node: ResolvedNode, total: ir.Value) -> dict[str, ir.Value]:
    """Split the complete sums into the groups of gates that the cell asks for."""
    if "P" in node.inputs:
        groups = ["i", "o", "f", "c"]
    else:
        groups = ["io", "f", "c"] if node.input_forget else ["iof", "c"]
    parts = e.split(total, [len(group) * node.hidden_size for group in groups], axis=1)
    return dict(zip(groups, parts, strict=True))
