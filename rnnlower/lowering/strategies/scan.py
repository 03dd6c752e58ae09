"""The Scan strategy: the body is one step."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.strategies.repeating import (
    Recurrence,
    Results,
    body_graph,
    body_value,
    collect_results,
)


def run_scan(e: Emitter, recurrence: Recurrence) -> Results:
    """Emit a Scan (since opset 9; Scan-8 has a batch axis of its own and is not used).

    onnxruntime refuses a Scan over zero steps, so an If guards it where the length is dynamic, unless the
    dialect needs none.
    """
    time = recurrence.axes.time
    if isinstance(time, int) or e.dialect.control_flow.empty_scan:
        return collect_results(e, recurrence, _scan(e, recurrence, recurrence.initial_values(e)))
    # Values that the branches share are emitted before the If.
    initial = recurrence.initial_values(e)
    for series in recurrence.inputs:
        series.stacked()
    empty = e.body("no_steps")
    no_steps = [empty.op("Identity", value) for value in initial]
    # `time` is 0 in this branch. Before If-11, the shapes of the branches must not visibly differ.
    no_steps += [empty.zeros([time, *recurrence.axes.value(width)]) for width in recurrence.output_widths]
    body = e.body("steps")
    steps = list(_scan(body, recurrence, initial))
    dims = [*recurrence.state_dims(), *([time, *dims] for dims in recurrence.output_dims())]
    any_steps = e.squeeze(e.op("Greater", time, e.integers(0), since=9), 0, [])
    values = e.ops(
        "If",
        any_steps,
        outputs=len(steps),
        then_branch=body_graph(body, [], steps, dims),
        else_branch=body_graph(empty, [], no_steps, dims),
    )
    return collect_results(e, recurrence, values)


def _scan(e: Emitter, recurrence: Recurrence, initial: Sequence[ir.Value]) -> Sequence[ir.Value]:
    """Emit the Scan itself: the final states, then the outputs."""
    body = e.body("step")
    states = [body_value(body, "state", body.dtype, dims) for dims in recurrence.state_dims()]
    inputs = [
        body_value(body, series.name, series.dtype, recurrence.axes.value(series.width))
        for series in recurrence.inputs
    ]
    new_states, outputs = recurrence.step(body, inputs, states, None)
    dims = [*recurrence.state_dims(), *recurrence.output_dims()]
    graph = body_graph(body, [*states, *inputs], [*new_states, *outputs], dims)
    attributes: dict[str, int | list[int] | ir.Graph] = {"body": graph, "num_scan_inputs": len(inputs)}
    if any(series.reverse for series in recurrence.inputs):
        attributes["scan_input_directions"] = [int(series.reverse) for series in recurrence.inputs]
    if any(recurrence.output_reverse):
        attributes["scan_output_directions"] = [int(reverse) for reverse in recurrence.output_reverse]
    scanned = [series.stacked() for series in recurrence.inputs]
    count = len(states) + len(outputs)
    return e.ops("Scan", *initial, *scanned, outputs=count, since=9, **attributes)
