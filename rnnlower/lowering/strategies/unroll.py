"""The unroll strategy: straight-line code, with separate nodes for every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from rnnlower.lowering.declaring import declare_rows
from rnnlower.lowering.emitter import Dim, Emitter
from rnnlower.lowering.strategies.base import Recurrence, Results
from rnnlower.lowering.timeseries import TimeSeries

__all__ = ["FAN_OUT", "run_unrolled"]

FAN_OUT = 128
"""Maximum fan-out of a Split and fan-in of a Concat: runtimes take quadratic time for wider ones."""


def run_unrolled(e: Emitter, recurrence: Recurrence) -> Results:
    """Emit ``axes.time`` steps, at least 1."""
    time = recurrence.axes.time
    assert isinstance(time, int)
    inputs = [list(_named(e, series, time)) for series in recurrence.inputs]
    for series, steps in zip(recurrence.inputs, inputs, strict=True):
        if series.reverse:
            steps.reverse()
    first = len(e.nodes)
    state: Sequence[ir.Value | None] = [state.initial for state in recurrence.states]
    final: list[ir.Value] = []
    collected: list[list[ir.Value]] = []
    for number, values in enumerate(zip(*inputs, strict=True)):
        final, outputs = recurrence.step(e, values, state, number)
        state = final
        collected.append(outputs)
    if recurrence.rows is not None:
        widths: list[tuple[ir.Value | None, Dim]] = [
            (value, series.width)
            for series, values in zip(recurrence.inputs, inputs, strict=True)
            for value in values
        ]
        widths += [(state.initial, state.width) for state in recurrence.states]
        known = {value: width for value, width in widths if value is not None and isinstance(width, int)}
        declare_rows(e.nodes[first:], known, recurrence.rows, e.dtype)
    results = []
    for index, width in enumerate(recurrence.output_widths):
        steps = [outputs[index] for outputs in collected]
        if recurrence.output_reverse[index]:
            steps.reverse()
        results.append(TimeSeries(e, recurrence.axes, width, flat=_concat(e, steps)))
    return Results(results, final)


def _named(e: Emitter, series: TimeSeries, time: int) -> Iterator[ir.Value]:
    """Yield the inputs of each step, named after it."""
    alias, what = series.name
    for number, value in enumerate(_steps(e, series, time)):
        if time > 1 and series.known is None:
            value.name = e.names.source.fresh(f"{alias}{number}{what}")
        yield value


def _steps(e: Emitter, series: TimeSeries, time: int) -> Iterator[ir.Value]:
    """Yield the inputs of each step, ``[rows, width]``, from a tree of Splits."""
    if series.known is not None:
        yield from (e.constant(step) for step in series.known)
        return
    if time <= _fan_out(e):
        yield from e.split_evenly(series.flat(), time, axis=0, size=series.axes.batch)
        return
    for part, steps in _stacked_parts(e, series.stacked(), time):
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
    most = None if e.dialect is None else e.dialect.split_outputs
    return FAN_OUT if most is None else min(FAN_OUT, most)


def _concat(e: Emitter, steps: list[ir.Value]) -> ir.Value:
    """Emit ``[time * rows, width]`` of the steps' outputs, by a tree of Concats."""
    while len(steps) > 1:
        steps = [e.concat(steps[i : i + FAN_OUT], axis=0) for i in range(0, len(steps), FAN_OUT)]
    return steps[0]
