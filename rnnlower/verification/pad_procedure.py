"""Verification of a padded model: unpadded inputs of several lengths against the same inputs, padded.

The padding is zeros, noise, or large values: the valid part of each output must not depend on it.
"""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import onnx

from rnnlower.engines.session import Array
from rnnlower.errors import OptionError, UnverifiableError
from rnnlower.files.metadata import PadMetadata
from rnnlower.verification.inputs.generate import InputMaker
from rnnlower.verification.inputs.trials import Trial
from rnnlower.verification.inputs.uses import dims_of
from rnnlower.verification.models import Feeds, ParsedModel, RunModel, select_feeds
from rnnlower.verification.procedures import (
    LengthProcedure,
    Lengths,
    Pairs,
    axis_problems,
    extension_problems,
)
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.judging import Judge, Judged
from rnnlower.wording import option

_LARGE = 1e4
_PADDINGS = 3
_PATTERNS = 2
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.FloorDiv: operator.floordiv,
    ast.Mult: operator.mul,
    ast.Sub: operator.sub,
}


@dataclasses.dataclass(frozen=True)
class PadProcedure(LengthProcedure):
    """The procedure that compares a padded model with the source."""

    padding: PadMetadata

    @property
    def axes(self) -> Mapping[str, int]:
        return self.padding.inputs

    def interface_problems(self, runner: Runner) -> tuple[list[str], bool]:
        """Return differences between the interfaces; a padded model has additional lengths or masks."""
        problems = extension_problems(runner, self.padding.lengths.values())
        graph = runner.candidate.proto.graph
        problems += axis_problems((*graph.input, *graph.output), self.padding.rows)
        for name, axis in self.padding.inputs.items():
            maximum = self.padding.max[self.padding.symbols[name]]
            for model in (runner.reference, runner.candidate):
                dims = next((dims_of(value) for value in model.proto.graph.input if value.name == name), None)
                if dims is None:
                    continue
                size = dims[axis] if 0 <= axis < len(dims) else 0
                if isinstance(size, int) and (size < 1 or (model.role == "candidate" and size != maximum)):
                    problems.append(
                        f"input {name!r} of the {model.role} has no axis {axis} of {maximum} steps"
                    )
        return problems, not problems

    def prepare_reference(self, reference: ParsedModel) -> ParsedModel:
        """Return the reference with its fixed lengths made dynamic."""
        axes = self.padding.inputs
        fixed = {
            value.name
            for value in reference.proto.graph.input
            if value.name in axes and isinstance((dims_of(value) or ())[axes[value.name]], int)
        }
        if not fixed:
            return reference
        proto = deepcopy(reference.with_data())
        for value in proto.graph.input:
            if value.name in fixed:
                value.type.tensor_type.shape.dim[axes[value.name]].Clear()
        for value in proto.graph.output:
            value.type.tensor_type.ClearField("shape")
        del proto.graph.value_info[:]
        return reference.with_proto(proto)

    def run_reference(self, runner: Runner) -> list[Trial]:
        """Run the reference on sequences of several lengths; repeat each trial for each kind of padding."""
        trials = super().run_reference(runner)
        graph = runner.reference.proto.graph
        are_longest = all(self._lengths_of(trial.feeds) == {**self.padding.max} for trial in trials)
        if are_longest and runner.options.given(graph, {}) is None:
            raise UnverifiableError(
                "the reference runs only at its full length: no shorter sequence can be compared",
                remedy=f"export it with an open length, or write it unverified ({option('no-verify')})",
            )
        return [
            dataclasses.replace(trial, number=_PADDINGS * trial.number + way)
            for trial in trials
            for way in range(_PADDINGS)
        ]

    def choose_lengths(self, graph: onnx.GraphProto) -> list[Lengths]:
        """Return the least length, odd ones, a power of two and its neighbors, and the maximum."""
        columns = []
        for number, (symbol, maximum) in enumerate(self.padding.max.items()):
            minimum = self.padding.least[symbol]
            power = 1 << max(maximum.bit_length() - 2, 1)
            odd = {3, 7, maximum * 2 // 3 | 1}
            chosen = odd | {minimum, minimum + 1, power - 1, power, power + 1, maximum - 1, maximum}
            multiple = self.padding.multiples.get(symbol, 1)
            whole = {length - length % multiple for length in chosen}
            column = sorted(length for length in whole if minimum <= length <= maximum)
            columns.append(column[number:] + column[:number])
        count = max(map(len, columns))
        every = [
            dict(zip(self.padding.max, (each[row % len(each)] for each in columns), strict=True))
            for row in range(count)
        ]
        return [{name: lengths[symbol] for name, symbol in self.padding.symbols.items()} for lengths in every]

    def describe(self, lengths: Lengths) -> str:
        found = {symbol: lengths[name] for name, symbol in self.padding.symbols.items()}
        return f"length {_describe(found)}"

    def default_count(self, maker: InputMaker, lengths: Lengths) -> int:
        return _PATTERNS

    def run_candidate(self, runner: Runner, run: RunModel, finished: list[Trial]) -> Pairs:
        """Yield the valid part of the candidate's outputs on padded inputs."""
        for trial in finished:
            lengths = self._lengths_of(trial.feeds)
            own = [trial.feeds[name].shape[a] for name, a in self.padding.rows.items() if name in trial.feeds]
            rows, row = max(own, default=1), trial.number // _PADDINGS
            found = run(select_feeds(runner.candidate.proto, self._pad(trial, lengths, rows)))
            valid = {name: self._valid_part(name, array, lengths) for name, array in found.items()}
            if rows > 1:
                valid = {
                    name: self._with_other_rows(name, array, trial.outputs, row % rows, rows)
                    for name, array in valid.items()
                }
            yield trial, valid

    def _with_other_rows(self, name: str, found: Any, outputs: Mapping[str, Any], row: int, rows: int) -> Any:
        """Replace the rows of an output that do not have the trial's length by those of the reference."""
        expected, axis = outputs.get(name), self.padding.rows.get(name)
        if axis is None or expected is None:
            return found
        if (expected.shape, expected.dtype) != (found.shape, found.dtype):
            return found
        size = found.shape[axis]
        is_row = np.arange(size) // (size // rows) == row
        return np.where(is_row.reshape(-1, *[1] * (found.ndim - axis - 1)), found, expected)

    def _lengths_of(self, feeds: Feeds) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, symbol in self.padding.symbols.items():
            length, maximum = feeds[name].shape[self.padding.inputs[name]], self.padding.max[symbol]
            if not 0 < length <= maximum or found.setdefault(symbol, length) != length:
                raise OptionError(f"input {name!r} has {length} steps; its length is from 1 to {maximum}")
        return found

    def _pad(self, trial: Trial, lengths: Mapping[str, int], rows: int) -> Feeds:
        """Return the inputs, padded with zeros, noise, or large values."""
        feeds = dict(trial.feeds)
        rng = np.random.default_rng([trial.number, *lengths.values()])
        # The lengths of all rows: one has the trial's length, the others are at most as long.
        of_rows = {symbol: rng.integers(1, length + 1, rows) for symbol, length in lengths.items()}
        for symbol, length in lengths.items():
            of_rows[symbol] -= of_rows[symbol] % self.padding.multiples.get(symbol, 1)
            of_rows[symbol] = np.maximum(of_rows[symbol], self.padding.least[symbol])
            of_rows[symbol][trial.number // _PADDINGS % rows] = length
        for name, symbol in self.padding.symbols.items():
            axis, array = self.padding.inputs[name], feeds[name]
            shape, maximum = [*array.shape], self.padding.max[symbol]
            shape[axis] = maximum - array.shape[axis]
            whole = np.concatenate([array, _make_padding(array, shape, trial.number % _PADDINGS, rng)], axis)
            if rows > 1:
                filling = _make_padding(array, whole.shape, trial.number % _PADDINGS, rng)
                valid = np.arange(maximum) < of_rows[symbol][:, None]
                valid = valid if self.padding.rows[name] < axis else valid.T
                valid = np.expand_dims(
                    valid, [i for i in range(whole.ndim) if i not in (axis, self.padding.rows[name])]
                )
                whole = np.where(valid, whole, filling).astype(array.dtype)
            feeds[name] = whole
        for symbol, name in self.padding.lengths.items():
            feeds[name] = of_rows[symbol].astype(np.int64)
            if self.padding.form == "mask":
                feeds[name] = np.arange(self.padding.max[symbol]) < of_rows[symbol][:, None]
                feeds[name] = feeds[name].astype(np.float32)
        return feeds

    def _valid_part(self, name: str, array: Any, lengths: Mapping[str, int]) -> Any:
        output = self.padding.outputs.get(name)
        if output is None:
            return array
        axis, size = output["axis"], evaluate_size(str(output["size"]), lengths)
        fits = -array.ndim <= axis < array.ndim and size <= array.shape[axis]
        # Another shape is a difference.
        return array.take(range(size), axis) if fits else array

    def locate_difference(self, runner: Runner, judge: Judge, judged: list[Judged]) -> str | None:
        """Describe the length and the padding at which an output differs first, and its first step."""
        ways = ("zeros", "noise", "large values")
        for one in judged:
            for name, comparison in one.comparisons.items():
                if not comparison.equal:
                    length = _describe(self._lengths_of(one.trial.feeds))
                    way = ways[one.trial.number % _PADDINGS]
                    step = self._first_step(name, one, judge)
                    return f"output {name!r} at length {length}, padded with {way}{step}"
        return None

    def _first_step(self, name: str, one: Judged, judge: Judge) -> str:
        expected, found = (np.asarray(each[name]) for each in (one.trial.outputs, one.outputs))
        if name not in self.padding.outputs or expected.shape != found.shape or expected.dtype.kind != "f":
            return ""
        axis = self.padding.outputs[name]["axis"]
        difference = np.abs(found.astype(float) - expected)
        allowed = judge.tolerance(expected.dtype, one.trial.feeds).allowed(
            expected.astype(float), difference > 0
        )
        others = tuple(each for each in range(expected.ndim) if each != axis)
        differs = ~(difference <= allowed).all(axis=others)
        return f", from step {int(np.argmax(differs))} on"


def evaluate_size(expression: str, lengths: Mapping[str, int]) -> int:
    """Evaluate a size expression of the metadata for these lengths."""
    text = expression
    for symbol in sorted(lengths, key=len, reverse=True):
        text = text.replace(symbol, f"({lengths[symbol]})")
    try:
        return max(_value(ast.parse(text, mode="eval").body), 0)
    except (SyntaxError, KeyError, TypeError, ZeroDivisionError):
        problem = f"the size {expression!r} in the metadata is not an expression in the lengths"
        raise OptionError(problem) from None


def _value(tree: ast.expr) -> int:
    if isinstance(tree, ast.BinOp):
        return _OPERATORS[type(tree.op)](_value(tree.left), _value(tree.right))
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int):
        return tree.value
    raise TypeError(f"{tree} is not a number")


def _make_padding(array: Array, shape: Sequence[int], way: int, rng: np.random.Generator) -> Array:
    if way == 0 or not array.size:
        return np.zeros(shape, array.dtype)
    if way == 1 or array.dtype.kind != "f":
        # Values of the input itself: an index stays valid.
        return rng.choice(array.reshape(-1), tuple(shape)).astype(array.dtype)
    return (rng.choice([-_LARGE, _LARGE], tuple(shape))).astype(array.dtype)


def _describe(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {length}" for name, length in lengths.items())
