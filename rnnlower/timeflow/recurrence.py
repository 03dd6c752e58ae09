"""LSTM, GRU and RNN over time, and cumulative sums: nodes that carry a state from chunk to chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.dynamic_sizes import describe_deciding_inputs
from rnnlower.graph.evaluation import Array, evaluate
from rnnlower.graph.operator_kinds import REARRANGING, RESHAPING, SHAPE_READERS
from rnnlower.graph.walk import ancestors, is_read, operand, producer_of, reachable, values_read_by
from rnnlower.recurrent import state_operators
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.operators import QUANTIZED_LSTM
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.timeflow.edits import ContinueSum, Dims, HoldState, ReplaceInput, Start
from rnnlower.timeflow.flow import LATEST, Flow, Outcome, Rule, locate
from rnnlower.timeflow.tracks import CoupledError, Track
from rnnlower.wording import option

STATES = {"initial_h": (1, 5), "initial_c": (2, 6)}
"""The output and the input of each state."""
MOVES = REARRANGING | {"Cast", "Concat", "Expand", "Gather", "Slice", "Split"}


def _recurrent(flow: Flow, node: ir.Node) -> Outcome | list[Outcome]:
    for index, name in ((1, "W"), (2, "R"), (3, "B"), (7, "P")):
        value = operand(node, index)
        if flow.varies(value):
            raise CoupledError(f"has weights ({name}) that follow from the stream")
    resolved = parse_recurrent(locate(flow.model, node))
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
        # Time can still be followed: all such nodes are reported together.
        problem = f"is {resolved.direction}: it begins with the last step, which a stream never reaches"
        flow.obstacles.append(CoupledError(problem, node=node))
        return _outcomes(flow, node, resolved, track)
    _check_lengths(flow, node, track)
    track, calls = flow.delay_by_chunks(node, 0)
    _carry(flow, node, resolved, calls)
    return _outcomes(flow, node, resolved, track)


def _over_another_axis(flow: Flow, node: ir.Node, resolved: ResolvedNode, track: Track) -> list[Outcome]:
    """Handle a recurrence over another axis, such as frequency: the steps are rows of its batch."""
    track = flow.delay_to(node)
    lens = operand(node, 4)
    if lens is not None:
        content = flow.content(lens)
        if content is None or (content != flow.shape(node)[resolved.layout]).any():
            raise CoupledError("has sequence_lens for each step of the stream")
        flow.edits.append(ReplaceInput(node, 4, None))
    axis = 0 if resolved.layout else 1
    for name, (_, index) in STATES.items():
        value = resolved.inputs.get(name)
        content = flow.content(value)
        if content is not None and not content.any():
            flow.edits.append(ReplaceInput(node, index, None))
        elif value is not None and flow.tracks.get(value) != track.at(axis):
            raise CoupledError(f"has an {name} that is not the same at every step of the stream")
    y = 0 if resolved.layout else 2
    return [track.at(y), track.at(axis), track.at(axis)]


def _check_lengths(flow: Flow, node: ir.Node, track: Track) -> None:
    lens = operand(node, 4)
    if lens is None:
        return
    content = flow.content(lens)
    if content is None:
        remedies = [
            "make them the full length, or remove the input",
            describe_deciding_inputs(flow.model, lens),
        ]
        raise CoupledError(
            f"takes sequence_lens at run time (from {lens.name!r}), and a stream never ends",
            "; ".join(filter(None, remedies)),
        )
    if (content != track.frames).any() or flow.is_fixed(lens):
        raise CoupledError("has sequence_lens that are shorter than the sequence")
    makers = {
        made.op_type
        for value in reachable([lens], _element_sources)
        if (made := value.producer()) is not None
    }
    if bounds := makers & {"Clip", "Max", "Min", "Mod", "Where"}:
        raise CoupledError(f"has sequence_lens that {min(bounds)} may bound, and the stream goes on")
    flow.edits.append(ReplaceInput(node, 4, None))


def _element_sources(value: ir.Value) -> list[ir.Value | None]:
    """Return the values from which the elements of a value follow, not their number."""
    is_repeated = producer_of(value, "Expand", "Tile") is not None
    return values_read_by(value.producer())[: 1 if is_repeated else None]


def _outcomes(flow: Flow, node: ir.Node, resolved: ResolvedNode, track: Track) -> list[Outcome]:
    y = track.at(1 if resolved.layout else 0).with_(fill=0.0)
    refuse_shifted(flow, node.outputs[1:], track)
    return [y, LATEST, LATEST]


def refuse_shifted(flow: Flow, finals: Sequence[ir.Value], track: Track) -> None:
    """Refuse final states that are read before the stream is at the end of the sequence."""
    used = [out for out in finals if out.name and is_read(out)]
    states = {edit.kept[1] for edit in flow.edits if isinstance(edit, HoldState) and edit.kept}
    if track.lag + track.tail and any(out not in states or out.uses() for out in used):
        raise CoupledError(f"has a final state that is read after {flow.shifts()}")


def _carry(flow: Flow, node: ir.Node, resolved: ResolvedNode, calls: int) -> None:
    batch, size = flow.sample.named(flow.shape(node)[1 - resolved.layout]), resolved.hidden_size
    shape, dtype = (batch, 1, size) if resolved.layout else (1, batch, size), flow.dtype(resolved.inputs["X"])
    for name in resolved.state_names:
        output, index = STATES[name]
        hold_state(flow, node, (index, output, name, name[-1]), shape, dtype, calls)


def hold_state(
    flow: Flow, node: ir.Node, place: tuple[int, int, str, str], shape: Dims, dtype: ir.DataType, calls: int
) -> None:
    """Carry a state of a node from chunk to chunk.

    Args:
        place: The input and the output of the state, its name in messages, and the end of the new one's.
        calls: Number of calls before the first real frame.
    """
    index, output, name, suffix = place
    value, kept = operand(node, index), None
    start: Start = 0.0
    if flow.is_streamed(value):
        raise CoupledError(f"has an {name} that is computed from the stream")
    if flow.depends_on_length(value):
        raise CoupledError(f"has an {name} that depends on the number of steps")
    content = flow.content(value)
    if value is not None and content is not None:
        what = f"has an {name} that differs"
        flow.refuse_of_batch(value, what)
        first = content.reshape(-1)[:1]
        start = float(first[0]) if (content == first).all() else flow.collapse_batch(content, what)
    elif value is not None:
        kept = _existing_state(node, name, value, output)
    state = f"{_name_of(flow, node)}_{suffix}"
    flow.edits.append(HoldState(node, index, output, state, start, kept, shape, dtype, calls))


def _name_of(flow: Flow, node: ir.Node) -> str:
    """Return the name of a node; unnamed nodes of an operator are numbered from 0."""
    twins = [other for other in flow.model.graph if other.op_type == node.op_type]
    return node.name or f"{node.op_type}_{twins.index(node)}"


def _existing_state(
    node: ir.Node, name: str, value: ir.Value, index: int
) -> tuple[ir.Value, ir.Value | None]:
    """Return a state that the model has already: its input, and the output that holds the final state."""
    moved = move_sources(value)
    ends = [this for this in moved if (made := this.producer()) is not None and made.op_type not in MOVES]
    inputs = [each for each in {*moved}.union(*map(ancestors, ends)) if each.is_graph_input()]
    if len(inputs) != 1:
        raise CoupledError(f"has an {name} that is computed: neither a constant nor an input of the model")
    final = node.outputs[index] if index < len(node.outputs) else None
    wanted = inputs[0].shape
    outputs = [
        out
        for out in move_targets(final)
        if out.is_graph_output() and (wanted is None or out.shape is None or len(wanted) == len(out.shape))
    ]
    if value is inputs[0] and final in outputs:
        # Others are copies of it.
        outputs = [final]
    if len(outputs) == 1:
        return inputs[0], outputs[0]
    views = [value]
    while (view := producer_of(views[-1], *RESHAPING)) is not None and view.inputs[0]:
        views.append(view.inputs[0])
    is_read_once = all(len(each.uses()) == 1 and not each.is_graph_output() for each in views)
    is_of_known_shape = value is inputs[0] or wanted is not None
    if views[-1] is not inputs[0] or not is_read_once or outputs or not is_of_known_shape:
        raise CoupledError(
            f"has an {name} that comes from input {inputs[0].name!r}, and no output of the model holds "
            "the final state in the same form",
            "add one",
        )
    return inputs[0], None


def require_states_returned(flow: Flow) -> None:
    """Refuse states that are inputs already, unless an example shows that each call gets the last one's."""
    kept = [edit for edit in flow.edits if isinstance(edit, HoldState) and edit.kept and edit.kept[1]]
    rng = np.random.default_rng(0)
    final = {edit.node.outputs[edit.output]: edit for edit in kept}
    after: dict[ir.Value, Array | None] = {
        value: _example_state(rng, flow.shape(edit.node, edit.index), edit.dtype)
        for value, edit in final.items()
    }
    given = {edit.kept[0]: _moved_content(flow, edit.kept[1], after) for edit in kept if edit.kept}
    for value, edit in final.items():
        before = _moved_content(flow, operand(edit.node, edit.index), {**given})
        if before is None or not np.array_equal(before, after[value]):  # type: ignore[arg-type]
            raise CoupledError(
                f"has a state {edit.name!r} that an input and an output of the model hold in different "
                "forms, or together with another state",
                "make the output exactly what the input takes in the next call",
                edit.node,
            )
    _refuse_other_readers(flow, kept)


