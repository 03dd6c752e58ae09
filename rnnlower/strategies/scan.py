"""One Scan whose body is one step."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.emitter import Emitter
from rnnlower.strategies.base import Recurrence, Results
from rnnlower.strategies.body import body_graph, body_value
from rnnlower.timeseries import TimeSeries

__all__ = ["run_scan"]


def run_scan(e: Emitter, recurrence: Recurrence) -> Results:
    """Emits a Scan (since opset 9; Scan-8 has a batch axis of its own and is not used)."""
    body = e.body()
    states = [body_value(body, body.dtype, recurrence.state_rows, state.width) for state in recurrence.states]
    rows = recurrence.axes.batch
    inputs = [body_value(body, series.dtype, rows, series.width) for series in recurrence.inputs]
    new_states, outputs = recurrence.step(body, inputs, states)
    graph = body_graph(
        body,
        [*states, *inputs],
        [
            *((value, recurrence.state_rows, state.width) for value, state in zip(new_states, recurrence.states, strict=True)),
            *((value, rows, width) for value, width in zip(outputs, recurrence.output_widths, strict=True)),
        ],
    )
    attributes: dict[str, int | list[int] | ir.Graph] = {"body": graph, "num_scan_inputs": len(inputs)}
    if any(series.reverse for series in recurrence.inputs):
        attributes["scan_input_directions"] = [int(series.reverse) for series in recurrence.inputs]
    if any(recurrence.output_reverse):
        attributes["scan_output_directions"] = [int(reverse) for reverse in recurrence.output_reverse]
    results = e.ops(
        "Scan",
        *recurrence.initial_values(e),
        *(series.stacked() for series in recurrence.inputs),
        outputs=len(states) + len(outputs),
        since=9,
        **attributes,
    )
    series = [
        TimeSeries(e, recurrence.axes, width, stacked=value)
        for value, width in zip(results[len(states) :], recurrence.output_widths, strict=True)
    ]
    return Results(series, list(results[: len(states)]))
