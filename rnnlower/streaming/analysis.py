"""The analysis of whether a model can be streamed, and of the edits needed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.timeflow.axes import follow, make_samples, static_step_count
from rnnlower.timeflow.edits import CacheInput, Edit
from rnnlower.timeflow.flow import Flow, locate
from rnnlower.timeflow.recurrence import require_states_returned
from rnnlower.timeflow.tracks import ChunkError, CoupledError, Track, batch_remedy, length_remedy
from rnnlower.wording import counted, option

_PROBE_CHUNKS = (11, 7)


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The plan for streaming a model.

    Attributes:
        chunk: Time steps of a chunk; ``None``: any number.
        axes: The axis of time of each input that has one.
        steps: Time steps of the model, if their number is fixed.
        outputs: The frames of each output that has any; the others hold the value at the end of the chunk.
        delay: Time steps by which the outputs are late.
        edits: The edits of the graph.
        unreached: The number of frames at the end of an output that the stream never reaches.
        limit: The time steps for which there are positions, if their number is limited.
        single: Whether the model can be streamed only where all other dynamic sizes, the batch, are 1.
    """

    chunk: int | None
    axes: Mapping[str, int]
    steps: int | None
    outputs: Mapping[str, Track]
    delay: int
    edits: list[Edit]
    unreached: Mapping[str, int]
    limit: int | None
    single: bool = False


def analyze(model: ir.Model, axes: Mapping[str, int], chunk: int | None, *, allow_delay: bool) -> Analysis:
    """Follow the time axis from the inputs to the outputs; the model has no calls of functions.

    A chunk of any number of steps is one that needs the same edits for two numbers without a common factor.

    Raises:
        OptionError: The axes or the chunk do not fit the model.
        UnsupportedModelError: A node couples time steps.
    """
    steps = static_step_count(model, axes)
    if steps == 0:
        raise OptionError("the model has 0 time steps, so nothing to stream")
    sizes = _PROBE_CHUNKS if chunk is None and steps is None else (chunk or 1,)
    plans = [_analyze(model, axes, steps, size, allow_delay=allow_delay) for size in sizes]
    few, more = plans[0], plans[-1]
    remedy = f"say how long a chunk is ({option('chunk', 'K')})"
    first = next((edit for edit in few.edits if isinstance(edit, CacheInput) and edit.repeats), None)
    if chunk is None and first is not None:
        producer = first.value.producer()
        raise UnsupportedModelError(
            f"starts with a copy of {counted(first.repeated, 'frame')}, which the first chunk may not have",
            node=None if producer is None else locate(model, producer),
            remedy=remedy,
        )
    if chunk is None and steps is not None:
        raise OptionError(f"the model has {counted(steps, 'time step')}, not any number", remedy=remedy)
    keys = [[_edit_key(edit) for edit in plan.edits] for plan in (few, more)]
    if few is not more and (keys[0] != keys[1] or few.delay != more.delay):
        raise UnsupportedModelError("the context that a chunk needs depends on its length", remedy=remedy)
    return dataclasses.replace(few, chunk=chunk)


def _edit_key(edit: Edit) -> list[object]:
    """Return the values that are equal for equal edits."""
    values = [getattr(edit, field.name) for field in dataclasses.fields(edit) if field.compare]
    return [type(edit), *(each.tolist() if isinstance(each, np.ndarray) else each for each in values)]


