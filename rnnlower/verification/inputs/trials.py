"""The sets of inputs on which the reference runs, with its outputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from rnnlower import wording
from rnnlower.engines.session import Array, RunError, brief
from rnnlower.errors import UnverifiableError
from rnnlower.verification.inputs.generate import InputMaker
from rnnlower.verification.inputs.overrides import Overrides
from rnnlower.verification.inputs.shapes import ShapePlan, SizeChoice, Sizes
from rnnlower.verification.inputs.uses import GraphFacts, dims_of
from rnnlower.verification.models import RunModel, graphs_in, nodes_in, required_inputs
from rnnlower.verification.verdict.compare import is_inexact

Variant = tuple[tuple[str, Any], ...]

# The seconds after which the search for accepted sizes is given up.
MAX_SEARCH_SECONDS = 120.0
_DRAWS = 2
_DRAWS_OF_FIXED_SHAPE = 4
# The period, in rounds, of trials that continue a stream with its own states,
_CONTINUED = 3
# and of trials, beginning with the second round, that override default values of inputs.
_OVERRIDDEN = 3


@dataclass(frozen=True)
class Trial:
    """One set of inputs and the reference's outputs."""

    number: int
    feeds: dict[str, Array]
    outputs: dict[str, Any]


def input_maker(
    reference: onnx.GraphProto,
    candidate: onnx.GraphProto,
    facts: GraphFacts,
    seed: int,
    sets: Collection[str] = (),
) -> InputMaker:
    """Make the generator of the inputs that both graphs declare; ``facts`` are the reference's.

    Inputs named in `sets` are left out: they have fixed values.

    Raises:
        VerificationError: The declared shapes contradict each other.
        UnverifiableError: An input's rank is unknown, or it is not a tensor.
    """
    values = [value for value in required_inputs(reference) if value.name not in sets]
    for value in values:
        if value.type.WhichOneof("value") not in (None, "tensor_type"):
            raise UnverifiableError(
                f"input {value.name!r} is not a tensor: nothing else can be generated or given",
                remedy=f"leave out the verification ({wording.option('no-verify')})",
            )
    others = {value.name: dims_of(value) for value in candidate.input}
    # Sizes that occur in the graph are good guesses if arbitrary ones fail.
    hints = [d for value in reference.output for d in dims_of(value) or () if isinstance(d, int)]
    hints += [d for node in facts.recurrent for d in node.x_dims or () if isinstance(d, int)]
    hints += [d for node in facts.recurrent for d in node.state_dims]
    hints += (*_sizes_of_branches(reference), _size_of_gathers(reference))
    own = {value.name: dims_of(value) for value in values}
    plan = ShapePlan.merge(own, others, facts, hints)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return InputMaker(types, facts, plan, seed, _weight_count(reference))


def _sizes_of_branches(main: onnx.GraphProto) -> Iterator[int]:
    """Yield the sizes of constants that subgraphs return: the other branch may need the same sizes."""
    for graph in graphs_in(main):
        given = {output.name for output in graph.output} if graph is not main else set()
        for node in graph.node:
            if node.op_type == "Constant" and given.intersection(node.output):
                yield from (size for value in node.attribute for size in value.t.dims)


def _size_of_gathers(main: onnx.GraphProto) -> int:
    """Return the least size that has the last place that is a constant: a trace reads each of its steps."""
    nodes = [*nodes_in(main)]
    constants = {tensor.name: tensor for graph in graphs_in(main) for tensor in graph.initializer}
    constants |= {
        node.output[0]: each.t for node in nodes if node.op_type == "Constant" for each in node.attribute
    }
    read = [constants.get(node.input[1]) for node in nodes if node.op_type == "Gather"]
    places = [
        numpy_helper.to_array(tensor).max()
        for tensor in read
        if tensor is not None
        and tensor.data_type
        and tensor.data_location != tensor.EXTERNAL
        and 0 not in tensor.dims
    ]
    return int(max(places, default=-1)) + 1


def _weight_count(main: onnx.GraphProto) -> int:
    """Return the number of elements of all initializers and constants, including subgraphs."""
    shapes = [tensor.dims for graph in graphs_in(main) for tensor in graph.initializer]
    shapes += [attribute.t.dims for node in nodes_in(main) for attribute in node.attribute]
    return sum(map(math.prod, shapes))


