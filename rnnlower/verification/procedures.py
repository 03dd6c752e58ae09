"""The ways in which two models are run: the same inputs for both, or sequences of several lengths."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import onnx

from rnnlower.engines.session import LoadError, RunError, brief
from rnnlower.errors import UnverifiableError
from rnnlower.verification.inputs.generate import InputMaker
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import Trial, generate_trials, input_maker
from rnnlower.verification.interface import required_inputs
from rnnlower.verification.models import HeldModel, RunModel, copy_of
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.judging import Judge, Judged
from rnnlower.verification.verify_options import Options

Pairs = Iterator[tuple[Trial, dict[str, Any]]]
Lengths = Mapping[str, int]
"""The time steps of each input over time."""


class Procedure(Protocol):
    """A way to run two models and to compare them."""

    def problems(self, runner: Runner) -> tuple[list[str], bool]:
        """Return differences between the interfaces, and whether both can take the same inputs.

        The candidate may lack the inputs that are set; those that are cast are fed in its own type.
        """

    def run_reference(self, runner: Runner, options: Options) -> list[Trial]:
        """Return the trials: inputs, given or generated, and the reference's outputs on them.

        Raises:
            UnverifiableError: No engine runs the reference, or it runs on no inputs.
        """

    def run_candidate(self, runner: Runner, run: RunModel, finished: list[Trial]) -> Pairs:
        """Yield the candidate's outputs of each trial, in the form of the reference's."""

    def where_it_begins(self, runner: Runner, judge: Judge, judged: list[Judged]) -> str | None:
        """Describe where a difference begins."""


@contextmanager
def faults_of_reference() -> Iterator[None]:
    """Raise the errors of the reference's engine as reasons why nothing was verified."""
    try:
        yield
    except LoadError as error:
        raise UnverifiableError(f"no engine runs the reference: {brief(error)}") from error
    except RunError as error:
        problem = f"the reference does not run on the given inputs: {brief(error)}"
        raise UnverifiableError(problem) from error


def additional_problems(
    runner: Runner, inputs: Collection[str], outputs: Collection[str] = (), why: str = ""
) -> tuple[list[str], bool]:
    """Return differences between the interfaces of a model and its streamed or padded form, in any order.

    The candidate may have these inputs and outputs in addition, and lack inputs that are set.
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
    return problems, not problems


class ByLength(ABC):
    """The reference on sequences of several lengths, and a candidate that takes them in another form."""

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, int]:
        """The axis of time of each input that has one."""

    @abstractmethod
    def all_lengths(self, graph: onnx.GraphProto) -> Sequence[Lengths]:
        """Return the lengths of the sequences to generate for the reference's graph."""

    @abstractmethod
    def words(self, lengths: Lengths) -> str:
        """Return lengths as notes write them."""

    @abstractmethod
    def count(self, maker: InputMaker, lengths: Lengths) -> int:
        """Return the number of sequences of these lengths, by default."""

    def opened(self, reference: HeldModel) -> HeldModel:
        """Return the reference in the form in which it runs."""
        return reference

    def run_reference(self, runner: Runner, options: Options) -> list[Trial]:
        """Run the reference on whole sequences."""
        given = options.given(runner.reference.proto.graph, {})
        with faults_of_reference(), runner.open(self.opened(runner.reference)) as run:
            if given is not None:
                return [Trial(number, feeds, run(feeds)) for number, feeds in enumerate(given)]
            made: list[Trial] = []
            refused: list[UnverifiableError] = []
            every = self.all_lengths(runner.reference.proto.graph)
            for number, lengths in enumerate(every):
                options.progress("reference", number, len(every))
                try:
                    made += self._generate(runner, run, lengths, options, number)
                except UnverifiableError as error:
                    # Too short for a window, or no multiple of a frame; other lengths show the same.
                    refused.append(error)
                    runner.note(f"{self.words(lengths)}: the reference does not run")
            if not made:
                raise refused[0]
            return [dataclasses.replace(trial, number=number) for number, trial in enumerate(made)]

    def _generate(
        self, runner: Runner, run: RunModel, lengths: Lengths, options: Options, number: int
    ) -> list[Trial]:
        model = copy_of(runner.reference.proto)
        # Sizes other than time that the candidate fixes hold for both models.
        other = onnx.GraphProto(input=runner.candidate.proto.graph.input)
        for value in (*model.graph.input, *other.input):
            if value.name in self.axes:
                dim = value.type.tensor_type.shape.dim[self.axes[value.name]]
                dim.dim_value = lengths[value.name]
        facts = dataclasses.replace(gather_facts(model), threshold=runner.reference_facts.threshold)
        maker = input_maker(model.graph, other, facts, options.seed + number)
        made, skipped = generate_trials(run, maker, options.trials or self.count(maker, lengths))
        for text in skipped:
            runner.note(f"{self.words(lengths)}: {text}")
        return made
