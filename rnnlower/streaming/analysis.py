"""The analysis whether a model can be streamed, and of the edits that this takes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.graph.dependence import branch_decided_by
from rnnlower.graph.walk import dim_name, subgraphs_of, walk
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.streaming.edits import Edit
from rnnlower.streaming.facts import ChunkError, CoupledError, Sample, Track, fix_batch, number
from rnnlower.streaming.flow import Flow, located
from rnnlower.wording import call, option, time_axis

_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179)
_CHUNKS = 131
_PROBE = 480
_ANY = (11, 7)


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
    """

    chunk: int | None
    axes: Mapping[str, int]
    steps: int | None
    outputs: Mapping[str, Track]
    delay: int
    edits: list[Edit]


def analyze(model: ir.Model, axes: Mapping[str, int], chunk: int | None, *, allow_delay: bool) -> Analysis:
    """Follow the time axis from the inputs to the outputs; the model has no calls of functions.

    A chunk of any number of steps is one that needs the same edits for two numbers without a common factor.

    Raises:
        OptionError: The axes or the chunk do not fit the model.
        UnsupportedModelError: A node couples time steps.
    """
    steps = _steps(model, axes)
    sizes = _ANY if chunk is None and steps is None else (chunk or 1,)
    plans = [_analyze(model, axes, steps, size, allow_delay=allow_delay) for size in sizes]
    few, more = plans[0], plans[-1]
    remedy = f"say how long a chunk is ({option('chunk', 'K')})"
    if chunk is None and steps is not None:
        raise OptionError(f"the model has {steps} time steps, not any number", remedy=remedy)
    if [_key(edit) for edit in few.edits] != [_key(edit) for edit in more.edits] or few.delay != more.delay:
        raise UnsupportedModelError("the context that a chunk needs depends on its length", remedy=remedy)
    return dataclasses.replace(few, chunk=chunk)


def _key(edit: Edit) -> list[object]:
    """Return the values that are equal for equal edits."""
    values = [getattr(edit, field.name) for field in dataclasses.fields(edit)]
    return [type(edit), *map(_comparable, values)]


def _comparable(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, ResolvedNode):
        return value.node
    if isinstance(value, dict):
        return {key: _comparable(inner) for key, inner in value.items()}
    return value


def _analyze(
    model: ir.Model, axes: Mapping[str, int], steps: int | None, chunk: int, *, allow_delay: bool
) -> Analysis:
    """Follow time with a chunk of this size, and with one that fits where it does not fit the nodes.

    What no chunk can change is told first, and of the chunk everything at once.
    """
    needs: list[ChunkError] = []
    multiple, size = 1, min(chunk, steps or chunk)
    analysis = None
    while analysis is None and (steps is None or size <= steps):
        try:
            analysis = _follow(model, axes, steps, size, allow_delay=allow_delay)
        except ChunkError as error:
            needs.append(error)
            size = multiple = math.lcm(multiple, error.steps)
        except CoupledError as error:
            if needs and error.remedy:
                error.problem += f"; and {_needs(model, needs)}, so that the chunk {_must_be(multiple)}"
                error.remedy += f"; ask for such a chunk as well ({option('chunk', multiple)})"
            raise _refusal(model, error) from error
    ends = analysis is not None and steps is not None and not analysis.outputs
    if needs:
        raise _misfit(model, needs, multiple, steps, ends) from needs[0]
    assert analysis is not None
    if steps is not None and chunk > steps:
        raise OptionError(f"a chunk of {chunk} is longer than the model's {steps} time steps")
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
    for length, sizes in _samples(model, axes, steps, chunk):
        flow = Flow(model, Sample(axes, length, chunk, sizes), allow_delay=allow_delay)
        try:
            flow.run()
            return _finish(flow, chunk, axes, steps)
        except CoupledError as error:
            errors.append(error)
    raise next((error for error in errors if isinstance(error, ChunkError)), errors[0])


def _refusal(model: ir.Model, error: CoupledError) -> UnsupportedModelError:
    """Return the error for the user: the node, why it cannot be streamed, and the remedy."""
    node = None if error.node is None else located(model, error.node)
    also = ", ".join(located(model, each).label for each in error.also)
    problem = f"{error.problem}; the same is true of {also}" if also else error.problem
    return UnsupportedModelError(problem, node=node, remedy=error.remedy)


def _misfit(
    model: ir.Model, needs: list[ChunkError], multiple: int, steps: int | None, ends: bool
) -> UnsupportedModelError:
    """Return the error of a chunk that does not fit the nodes, with one that does, if there is any."""
    what, remedy = f"the chunk {_must_be(multiple)}", f"ask for one ({option('chunk', multiple)})"
    if steps is not None and (multiple > steps or (ends and steps % multiple)):
        what = f"no chunk fits: it {_must_be(multiple)}"
        remedy = f"export it for a multiple of {multiple} steps, or for any number"
    if ends:
        what += f" that divides the model's {steps}, as all outputs are final states"
    elif steps is not None and multiple > steps:
        what += f", and the model has {steps}"
    first = located(model, needs[0].at)
    nodes = _needs(model, needs).removeprefix(f"{first.label} ")
    return UnsupportedModelError(f"{nodes}, so that {what}", node=first, remedy=remedy)


