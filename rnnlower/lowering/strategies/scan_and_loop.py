"""The strategies whose step is the body of a Scan or a Loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.lowering.strategies.repeating import Recurrence, Results, collect_results, declared_shape


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


def body_value(e: Emitter, what: str, dtype: ir.DataType, dims: Sequence[RuntimeDim]) -> ir.Value:
    """Return an input of a body."""
    return ir.Value(name=e.names.fresh(what), shape=declared_shape(dims), type=ir.TensorType(dtype))


def body_graph(
    e: Emitter, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], dims: Sequence[Sequence[RuntimeDim]]
) -> ir.Graph:
    """Return the graph of the nodes that the emitter holds.

    Args:
        outputs: The outputs in the compute type. A graph must not name a value twice among its
            outputs, nor return a value from outside: such outputs get an Identity.
        dims: The sizes of the outputs.
    """
    produced = set(e.nodes)
    distinct: list[ir.Value] = []
    for value, sizes in zip(outputs, dims, strict=True):
        if value in distinct or value.producer() not in produced:
            value = e.op("Identity", value)
        value.shape, value.type = declared_shape(sizes), ir.TensorType(e.dtype)
        distinct.append(value)
    return ir.Graph(inputs, distinct, nodes=e.nodes, name=e.names.source.fresh(e.names.prefix.rstrip("/")))