def generate_trials(
    run: RunModel,
    maker: InputMaker,
    count: int,
    states: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda done: None,
    overrides: Overrides | None = None,
) -> tuple[list[Trial], list[str]]:
    """Return up to ``count`` trials on which ``run`` (the reference) runs, and reasons for missing ones.

    ``states`` maps state outputs to the state inputs that they feed: every third round continues where the
    previous one ended. ``overrides`` are other values for inputs with defaults, also for every third round.

    Raises:
        UnverifiableError: It ran on none.
    """
    finished: list[Trial] = []
    skipped: dict[str, list[int]] = {}
    hopeless: set[Variant] = set()
    last: dict[Variant, tuple[SizeChoice, Sizes, Trial]] = {}
    reason = ""
    for number in range(count):
        switches = maker.switch_values(number)
        variant = tuple(switches.items())
        if variant in hopeless:
            continue
        progress(number)
        trial = None
        if states and variant in last and maker.round_number(number) % _CONTINUED == _CONTINUED - 1:
            trial = _continue_stream(run, maker, number, states, last[variant])
        if trial is None:
            trial, reason = _search_trial(run, maker, number, variant, last)
        if trial is not None and overrides and maker.round_number(number) % _OVERRIDDEN == 1:
            changed = overrides.run(run, trial.feeds)
            trial = trial if changed is None else Trial(number, *changed)
            last[variant] = (*last[variant][:2], trial)
        if trial is not None:
            finished.append(trial)
            continue
        where = f"with {', '.join(f'{name} = {value}' for name, value in variant)}, " if variant else ""
        skipped.setdefault(f"{where}the reference ran on no generated inputs: {reason}", []).append(number)
        if maker.plan.is_dynamic and variant not in last:
            # All sizes were tried: another trial would fail again.
            hopeless.add(variant)
    if not finished:
        raise UnverifiableError(
            f"the reference ran on no generated inputs. The last reason: {reason}",
            remedy="a dimension of 0 leaves it nothing to compute: make that at least 1"
            if maker.plan.has_empty_inputs
            else f"give some with {wording.option('inputs')}",
        )
    return finished, [
        f"trial{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {why}"
        for why, numbers in skipped.items()
    ]


def fed_states(trials: Sequence[Trial], states: Mapping[str, str]) -> dict[str, str]:
    """Return the pairs whose output a later trial took from an earlier one."""
    return {
        output: name
        for output, name in states.items()
        if any(later.feeds[name] is earlier.outputs[output] for earlier in trials for later in trials)
    }


def _continue_stream(
    run: RunModel,
    maker: InputMaker,
    number: int,
    states: Mapping[str, str],
    before: tuple[SizeChoice, Sizes, Trial],
) -> Trial | None:
    """Run the next call of a stream: new inputs of the same sizes, with the last outputs as states."""
    recipe, shapes, previous = before
    feeds = maker.make_inputs(number, 0, recipe, shapes)
    fed = 0
    for output, name in states.items():
        state, own = previous.outputs[output], feeds[name]
        fits = isinstance(state, np.ndarray) and (state.shape, state.dtype) == (own.shape, own.dtype)
        if fits and (not is_inexact(state.dtype) or np.isfinite(state.astype(np.float64)).all()):
            feeds[name] = state
            fed += 1
    if not fed:
        return None
    try:
        return Trial(number, feeds, run(feeds))
    except RunError:
        return None


def _search_trial(
    run: RunModel,
    maker: InputMaker,
    number: int,
    variant: Variant,
    last: dict[Variant, tuple[SizeChoice, Sizes, Trial]],
) -> tuple[Trial | None, str]:
    """Return the first proposed trial on which the reference runs, or ``None`` and the last error.

    The trial and its sizes are stored in ``last``.
    """
    reason = "the inputs would be too large"
    attempt = 0
    draws = 1
    if maker.has_discrete_inputs:
        draws = _DRAWS if maker.plan.is_dynamic else _DRAWS_OF_FIXED_SHAPE
    deadline = time.monotonic() + MAX_SEARCH_SECONDS
    for recipe, shapes in _proposals(maker, number, variant):
        if time.monotonic() > deadline:
            return None, f"{reason}; gave up after {MAX_SEARCH_SECONDS:.0f} s"
        for _ in range(draws):
            feeds = maker.make_inputs(number, attempt, recipe, shapes)
            attempt += 1
            try:
                outputs = run(feeds)
            except RunError as error:
                reason = f"{brief(error)} (shapes {shapes})"
            else:
                maker.plan.record_success(recipe, variant)
                trial = Trial(number, feeds, outputs)
                last[variant] = (recipe, shapes, trial)
                return trial, ""
    return None, reason


def _proposals(maker: InputMaker, number: int, variant: Variant) -> Iterator[tuple[SizeChoice, Sizes]]:
    """Yield the proposed sizes, those below a pooling window last: a model may have no others."""
    narrow = []
    for recipe in maker.plan.proposals(maker.round_number(number), variant):
        shapes = maker.plan.sizes(recipe)
        if shapes is not None and maker.facts.has_narrow_pooling(shapes):
            narrow.append((recipe, shapes))
        elif shapes is not None:
            yield recipe, shapes
    yield from narrow
