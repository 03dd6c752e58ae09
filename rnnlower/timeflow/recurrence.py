"""LSTM, GRU and RNN over time, and cumulative sums: nodes that carry a state from chunk to chunk."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.dependence import decided_by
from rnnlower.graph.evaluation import Array
from rnnlower.graph.walk import sources
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import QUANTIZED_LSTM
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.timeflow.edits import Carried, Replaced, Start, Summed
from rnnlower.timeflow.flow import LATEST, Flow, Outcome, Rule, located, operand
from rnnlower.timeflow.tracks import CoupledError, Track
from rnnlower.wording import option

_STATES = {"initial_h": ("Y_h", 5), "initial_c": ("Y_c", 6)}
_MOVES = {
    "Cast",
    "Concat",
    "Expand",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}


def _recurrent(flow: Flow, node: ir.Node) -> Outcome | list[Outcome]:
    for index, name in ((1, "W"), (2, "R"), (3, "B"), (7, "P")):
        value = operand(node, index)
        if flow.streams(value) or flow.is_sized(value):
            raise CoupledError(f"has weights ({name}) that follow from the stream")
    resolved = parse_recurrent(located(flow.model, node))
    time, batch = resolved.layout, 1 - resolved.layout
    track = flow.track(node)
    if track is None:
        raise CoupledError("has states over time, but its X is not")
    if track.axis == 2:
        raise CoupledError("uses the steps as the features of X")
    if track.axis == batch:
        return _over_another_axis(flow, node, resolved, track)
    if track.axis != time or track.is_folded:
        raise CoupledError("runs over an axis in which time is folded")
    flow.recurrent.append(node)
    if any(resolved.reversed_directions):
        flow.record(
            node, f"is {resolved.direction}: it begins with the last step, which a stream never reaches"
        )
        return _outcomes(flow, node, resolved, track)
    _lengths(flow, node, track)
    track, calls = flow.wait(node, 0)
    _carry(flow, node, resolved, track, calls)
    return _outcomes(flow, node, resolved, track)


def _over_another_axis(flow: Flow, node: ir.Node, resolved: ResolvedNode, track: Track) -> list[Outcome]:
    """Handle a recurrence over another axis, such as frequency: the steps are rows of its batch."""
    track = flow.settle(node)
    lens = operand(node, 4)
    if lens is not None:
        content = flow.content(lens)
        if content is None or (content != flow.shape(node)[resolved.layout]).any():
            raise CoupledError("has sequence_lens for each step of the stream")
        flow.edits.append(Replaced(node, 4, None))
    axis = 0 if resolved.layout else 1
    for name, (_, index) in _STATES.items():
        value = resolved.inputs.get(name)
        content = flow.content(value)
        if content is not None and not content.any():
            flow.edits.append(Replaced(node, index, None))
        elif value is not None and flow.tracks.get(value) != track.at(axis):
            raise CoupledError(f"has an {name} that is not the same at every step of the stream")
    y = 0 if resolved.layout else 2
    outcomes: list[Outcome] = [track.at(y), track.at(axis), track.at(axis)]
    return outcomes[: len(node.outputs)]


def _lengths(flow: Flow, node: ir.Node, track: Track) -> None:
    lens = operand(node, 4)
    if lens is None:
        return
    content = flow.content(lens)
    if content is None:
        remedies = ["make them the full length, or remove the input", decided_by(flow.model, lens)]
        raise CoupledError(
            f"takes sequence_lens at run time (from {lens.name!r}), and a stream never ends",
            "; ".join(filter(None, remedies)),
        )
    if (content != track.frames).any():
        raise CoupledError("has sequence_lens that are shorter than the sequence")
    flow.edits.append(Replaced(node, 4, None))


def _outcomes(flow: Flow, node: ir.Node, resolved: ResolvedNode, track: Track) -> list[Outcome]:
    y = track.at(1 if resolved.layout else 0).with_(fill=0.0)
    finals = [out for out in node.outputs[1:] if out.name and (out.uses() or out.is_graph_output())]
    shifted = track.lag + track.tail
    states = {value for edit in flow.edits if isinstance(edit, Carried) for _, value in edit.kept.values()}
    if shifted and any(not _only_feeds(out, states) for out in finals):
        raise CoupledError(f"has a final state that is read after {flow.shifts()}")
    outcomes: list[Outcome] = [y, LATEST, LATEST]
    return outcomes[: len(node.outputs)]


def _only_feeds(value: ir.Value, outputs: set[ir.Value | None]) -> bool:
    return value in outputs and not value.uses()


def _carry(flow: Flow, node: ir.Node, resolved: ResolvedNode, track: Track, calls: int) -> None:
    starts: dict[str, Start] = {}
    kept: dict[str, tuple[ir.Value, ir.Value | None]] = {}
    for name in resolved.state_names:
        value = resolved.inputs.get(name)
        if flow.streams(value):
            raise CoupledError(f"has an {name} that is computed from the stream")
        if value is None:
            starts[name] = 0.0
        elif (content := flow.content(value)) is not None:
            starts[name] = _start(flow, name, content)
        else:
            kept[name] = _kept(flow, node, name, value)
    X = resolved.inputs["X"]
    shape = _state_shape(flow, node, resolved)
    flow.edits.append(Carried(resolved, flow.name(node), starts, kept, shape, flow.dtype(X), calls))


def _state_shape(flow: Flow, node: ir.Node, resolved: ResolvedNode) -> tuple[int | str | None, ...]:
    batch = flow.sample.named(flow.shape(node)[1 - resolved.layout])
    if resolved.layout:
        return (batch, 1, resolved.hidden_size)
    return (1, batch, resolved.hidden_size)


def _start(flow: Flow, name: str, array: Array) -> Start:
    first = array.reshape(-1)[:1]
    if (array == first).all():
        return float(first[0])
    return flow.of_any_batch(array, f"has an {name} that differs")


def _kept(flow: Flow, node: ir.Node, name: str, value: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Return a state that the model takes already: its input, and the output that holds the final state."""
    inputs = [this for this in _moved_from(value) if this.is_graph_input()]
    if len(inputs) != 1:
        raise CoupledError(f"has an {name} that is computed: neither a constant nor an input of the model")
    index = list(_STATES).index(name) + 1
    final = node.outputs[index] if index < len(node.outputs) else None
    wanted = inputs[0].shape
    outputs = [
        out
        for out in _moved_to(final)
        if out.is_graph_output() and (wanted is None or out.shape is None or len(wanted) == len(out.shape))
    ]
    if len(outputs) == 1:
        return inputs[0], outputs[0]
    if value is not inputs[0] or len(value.uses()) > 1 or outputs:
        raise CoupledError(
            f"has an {name} that comes from input {inputs[0].name!r}, and no output of the model holds "
            "the final state in the same form",
            "add one",
        )
    return value, None