def _example_state(rng: np.random.Generator, shape: Sequence[int], dtype: ir.DataType) -> Array:
    """Return a state of random numbers: integers must differ, too."""
    numbers = rng.random(tuple(shape))
    return numbers < 1 / 2 if dtype == ir.DataType.BOOL else (100 * numbers).astype(dtype.numpy())


def _refuse_other_readers(flow: Flow, kept: Sequence[HoldState]) -> None:
    """Refuse inputs that hold a state and are read elsewhere: later chunks do not have the first state."""
    places = {(edit.node, edit.index) for edit in kept}
    for edit in kept:
        moved = move_targets(edit.kept[0] if edit.kept else None)
        readers = [
            locate(flow.model, node).label
            for value in moved
            for node, place in value.uses()
            if (node, place) not in places
            and node.op_type not in SHAPE_READERS
            and not {*node.outputs} <= {*moved}
        ]
        readers += [f"output {value.name!r}" for value in moved if value.is_graph_output()]
        if readers:
            raise CoupledError(
                f"has a state {edit.name!r} that {readers[0]} takes, too, as it is before the first step",
                "give the other reader an input of its own",
                edit.node,
            )


def _moved_content(flow: Flow, value: ir.Value | None, known: dict[ir.Value, Array | None]) -> Array | None:
    """Return the content of a value that only moves elements of others, whose contents are `known`."""
    if value is None or value in known:
        return None if value is None else known[value]
    node, known[value] = producer_of(value, *MOVES), flow.content(value)
    if known[value] is None and node is not None:
        given = [_moved_content(flow, each, known) for each in node.inputs]
        is_known = all(
            (each is None) == (array is None) for each, array in zip(node.inputs, given, strict=True)
        )
        results = evaluate(node, given, flow.opset, all_types=True) if is_known else None
        known |= {} if results is None else dict(zip(node.outputs, results, strict=True))
    return known[value]


