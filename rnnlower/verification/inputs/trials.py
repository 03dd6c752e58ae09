"""The sets of inputs on which the reference runs, and its outputs on them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from rnnlower import wording
from rnnlower.engines.session import Array, RunError, brief
from rnnlower.errors import UnverifiableError
from rnnlower.verification.inputs.generate import InputMaker
from rnnlower.verification.inputs.overriding import Overrides
from rnnlower.verification.inputs.shapes import Recipe, ShapePlan, Sizes
from rnnlower.verification.inputs.uses import Facts, dims_of
from rnnlower.verification.interface import required_inputs
from rnnlower.verification.models import RunModel, graphs_in, nodes_in

Variant = tuple[tuple[str, Any], ...]

# Seconds of trying sizes on a reference that refuses all of them.
LONGEST_SEARCH = 120.0
_DRAWS = 2
_DRAWS_OF_FIXED_SHAPE = 4
# The period, in rounds, in which a streaming model gets its own state back.
_CONTINUED = 3
# ... and the period, beginning with the second round, of other values for overridable inputs.
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
    facts: Facts,
    seed: int,
    sets: Collection[str] = (),
) -> InputMaker:
    """Make the generator of inputs that both graphs declare; ``facts`` are the reference's.

    Inputs named in `sets` get their values elsewhere.

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
    hints += _sizes_of_branches(reference)
    own = {value.name: dims_of(value) for value in values}
    plan = ShapePlan.merge(own, others, facts, hints)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    parameters = _weight_count(reference)
    parameters += sum(math.prod(d for d in dims if isinstance(d, int)) for dims in plan.dims.values())
    features = [node.input_size for node in facts.recurrent if isinstance(node.input_size, int)]
    return InputMaker(
        types,
        facts.uses,
        plan,
        seed,
        parameters,
        facts.threshold,
        {name: data for name, data in facts.reshapes.items() if name in own and data in own},
        next(iter(features), 1),
        facts.has_computed_sizes,
    )


def _sizes_of_branches(main: onnx.GraphProto) -> Iterator[int]:
    """Yield the sizes of constants that subgraphs return: values in their place may need the same size."""
    for graph in graphs_in(main):
        given = {output.name for output in graph.output} if graph is not main else set()
        for node in graph.node:
            if node.op_type == "Constant" and given.intersection(node.output):
                yield from (size for value in node.attribute for size in value.t.dims)


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

    ``states`` are pairs of a state output and the state input that it feeds: every third trial continues
    where the previous one ended. ``overrides`` are values for inputs that have defaults, for every third
    trial, too.

    Raises:
        UnverifiableError: It ran on none.
    """
    finished: list[Trial] = []
    skipped: dict[str, list[int]] = {}
    hopeless: set[Variant] = set()
    last: dict[Variant, tuple[Recipe, Sizes, Trial]] = {}
    reason = ""
    for number in range(count):
        switches = maker.switch_values(number)
        variant = tuple(switches.items())
        if variant in hopeless:
            continue
        progress(number)
        trial = None
        if states and variant in last and maker.round_of(number) % _CONTINUED == _CONTINUED - 1:
            trial = _continued(run, maker, number, states, last[variant])
        if trial is None:
            trial, reason = _first_that_runs(run, maker, number, variant, last)
        if trial is not None and overrides and maker.round_of(number) % _OVERRIDDEN == 1:
            changed = overrides.run(run, trial.feeds)
            trial = trial if changed is None else Trial(number, *changed)
            last[variant] = (*last[variant][:2], trial)
        if trial is not None:
            finished.append(trial)
            continue
        where = f"with {', '.join(f'{name} = {value}' for name, value in variant)}, " if variant else ""
        skipped.setdefault(f"{where}the reference ran on no generated inputs: {reason}", []).append(number)
        if maker.plan.is_dynamic and variant not in last:
            # The whole range of sizes was searched: another trial would search it in vain again.
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


def fed_back(trials: Sequence[Trial], states: Mapping[str, str]) -> dict[str, str]:
    """Return those pairs whose output some trial took over from another."""
    return {
        output: name
        for output, name in states.items()
        if any(later.feeds[name] is earlier.outputs[output] for earlier in trials for later in trials)
    }


def _continued(
    run: RunModel,
    maker: InputMaker,
    number: int,
    states: Mapping[str, str],
    before: tuple[Recipe, Sizes, Trial],
) -> Trial | None:
    """Return the next call of a streaming model: new inputs of the same sizes, its own outputs as states."""
    recipe, shapes, previous = before
    feeds = maker.make(number, 0, recipe, shapes)
    fed = 0
    for output, name in states.items():
        state, own = previous.outputs[output], feeds[name]
        fits = isinstance(state, np.ndarray) and (state.shape, state.dtype) == (own.shape, own.dtype)
        if fits and np.isfinite(state.astype(np.float64)).all():
            feeds[name] = state
            fed += 1
    if not fed:
        return None
    try:
        return Trial(number, feeds, run(feeds))
    except RunError:
        return None


def _first_that_runs(
    run: RunModel,
    maker: InputMaker,
    number: int,
    variant: Variant,
    last: dict[Variant, tuple[Recipe, Sizes, Trial]],
) -> tuple[Trial | None, str]:
    """Return the first proposed trial on which the reference runs, or ``None`` and the last reason.

    ``last`` stores the proposal that ran.
    """
    reason = "the inputs would be too large"
    attempt = 0
    draws = 1
    if maker.has_discrete_inputs:
        draws = _DRAWS if maker.plan.is_dynamic else _DRAWS_OF_FIXED_SHAPE
    deadline = time.monotonic() + LONGEST_SEARCH
    for recipe in maker.plan.proposals(maker.round_of(number), variant):
        if time.monotonic() > deadline:
            return None, f"{reason}; gave up after {LONGEST_SEARCH:.0f} s"
        shapes = maker.plan.sizes(recipe)
        if shapes is None:
            continue
        for _ in range(draws):
            feeds = maker.make(number, attempt, recipe, shapes)
            attempt += 1
            try:
                outputs = run(feeds)
            except RunError as error:
                reason = f"{brief(error)} (shapes {shapes})"
            else:
                maker.plan.worked(recipe, variant)
                trial = Trial(number, feeds, outputs)
                last[variant] = (recipe, shapes, trial)
                return trial, ""
    return None, reason
