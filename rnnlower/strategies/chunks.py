"""K time steps in each iteration of a Scan or Loop, and what is left in a second one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.emitter import Dim, Emitter
from rnnlower.strategies.base import Recurrence, Results, State, Strategy
from rnnlower.strategies.unroll import run_unrolled
from rnnlower.timeseries import Axes, TimeSeries

__all__ = ["run_in_chunks"]


def run_in_chunks(e: Emitter, recurrence: Recurrence, strategy: Strategy, factor: int) -> Results:
    """Runs the strategy over chunks of `factor` steps, then over the steps that are left.

    What runs from the end takes its chunks from the end too, so that what is left lies at the start.
    """
    time, batch = recurrence.axes.time, recurrence.axes.batch
    chunks = e.dim_arithmetic("Div", time, factor)
    if chunks == 0:
        return strategy(e, recurrence)
    whole = e.dim_arithmetic("Mul", chunks, factor)
    rest = e.dim_arithmetic("Sub", time, whole)
    main = strategy(
        e, _over_chunks(e, recurrence, Axes(chunks, e.dim_arithmetic("Mul", batch, factor)), factor)
    )
    chunk_outputs = [e.reshape(series.stacked(), [whole, batch, series.width]) for series in main.outputs]
    if rest == 0:
        outputs = [
            TimeSeries(e, recurrence.axes, width, stacked=value)
            for value, width in zip(chunk_outputs, recurrence.output_widths, strict=True)
        ]
        return Results(outputs, main.states)
    left = strategy(e, _over_rest(e, recurrence, whole, rest, main.states))
    outputs = []
    for value, series, reverse in zip(chunk_outputs, left.outputs, recurrence.output_reverse, strict=True):
        pieces = [series.stacked(), value] if reverse else [value, series.stacked()]
        outputs.append(TimeSeries(e, recurrence.axes, series.width, stacked=e.concat(pieces, axis=0)))
    return Results(outputs, left.states)


def _over_chunks(e: Emitter, recurrence: Recurrence, axes: Axes, factor: int) -> Recurrence:
    """The recurrence with `factor` steps in one, on inputs of shape ``[chunks, factor * batch, width]``."""
    time, batch = recurrence.axes.time, recurrence.axes.batch
    whole = e.dim_arithmetic("Mul", axes.time, factor)
    start = e.dim_arithmetic("Sub", time, whole)
    inputs = []
    for series in recurrence.inputs:
        stacked = series.stacked()
        if start != 0:
            bounds = (start, time) if series.reverse else (0, whole)
            stacked = e.slice(stacked, bounds[:1], bounds[1:], [0])
        stacked = e.reshape(stacked, [axes.time, axes.batch, series.width])
        inputs.append(
            TimeSeries(e, axes, series.width, stacked=stacked, reverse=series.reverse, dtype=series.dtype)
        )

    def step(
        body: Emitter, values: Sequence[ir.Value], states: Sequence[ir.Value | None]
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        inner_axes = Axes(factor, batch)
        inner = dataclasses.replace(
            recurrence,
            axes=inner_axes,
            inputs=[
                TimeSeries(
                    body, inner_axes, series.width, flat=value, reverse=series.reverse, dtype=series.dtype
                )
                for value, series in zip(values, recurrence.inputs, strict=True)
            ],
            states=[
                State(value, state.width) for value, state in zip(states, recurrence.states, strict=True)
            ],
        )
        results = run_unrolled(body, inner)
        return results.states, [series.flat() for series in results.outputs]

    return dataclasses.replace(recurrence, axes=axes, inputs=inputs, step=step)


def _over_rest(
    e: Emitter, recurrence: Recurrence, whole: Dim, rest: Dim, states: Sequence[ir.Value]
) -> Recurrence:
    axes = Axes(rest, recurrence.axes.batch)
    inputs = []
    for series in recurrence.inputs:
        bounds = (0, rest) if series.reverse else (whole, recurrence.axes.time)
        stacked = e.slice(series.stacked(), bounds[:1], bounds[1:], [0])
        inputs.append(
            TimeSeries(e, axes, series.width, stacked=stacked, reverse=series.reverse, dtype=series.dtype)
        )
    carried = [State(value, state.width) for value, state in zip(states, recurrence.states, strict=True)]
    return dataclasses.replace(recurrence, axes=axes, inputs=inputs, states=carried)
