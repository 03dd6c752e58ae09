"""The procedures that run two models: on the same inputs, or on sequences of several lengths."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from rnnlower.engines.session import LoadError, RunError, brief
from rnnlower.errors import UnverifiableError
from rnnlower.verification.inputs.generate import InputMaker
from rnnlower.verification.inputs.graph_facts import gather_facts, largest_threshold
from rnnlower.verification.inputs.overrides import Overrides
from rnnlower.verification.inputs.trials import Trial, fed_states, generate_trials, input_maker
from rnnlower.verification.inputs.uses import GraphFacts, Uses, dims_of
from rnnlower.verification.interfaces import find_state_pairs, interface_problems
from rnnlower.verification.models import ParsedModel, RunModel, required_inputs, select_feeds
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict import inner_values
from rnnlower.verification.verdict.judging import Judge, Judged, notes_on_empty_outputs

Pairs = Iterator[tuple[Trial, dict[str, Any]]]
Lengths = Mapping[str, int]
"""The time steps of each input over time."""
_CALLS = 60
"""The number of calls of a model that takes one step per call."""


@contextmanager
def report_reference_errors() -> Iterator[None]:
    """Turn the errors of the reference's engine into an `UnverifiableError`."""
    try:
        yield
    except LoadError as error:
        raise UnverifiableError(f"no engine runs the reference: {brief(error)}") from error
    except RunError as error:
        problem = f"the reference does not run on the given inputs: {brief(error)}"
        raise UnverifiableError(problem) from error


def _uses_of_both(
    runner: Runner, given: Mapping[str, Uses], whole_lengths: Collection[int] = ()
) -> dict[str, Uses]:
    """Return how the reference uses its inputs, and which of them the candidate takes as lengths.

    Args:
        whole_lengths: The lengths of the reference's sequences, where the candidate's are longer.
    """
    uses = dict(given)
    for name, other in runner.candidate_facts.uses.items():
        # A mask computed from lengths takes any values; a recurrent node none beyond the sequence.
        if other.lengths and name in uses and not uses[name].lengths:
            uses[name] = dataclasses.replace(uses[name], lengths=[*other.lengths, *whole_lengths])
            runner.note(f"input {name!r} was given lengths only, as the candidate needs them")
    return uses


