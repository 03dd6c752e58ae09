"""Verification of a padded model: unpadded inputs of several lengths against the same ones, padded.

The padding holds zeros, noise, or large values: the valid part of each output must not depend on it.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rnnlower.engines.session import LoadError, RunError, brief
from rnnlower.errors import OptionError, UnverifiableError
from rnnlower.files.pad_metadata import PadMetadata
from rnnlower.verification.inputs.facts import dims_of
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import RunModel, Trial, generate_trials, input_maker
from rnnlower.verification.interface import required_inputs
from rnnlower.verification.models import HeldModel
from rnnlower.verification.running import Runner
from rnnlower.verification.verdict.judging import Judge, Judged

Array = NDArray[Any]
Feeds = dict[str, Array]

_LARGE = 1e4
_PADDINGS = 3
_PATTERNS = 2
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.FloorDiv: operator.floordiv,
    ast.Mult: operator.mul,
    ast.Sub: operator.sub,
}


def padding_of(reference: HeldModel, candidate: HeldModel) -> PadMetadata | None:
    """Return the candidate's padding metadata, if it is padded and the reference is not."""
    ours, theirs = (
        PadMetadata.read({entry.key: entry.value for entry in model.proto.metadata_props})
        for model in (reference, candidate)
    )
    return theirs if ours is None else None