def _analyze(
    model: ir.Model, axes: Mapping[str, int], steps: int | None, chunk: int, *, allow_delay: bool
) -> Analysis:
    """Follow time with a chunk of this size, or with the next one that fits the nodes.

    Report chunk-independent problems first, then all needs of the chunk at once.
    """
    needs: list[ChunkError] = []
    multiple, least, size = 1, 1, min(chunk, steps or chunk)
    analysis = None
    while analysis is None and (steps is None or size <= steps):
        try:
            analysis = _follow(model, axes, steps, size, allow_delay=allow_delay)
        except ChunkError as error:
            if any(each.at is error.at and each.steps != error.steps for each in needs):
                problem = "has a shape that an exporter wrote for one length of the sequence"
                raise _coupling_error(model, CoupledError(problem, length_remedy(), error.at)) from error
            needs.append(error)
            multiple, least = math.lcm(multiple, error.steps), max(least, error.least)
            size = -(-least // multiple) * multiple
        except CoupledError as error:
            if needs and error.remedy:
                must_be = _describe_multiple(multiple, size)
                error.problem += f"; and {_describe_needs(model, needs)}, so that the chunk {must_be}"
                error.remedy += f"; ask for such a chunk as well ({option('chunk', size)})"
            raise _coupling_error(model, error) from error
    ends = analysis is not None and steps is not None and not analysis.outputs
    if needs:
        raise _chunk_misfit_error(model, needs, multiple, size, steps, ends) from needs[0]
    assert analysis is not None
    if steps is not None and chunk > steps:
        raise OptionError(f"a chunk of {chunk} is longer than the model's {counted(steps, 'time step')}")
    if steps is not None and ends and steps % chunk:
        # The nodes may leave no chunk at all.
        _analyze(model, axes, steps, 1, allow_delay=allow_delay)
        divisor = next(size for size in range(chunk, 0, -1) if steps % size == 0)
        raise OptionError(
            f"all outputs are final states, and the model's {steps} time steps are not a multiple of {chunk}",
            remedy=f"ask for a chunk that divides them ({option('chunk', divisor)})",
        )
    return analysis


def _follow(
    model: ir.Model, axes: Mapping[str, int], steps: int | None, chunk: int, *, allow_delay: bool
) -> Analysis:
    errors = []
    for sample in make_samples(model, axes, steps, chunk):
        try:
            flow = follow(model, sample, strict=True)
            return _finish(flow, steps, allow_delay)
        except CoupledError as error:
            errors.append(error)
    raise next((error for error in errors if isinstance(error, ChunkError)), errors[0])


def _coupling_error(model: ir.Model, error: CoupledError) -> UnsupportedModelError:
    """Return the error for the user: the node, why it cannot be streamed, and the remedy."""
    node = None if error.node is None else locate(model, error.node)
    also = ", ".join(locate(model, each).label for each in error.also)
    problem = f"{error.problem}; the same is true of {also}" if also else error.problem
    return UnsupportedModelError(problem, node=node, remedy=error.remedy)


def _chunk_misfit_error(
    model: ir.Model, needs: list[ChunkError], multiple: int, size: int, steps: int | None, ends: bool
) -> UnsupportedModelError:
    """Return the error for a chunk that does not fit the nodes, with one that does, if any.

    Args:
        multiple: A chunk must be a multiple of this.
        size: The smallest chunk that fits all of them.
        steps: The time steps of the model, if their number is fixed.
        ends: Whether all outputs are final states, so that the chunk must divide the steps.
    """
    must = _describe_multiple(multiple, size)
    while ends and steps is not None and size < steps and steps % size:
        size += multiple
    what, remedy = f"the chunk {must}", f"ask for one ({option('chunk', size)})"
    if steps is not None and (size > steps or (ends and steps % size)):
        what = f"no chunk fits: it {must}"
        remedy = f"export it for a multiple of {multiple} steps, or for any number"
    if ends:
        what += f" that divides the model's {steps}, as all outputs are final states"
    elif steps is not None and size > steps:
        what += f", and the model has {steps}"
    first = locate(model, needs[0].at)
    nodes = _describe_needs(model, needs).removeprefix(f"{first.label} ")
    return UnsupportedModelError(f"{nodes}, so that {what}", node=first, remedy=remedy)


def _describe_needs(model: ir.Model, needs: list[ChunkError]) -> str:
    return " and ".join(f"{locate(model, each.at).label} {each.problem}" for each in needs)


def _describe_multiple(multiple: int, size: int) -> str:
    if multiple == 1:
        return f"must have at least {counted(size, 'step')}"
    return f"must be a multiple of {multiple} steps" + f", at least {size}" * (size != multiple)


def _finish(flow: Flow, steps: int | None, allow_delay: bool) -> Analysis:
    outputs, chunk = flow.model.graph.outputs, flow.sample.chunk
    if flow.sample.steps == 1:
        _require_followed(flow)
    require_states_returned(flow)
    for value in outputs:
        if value not in flow.tracks and flow.is_over_time(value):
            raise CoupledError(f"output {value.name!r} depends on the number of time steps")
    tracks = {str(value.name): flow.tracks[value] for value in outputs if value in flow.tracks}
    _refuse_delay(flow, tracks, allow_delay)
    unreached = {name: frames for name, track in tracks.items() if (frames := _count_unreached(track)) > 0}
    # Frames before the stream are its first ones where they are an output.
    delay = max([0, *(-(-track.lag * chunk // track.chunk) for track in tracks.values())])
    # Callers skip whole frames of each output.
    whole = math.lcm(*(chunk // math.gcd(chunk, track.chunk) for track in tracks.values()))
    delay = -(-delay // whole) * whole
    names = [value.name for value in outputs]
    for name, track in tracks.items():
        late = delay * track.chunk // chunk
        if late != track.lag and outputs[names.index(name)].is_graph_input():
            raise CoupledError(
                f"output {name!r} is an input, too, and would be {counted(late, 'frame')} late",
                "give the output a name of its own (Identity)",
            )
        tracks[name] = flow.delay_to(None, names.index(name), late)
        if track.outer != 1:
            raise CoupledError(
                f"output {name!r} has time folded into an axis after another one", batch_remedy()
            )
    return Analysis(
        chunk,
        flow.sample.axes,
        steps,
        tracks,
        delay,
        flow.edits,
        unreached,
        flow.limits,
        flow.sample.sizes[""] == 1,
    )


def _count_unreached(track: Track) -> int:
    """Return the number of frames at the end of the whole sequence that the stream never gives."""
    return track.unfolded.tail + max(track.unfolded.lag, 0)


def _require_followed(flow: Flow) -> None:
    """Refuse a recurrence that was not met: a single step hides its axis, and its state would be lost."""
    for node in flow.model.graph:
        if is_recurrent(node) and node not in flow.recurrent and flow.is_streamed(node.inputs[0]):
            raise CoupledError("takes one step per call, and the time axis was lost before it", node=node)


def _refuse_delay(flow: Flow, tracks: Mapping[str, Track], allow_delay: bool) -> None:
    if allow_delay:
        return
    for name, track in tracks.items():
        if track.lag > 0:
            raise CoupledError(
                f"output {name!r} would be {counted(track.lag, 'frame')} late after {flow.shifts()}",
                f"{option('allow-delay', True)} takes that",
            )
        if _count_unreached(track) > 0 and flow.sample.steps > flow.sample.chunk:
            raise CoupledError(
                f"output {name!r} has {counted(track.tail, 'frame')} more than the input, from pads of the "
                "sequence or overlaps, which a stream never reaches",
                f"cut them off; {option('allow-delay', True)} leaves them out",
            )