class Procedure:
    """A way to run and compare two models; this one runs both on the same inputs."""

    def interface_problems(self, runner: Runner) -> tuple[list[str], bool]:
        """Return differences between the interfaces, and whether both can take the same inputs.

        The candidate may lack the inputs that are set; those that are cast are fed in its own type.
        """
        return interface_problems(runner.reference.proto, runner.candidate.proto, runner.sets, runner.casts)

    def run_reference(self, runner: Runner) -> list[Trial]:
        """Return the trials: inputs, given or generated, and the reference's outputs on them.

        Raises:
            UnverifiableError: No engine runs the reference, or it runs on no inputs.
        """
        graph = runner.reference.proto.graph
        given = runner.options.given(graph, runner.sets)
        with report_reference_errors():
            if given is None:
                return self._run_generated(runner)
            runner.empty_inputs = any(array.size == 0 for feeds in given for array in feeds.values())
            finished = []
            branches = inner_values.BranchWatch(runner.reference, runner.sets)
            with runner.open(branches.model) as run:
                for number, feeds in enumerate(given):
                    runner.options.progress("reference", number, len(given))
                    finished.append(Trial(number, feeds, branches.watch(run)(feeds)))
        runner.notes += branches.notes() + notes_on_empty_outputs(finished)
        return finished

    def _run_generated(self, runner: Runner) -> list[Trial]:
        options = runner.options
        graph, candidate = runner.reference.proto.graph, runner.candidate.proto
        uses = _uses_of_both(runner, runner.reference_facts.uses)
        if runner.runtime is not None:
            # Many runtimes have no indices that count from the end.
            for name, use in uses.items():
                uses[name] = dataclasses.replace(use, roles=use.roles - {"place"})
        threshold = max(runner.reference_facts.threshold, largest_threshold(candidate))
        facts = dataclasses.replace(runner.reference_facts, uses=uses, threshold=threshold)
        maker = input_maker(graph, candidate.graph, facts, options.seed, runner.sets)
        overrides = Overrides(runner.reference, candidate, options.seed)
        count, states = self.plan_generated(runner, facts, maker)
        runner.empty_inputs = maker.plan.has_empty_inputs
        branches = inner_values.BranchWatch(runner.reference, runner.sets)
        with runner.open(branches.model) as run:
            finished, skipped = generate_trials(
                branches.watch(run),
                maker,
                count,
                states,
                lambda done: options.progress("reference", done, count),
                overrides,
            )
        runner.states = fed_states(finished, states)
        if options.states and states and not runner.states:
            runner.note("no trial continued with the given states: some do among three or more trials")
        runner.notes += skipped + branches.notes() + notes_on_empty_outputs(finished) + overrides.notes()
        return finished

    def plan_generated(
        self, runner: Runner, facts: GraphFacts, maker: InputMaker
    ) -> tuple[int, Mapping[str, str]]:
        """Return the number of trials to generate, and the states with which some of them continue."""
        options, graph = runner.options, runner.reference.proto.graph
        states = find_state_pairs(graph, facts, options.states, runner.sets)
        return options.trials or maker.natural_trials, states

    def run_candidate(self, runner: Runner, run: RunModel, finished: list[Trial]) -> Pairs:
        """Yield each trial with the candidate's outputs, in the form of the reference's."""
        for trial in finished:
            yield trial, run(select_feeds(runner.candidate.proto, trial.feeds))

    def locate_difference(self, runner: Runner, judge: Judge, judged: list[Judged]) -> str | None:
        """Describe the first inner value that both models name and that differs, in the first such trial."""
        trial = next((one.trial for one in judged if not one.is_equal), None)
        reference = runner.reference
        names = inner_values.common_names(reference, runner.candidate)
        if trial is None or not names:
            return None
        whole, other = (inner_values.with_outputs(model, names) for model in (reference, runner.candidate))
        if whole is None or other is None:
            return None
        try:
            with runner.open(whole) as run:
                expected = run(select_feeds(reference.proto, trial.feeds))
            with runner.open(other) as run:
                found = self.run_inner_values(other, run, trial, names, expected)
        except (LoadError, RunError):
            # The description is optional: the verdict does not need it.
            return None
        shared = [name for name in names if name in found]
        tolerance = partial(judge.tolerance, feeds=trial.feeds)
        return inner_values.first_difference(reference.proto.graph, shared, expected, found, tolerance)

    def run_inner_values(
        self, model: ParsedModel, run: RunModel, trial: Trial, names: list[str], expected: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Run `model`, the candidate with inner values as outputs; return them in the reference's form."""
        return run(select_feeds(model.proto, trial.feeds))


def extension_problems(
    runner: Runner, inputs: Collection[str], outputs: Collection[str] = (), why: str = ""
) -> list[str]:
    """Return differences between the interfaces of a model and its streamed or padded form, in any order.

    The candidate may have these additional inputs and outputs, and may lack inputs that are set.
    """
    reference, candidate = runner.reference.proto.graph, runner.candidate.proto.graph
    defaults = {tensor.name for tensor in reference.initializer}
    required = {value.name for value in required_inputs(reference)} - {*runner.sets}
    ends = [{value.name for value in graph.output} for graph in (reference, candidate)]
    problems = []
    for kind, ours, theirs, known in (
        ("input", required, {value.name for value in candidate.input}, {*inputs} | defaults),
        ("output", ends[0], ends[1], {*outputs}),
    ):
        problems += [f"the candidate has no {kind} {name!r}" for name in sorted(ours - theirs)]
        more = sorted(theirs - ours - known)
        problems += [f"the candidate has one more {kind} {name!r}{why}" for name in more]
    return problems


def axis_problems(values: Iterable[onnx.ValueInfoProto], axes: Mapping[str, int]) -> list[str]:
    """Return the axes of time or rows that the candidate's metadata names and its inputs or outputs lack."""
    known = {value.name: dims_of(value) for value in values}
    return [
        f"the candidate has no {name!r} with an axis {axis}, which its metadata names"
        for name, axis in axes.items()
        # Some exporters declare outputs without axes.
        if name not in known or ((dims := known[name]) and not 0 <= axis < len(dims))
    ]


@dataclasses.dataclass(frozen=True)
class StepProcedure(Procedure):
    """The procedure that calls a model many times, each with the states of its previous call.

    The reference gets the same inputs and states: with states of its own, rounding that a model amplifies
    would grow from call to call.

    Attributes:
        states: For each output that holds a state, the input that takes it in the next call.
    """

    states: Mapping[str, str]

    def run_reference(self, runner: Runner) -> list[Trial]:
        trials = super().run_reference(runner)
        runner.states = dict(self.states)
        return trials

    def plan_generated(
        self, runner: Runner, facts: GraphFacts, maker: InputMaker
    ) -> tuple[int, Mapping[str, str]]:
        """Return the number of calls; `run_candidate` feeds the states back."""
        return runner.options.trials or _CALLS, {}

    def run_candidate(self, runner: Runner, run: RunModel, finished: list[Trial]) -> Pairs:
        initializers = runner.reference.proto.graph.initializer
        defaults = {each.name: to_array(each) for each in initializers if each.name in self.states.values()}
        outputs: dict[str, Any] = {}
        with runner.open(runner.reference) as reference:
            for trial in finished:
                feeds = dict(trial.feeds)
                for output, name in self.states.items():
                    start = defaults[name] if name in defaults else np.zeros_like(feeds[name])
                    before = outputs.get(output, start)
                    # An infinite state would hide later differences; one of another size begins a new stream.
                    kept = (before.shape, before.dtype) == (start.shape, start.dtype)
                    feeds[name] = before if kept and np.isfinite(before).all() else start
                with report_reference_errors():
                    expected = reference(feeds)
                outputs = run(select_feeds(runner.candidate.proto, feeds))
                yield Trial(trial.number, feeds, expected), outputs


class LengthProcedure(Procedure, ABC):
    """A procedure with sequences of several lengths, which the candidate takes in another form."""

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, int]:
        """The time axis of each input that has one."""

    @abstractmethod
    def choose_lengths(self, graph: onnx.GraphProto) -> Sequence[Lengths]:
        """Return the lengths of the sequences to generate."""

    @abstractmethod
    def describe(self, lengths: Lengths) -> str:
        """Describe lengths for notes."""

    @abstractmethod
    def default_count(self, maker: InputMaker, lengths: Lengths) -> int:
        """Return the default number of sequences of these lengths."""

    def prepare_reference(self, reference: ParsedModel) -> ParsedModel:
        """Return the reference in the form in which it runs."""
        return reference

    def run_reference(self, runner: Runner) -> list[Trial]:
        """Run the reference on whole sequences."""
        options = runner.options
        given = options.given(runner.reference.proto.graph, {})
        with report_reference_errors(), runner.open(self.prepare_reference(runner.reference)) as run:
            if given is not None:
                return [Trial(number, feeds, run(feeds)) for number, feeds in enumerate(given)]
            made: list[Trial] = []
            refused: list[UnverifiableError] = []
            every = self.choose_lengths(runner.reference.proto.graph)
            for number, lengths in enumerate(every):
                options.progress("reference", number, len(every))
                try:
                    made += self._generate(runner, run, lengths, number)
                except UnverifiableError as error:
                    # Too short for a window, or not a multiple of a frame; other lengths are enough.
                    refused.append(error)
                    runner.note(f"{self.describe(lengths)}: the reference does not run")
            if not made:
                raise refused[0]
            return [dataclasses.replace(trial, number=number) for number, trial in enumerate(made)]

    def _generate(self, runner: Runner, run: RunModel, lengths: Lengths, number: int) -> list[Trial]:
        options, model = runner.options, deepcopy(runner.reference.proto)
        # Sizes other than time that the candidate fixes hold for both models.
        other = onnx.GraphProto(input=runner.candidate.proto.graph.input)
        for value in (*model.graph.input, *other.input):
            if value.name in self.axes:
                dim = value.type.tensor_type.shape.dim[self.axes[value.name]]
                dim.dim_value = lengths[value.name]
        facts = gather_facts(model)
        uses = _uses_of_both(runner, facts.uses, lengths.values())
        facts = dataclasses.replace(facts, uses=uses, threshold=runner.reference_facts.threshold)
        maker = input_maker(model.graph, other, facts, options.seed + number)
        made, skipped = generate_trials(run, maker, options.trials or self.default_count(maker, lengths))
        for text in skipped:
            runner.note(f"{self.describe(lengths)}: {text}")
        return made
