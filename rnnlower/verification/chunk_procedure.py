"""Verification of a streamed model: whole sequences against their chunks, with the states carried over.

The reference runs on whole sequences of several lengths, with values up to saturation. The candidate runs on
their chunks: of its fixed size, or cut anywhere if it takes any number of steps. Sequences of the same length
run interleaved, one chunk of each in turn: if the model kept internal state, they would affect one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.engines.session import Array, RunError
from rnnlower.files.metadata import StreamMetadata
from rnnlower.verification.inputs.generate import InputMaker
from rnnlower.verification.inputs.trials import Trial
from rnnlower.verification.inputs.uses import dims_of
from rnnlower.verification.models import Feeds, ParsedModel, RunModel
from rnnlower.verification.procedures import (
    LengthProcedure,
    Lengths,
    Pairs,
    axis_problems,
    extension_problems,
)
from rnnlower.verification.runner import Runner
from rnnlower.verification.verdict.judging import Judge, Judged

_CALLS = (1, 2, 7)
_LONG = 50
_PATTERNS, _MIN_TRIALS = 8, 2
# Calls for one length: with sequences of thousands of steps, fewer sequences are enough.
_MAX_CALLS = 10_000
_MAX_CUT = 9


@dataclass(frozen=True)
class ChunkProcedure(LengthProcedure):
    """The procedure that compares a streamed model with one of whole sequences."""

    stream: StreamMetadata

    @property
    def axes(self) -> Mapping[str, int]:
        return self.stream.inputs

    def interface_problems(self, runner: Runner) -> tuple[list[str], bool]:
        """Return differences between the interfaces; a streamed model may have additional states."""
        states, graph = self.stream.states, runner.candidate.proto.graph
        problems = extension_problems(runner, states.values(), states, ", which is not a state")
        problems += axis_problems(graph.input, self.stream.inputs)
        problems += axis_problems(graph.output, self.stream.outputs)
        return problems, not problems

    def run_reference(self, runner: Runner) -> list[Trial]:
        runner.states = dict(self.stream.states)
        return super().run_reference(runner)

    def choose_lengths(self, graph: onnx.GraphProto) -> list[Lengths]:
        """Return the sequence lengths: the model's fixed length, or several multiples of the chunk."""
        chunk = self.stream.chunk or 1
        late = -(-self.stream.delay // chunk)
        calls = {*(count + late for count in _CALLS), late + math.ceil(_LONG / chunk)}
        steps = [count * chunk for count in sorted(calls)]
        limit = self.stream.limit or steps[-1]
        steps = [each for each in steps if each <= limit] or [limit]
        declared = {value.name: dims_of(value) or () for value in graph.input}
        sizes = [declared[name][axis] for name, axis in self.axes.items() if declared.get(name)]
        fixed = (self.stream.steps, *(size for size in sizes if isinstance(size, int)))
        known = next((size for size in fixed if size is not None), None)
        return [dict.fromkeys(self.axes, each) for each in (steps if known is None else [known])]

    def describe(self, lengths: Lengths) -> str:
        return f"{next(iter(lengths.values()))} time steps"

    def default_count(self, maker: InputMaker, lengths: Lengths) -> int:
        """Return the number of sequences: one per pattern of magnitudes, or fewer if they are long."""
        affordable = _MAX_CALLS * (self.stream.chunk or 1) // next(iter(lengths.values()))
        return max(_MIN_TRIALS, min(maker.natural_trials, _PATTERNS, affordable))

    def run_candidate(self, runner: Runner, run: RunModel, finished: list[Trial]) -> Pairs:
        """Yield the candidate's outputs joined over chunks, which is the form of the reference's."""
        groups: dict[int, list[Trial]] = {}
        for trial in finished:
            groups.setdefault(self._steps(trial), []).append(trial)
        for steps, group in groups.items():
            if steps % (self.stream.chunk or 1) and set(group[0].outputs) - set(self.stream.outputs):
                runner.note(
                    f"{steps} time steps are not a multiple of the chunk: final states were not compared"
                )
            calls = _ChunkedRun(runner.candidate.proto.graph, self.stream, group, steps)
            yield from zip(group, calls.joined_outputs(run), strict=True)
        if self.stream.states and all(steps < 2 * (self.stream.chunk or 1) for steps in groups):
            steps = max(groups)
            runner.note(
                f"the source takes {steps} time step{'s' * (steps > 1)}, which is one call: carrying states "
                "between calls was not tested; a source with more steps would test it"
            )

    def _steps(self, trial: Trial) -> int:
        name, axis = next(iter(self.stream.inputs.items()))
        return int(trial.feeds[name].shape[axis])

    def locate_difference(self, runner: Runner, judge: Judge, judged: list[Judged]) -> str | None:
        """Describe the first inner value that differs; none if the outputs are delayed."""
        return None if self.stream.delay else super().locate_difference(runner, judge, judged)

    def run_inner_values(
        self, model: ParsedModel, run: RunModel, trial: Trial, names: list[str], expected: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the inner values that can be joined over calls."""
        calls = _ChunkedRun(model.proto.graph, self.stream, [trial], self._steps(trial))
        return _join_inner_values(calls.run_all(run)[0], names, expected)


class _ChunkedRun:
    """A run of sequences of one length through a streamed model, interleaved chunk by chunk.

    Args:
        graph: The graph of the streamed model.
        trials: The sequences, with the reference's outputs.
    """

    def __init__(
        self, graph: onnx.GraphProto, stream: StreamMetadata, trials: Sequence[Trial], steps: int
    ) -> None:
        self._stream = stream
        self._trials = trials
        self._inputs = {value.name: value for value in graph.input}
        self._cuts = [_chunk_bounds(steps, stream.chunk, trial.number) for trial in trials]
        self._is_complete = self._cuts[0][-1] == steps

    def joined_outputs(self, run: RunModel) -> list[dict[str, Any]]:
        """Return the outputs of each sequence, joined into the reference's form."""
        made = zip(self._trials, self._cuts, self.run_all(run), strict=True)
        return [self._join(trial, cuts, calls) for trial, cuts, calls in made]

    def run_all(self, run: RunModel) -> list[list[dict[str, Any]]]:
        """Return the outputs of all calls, by sequence."""
        states = [initial_states(self._stream, self._inputs, trial.feeds) for trial in self._trials]
        given: list[list[dict[str, Any]]] = [[] for _ in self._trials]
        for call in range(max(map(len, self._cuts)) - 1):
            for number, trial in enumerate(self._trials):
                ends = self._cuts[number][call : call + 2]
                if len(ends) < 2:
                    continue
                found = run({**self._slice_inputs(trial.feeds, *ends), **states[number]})
                missing = sorted({*self._stream.states} - set(found))
                if missing:
                    raise RunError(f"it gives no output {missing[0]!r}")
                states[number] = {name: found[out] for out, name in self._stream.states.items()}
                given[number].append(found)
        return given

    def _slice_inputs(self, feeds: Mapping[str, Array], first: int, end: int) -> Feeds:
        cut = {}
        for name, array in feeds.items():
            if name in self._inputs:
                axis = self._stream.inputs.get(name)
                cut[name] = array if axis is None else array.take(range(first, end), axis)
        return cut

    def _join(self, trial: Trial, cuts: Sequence[int], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        # The states as well: all outputs of a runtime are compared.
        outputs = {name: calls[-1][name] for name in calls[-1] if name not in trial.outputs} if calls else {}
        for name, expected in trial.outputs.items():
            axis = self._stream.outputs.get(name)
            chunks = [call[name] for call in calls if name in call]
            if axis is not None and chunks and all(_is_part(each, expected, axis) for each in chunks):
                late = chunks[0].shape[axis] * self._stream.delay // (cuts[1] - cuts[0])
                outputs[name] = self._join_chunks(name, expected, chunks, axis, late)
            elif chunks and (self._is_complete or axis is not None):
                outputs[name] = chunks[-1]
        return outputs

    def _join_chunks(
        self, name: str, expected: Array, chunks: Sequence[Array], axis: int, late: int
    ) -> Array:
        """Join the chunks; drop steps before the reference's first frame and after its end."""
        joined = np.concatenate(chunks, axis).take(range(late, sum(c.shape[axis] for c in chunks)), axis)
        length = expected.shape[axis]
        joined = joined.take(range(min(length, joined.shape[axis])), axis)
        missing = length - joined.shape[axis]
        if self._is_complete and not late and missing > self._stream.unreached.get(name, 0):
            return joined
        # Steps that the stream has not reached yet are not compared.
        rest = expected.take(range(joined.shape[axis], length), axis)
        return np.concatenate([joined, rest], axis).astype(joined.dtype)


def _is_part(chunk: Array, whole: Array, axis: int) -> bool:
    """Return whether the two differ in their numbers of steps at most."""
    shapes = [(*each.shape[:axis], *each.shape[axis + 1 :]) for each in (chunk, whole)]
    return chunk.ndim == whole.ndim and shapes[0] == shapes[1]


def _chunk_bounds(steps: int, chunk: int | None, number: int) -> list[int]:
    """Return the bounds of the chunks: multiples of the chunk size, or every step, none, or random steps."""
    if chunk is not None:
        return [*range(0, steps - steps % chunk + 1, chunk)]
    if number % 4 == 0 or not steps:
        return [*range(steps + 1)]
    if number % 4 == 1:
        return [0, steps]
    rng = np.random.default_rng([steps, number])
    cuts = np.cumsum(rng.integers(1, _MAX_CUT + 1, steps))
    return [0, *(int(cut) for cut in cuts if cut < steps), steps]


def initial_states(
    stream: StreamMetadata, inputs: Mapping[str, onnx.ValueInfoProto], feeds: Mapping[str, Array]
) -> Feeds:
    """Return the states for a stream's first call; fed ones are used as they are."""
    sizes: dict[str, int] = {}
    for name in inputs.keys() & feeds.keys():
        for dim, size in zip(dims_of(inputs[name]) or (), feeds[name].shape, strict=False):
            if isinstance(dim, str) or (dim is None and name in stream.inputs):
                # Other tools may have removed the names: an open size is then that of all of them.
                sizes[str(dim)] = size
    states = {}
    for name in stream.states.values():
        if name in feeds:
            states[name] = feeds[name]
            continue
        shape = [_resolve_size(dim, sizes) for dim in dims_of(inputs[name]) or ()]
        dtype = tensor_dtype_to_np_dtype(inputs[name].type.tensor_type.elem_type)
        states[name] = np.full(shape, stream.start.get(name, 0.0), dtype)
    return states


def _resolve_size(dim: int | str | None, sizes: Mapping[str, int]) -> int:
    """Return the size of a dimension such as 4, ``N`` or ``2*N``, where N may itself be named ``2*s0``."""
    text = f"{dim}*"
    # The longest name with which it begins, or else its first factor.
    known = (name for name in sizes if text.startswith(f"{name}*"))
    first = max(known, key=len, default=text.partition("*")[0])
    size, rest = sizes.get(first, int(first) if first.isdecimal() else 1), text[len(first) + 1 : -1]
    return size * _resolve_size(rest, sizes) if rest else size


def _join_inner_values(
    calls: Sequence[Mapping[str, Any]], names: Sequence[str], whole: Mapping[str, Any]
) -> dict[str, Any]:
    """Join inner values of all calls along the axis that makes them as long as the reference's."""
    found: dict[str, Any] = {}
    for name in names:
        pieces = [call[name] for call in calls]
        expected = whole[name]
        if not all(isinstance(each, np.ndarray) for each in (*pieces, expected)):
            continue
        for axis in range(pieces[0].ndim if len(pieces) > 1 else 0):
            shape = [*pieces[0].shape]
            shape[axis] = sum(piece.shape[axis] for piece in pieces)
            if tuple(shape) == expected.shape:
                found[name] = np.concatenate(pieces, axis)
                break
    return found
