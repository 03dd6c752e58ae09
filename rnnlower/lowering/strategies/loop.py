"""The Loop strategy: the body is one step, which gathers its inputs by the iteration number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.strategies.repeating import (
    Recurrence,
    Results,
    body_graph,
    body_value,
    collect_results,
)


def run_loop(e: Emitter, recurrence: Recurrence) -> Results:
    """Emit a Loop (any opset); an output over time that runs from the end needs opset 10."""
    time = recurrence.axes.time
    steps = e.constant(np.array(time, np.int64)) if isinstance(time, int) else e.squeeze(time, 0, [])
    stacked = [series.stacked() for series in recurrence.inputs]
    initial = recurrence.initial_values(e)
    last = None
    if any(series.reverse for series in recurrence.inputs):
        last = e.op("Sub", steps, e.constant(np.array(1, np.int64)))
    body = _loop_body(e, recurrence, stacked, last)
    results = e.ops(
        "Loop", steps, e.constant(np.array(True)), *initial, outputs=len(body.outputs) - 1, body=body
    )
    finals, outputs, axes = results[: len(initial)], results[len(initial) :], recurrence.axes
    if not isinstance(time, int) and not isinstance(axes.batch, int):
        # A Loop of no iterations does not know the size of its outputs.
        sizes = [[time, *dims] for dims in recurrence.output_dims()]
        outputs = [e.reshape(value, dims) for value, dims in zip(outputs, sizes, strict=True)]
    ordered = [
        e.flip(value, 0) if reverse else value
        for value, reverse in zip(outputs, recurrence.output_reverse, strict=True)
    ]
    return collect_results(e, recurrence, [*finals, *ordered])


def _loop_body(
    e: Emitter, recurrence: Recurrence, stacked: Sequence[ir.Value], last: ir.Value | None
) -> ir.Graph:
    """Return the body: one step of the stacked inputs.

    `last` is the index of the last step, if an input runs from the end.
    """
    body = e.body("step")
    number = body_value(body, "number", ir.DataType.INT64, [])
    condition = body_value(body, "go_on", ir.DataType.BOOL, [])
    kept = body.op("Identity", condition)
    kept.type, kept.shape = condition.type, condition.shape
    states = [body_value(body, "state", body.dtype, dims) for dims in recurrence.state_dims()]
    backwards = None if last is None else body.op("Sub", last, number)
    inputs = [
        body.op("Gather", value, backwards if series.reverse else number)
        for value, series in zip(stacked, recurrence.inputs, strict=True)
    ]
    new_states, outputs = recurrence.step(body, inputs, states, None)
    dims = [*recurrence.state_dims(), *recurrence.output_dims()]
    graph = body_graph(body, [number, condition, *states], [*new_states, *outputs], dims)
    graph.outputs.insert(0, kept)
    return graph