def move_sources(value: ir.Value | None) -> list[ir.Value]:
    """Return the values from which a value is only moved, through any number of operators."""

    def before(this: ir.Value) -> Sequence[ir.Value | None]:
        producer = producer_of(this, *MOVES)
        if producer is None:
            return ()
        return producer.inputs if producer.op_type == "Concat" else producer.inputs[:1]

    return reachable([] if value is None else [value], before)


def move_targets(value: ir.Value | None) -> list[ir.Value]:
    """Return the values to which a value is only moved, in graph order."""

    def after(this: ir.Value) -> list[ir.Value]:
        readers = (node for node, place in this.uses() if place == 0 or node.op_type == "Concat")
        return [out for node in readers if node.op_type in MOVES for out in node.outputs]

    return reachable([] if value is None else [value], after)


def _cumsum(flow: Flow, node: ir.Node) -> Outcome:
    track, (axis,) = flow.required_track(node), flow.axes(node) or [0]
    if axis != track.axis:
        return flow.delay_to(node)
    if node.attributes.get_int("reverse", 0):
        raise CoupledError("sums from the end of the sequence, which a stream never reaches")
    track.require_unfolded("sums along")
    track, calls = flow.delay_by_chunks(node, 0)
    shape = [flow.sample.named(size) for size in flow.shape(node)]
    shape[axis] = 1
    flow.edits.append(ContinueSum(node, axis, tuple(shape), flow.dtype(node.outputs[0]), calls))
    return track


