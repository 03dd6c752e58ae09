"""The unroll strategy: straight-line code, with separate nodes for every step."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from rnnlower.graph.names import Scope
from rnnlower.lowering.emitter import FAN_OUT, Emitter
from rnnlower.lowering.strategies.repeating import Recurrence, Results
from rnnlower.lowering.timeseries import TimeSeries, Width

_MAX_PREFIX = 12


def run_unrolled(e: Emitter, recurrence: Recurrence) -> Results:
    """Emit ``axes.time`` steps, at least 1."""
    time = recurrence.axes.time
    assert isinstance(time, int)
    recurrence.fit_names(e)
    inputs = [list(_named(e, series, time)) for series in recurrence.inputs]
    for series, steps in zip(recurrence.inputs, inputs, strict=True):
        if series.reverse:
            steps.reverse()
    state: Sequence[ir.Value | None] = [state.initial for state in recurrence.states]
    final: list[ir.Value] = []
    collected: list[list[ir.Value]] = []
    for number, values in enumerate(zip(*inputs, strict=True)):
        final, outputs = recurrence.step(e, values, state, number)
        state = final
        collected.append(outputs)
    if recurrence.rows is not None:
        _declare_rows(recurrence, inputs, recurrence.rows, e.dtype)
    results = []
    for index, width in enumerate(recurrence.output_widths):
        steps = [outputs[index] for outputs in collected]
        if recurrence.output_reverse[index]:
            steps.reverse()
        with e.naming(_parts_scope(e) if time > FAN_OUT else e.names):
            flat = e.concat_tree(steps, axis=0)
        results.append(TimeSeries(e, recurrence.axes, width, flat=flat))
    return Results(results, final)


def _named(e: Emitter, series: TimeSeries, time: int) -> Iterator[ir.Value]:
    """Yield the inputs of each step, named after the step."""
    for number, value in enumerate(_split_steps(e, series, time)):
        if time > 1 and series.known is None and series.names is not None:
            value.name = e.names.source.fresh(series.names.value(number, series.name))
        yield value


def _declare_rows(
    recurrence: Recurrence, inputs: Sequence[Sequence[ir.Value]], rows: str, dtype: ir.DataType
) -> None:
    """Declare ``[rows, width]`` for the first values of the steps; shape inference derives the others.

    onnxruntime plans its memory by looking among all free buffers for one of the same shape. Without
    declarations the rows of every step get a symbol of their own, no two shapes are equal, and the search is
    quadratic.
    """
    begin: list[tuple[ir.Value | None, Width, ir.DataType]] = [
        (value, series.width, series.dtype)
        for series, values in zip(recurrence.inputs, inputs, strict=True)
        for value in values
    ]
    begin += [(state.initial, state.width, dtype) for state in recurrence.states]
    for value, width, its_dtype in begin:
        if value is not None and isinstance(width, int):
            value.type, value.shape = ir.TensorType(its_dtype), ir.Shape([rows, width])


def _split_steps(e: Emitter, series: TimeSeries, time: int) -> Iterator[ir.Value]:
    """Yield the inputs of each step, ``[rows, width]``, from a tree of Splits."""
    if series.known is not None:
        yield from (e.constant(step) for step in series.known)
        return
    if time <= _fan_out(e):
        yield from e.split_evenly(series.flat(), time, axis=0, size=series.axes.batch)
        return
    stacked = series.stacked()
    with e.naming(_parts_scope(e)):
        for part, steps in _stacked_parts(e, stacked, time):
            axes = dataclasses.replace(series.axes, time=steps)
            flat = TimeSeries(e, axes, series.width, stacked=part).flat()
            yield from e.split_evenly(flat, steps, axis=0, size=axes.batch)


def _stacked_parts(e: Emitter, stacked: ir.Value, time: int) -> Iterator[tuple[ir.Value, int]]:
    """Yield pieces of at most a fan-out of steps, splitting into at most as many pieces at a time."""
    fan_out = _fan_out(e)
    if time <= fan_out:
        yield stacked, time
        return
    size = fan_out
    while size * fan_out < time:
        size *= fan_out
    sizes = [min(size, time - start) for start in range(0, time, size)]
    for part, steps in zip(e.split(stacked, sizes, axis=0), sizes, strict=True):
        yield from _stacked_parts(e, part, steps)


def _fan_out(e: Emitter) -> int:
    return min(FAN_OUT, e.dialect.split_outputs or FAN_OUT)


def _parts_scope(e: Emitter) -> Scope:
    """Return the scope for the parts of a line, short even if the node's name is long."""
    last = re.split("[/.:]", e.names.prefix.rstrip("/"))[-1]
    return Scope(e.names.source, f"{last[:_MAX_PREFIX]}/")