def _moved_from(value: ir.Value) -> set[ir.Value]:
    """Return the values that a value comes from through operators that only move it."""
    found: set[ir.Value] = set()
    pending = [value]
    while pending:
        this = pending.pop()
        producer = this.producer()
        if this in found:
            continue
        found.add(this)
        if producer is not None and producer.op_type in _MOVES:
            moved = producer.inputs if producer.op_type == "Concat" else producer.inputs[:1]
            pending += [each for each in moved if each is not None]
        elif producer is not None:
            found |= {each for each in sources(this) if each.is_graph_input()}
    return found


def _moved_to(value: ir.Value | None) -> list[ir.Value]:
    """Return the values that a value reaches through operators that only move it, in graph order."""
    found: dict[ir.Value, None] = {}
    pending = [] if value is None else [value]
    while pending:
        this = pending.pop()
        if this in found:
            continue
        found[this] = None
        for use in this.uses():
            if use.node.op_type in _MOVES and (use.idx == 0 or use.node.op_type == "Concat"):
                pending += use.node.outputs
    return list(found)


def _cumulative(flow: Flow, node: ir.Node) -> Outcome:
    track, given = flow.tracked(node), flow.ints(node, "axes", 1)
    assert given is not None
    axis = given[0][0] % len(flow.shape(node))
    if axis != track.axis:
        return flow.settle(node)
    if node.attributes.get_int("reverse", 0):
        raise CoupledError("sums from the end of the sequence, which a stream never reaches")
    if track.is_folded:
        raise CoupledError("sums along an axis in which time is folded")
    track, calls = flow.wait(node, 0)
    shape = [flow.sample.named(size) for size in flow.shape(node)]
    shape[axis] = 1
    flow.edits.append(Summed(node, axis, tuple(shape), flow.dtype(node.outputs[0]), calls))
    return track


def _quantized(flow: Flow, node: ir.Node) -> Outcome:
    """DynamicQuantizeLSTM rounds X to 8 bits by the smallest and the largest value of all steps."""
    raise CoupledError(
        "rounds X by a range of all steps, and a stream never ends",
        f"make it a float operator ({option('dequantize')})",
    )


RECURRENCE: dict[str, Rule] = {
    "CumSum": _cumulative,
    QUANTIZED_LSTM: _quantized,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "RNN": _recurrent,
}
