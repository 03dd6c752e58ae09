"""Loops and Scans: their bodies are walked like the main graph, and after the end their states stay."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.graph.loop_signature import LoopSignature, iteration_numbers
from rnnlower.graph.rewiring import prepend, remove_orphans
from rnnlower.graph.walk import is_read, look_through, operand, required_input, walk
from rnnlower.lowering.emitter import Emitter
from rnnlower.padding.sizes import Axes, NoRuleError, Size
from rnnlower.padding.validity_walk import PadFlow, Rule


def _scan(flow: PadFlow, node: ir.Node) -> list[Axes]:
    scan = LoopSignature(node)
    sizes = {
        _take_step(flow, node, place, axis, scan.body.inputs[place])
        for place, axis in enumerate(scan.input_axes, scan.count)
    }
    if len(sizes) > 1:
        raise NoRuleError("takes steps of sequences of different lengths")
    (size,) = sizes
    backward = {*scan.input_backward, *scan.output_backward}
    if size is not None and len(backward) > 1:
        raise NoRuleError("takes or stacks some sequences from the end, and others from the beginning")
    _note_states(flow, scan)
    flow.walk_body(node, scan.body)
    if size is not None:
        _hold_states(flow, node, any(backward), lambda _: _step_of_scanned_mask(flow, node, size))
    return _axes_of_results(flow, node, size)


def _step_of_scanned_mask(flow: PadFlow, node: ir.Node, size: Size) -> ir.Value:
    """Scan the mask as well, and return its step."""
    scan = LoopSignature(node)
    node.resize_inputs(len(node.inputs) + 1)
    node.replace_input_with(len(node.inputs) - 1, _mask(flow, size))
    node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(scan.input_axes) + 1)
    for name, ints in (
        ("scan_input_axes", [*scan.input_axes, 0]),
        ("scan_input_directions", [*scan.input_backward, scan.input_backward[0]]),
    ):
        if name in node.attributes:
            node.attributes[name] = ir.AttrInt64s(name, ints)
    step = ir.Value(name=flow.emitters.names.fresh("is_valid"), type=ir.TensorType(ir.DataType.BOOL))
    scan.body.inputs.append(step)
    return step


def _loop(flow: PadFlow, node: ir.Node) -> list[Axes]:
    loop, size, readers = LoopSignature(node), None, list[ir.Node]()
    number, found = loop.body.inputs[0], flow.iterations(node)
    _note_states(flow, loop)
    if found is not None:
        count, size = found
        if size is not None and loop.stacked:
            # Without iterations onnxruntime stacks nothing, of any shape.
            flow.require(size, 1)
        readers = _readers(flow, loop.body)
        for reader in readers:
            taken = _take_step(flow, reader, 0, reader.attributes.get_int("axis", 0), reader.outputs[0])
            assert taken is not None
            if size is None:
                flow.require(taken, count)
            elif taken.symbol != size.symbol or any(
                map(operator.lt, *(each.table[flow.least[size.symbol] :] for each in (taken, size)))
            ):
                raise NoRuleError("takes steps of a sequence of another length")
    elif flow.is_sized(node.inputs[0]):
        raise NoRuleError("has a number of iterations that does not follow from the length alone")
    if size is not None:
        _run_to_the_maximum(flow, node, size)
    flow.walk_body(node, loop.body, readers)
    if size is not None:
        mask = _mask(flow, size)
        _hold_states(
            flow,
            node,
            False,
            lambda e: e.op("Gather", mask, e.squeeze(number, 0, []) if number.shape else number, axis=0),
        )
    return _axes_of_results(flow, node, size)


def _run_to_the_maximum(flow: PadFlow, node: ir.Node, size: Size) -> None:
    """Replace a condition that ends the Loop with the sequence by the number of its iterations."""
    body = node.attributes["body"].as_graph()
    condition = body.outputs[0]
    if _runs_all(flow, node, LoopSignature(node)):
        return
    emitter = flow.emitters.at(node.name or node.op_type, ir.DataType.FLOAT)
    node.replace_input_with(0, emitter.constant(np.array(size.full, np.int64)))
    node.replace_input_with(1, None)
    body.outputs[0] = emitter.op("Identity", body.inputs[1])
    body.outputs[0].dtype = ir.DataType.BOOL
    body.extend(emitter.nodes)
    remove_orphans([condition])


def _runs_all(flow: PadFlow, node: ir.Node, loop: LoopSignature) -> bool:
    """Return whether no condition ends the Loop before its number of iterations."""
    for goes_on in (operand(node, 1), look_through(loop.body.outputs[0], ("Cast", "Identity"))):
        known = flow.contents(goes_on)
        if goes_on not in (None, loop.body.inputs[1]) and (
            known is None or not all(each.all() for each in (*known, *flow.short_contents(goes_on)))
        ):
            return False
    return True


def _readers(flow: PadFlow, body: ir.Graph) -> list[ir.Node]:
    """Return the Gathers that take a step of a sequence by the number of the iteration."""
    readers = list[ir.Node]()
    for node, place in (use for value in iteration_numbers(body) for use in value.uses()):
        is_gather = node.graph is body and node.op_type == "Gather" and place == 1
        if is_gather and flow.axes_of(node.inputs[0]):
            axis = node.attributes.get_int("axis", 0) % len(flow.shape(node.inputs[0]))
            readers += [node] if axis in flow.axes_of(node.inputs[0]) else []
    return readers


def _take_step(flow: PadFlow, node: ir.Node, place: int, axis: int, step: ir.Value) -> Size | None:
    """Note the axes of a step that each iteration takes of an input, and return the size of the one taken."""
    value = required_input(node, place)
    axis %= len(flow.shape(value))
    axes = dict(flow.axes_of(value))
    size = axes.pop(axis, None)
    if size is not None:
        size.refuse_rows()
    more = len(flow.shape(step)) - len(flow.shape(value))
    flow.axes[step] = {other + (more if other > axis else 0): each for other, each in axes.items()}
    return size


def _note_states(flow: PadFlow, loop: LoopSignature) -> None:
    """Note the axes of the states; one of rows is that of an initial state with as many elements, too."""
    for state in loop.states:
        sizes = () if flow.rows is None or state.is_invariant else flow.shape(state.start)
        rows = [axis for axis, size in enumerate(sizes) if flow.rows is not None and size == flow.rows.full]
        own = {rows[0]: flow.rows} if len(rows) == 1 and flow.rows else {}
        flow.axes[state.before] = own | flow.axes_of(state.start)


def _mask(flow: PadFlow, size: Size) -> ir.Value:
    """Return which steps are valid, ``[steps]`` or ``[steps, rows]``."""
    axes = {0: size} if flow.rows is None else {0: size, 1: flow.rows}
    return flow.masks.mask(size, 0, axes, len(axes))


def _hold_states(
    flow: PadFlow, node: ir.Node, backward: bool, step_of_mask: Callable[[Emitter], ir.Value]
) -> None:
    """Let states keep their values in iterations that are not valid, and nothing stop or run on there.

    Only states that are read at the end, or by iterations after them.
    """
    loop = LoopSignature(node)
    held = [
        (place, state.before, state.after)
        for place, state in enumerate(loop.states, loop.first_output)
        if not state.is_invariant and (backward or is_read(state.end))
    ]
    stopping = _find_stopping(flow, node)
    if not held and not stopping:
        return
    emitter = flow.emitters.at(node.name or node.op_type, ir.DataType.FLOAT)
    valid = step_of_mask(emitter)
    prepend(loop.body, emitter.nodes)
    emitter.nodes.clear()

    def valid_rows(value: ir.Value) -> ir.Value:
        if flow.rows is None:
            return valid
        return flow.masks.per_row(emitter, valid, flow.axes_of(value), len(flow.shape(value)))

    for inner, place, value, harmless in stopping:
        if value is None:
            # A Loop without a number of iterations, which a condition ends.
            value = emitter.constant(np.array(np.iinfo(np.int64).max))
        fill = emitter.with_dtype(flow.dtype(value)).scalar(harmless)
        made = emitter.op("Where", valid_rows(value), value, fill, since=9)
        flow.record_origin(made, value)
        emitter.insert_before(inner)
        inner.replace_input_with(place, made)
    for place, before, after in held:
        if isinstance(before.type, ir.SequenceType):
            raise NoRuleError(f"has a state {before.name!r} that is a list")
        flow.shape(before)  # That of a state that grows is not known, and refused.
        is_valid = valid_rows(before)
        if flow.dtype(before) == ir.DataType.BOOL:
            # onnxruntime has no Where of booleans.
            new = emitter.op("And", is_valid, after)
            made = emitter.op("Or", new, emitter.op("And", emitter.op("Not", is_valid), before))
        else:
            made = emitter.op("Where", is_valid, after, before, since=9)
        made.type, made.shape = after.type, after.shape
        flow.record_origin(made, after)
        loop.body.outputs[place] = made
    loop.body.extend(emitter.nodes)


def _find_stopping(flow: PadFlow, node: ir.Node) -> list[tuple[ir.Node, int, ir.Value | None, int]]:
    """Return what may stop a run after the end: the node, the input, its value, and what does no harm.

    With lengths of rows, values without rows are as in a sequence of the maximum.
    """
    body = LoopSignature(node).body
    inside = (body, *body.subgraphs())
    nodes = [inner for inner, _ in walk(body) if inner.op_type in _HARMLESS and not inner.domain]
    # The numbers of iterations are positions of the padded sequence.
    numbers = [LoopSignature(each).body.inputs[0] for each in (node, *nodes) if each.op_type == "Loop"]
    found = []
    for inner in nodes:
        place, harmless = _HARMLESS[inner.op_type]
        value, is_loop = operand(inner, place), inner.op_type == "Loop"
        ends = not is_loop or _runs_all(flow, inner, LoopSignature(inner))
        if value is None:
            is_safe = ends or flow.rows is not None
        else:
            is_safe = (
                (ends and (flow.is_fixed(value) or value.graph not in inside))
                or (inner.op_type in ("Div", "Mod") and not flow.dtype(value).is_integer())
                or look_through(value) in numbers
                or (flow.rows is not None and not flow.row_axes_of(value))
            )
        if not is_safe:
            found.append((inner, place, value, harmless))
    return found


def _axes_of_results(flow: PadFlow, node: ir.Node, size: Size | None) -> list[Axes]:
    """Return the axes of the states, which are the same in all iterations, and of the stacked outputs."""
    loop = LoopSignature(node)
    for state in loop.states:
        if flow.axes_of(state.before) != flow.axes_of(state.after):
            raise NoRuleError(f"has a state {state.before.name!r} whose axis of rows is not known")
    if any(map(flow.is_sized, loop.body.outputs)):
        raise NoRuleError("has a body that returns a size which follows from the length")
    found = [flow.axes_of(state.after) for state in loop.states]
    for axis, step in zip(loop.output_axes, loop.stacked, strict=True):
        axis %= len(flow.shape(step)) + 1
        axes = {other + (other >= axis): each for other, each in flow.axes_of(step).items()}
        found.append(axes if size is None else axes | {axis: size})
    return found


_HARMLESS = {
    **dict.fromkeys(("GRU", "LSTM", "RNN"), (4, 1)),
    "ConstantOfShape": (0, 1),
    **dict.fromkeys(("Div", "Mod"), (1, 1)),
    **dict.fromkeys(
        ("Gather", "GatherElements", "GatherND", "Range", "ScatterElements", "ScatterND"), (1, 0)
    ),
    "Loop": (0, 0),
}
"""An input with which an operator may stop a run, or never end, and a number that it takes in any case."""

LOOPS: Mapping[str, Rule] = {"Loop": _loop, "Scan": _scan}
"""The rules of Loop and Scan."""
