"""The Loop strategy: the body is one step, which gathers its inputs by the iteration number."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.strategies.base import Recurrence, Results
from rnnlower.lowering.strategies.body import body_graph, body_value
from rnnlower.lowering.timeseries import TimeSeries

__all__ = ["run_loop"]


def run_loop(e: Emitter, recurrence: Recurrence) -> Results:
    """Emit a Loop (any opset); an output over time that runs from the end needs opset 10."""
    time = recurrence.axes.time
    steps = e.constant(np.array(time, np.int64)) if isinstance(time, int) else e.squeeze(time, 0, [])
    stacked = [series.stacked() for series in recurrence.inputs]
    initial = recurrence.initial_values(e)
    last = None
    if any(series.reverse for series in recurrence.inputs):
        last = e.op("Sub", steps, e.constant(np.array(1, np.int64)))

    body = e.body("step")
    number = ir.Value(
        name=body.names.fresh("number"), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64)
    )
    condition = ir.Value(
        name=body.names.fresh("go_on"), shape=ir.Shape([]), type=ir.TensorType(ir.DataType.BOOL)
    )
    # In front: behind the step, OpenCV puts it where the number's low byte is, which is 0 after 256 steps.
    kept = body.op("Identity", condition)
    kept.type, kept.shape = condition.type, condition.shape
    states = [body_value(body, "state", body.dtype, dims) for dims in recurrence.state_dims()]
    backwards = None if last is None else body.op("Sub", last, number)
    inputs = [
        body.op("Gather", value, backwards if series.reverse else number)
        for value, series in zip(stacked, recurrence.inputs, strict=True)
    ]
    if e.dialect is not None and e.dialect.keeps_gathered_axis:
        inputs = [
            body.reshape(value, recurrence.axes.value(series.width))
            for value, series in zip(inputs, recurrence.inputs, strict=True)
        ]
    new_states, outputs = recurrence.step(body, inputs, states, None)
    dims = [*recurrence.state_dims(), *recurrence.output_dims()]
    graph = body_graph(body, [number, condition, *states], [*new_states, *outputs], dims)
    graph.outputs.insert(0, kept)
    results = e.ops(
        "Loop",
        steps,
        e.constant(np.array(True)),
        *initial,
        outputs=len(states) + len(outputs),
        body=graph,
    )
    outputs = list(results[len(states) :])
    if not isinstance(time, int) and not isinstance(recurrence.axes.batch, int):
        # A Loop of no iterations does not know the size of its outputs.
        outputs = [
            e.reshape(value, [time, *dims])
            for value, dims in zip(outputs, recurrence.output_dims(), strict=True)
        ]
    series = [
        TimeSeries(e, recurrence.axes, width, stacked=e.flip(value, 0) if reverse else value)
        for value, width, reverse in zip(
            outputs, recurrence.output_widths, recurrence.output_reverse, strict=True
        )
    ]
    return Results(series, list(results[: len(states)]))