def _needs(model: ir.Model, needs: list[ChunkError]) -> str:
    return " and ".join(f"{located(model, each.at).label} {each.problem}" for each in needs)


def _must_be(multiple: int) -> str:
    return f"must be a multiple of {multiple} steps"


def _finish(flow: Flow, chunk: int, axes: Mapping[str, int], steps: int | None) -> Analysis:
    if flow.sample.steps == 1:
        _require_followed(flow)
    tracks: dict[str, Track] = {}
    places: dict[str, int] = {}
    for place, value in enumerate(flow.model.graph.outputs):
        fact = flow.fact(value)
        if fact.is_sized:
            raise CoupledError(f"output {value.name!r} depends on the number of time steps")
        if fact.track is not None:
            assert value.name is not None
            tracks[value.name], places[value.name] = fact.track, place
    _refuse_what_is_late(flow, tracks)
    delay = max((-(-track.lag * chunk // track.chunk) for track in tracks.values()), default=0)
    for name, track in tracks.items():
        late = -(-delay * track.chunk // chunk)
        tracks[name] = flow.settle_output(places[name], late)
        if track.outer != 1:
            raise CoupledError(f"output {name!r} has time folded into an axis after another one", fix_batch())
    return Analysis(chunk, axes, steps, tracks, delay, flow.edits)


def _require_followed(flow: Flow) -> None:
    """Refuse a recurrence that was not met: a single step hides its axis, and its state would be lost."""
    for node in flow.model.graph:
        if is_recurrent(node) and node not in flow.recurrent and flow.fact(node.inputs[0]).streams:
            raise CoupledError("takes one step per call, and the time axis was lost before it", node=node)


def _refuse_what_is_late(flow: Flow, tracks: Mapping[str, Track]) -> None:
    if flow.allow_delay and any(track.lag > 0 for track in tracks.values()):
        return
    for name, track in tracks.items():
        if track.lag > 0:
            raise CoupledError(
                f"output {name!r} would be {track.lag} frames late after {flow.shifts()}",
                f"{option('allow-delay', True)} takes that",
            )
        if track.tail + track.lag > 0 and flow.sample.steps > flow.sample.chunk:
            raise CoupledError(
                f"output {name!r} has {track.tail} frames more than the input, from pads at the end of "
                "the sequence, which a stream never reaches",
                "cut them off",
            )


def find_axes(model: ir.Model, given: Mapping[str, int]) -> dict[str, int]:
    """Return the time axis of each input that has one.

    Args:
        model: The model.
        given: Axes named by the user. Other inputs with a dimension of the same name have it there.

    Raises:
        OptionError: A given axis does not exist, or the time axis cannot be determined.
    """
    inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
    for name, axis in given.items():
        if name not in inputs:
            raise OptionError(f"the model has no input {name!r}; it has {', '.join(inputs)}")
        shape = inputs[name].shape
        if shape is not None and not -len(shape) <= axis < len(shape):
            raise OptionError(f"input {name!r} has {len(shape)} axes, so none with the number {axis}")
    axes = {
        name: axis % len(inputs[name].shape or [0] * (axis + 1)) for name, axis in given.items()
    } or _follow_back(model, inputs)
    return _with_namesakes(inputs, axes)


def _with_namesakes(inputs: Mapping[str, ir.Value], axes: Mapping[str, int]) -> dict[str, int]:
    """Return the axes, and those of other inputs that have a dimension of the same name."""
    names = {dim_name(_dim(inputs[name], axis)) for name, axis in axes.items()} - {None}
    found = dict(axes)
    for name, value in inputs.items():
        for axis, dim in enumerate(value.shape or ()):
            if name not in found and dim_name(dim) in names:
                found[name] = axis
    return found


def _follow_back(model: ir.Model, inputs: Mapping[str, ir.Value]) -> dict[str, int]:
    """Return the axes that lead to the time steps of a recurrent node."""
    found: dict[str, list[int]] = {}
    lost: dict[tuple[str, int], list[CoupledError]] = {}
    for name, value in inputs.items():
        for axis in range(len(value.shape or ())):
            flow = _probe(model, _with_namesakes(inputs, {name: axis}), value, axis)
            lost[name, axis] = flow.lost
            if flow.recurrent:
                found.setdefault(name, []).append(axis)
    for name, places in found.items():
        is_open = [axis for axis in places if not isinstance(_dim(inputs[name], axis), int)]
        can_stream = [axis for axis in places if not lost[name, axis]]
        for choice in (is_open, can_stream):
            if len(found[name]) > 1 and len(choice) == 1:
                found[name] = choice
    if not found:
        _refuse_branches(model)
        _refuse_single_step(model)
        _refuse_what_is_in_the_way(model, lost)
    unclear = [f"{name}:{axis}" for name, places in found.items() if len(places) > 1 for axis in places]
    if unclear or not found:
        which = "the model has no recurrent node that determines it"
        if any(map(is_recurrent, model.graph)):
            which = f"it may be {' or '.join(unclear)}" if unclear else "no recurrent node determines it"
        remedy = f"name it ({time_axis('INPUT', 'AXIS')})"
        raise OptionError(f"which axis is time is not clear: {which}", remedy=remedy)
    return {name: places[0] for name, places in found.items()}


def _refuse_what_is_in_the_way(model: ir.Model, lost: Mapping[tuple[str, int], list[CoupledError]]) -> None:
    """Refuse a model whose recurrent nodes no axis reaches, naming the node that lost the axis."""
    for (name, axis), errors in lost.items():
        for error in errors:
            if error.node is not None and any(map(is_recurrent, model.graph)):
                raise UnsupportedModelError(
                    f"no axis of an input leads to a recurrent node; axis {axis} of {name!r} ends where "
                    f"{error.node.op_type} node {error.node.name!r} {error.problem}",
                    remedy=error.remedy,
                )


def _refuse_branches(model: ir.Model) -> None:
    """Refuse a model whose recurrent nodes are all in branches and bodies, naming the enclosing node."""
    if any(map(is_recurrent, model.graph)):
        return
    for node in model.graph:
        held = [each for graph in subgraphs_of(node) for each, _ in walk(graph) if is_recurrent(each)]
        if held:
            raise UnsupportedModelError(
                f"{located(model, node).label} holds the recurrent nodes, and time is followed through "
                "the main graph alone",
                remedy=branch_decided_by(model, held[0]),
            )


def _refuse_single_step(model: ir.Model) -> None:
    """Refuse a model of one step, in which the time axis is one of many axes of size 1."""
    flow = Flow(model, Sample({}, 1, 1, next(_sizes(model, {}))), allow_delay=True, strict=False)
    flow.run()
    for node in model.graph:
        shape = flow.fact(node.inputs[0]).shape if is_recurrent(node) else None
        if shape is not None and shape[number(node, "layout", 0)] == 1:
            raise UnsupportedModelError(
                "takes one step per call already, and at that size the time axis cannot be determined",
                node=located(model, node),
                remedy=f"stream the model of whole sequences, or lower this one ({call('unroll')})",
            )


def _probe(model: ir.Model, axes: Mapping[str, int], value: ir.Value, axis: int) -> Flow:
    """Return where an axis leads, ignoring obstacles."""
    dim = _dim(value, axis)
    steps = dim if isinstance(dim, int) and dim >= 0 else _PROBE * _CHUNKS
    sizes = next(_sizes(model, axes))
    chunk = min(steps, _PROBE)
    flow = Flow(model, Sample(axes, steps, chunk, sizes), allow_delay=True, strict=False)
    flow.run()
    return flow


def _dim(value: ir.Value, axis: int) -> int | ir.SymbolicDim | None:
    return None if value.shape is None or axis >= len(value.shape) else value.shape[axis]


def _steps(model: ir.Model, axes: Mapping[str, int]) -> int | None:
    """Return the number of time steps, if the inputs fix it."""
    inputs = {value.name: value for value in model.graph.inputs}
    fixed = {
        name: dim
        for name, axis in axes.items()
        if isinstance(dim := _dim(inputs[name], axis), int) and dim >= 0
    }
    if len(set(fixed.values())) > 1:
        raise OptionError(f"inputs differ in their time steps: {fixed}; streams run at one rate")
    return next(iter(fixed.values()), None)


def _samples(
    model: ir.Model, axes: Mapping[str, int], steps: int | None, chunk: int
) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield lengths of the sequence, and sizes of the other dynamic dimensions.

    The last length has many divisors: no shape for frames of several samples fits a prime one.
    """
    for sizes in _sizes(model, axes):
        yield steps or chunk * _CHUNKS, sizes
    if steps is None:
        yield chunk * _CHUNKS * _PROBE, next(_sizes(model, axes))


def _sizes(model: ir.Model, axes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes for dynamic dimensions: all different, to distinguish them, or all the same, or 1."""
    names = {
        name: None
        for value in model.graph.inputs
        for axis, dim in enumerate(value.shape or ())
        if (name := dim_name(dim)) and axes.get(value.name or "") != axis
    }
    different = dict(zip(names, itertools.chain(_PRIMES[1:], itertools.repeat(_PRIMES[0])), strict=False))
    yield {**different, "": _PRIMES[0]}
    yield {**dict.fromkeys(names, _PRIMES[0]), "": _PRIMES[0]}
    yield {**dict.fromkeys(names, 1), "": 1}