@dataclasses.dataclass(frozen=True)
class Padded:
    """The procedure that compares a padded model with the source.

    Attributes:
        padding: The candidate's calling convention.
    """

    padding: PadMetadata

    def problems(
        self,
        reference: onnx.ModelProto,
        candidate: onnx.ModelProto,
        sets: Collection[str] = (),
        casts: Mapping[str, str] | None = None,
    ) -> tuple[list[str], bool]:
        """Return differences between the interfaces; a padded model has lengths or masks in addition."""
        wanted = {value.name for value in required_inputs(reference.graph)} - {*sets}
        theirs = {value.name for value in candidate.graph.input}
        known = {tensor.name for tensor in reference.graph.initializer} | {*self.padding.lengths.values()}
        problems = [f"the candidate has no input {name!r}" for name in sorted(wanted - theirs)]
        problems += [f"the candidate has one more input {name!r}" for name in sorted(theirs - wanted - known)]
        ours, outputs = ({value.name for value in model.graph.output} for model in (reference, candidate))
        problems += [f"the candidate has no output {name!r}" for name in sorted(ours - outputs)]
        problems += [f"the candidate has one more output {name!r}" for name in sorted(outputs - ours)]
        return problems, not problems

    def opened(self, reference: HeldModel) -> HeldModel:
        """Return the reference with open lengths, also where the file fixes them."""
        axes = self.padding.inputs
        fixed = {
            value.name
            for value in reference.proto.graph.input
            if value.name in axes and isinstance((dims_of(value) or ())[axes[value.name]], int)
        }
        if not fixed:
            return reference
        proto = onnx.ModelProto()
        proto.CopyFrom(reference.with_data())
        for value in proto.graph.input:
            if value.name in fixed:
                value.type.tensor_type.shape.dim[axes[value.name]].Clear()
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
        del proto.graph.value_info[:]
        return dataclasses.replace(reference, proto=proto, path=None)

    def run_reference(
        self,
        runner: Runner,
        given: Sequence[Feeds] | None,
        trials: int | None,
        seed: int,
        progress: Callable[[str, int, int], None],
    ) -> list[Trial]:
        """Run the reference on sequences of several lengths, each of which is to be padded in several ways.

        Args:
            runner: The two models.
            given: Run on these; by default on generated sequences of several lengths.
            trials: Sequences of each length.
            seed: Determines the generated sequences.
            progress: Called with the role, the lengths done and all lengths.

        Raises:
            UnverifiableError: No engine runs the reference, or it runs on no sequences.
        """
        made: list[Trial] = []
        try:
            with runner.open(self.opened(runner.reference)) as run:
                if given is not None:
                    made = [Trial(number, feeds, run(feeds)) for number, feeds in enumerate(given)]
                else:
                    made = self._generate_all(runner, run, trials or _PATTERNS, seed, progress)
        except LoadError as error:
            raise UnverifiableError(f"no engine runs the reference: {brief(error)}") from error
        except RunError as error:
            problem = f"the reference does not run on the given inputs: {brief(error)}"
            raise UnverifiableError(problem) from error
        return [
            dataclasses.replace(trial, number=_PADDINGS * number + way)
            for number, trial in enumerate(made)
            for way in range(_PADDINGS)
        ]

    def _generate_all(
        self, runner: Runner, run: RunModel, trials: int, seed: int, progress: Callable[[str, int, int], None]
    ) -> list[Trial]:
        made: list[Trial] = []
        refused: list[UnverifiableError] = []
        all_lengths = self._lengths()
        for number, lengths in enumerate(all_lengths):
            progress("reference", number, len(all_lengths))
            try:
                made += self._generate(runner, run, lengths, trials, seed + number)
            except UnverifiableError as error:
                # It may be too short for a window, or no multiple of a frame.
                refused.append(error)
                runner.note(f"length {_words(lengths)}: the reference does not run")
        if not made:
            raise refused[0]
        return made

    def _lengths(self) -> list[dict[str, int]]:
        """Return the least length, odd ones, a power of two and its neighbors, and the maximum."""
        columns = []
        for number, (symbol, most) in enumerate(self.padding.max.items()):
            least = self.padding.least[symbol]
            power = 1 << max(most.bit_length() - 2, 1)
            chosen = {least, least + 1, 3, 7, power - 1, power, power + 1, most - 1, most, most * 2 // 3 | 1}
            column = sorted(length for length in chosen if least <= length <= most)
            columns.append(column[number:] + column[:number])
        count = max(map(len, columns))
        return [
            {name: column[row % len(column)] for name, column in zip(self.padding.max, columns, strict=True)}
            for row in range(count)
        ]

    def _generate(
        self, runner: Runner, run: RunModel, lengths: Mapping[str, int], count: int, seed: int
    ) -> list[Trial]:
        model = onnx.ModelProto()
        model.CopyFrom(runner.reference.proto)
        names = {value.name for value in model.graph.input}
        # Sizes other than lengths that the candidate fixes hold for both models.
        other = onnx.GraphProto()
        other.input.extend(value for value in runner.candidate.proto.graph.input if value.name in names)
        for value in (*model.graph.input, *other.input):
            if value.name in self.padding.inputs:
                dim = value.type.tensor_type.shape.dim[self.padding.inputs[value.name]]
                dim.dim_value = lengths[self.padding.symbols[value.name]]
        facts = dataclasses.replace(gather_facts(model), threshold=runner.reference_facts.threshold)
        made, skipped = generate_trials(run, input_maker(model.graph, other, facts, seed), count)
        for text in skipped:
            runner.note(f"length {_words(lengths)}: {text}")
        return made

    def run_candidate(
        self, runner: Runner, run: RunModel, finished: list[Trial]
    ) -> Iterator[tuple[Trial, dict[str, Any]]]:
        """Yield the valid part of the candidate's outputs on padded inputs."""
        for trial in finished:
            lengths = self._lengths_of(trial.feeds)
            found = run(self._padded(trial, lengths))
            yield trial, {name: self._valid(name, array, lengths) for name, array in found.items()}

    def _lengths_of(self, feeds: Feeds) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, symbol in self.padding.symbols.items():
            length, most = feeds[name].shape[self.padding.inputs[name]], self.padding.max[symbol]
            if not 0 < length <= most or found.setdefault(symbol, length) != length:
                raise OptionError(f"input {name!r} has {length} steps; its length is from 1 to {most}")
        return found

    def _padded(self, trial: Trial, lengths: Mapping[str, int]) -> Feeds:
        """Return the inputs, padded with zeros, noise, or large values."""
        feeds = dict(trial.feeds)
        rng = np.random.default_rng([trial.number, *lengths.values()])
        for name, symbol in self.padding.symbols.items():
            axis, array = self.padding.inputs[name], feeds[name]
            shape = [*array.shape]
            shape[axis] = self.padding.max[symbol] - array.shape[axis]
            feeds[name] = np.concatenate([array, _filling(array, shape, trial.number % _PADDINGS, rng)], axis)
        for symbol, name in self.padding.lengths.items():
            length = lengths[symbol]
            feeds[name] = np.array([length], np.int64)
            if self.padding.form == "mask":
                feeds[name] = (np.arange(self.padding.max[symbol])[None] < length).astype(np.float32)
        return feeds

    def _valid(self, name: str, array: Any, lengths: Mapping[str, int]) -> Any:
        output = self.padding.outputs.get(name)
        if output is None:
            return array
        return array.take(range(evaluate(str(output["size"]), lengths)), output["axis"])

    def where_it_begins(self, runner: Runner, judge: Judge, judged: list[Judged]) -> str | None:
        """Describe the length and the padding at which an output differs first, and its first step."""
        ways = ("zeros", "noise", "large values")
        for one in judged:
            for name, comparison in one.comparisons.items():
                if not comparison.equal:
                    length = _words(self._lengths_of(one.trial.feeds))
                    way = ways[one.trial.number % _PADDINGS]
                    return f"output {name!r} at length {length}, padded with {way}"
        return None


def evaluate(expression: str, lengths: Mapping[str, int]) -> int:
    """Return the size that an expression of the metadata gives for these lengths."""
    text = expression
    for symbol in sorted(lengths, key=len, reverse=True):
        text = text.replace(symbol, f"({lengths[symbol]})")
    try:
        return max(_value(ast.parse(text, mode="eval").body), 0)
    except (SyntaxError, KeyError, TypeError):
        problem = f"the size {expression!r} in the metadata is no expression in the lengths"
        raise OptionError(problem) from None


def _value(tree: ast.expr) -> int:
    if isinstance(tree, ast.BinOp):
        return _OPERATORS[type(tree.op)](_value(tree.left), _value(tree.right))
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    raise TypeError(f"{tree} is no number")


def _filling(array: Array, shape: Sequence[int], way: int, rng: np.random.Generator) -> Array:
    if way == 0 or not array.size:
        return np.zeros(shape, array.dtype)
    if way == 1 or array.dtype.kind != "f":
        # What the input holds anyway: a number that is an index stays one.
        return rng.choice(array.reshape(-1), tuple(shape)).astype(array.dtype)
    return (rng.choice([-_LARGE, _LARGE], tuple(shape))).astype(array.dtype)


def _words(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {length}" for name, length in lengths.items())
