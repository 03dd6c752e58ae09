"""The time axis of each input, the example sizes with which time is followed, and the rules for that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from rnnlower.arguments import integer
from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.graph.dynamic_sizes import describe_branch_inputs
from rnnlower.graph.evaluation import Dim
from rnnlower.graph.operator_kinds import POINTWISE
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import subgraphs_of, walk
from rnnlower.recurrent.finding import is_recurrent, is_stateful
from rnnlower.timeflow.bounds import BOUNDS
from rnnlower.timeflow.convolutions import WINDOWS
from rnnlower.timeflow.flow import Flow, Rule, locate
from rnnlower.timeflow.loop_bodies import LOOPS
from rnnlower.timeflow.pointwise import ALONG, elementwise
from rnnlower.timeflow.recurrence import RECURRENCE
from rnnlower.timeflow.reshaping import RESHAPING
from rnnlower.timeflow.tracks import CoupledError, Sample
from rnnlower.timeflow.windowed_attention import SCORES
from rnnlower.wording import call, option, time_axis

_SAMPLES = 64
"""What example sizes are multiplied by, so that recordings of samples have several frames."""

_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179)
_CHUNKS = 131
_PROBE = 480
_HOPS = 16
"""What makes the probe a multiple of the hops of spectra, 256 and 512 samples, too."""


RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, elementwise),
    **ALONG,
    **RESHAPING,
    **BOUNDS,
    **WINDOWS,
    **RECURRENCE,
    **LOOPS,
}
"""The rule of each known operator over time; any other operator is refused."""


class SingleStepError(UnsupportedModelError):
    """The model takes one step per call already."""


def _probe_sample(axes: Mapping[str, int], steps: int | None, sizes: Mapping[str, int], probe: int) -> Sample:
    """Return a sample with a chunk shorter than the sequence, of at most `probe` steps."""
    if steps is None:
        return Sample(axes, probe * _CHUNKS, probe, sizes)
    chunk = next((size for size in range(min(steps // 2, probe), 0, -1) if steps % size == 0), steps)
    return Sample(axes, steps, chunk, sizes)


def follow(model: ir.Model, sample: Sample, *, strict: bool = False) -> Flow:
    """Follow the time axis of the sample's inputs through a main graph without function calls.

    The result has the track of each value over time, and the obstacles.

    Raises:
        CoupledError: A node couples time steps, and the flow is strict.
    """
    return Flow(model, sample, RULES, SCORES, strict=strict).run()


def find_axes(model: ir.Model, given: Mapping[str, int]) -> dict[str, int]:
    """Return the time axis of each input that has one.

    Args:
        given: Axes named by the user. Other inputs with a dimension of the same name have it there.

    Raises:
        OptionError: A given axis does not exist, or the time axis cannot be determined.
    """
    inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
    for name, axis in given.items():
        if name not in inputs:
            raise OptionError(f"the model has no input {name!r}; it has {', '.join(inputs)}")
        require_axis(name, axis, inputs[name].shape)
    axes = {
        name: axis % len(inputs[name].shape or [0] * (axis + 1)) for name, axis in given.items()
    } or _trace_axes_back(model, inputs)
    return _with_namesakes(inputs, axes)


def require_axis(name: str, axis: int, shape: ir.Shape | None) -> None:
    """Refuse a time axis that an input of this shape does not have."""
    integer(f"time axis of input {name!r}", axis)
    if shape is not None and not -len(shape) <= axis < len(shape):
        raise OptionError(f"input {name!r} has {len(shape)} axes, so none with the number {axis}")


def _with_namesakes(inputs: Mapping[str, ir.Value], axes: Mapping[str, int]) -> dict[str, int]:
    """Add the axes of other inputs that have a dimension of the same name."""
    names = {dim_name(_dim(inputs[name], axis)) for name, axis in axes.items()} - {None}
    found = dict(axes)
    for name, value in inputs.items():
        for axis, dim in enumerate(value.shape or ()):
            if name not in found and dim_name(dim) in names:
                found[name] = axis
    return found


def _trace_axes_back(model: ir.Model, inputs: Mapping[str, ir.Value]) -> dict[str, int]:
    """Return the axes that lead to the time steps of a recurrent node."""
    found, lost = _follow_axes(model, inputs, _PROBE)
    if not found:
        found, lost_of_samples = _follow_axes(model, inputs, _PROBE * _HOPS)
        lost = lost_of_samples if found else lost
    for name, places in found.items():
        is_open = [axis for axis in places if not isinstance(_dim(inputs[name], axis), int)]
        can_stream = [axis for axis in places if not lost[name, axis]]
        for choice in (is_open, can_stream):
            if len(found[name]) > 1 and len(choice) == 1:
                found[name] = choice
    if not found:
        _refuse_branches(model)
        if any(map(is_recurrent, model.graph)):
            _refuse_single_step(model)
        if any(map(_may_recur, model.graph)):
            _refuse_lost_axis(model, lost)
    unclear = [f"{name}:{axis}" for name, places in found.items() if len(places) > 1 for axis in places]
    if unclear or not found:
        which = "the model has no recurrent node that determines it"
        remedy = f"name it ({time_axis('INPUT', 'AXIS')})"
        if any(map(is_recurrent, model.graph)):
            which = f"it may be {' or '.join(unclear)}" if unclear else "no recurrent node determines it"
        else:
            remedy += f"; {_states_remedy()}"
            remedy += f"; if steps are written out, make a node of them first (`{call('lift')}`)"
        raise OptionError(f"which axis is time is not clear: {which}", remedy=remedy)
    return {name: places[0] for name, places in found.items()}


def _states_remedy() -> str:
    return f"if the model takes one step per call, name its states ({option('state', 'OUT=IN')})"


def _follow_axes(
    model: ir.Model, inputs: Mapping[str, ir.Value], probe: int
) -> tuple[dict[str, list[int]], dict[tuple[str, int], list[CoupledError]]]:
    """Return the axes that lead to a recurrent node, else to a loop, at this chunk, and what stops each."""
    found: dict[str, list[int]] = {}
    to_loops: dict[str, list[int]] = {}
    lost: dict[tuple[str, int], list[CoupledError]] = {}
    if not any(map(_may_recur, model.graph)):
        return found, lost  # Following a long model takes seconds.
    for name, value in inputs.items():
        for axis in range(len(value.shape or ())):
            dim, namesakes = _dim(value, axis), _with_namesakes(inputs, {name: axis})
            steps = dim if isinstance(dim, int) and dim >= 0 else None
            sizes = next(_example_sizes(model, namesakes))
            flow = follow(model, _probe_sample(namesakes, steps, sizes, probe))
            lost[name, axis] = flow.obstacles
            if flow.recurrent:
                places = found if any(map(is_stateful, flow.recurrent)) else to_loops
                places.setdefault(name, []).append(axis)
    return found or to_loops, lost


def _may_recur(node: ir.Node) -> bool:
    return is_stateful(node) or node.op_type in LOOPS


def _refuse_lost_axis(model: ir.Model, lost: Mapping[tuple[str, int], list[CoupledError]]) -> None:
    """Refuse a model whose recurrent nodes no axis reaches, naming the node that lost the axis."""
    inputs = {value.name: value for value in model.graph.inputs}
    # An open axis is more likely time than one of a known size.
    for (name, axis), errors in sorted(
        lost.items(), key=lambda each: isinstance(_dim(inputs[each[0][0]], each[0][1]), int)
    ):
        for error in errors:
            if error.node is not None:
                raise UnsupportedModelError(
                    f"no axis of an input leads to a recurrent node; axis {axis} of {name!r} ends where "
                    f"{locate(model, error.node).label} {error.problem}",
                    remedy=error.remedy
                    or f"if time is another axis, name it ({time_axis('INPUT', 'AXIS')}); {_states_remedy()}",
                )


def _refuse_branches(model: ir.Model) -> None:
    """Refuse a model whose recurrent nodes are all in branches and bodies, naming the enclosing node."""
    if any(map(is_recurrent, model.graph)):
        return
    for node in model.graph:
        held = [each for graph in subgraphs_of(node) for each, _ in walk(graph) if is_recurrent(each)]
        if held:
            written_out = call("lower", target="onnxruntime", **{"control-flow": "unroll"})
            remedy = f"name it ({time_axis('INPUT', 'AXIS')}); if its number of steps is known, they may be "
            remedy += f"written out first (`{written_out}`)"
            raise UnsupportedModelError(
                f"{locate(model, node).label} holds the recurrent nodes: the main graph has none that says "
                "which axis is time",
                remedy=describe_branch_inputs(model, held[0]) if node.op_type == "If" else remedy,
            )


def _refuse_single_step(model: ir.Model) -> None:
    """Refuse a model of one step, in which the time axis is one of many axes of size 1.

    The examples are long: a short recording of samples may have one frame, too.
    """
    sizes = {name: size * _SAMPLES for name, size in next(_example_sizes(model, {})).items()}
    flow = follow(model, Sample({}, 1, 1, sizes))
    for node in model.graph:
        shape = flow.shape_of(node.inputs[0]) if is_recurrent(node) else None
        if shape is not None and shape[node.attributes.get_int("layout", 0)] == 1:
            raise SingleStepError(
                "takes one step per call already, and at that size the time axis cannot be determined",
                node=locate(model, node),
                remedy=f"if an input has one, name it ({time_axis('INPUT', 'AXIS')}), or stream the model of "
                "whole sequences",
            )


def _dim(value: ir.Value, axis: int) -> Dim:
    return None if value.shape is None or axis >= len(value.shape) else value.shape[axis]


def static_step_count(model: ir.Model, axes: Mapping[str, int]) -> int | None:
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


def make_samples(model: ir.Model, axes: Mapping[str, int], steps: int | None, chunk: int) -> Iterator[Sample]:
    """Yield lengths of the sequence, and sizes of the other dynamic dimensions.

    The last length has many divisors: no shape for frames of several samples fits a prime one.
    """
    for sizes in _example_sizes(model, axes):
        yield Sample(axes, steps or chunk * _CHUNKS, chunk, sizes)
    if steps is None:
        yield Sample(axes, chunk * _CHUNKS * _PROBE, chunk, next(_example_sizes(model, axes)))


def _example_sizes(model: ir.Model, axes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes for dynamic dimensions: all different, to distinguish them, or all the same, or 1."""
    names = {
        name: None
        for value in model.graph.inputs
        for axis, dim in enumerate(value.shape or ())
        if (name := dim_name(dim)) and axes.get(value.name or "") != axis
    }
    values = (*model.graph.inputs, *model.graph.initializers.values())
    static = {dim for value in values for dim in value.shape or () if isinstance(dim, int) and dim > 0}
    # A static size must not look like a dynamic one.
    nameless, *primes = [each for each in _PRIMES if all(dim % each for dim in static)] or _PRIMES
    different = dict(zip(names, itertools.chain(primes, itertools.repeat(nameless)), strict=False))
    yield {**different, "": nameless}
    yield {**dict.fromkeys(names, nameless), "": nameless}
    yield {**dict.fromkeys(names, 1), "": 1}
