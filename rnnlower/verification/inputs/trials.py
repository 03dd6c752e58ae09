"""The sets of inputs on which the reference runs, with its outputs."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from rnnlower import wording
from rnnlower.engines.session import Array, RunError, brief
from rnnlower.errors import UnverifiableError
from rnnlower.verification.inputs.generate import InputMaker
from rnnlower.verification.inputs.shapes import ShapePlan, SizeChoice, Sizes
from rnnlower.verification.inputs.uses import GraphFacts, dims_of
from rnnlower.verification.models import (
    ParsedModel,
    RunModel,
    feedable_inputs,
    graphs_in,
    nodes_in,
    overridable_inputs,
    required_inputs,
)
from rnnlower.verification.verdict.compare import is_inexact

Variant = tuple[tuple[str, Any], ...]

# The seconds after which the search for accepted sizes is given up.
LONGEST_SEARCH = 120.0
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
    hints += _sizes_of_branches(reference)
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
    deadline = time.monotonic() + LONGEST_SEARCH
    for recipe, shapes in _proposals(maker, number, variant):
        if time.monotonic() > deadline:
            return None, f"{reason}; gave up after {LONGEST_SEARCH:.0f} s"
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


# In total, since trials hold them in addition to the model.
_MOST_ELEMENTS = 2**26
_SIZE_AMONG_ZEROS = 0.5
_SAMPLE = 1000


class Overrides:
    """An alternative value for each overridable input of ``reference``, shared by all overriding trials."""

    def __init__(self, reference: ParsedModel, candidate: onnx.ModelProto, seed: int) -> None:
        self._model, self._seed = reference, seed
        self._reasons: dict[str, str] = {}
        self._ran = False
        feedable = {value.name for value in feedable_inputs(candidate)}
        inputs = {value.name for value in candidate.graph.input}
        overridable = set(overridable_inputs(reference.proto))
        tensors = [tensor for tensor in reference.proto.graph.initializer if tensor.name in overridable]
        room = _MOST_ELEMENTS
        self._left: list[onnx.TensorProto] = []
        for tensor in tensors:
            size = math.prod(tensor.dims)
            if tensor.name not in inputs:
                reason = "the candidate has no such input"
            elif tensor.name not in feedable:
                reason = f"the candidate's cannot be fed at IR version {candidate.ir_version}"
            elif not is_inexact(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)):
                reason = "only floats get other values"
            elif size > room:
                reason = "other values would be too large"
            else:
                room -= size
                self._left.append(tensor)
                continue
            self._reasons[tensor.name] = reason
        self._values: dict[str, Array] | None = None

    def run(
        self, run: RunModel, feeds: Mapping[str, Array]
    ) -> tuple[dict[str, Array], dict[str, Any]] | None:
        """Return ``feeds`` with the values added, and the outputs of ``run``; ``None`` if it refuses them.

        ``run`` accepts ``feeds`` alone. Values that are refused the first time are not tried again.
        """
        if self._values is None:
            self._values = {
                tensor.name: _draw_override(
                    self._model.array(tensor),
                    np.random.default_rng([self._seed, zlib.crc32(tensor.name.encode())]),
                )
                for tensor in self._left
            }
        if not self._values:
            return None
        changed = {**feeds, **self._values}
        try:
            outputs = run(changed)
        except RunError:
            before = len(self._values)
            if not self._ran:
                self._drop_refused(run, feeds, [*self._values])
            return self.run(run, feeds) if len(self._values) < before else None
        self._ran = True
        return changed, outputs

    def notes(self) -> list[str]:
        """Return a note for each reason why inputs kept their defaults in every trial."""
        reasons = dict(self._reasons)
        if not self._ran:
            tried = self._values is not None
            why = "the reference refuses others" if tried else "too few trials to try others"
            reasons |= {t.name: why for t in self._left if t.name not in reasons}
        grouped: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            grouped.setdefault(reason, []).append(repr(name))
        return [
            f"input{'s' * (len(names) > 1)} {', '.join(names)}: the default in every trial ({reason})"
            for reason, names in grouped.items()
        ]

    def _drop_refused(self, run: RunModel, feeds: Mapping[str, Array], names: list[str]) -> None:
        """Find by bisection the inputs whose other values ``run`` refuses, and leave them out."""
        assert self._values is not None
        try:
            run({**feeds, **{name: self._values[name] for name in names}})
        except RunError as error:
            if len(names) == 1:
                del self._values[names[0]]
                self._reasons[names[0]] = f"the reference refuses another: {brief(error)}"
                return
            for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                self._drop_refused(run, feeds, half)


def _draw_override(default: Array, rng: np.random.Generator) -> Array:
    """Return values with the default's signs and magnitudes, so that a variance or mask stays one."""
    working = np.float64 if default.dtype == np.float64 else np.float32
    values = default.astype(working)
    sizes = np.abs(values)
    largest = float(ml_dtypes.finfo(default.dtype).max) / 2  # type: ignore[no-untyped-call]
    ordinary = sizes[(sizes > 0) & (sizes <= largest)][:_SAMPLE]
    typical = working(np.median(ordinary) if ordinary.size else _SIZE_AMONG_ZEROS)
    # From 0.6 to 0.8, or twice that: none is near 1.
    factors = (working(0.6) + working(0.2) * rng.random(values.shape, dtype=working)) * rng.integers(
        1, 3, values.shape, dtype=np.int8
    )
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.where(values == 0, typical, values) * factors
    return np.asarray(np.where(sizes <= largest, moved, values)).astype(default.dtype)
