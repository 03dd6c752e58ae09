"""If, Loop and Scan.

Scan-8, which has a batch axis, becomes a Scan-9 over the rows of the batch. Each row is again a Scan. With
sequence_lens it is a Loop of as many iterations as the row has steps, and its results are padded to the
longest row with zeros, where Scan-8 leaves the values undefined.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from rnnlower.opset.adapters import Row
from rnnlower.opset.families.shaping import NO_NEGATIVE_AXES
from rnnlower.opset.step import VersionStep


def same_shapes(step: VersionStep) -> None:
    """Before 11 the branches of an If return results of the same shape."""
    branches = [step.attr("then_branch"), step.attr("else_branch")]
    for then, other in zip(branches[0].outputs, branches[1].outputs, strict=True):
        first, second = step.shape(then), step.shape(other)
        if first is None or second is None:
            continue
        pairs = zip(first, second, strict=False)
        differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
        if differ or len(first) != len(second):
            step.refuse(
                f"its branches give different shapes ({then.name!r}: {first}, {other.name!r}: {second})"
            )
        # Runtimes compare the declared shapes, which exporters get wrong.
        then.shape, other.shape = first, second


def carries_something(step: VersionStep) -> None:
    """Loop-1 has at least one loop-carried value."""
    if step.input(2) is None:
        step.refuse("Loop-1 needs at least one loop-carried value")


def scan_9_down(step: VersionStep) -> None:
    """Scan-8 has a batch axis: the batch is one row."""
    scans = step.attr("num_scan_inputs")
    for name in ("scan_input_axes", "scan_output_axes", "scan_output_directions"):
        if any(step.attr(name) or ()):
            step.refuse(f"{name}={list(step.attr(name))}: Scan-8 scans the axis after the batch, forwards")
    directions = step.attr("scan_input_directions")
    step.drop("scan_input_axes", "scan_output_axes", "scan_output_directions", "scan_input_directions")
    if directions and any(directions):
        step.set("directions", list(directions))
    inputs = [step.with_axes("Unsqueeze", value, [0]) for value in step.node.inputs if value is not None]
    step.set_inputs(None, *inputs)
    step.set("num_scan_inputs", scans)
    for position in range(len(step.node.outputs)):
        step.wrap_output(position, lambda value: step.with_axes("Squeeze", value, [0]))


def scan_axes_down(step: VersionStep) -> None:
    """Negative axes are counted from the front, if the ranks are known."""
    scans = step.attr("num_scan_inputs")
    inputs = [value for value in step.node.inputs if value is not None]
    states = len(inputs) - scans
    for name, values in (
        ("scan_input_axes", inputs[states:]),
        ("scan_output_axes", list(step.node.outputs)[states:]),
    ):
        axes = step.attr(name)
        if axes and any(axis < 0 for axis in axes):
            pairs = zip(axes, values, strict=True)
            step.set(name, [axis if axis >= 0 else axis + step.known_rank(value) for axis, value in pairs])


def scan_9_up(step: VersionStep) -> None:
    """Scan-8 has a batch axis: an outer Scan iterates over its rows."""
    body, directions = step.attr("body"), step.attr("directions")
    scans = step.attr("num_scan_inputs")
    lengths, *values = step.node.inputs
    given = [value for value in (lengths, *values) if value is not None]
    rows = [_row_of(step, value) for value in given]
    # Of opset 9, like the node.
    tape = Tape()
    if lengths is None:
        turns = {"scan_input_directions": list(directions)} if directions else {}
        attributes = {"body": body, "num_scan_inputs": scans, **turns}
        outputs = [*tape.op_multi_out("Scan", rows, attributes, num_outputs=len(body.outputs))]
    else:
        outputs = _loop(step, tape, body, rows[0], rows[1:], directions or [0] * scans)
    for outer, value in zip(step.node.outputs, outputs, strict=True):
        dtype, shape = step.dtype(outer), step.shape(outer)
        value.type = None if dtype is None else ir.TensorType(dtype)
        value.shape = None if shape is None else ir.Shape(shape[1:])
    graph = ir.Graph(rows, outputs, nodes=_named(step, tape), name=_fresh(step, "batch"))
    step.node.attributes.clear()
    step.set_inputs(*given)
    step.set("body", ir.AttrGraph("body", graph))
    step.set("num_scan_inputs", len(given))


def _row_of(step: VersionStep, value: ir.Value) -> ir.Value:
    dtype, shape = step.dtype(value), step.shape(value)
    row = ir.Value(name=step.conversion.names.fresh(f"{value.name}_row"))
    row.type = None if dtype is None else ir.TensorType(dtype)
    row.shape = None if shape is None else ir.Shape(shape[1:])
    step.conversion.types.alias(row, row)
    return row


def _loop(
    step: VersionStep,
    tape: Tape,
    body: ir.Graph,
    length: ir.Value,
    rows: list[ir.Value],
    directions: list[int],
) -> list[ir.Value]:
    """Add the Loop of a row with lengths, whose results are padded."""
    states = len(rows) - len(directions)
    elements = list(body.outputs)
    results = tape.op_multi_out(
        "Loop",
        [length, None, *rows[:states]],
        {"body": _loop_body(step, body, length, rows[states:], directions)},
        num_outputs=len(elements),
    )
    shape = tape.op("Shape", [rows[states]])
    longest = tape.op("Slice", [shape], {"axes": [0], "starts": [0], "ends": [1]})
    filled = []
    for value, element in zip(results[states:], elements[states:], strict=True):
        missing = tape.op("Sub", [longest, tape.op("Unsqueeze", [length], {"axes": [0]})])
        filled.append(_filled(step, tape, value, missing, element))
    return [*results[:states], *filled]


def _loop_body(
    step: VersionStep, body: ir.Graph, length: ir.Value, sequences: list[ir.Value], directions: list[int]
) -> ir.Graph:
    number = ir.Value(name=_fresh(step, "step"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    goes_on = ir.Value(name=_fresh(step, "go_on"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    tape = Tape()
    one = tape.op("Constant", [], {"value": ir.tensor(1, ir.DataType.INT64)})
    backwards = tape.op("Sub", [tape.op("Sub", [length, one]), number])
    states = list(body.inputs)[: len(body.inputs) - len(sequences)]
    elements = list(body.inputs)[len(states) :]
    for element, sequence, direction in zip(elements, sequences, directions, strict=True):
        part = tape.op("Gather", [sequence, backwards if direction else number], {"axis": 0})
        ir.convenience.replace_all_uses_with(element, part, replace_graph_outputs=True)
    outputs, own, before = list(body.outputs), list(body), len(tape.nodes)
    initializers = list(body.initializers.values())
    body.inputs.clear()
    body.outputs.clear()
    body.initializers.clear()
    body.remove(own)
    # If an output of a Loop's body were one of its inputs, one value would need two names.
    results = [tape.op("Identity", [value]) for value in (goes_on, *outputs)]
    made = _named(step, tape)
    return ir.Graph(
        [number, goes_on, *states],
        results,
        nodes=[*made[:before], *own, *made[before:]],
        initializers=initializers,
        name=body.name,
        doc_string=body.doc_string,
        metadata_props=dict(body.metadata_props),
    )


def _filled(step: VersionStep, tape: Tape, value: ir.Value, missing: ir.Value, element: ir.Value) -> ir.Value:
    """Add zeros for the missing steps of a value."""
    rest = tape.op("Slice", [tape.op("Shape", [value])], {"axes": [0], "starts": [1], "ends": [2**31 - 1]})
    wanted = tape.op("Concat", [missing, rest], {"axis": 0})
    dtype = step.known_dtype(element)
    zero = ir.Tensor(np.zeros(1, dtype.numpy()), dtype=dtype)
    return tape.op("Concat", [value, tape.op("ConstantOfShape", [wanted], {"value": zero})], {"axis": 0})


def _named(step: VersionStep, tape: Tape) -> list[ir.Node]:
    """Return the nodes that were added, with names."""
    for node in tape.nodes:
        node.name = _fresh(step, node.op_type.lower())
        for value in node.outputs:
            value.name = _fresh(step, f"{node.op_type.lower()}_row")
    return list(tape.nodes)


def _fresh(step: VersionStep, what: str) -> str:
    return step.conversion.names.fresh(f"{step.node.name or 'scan'}_{what}")


ROWS = (
    Row("Scan", 9, 11, NO_NEGATIVE_AXES, down=scan_axes_down),
    Row("If", 1, 11, "the branches may give different shapes", down=same_shapes),
    Row("Loop", 1, 11, "a loop may carry no values", down=carries_something),
    Row("Scan", 8, 9, "the batch axis was removed", scan_9_up, scan_9_down),
)
