"""Chunks of K time steps per iteration of a Scan or Loop, and a second run for the remaining steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.lowering.strategies.repeating import (
    InitialState,
    Recurrence,
    Results,
    Run,
    Stepped,
    collect_results,
)
from rnnlower.lowering.timeseries import Axes, States


def run_in_chunks(e: Emitter, recurrence: Recurrence, strategy: Run, factor: int) -> Results:
    """Run the strategy over chunks of `factor` steps, then over the remaining steps.

    A reverse direction takes its chunks from the end, too: its remaining steps are at the start.
    """
    time = recurrence.axes.time
    chunks = e.dim_arithmetic("Div", time, factor)
    if chunks == 0:
        return strategy(e, recurrence)
    whole = e.dim_arithmetic("Mul", chunks, factor)
    rest = e.dim_arithmetic("Sub", time, whole)
    main = strategy(
        e, _chunked_recurrence(e, recurrence, dataclasses.replace(recurrence.axes, time=chunks), factor)
    )
    chunk_outputs = []
    for index, width in enumerate(recurrence.output_widths):
        own = [series.stacked() for series in main.outputs[index * factor : (index + 1) * factor]]
        chunk_outputs.append(e.reshape(e.concat(own, axis=1), [whole, *recurrence.axes.value(width)]))
    if rest == 0:
        return collect_results(e, recurrence, [*main.states, *chunk_outputs])
    left = strategy(e, _rest_recurrence(e, recurrence, whole, rest, main.states))
    outputs = []
    for value, series, reverse in zip(chunk_outputs, left.outputs, recurrence.output_reverse, strict=True):
        pieces = [series.stacked(), value] if reverse else [value, series.stacked()]
        outputs.append(e.concat(pieces, axis=0))
    return collect_results(e, recurrence, [*left.states, *outputs])


def _chunked_recurrence(e: Emitter, recurrence: Recurrence, axes: Axes, factor: int) -> Recurrence:
    """Return the recurrence with `factor` steps in one, each with its own inputs and outputs.

    The inputs of all chunks are cut at once, so the body contains only the steps.
    """
    time = recurrence.axes.time
    whole = e.dim_arithmetic("Mul", axes.time, factor)
    start = e.dim_arithmetic("Sub", time, whole)
    inputs = []
    for series in recurrence.inputs:
        stacked = series.stacked()
        if start != 0:
            bounds = (start, time) if series.reverse else (0, whole)
            stacked = e.slice(stacked, bounds[:1], bounds[1:], [0])
        height, *rest = axes.value(series.width)
        stacked = e.reshape(stacked, [axes.time, e.dim_arithmetic("Mul", height, factor), *rest])
        inputs += [series.over(axes, part) for part in e.split_evenly(stacked, factor, axis=1, size=height)]

    def step(body: Emitter, values: Sequence[ir.Value], states: States, _: int | None) -> Stepped:
        columns = []
        for number, series in enumerate(recurrence.inputs):
            column = values[number * factor : (number + 1) * factor]
            columns.append(column[::-1] if series.reverse else column)
        collected = []
        for own in zip(*columns, strict=True):
            states, outputs = recurrence.step(body, own, states, None)
            collected.append(outputs)
        ordered: list[ir.Value] = []
        for column, reverse in zip(zip(*collected, strict=True), recurrence.output_reverse, strict=True):
            ordered += column[::-1] if reverse else column
        return [state for state in states if state is not None], ordered

    return dataclasses.replace(
        recurrence,
        axes=axes,
        inputs=inputs,
        step=step,
        output_widths=[width for width in recurrence.output_widths for _ in range(factor)],
        output_reverse=[reverse for reverse in recurrence.output_reverse for _ in range(factor)],
    )


def _rest_recurrence(
    e: Emitter, recurrence: Recurrence, whole: RuntimeDim, rest: RuntimeDim, states: Sequence[ir.Value]
) -> Recurrence:
    axes = dataclasses.replace(recurrence.axes, time=rest)
    inputs = []
    for series in recurrence.inputs:
        bounds = (0, rest) if series.reverse else (whole, recurrence.axes.time)
        stacked = e.slice(series.stacked(), bounds[:1], bounds[1:], [0])
        inputs.append(series.over(axes, stacked))
    carried = [
        InitialState(value, state.width) for value, state in zip(states, recurrence.states, strict=True)
    ]
    return dataclasses.replace(recurrence, axes=axes, inputs=inputs, states=carried)