def _quantized(flow: Flow, node: ir.Node) -> Outcome | list[Outcome]:
    """DynamicQuantizeLSTM rounds X to 8 bits by the smallest and the largest value of all steps."""
    resolved, track = parse_recurrent(locate(flow.model, node)), flow.track(node)
    if any(resolved.reversed_directions) and track is not None and track.axis == resolved.layout:
        return _recurrent(flow, node)  # A float operator would be refused, too.
    raise CoupledError(
        "rounds X by a range of all steps, and a stream never ends",
        f"make it a float operator ({option('dequantize')})",
    )


def delay_all_by_chunks(flow: Flow, tracks: Mapping[tuple[ir.Node, int], Track]) -> tuple[Track, int]:
    """Delay all of these inputs equally, by whole chunks."""
    if not tracks:
        raise CoupledError("does not run over time")
    track = next(iter(tracks.values()))
    if any((other.chunk, other.tail) != (track.chunk, track.tail) for other in tracks.values()):
        raise CoupledError("combines sequences of different lengths")
    calls = -(-max(0, *(each.lag for each in tracks.values())) // track.chunk)
    for (reader, index), each in tracks.items():
        flow.delay_to(reader, index, calls * track.chunk, each)
    return track.with_(lag=calls * track.chunk, fill=0.0), calls


def _state_operator(flow: Flow, node: ir.Node) -> list[Outcome]:
    """Handle LinearAttention and CausalConvWithState: the present state is the next chunk's past state."""
    (parsed,) = state_operators.parse_state_operators([locate(flow.model, node)], flow.whole)
    time = 2 if isinstance(parsed, state_operators.ConvolutionNode) and not parsed.channels_last else 1
    tracks: dict[tuple[ir.Node, int], Track] = {}
    for name, value in parsed.inputs.items():
        track = flow.tracks.get(value)
        if name in ("past_state", "weight", "bias"):
            if name != "past_state" and flow.varies(value):
                raise CoupledError(f"has a {name} that follows from the stream")
        elif track is None or track.axis != time or track.is_folded:
            raise CoupledError(f"has {name} whose frames do not lie on its axis of time")
        else:
            tracks[node, node.inputs.index(value)] = track
    flow.recurrent.append(node)
    track, calls = delay_all_by_chunks(flow, tracks)
    refuse_shifted(flow, node.outputs[1:], track)
    shape = (flow.sample.named(flow.shape(node)[0]), *parsed.output_dims[1][1:])
    dtype = parsed.state_dtype or flow.dtype(node.inputs[0])
    hold_state(flow, node, (3, 1, "past_state", "state"), shape, dtype, calls)  # type: ignore[arg-type]
    return [track.at(time), LATEST]


RECURRENCE: dict[str, Rule] = {
    **dict.fromkeys((state_operators.CAUSAL_CONV, state_operators.LINEAR_ATTENTION), _state_operator),
    "CumSum": _cumsum,
    QUANTIZED_LSTM: _quantized,
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
}
