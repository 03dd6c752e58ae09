"""Verification of a streamed model: the whole sequence against its chunks, with the state carried.

The reference runs on whole sequences of several lengths, with values up to saturation. The candidate runs on
their chunks: of its number of steps, or cut anywhere if it takes any number. All sequences of a length run
interleaved, a chunk of each in turn: if the model kept anything inside, one would see the state of another.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.engines.session import LoadError, RunError, brief
from rnnlower.errors import UnverifiableError
from rnnlower.files.stream_metadata import StreamMetadata
from rnnlower.verification.inputs.facts import dims_of
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.inputs.trials import RunModel, Trial, generate_trials, input_maker
from rnnlower.verification.interface import required_inputs
from rnnlower.verification.models import HeldModel
from rnnlower.verification.running import Runner
from rnnlower.verification.verdict.judging import Judge, Judged
from rnnlower.verification.verdict.narrow import common_values, first_difference, with_outputs

Array = NDArray[Any]
Feeds = dict[str, Array]

_CALLS = (1, 2, 7)
_LONG = 50
_PATTERNS, _FEWEST = 8, 2
# Calls for one length: a sequence of thousands of steps is long enough to show what a few do not.
_MOST_CALLS = 10_000
_LARGEST_CUT = 9
_PRODUCT = re.compile(r"(\d+)\*(.+)")


def stream_of(reference: HeldModel, candidate: HeldModel) -> StreamMetadata | None:
    """Return the candidate's stream metadata, if it is streamed and the reference is not."""
    ours, theirs = (
        StreamMetadata.read({entry.key: entry.value for entry in model.proto.metadata_props})
        for model in (reference, candidate)
    )
    return theirs if ours is None else None


@dataclasses.dataclass(frozen=True)
class Chunks:
    """The procedure that compares a streamed model with one of whole sequences.

    Attributes:
        stream: The candidate's calling convention.
    """

    stream: StreamMetadata

    def problems(
        self,
        reference: onnx.ModelProto,
        candidate: onnx.ModelProto,
        sets: Collection[str] = (),
        casts: Mapping[str, str] | None = None,
    ) -> tuple[list[str], bool]:
        """Return differences between the interfaces; a streamed model may have additional states.

        The candidate may lack the inputs named in `sets`.
        """
        problems = []
        for kind, theirs, wanted, states in (
            (
                "input",
                {value.name for value in candidate.graph.input},
                {value.name for value in required_inputs(reference.graph)} - {*sets},
                {*self.stream.states.values(), *(tensor.name for tensor in reference.graph.initializer)},
            ),
            (
                "output",
                {value.name for value in candidate.graph.output},
                {value.name for value in reference.graph.output},
                {*self.stream.states},
            ),
        ):
            problems += [f"the candidate has no {kind} {name!r}" for name in sorted(wanted - theirs)]
            more = sorted(theirs - wanted - states)
            problems += [f"the candidate has one more {kind} {name!r}, which is not a state" for name in more]
        return problems, not problems

    def run_reference(
        self,
        runner: Runner,
        given: Sequence[Feeds] | None,
        trials: int | None,
        seed: int,
        progress: Callable[[str, int, int], None],
    ) -> list[Trial]:
        """Run the reference on whole sequences.

        Args:
            runner: The two models.
            given: Run on these; by default on generated sequences of several lengths.
            trials: Sequences of each length; by default one per pattern of magnitudes.
            seed: Determines the generated sequences.
            progress: Called with the role, the lengths done and all lengths.

        Raises:
            UnverifiableError: No engine runs the reference, or it runs on no sequences.
        """
        try:
            with runner.open(runner.reference) as run:
                if given is not None:
                    return [Trial(number, feeds, run(feeds)) for number, feeds in enumerate(given)]
                return self._generate_all(runner, run, trials, seed, progress)
        except LoadError as error:
            raise UnverifiableError(f"no engine runs the reference: {brief(error)}") from error
        except RunError as error:
            problem = f"the reference does not run on the given inputs: {brief(error)}"
            raise UnverifiableError(problem) from error

    def _generate_all(
        self,
        runner: Runner,
        run: RunModel,
        trials: int | None,
        seed: int,
        progress: Callable[[str, int, int], None],
    ) -> list[Trial]:
        made: list[Trial] = []
        refused: list[UnverifiableError] = []
        lengths = self._lengths(runner.reference.proto.graph)
        for number, length in enumerate(lengths):
            progress("reference", number, len(lengths))
            try:
                more = self._generate(runner, run, length, trials, seed + number)
            except UnverifiableError as error:
                # It may be too short for a window; other lengths show the same.
                refused.append(error)
                runner.note(f"{length} time steps: the reference does not run")
            else:
                made += [dataclasses.replace(trial, number=len(made) + i) for i, trial in enumerate(more)]
        if not made:
            raise refused[0]
        return made

    def _lengths(self, graph: onnx.GraphProto) -> list[int]:
        """Return the lengths of the sequences: that of the model, or some multiples of the chunk."""
        for value in graph.input:
            dims = dims_of(value)
            if value.name in self.stream.inputs and dims is not None:
                size = dims[self.stream.inputs[value.name]]
                if isinstance(size, int):
                    return [size]
        chunk = self.stream.chunk or 1
        late = -(-self.stream.delay // chunk)
        calls = {*(count + late for count in _CALLS), late + math.ceil(_LONG / chunk)}
        return [count * chunk for count in sorted(calls)]

    def _generate(
        self, runner: Runner, run: RunModel, length: int, count: int | None, seed: int
    ) -> list[Trial]:
        model = onnx.ModelProto()
        model.CopyFrom(runner.reference.proto)
        # Sizes other than time that the candidate fixes hold for both models.
        other = onnx.GraphProto()
        other.input.extend(runner.candidate.proto.graph.input)
        for value in (*model.graph.input, *other.input):
            if value.name in self.stream.inputs:
                value.type.tensor_type.shape.dim[self.stream.inputs[value.name]].dim_value = length
        facts = dataclasses.replace(gather_facts(model), threshold=runner.reference_facts.threshold)
        maker = input_maker(model.graph, other, facts, seed)
        affordable = _MOST_CALLS * (self.stream.chunk or 1) // length
        patterns = max(_FEWEST, min(maker.natural_trials, _PATTERNS, affordable))
        made, skipped = generate_trials(run, maker, count or patterns)
        for text in skipped:
            runner.note(f"{length} time steps: {text}")
        return made

    def run_candidate(
        self, runner: Runner, run: RunModel, finished: list[Trial]
    ) -> Iterator[tuple[Trial, dict[str, Any]]]:
        """Yield the candidate's outputs in the form of the reference's: chunks in a row, streams in turns."""
        groups: dict[int, list[Trial]] = {}
        for trial in finished:
            groups.setdefault(self._steps(trial), []).append(trial)
        for steps, group in groups.items():
            if steps % (self.stream.chunk or 1) and set(group[0].outputs) - set(self.stream.outputs):
                runner.note(
                    f"{steps} time steps are not a multiple of the chunk: final states were not compared"
                )
            calls = _Calls(runner.candidate.proto.graph, self.stream, group, steps)
            yield from zip(group, calls.outputs(run), strict=True)
        if self.stream.states and all(steps < 2 * (self.stream.chunk or 1) for steps in groups):
            steps = max(groups)
            runner.note(
                f"the source takes {steps} time step{'s' * (steps > 1)}, which is one call: that states are "
                "carried from call to call was not shown; a source of more steps shows it"
            )

    def _steps(self, trial: Trial) -> int:
        name, axis = next(iter(self.stream.inputs.items()))
        return int(trial.feeds[name].shape[axis])

    def where_it_begins(self, runner: Runner, judge: Judge, judged: list[Judged]) -> str | None:
        """Describe the first inner value that differs, of those that both models name."""
        different = next((one for one in judged if not all(c.equal for c in one.comparisons.values())), None)
        names = common_values(runner.reference, runner.candidate)
        extended = [with_outputs(model, names) for model in (runner.reference, runner.candidate)]
        if different is None or not names or self.stream.delay or None in extended:
            return None
        whole, chunked = extended
        assert whole is not None
        assert chunked is not None
        trial = different.trial
        try:
            with runner.open(whole) as run:
                expected = run(trial.feeds)
            with runner.open(chunked) as run:
                calls = _Calls(chunked.proto.graph, self.stream, [trial], self._steps(trial))
                found = _rows(calls.all(run)[0], names, expected)
        except (LoadError, RunError):
            # This only helps the reader: the verdict stands without it.
            return None
        return first_difference(
            runner.reference.proto.graph,
            [name for name in names if name in found],
            expected,
            found,
            lambda dtype: judge.tolerance(dtype, trial.feeds),
        )


class _Calls:
    """A run of sequences of one length through a streamed model, a chunk of each in turn.

    Args:
        graph: The graph of the streamed model.
        stream: Its calling convention.
        trials: The sequences, with the reference's outputs.
        steps: Their length.
    """

    def __init__(
        self, graph: onnx.GraphProto, stream: StreamMetadata, trials: Sequence[Trial], steps: int
    ) -> None:
        self._stream = stream
        self._trials = trials
        self._inputs = {value.name: value for value in graph.input}
        self._cuts = [_cut_up(steps, stream.chunk, trial.number) for trial in trials]
        self._is_complete = self._cuts[0][-1] == steps

    def outputs(self, run: RunModel) -> list[dict[str, Any]]:
        """Return the outputs of each sequence in the reference's form, as far as the stream has them."""
        made = zip(self._trials, self._cuts, self.all(run), strict=True)
        return [self._joined(trial, cuts, calls) for trial, cuts, calls in made]

    def all(self, run: RunModel) -> list[list[dict[str, Any]]]:
        """Return the outputs of each call, for each sequence."""
        states = [self._start(trial.feeds) for trial in self._trials]
        given: list[list[dict[str, Any]]] = [[] for _ in self._trials]
        for call in range(max(map(len, self._cuts)) - 1):
            for number, trial in enumerate(self._trials):
                ends = self._cuts[number][call : call + 2]
                if len(ends) < 2:
                    continue
                found = run({**self._cut(trial.feeds, *ends), **states[number]})
                missing = sorted({*self._stream.states, *trial.outputs} - set(found))
                if missing:
                    raise RunError(f"it gives no output {missing[0]!r}")
                states[number] = {name: found[out] for out, name in self._stream.states.items()}
                given[number].append(found)
        return given

    def _cut(self, feeds: Mapping[str, Array], first: int, end: int) -> Feeds:
        cut = {}
        for name, array in feeds.items():
            if name in self._inputs:
                axis = self._stream.inputs.get(name)
                where = [slice(None)] * (0 if axis is None else axis)
                where += [] if axis is None else [slice(first, end)]
                cut[name] = np.ascontiguousarray(array[tuple(where)])
        return cut

    def _start(self, feeds: Mapping[str, Array]) -> Feeds:
        """Return the states of the first call; those that the reference has too start as in the reference."""
        sizes: dict[str, int] = {}
        unnamed = 1
        for name, value in self._inputs.items():
            for axis, dim in enumerate(dims_of(value) or ()):
                if name in feeds and isinstance(dim, str):
                    sizes[dim] = feeds[name].shape[axis]
                elif name in feeds and dim is None and name in self._stream.inputs:
                    unnamed = feeds[name].shape[axis]
        states = {}
        for name in self._stream.states.values():
            if name in feeds:
                states[name] = feeds[name]
                continue
            value = self._inputs[name]
            shape = [_size(dim, sizes, unnamed) for dim in dims_of(value) or ()]
            dtype = tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            start = np.asarray(self._stream.start.get(name, 0.0), dtype)
            states[name] = np.ascontiguousarray(np.broadcast_to(start, shape))
        return states

    def _joined(
        self, trial: Trial, cuts: Sequence[int], calls: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        # The states as well: all outputs of a runtime are compared.
        outputs = {name: calls[-1][name] for name in calls[-1] if name not in trial.outputs} if calls else {}
        for name, expected in trial.outputs.items():
            axis = self._stream.outputs.get(name)
            if axis is not None and calls:
                chunks = [call[name] for call in calls]
                late = chunks[0].shape[axis] * self._stream.delay // (cuts[1] - cuts[0])
                outputs[name] = self._over_time(name, expected, chunks, axis, late)
            elif self._is_complete and calls:
                outputs[name] = calls[-1][name]
        return outputs

    def _over_time(self, name: str, expected: Array, chunks: Sequence[Array], axis: int, late: int) -> Array:
        """Join the chunks, without steps after the reference's end or before its first frame."""
        joined = np.concatenate(chunks, axis).take(range(late, sum(c.shape[axis] for c in chunks)), axis)
        length = expected.shape[axis]
        joined = joined.take(range(min(length, joined.shape[axis])), axis)
        missing = length - joined.shape[axis]
        if self._is_complete and not late and missing > self._stream.unreached.get(name, 0):
            return joined
        # Steps that the stream has not reached yet are not compared.
        rest = expected.take(range(joined.shape[axis], length), axis)
        return np.concatenate([joined, rest], axis).astype(joined.dtype)


def _cut_up(steps: int, chunk: int | None, number: int) -> list[int]:
    """Return where a sequence is cut: at multiples of the chunk; else at every step, nowhere, or anywhere."""
    if chunk is not None:
        return [*range(0, steps - steps % chunk + 1, chunk)]
    if number % 4 == 0 or not steps:
        return [*range(steps + 1)]
    if number % 4 == 1:
        return [0, steps]
    rng = np.random.default_rng([steps, number])
    cuts = np.cumsum(rng.integers(1, _LARGEST_CUT + 1, steps))
    return [0, *(int(cut) for cut in cuts if cut < steps), steps]


def _size(dim: int | str | None, sizes: Mapping[str, int], unnamed: int) -> int:
    if isinstance(dim, int):
        return dim
    if dim is None:
        return unnamed
    product = _PRODUCT.fullmatch(dim)
    if dim not in sizes and product:
        return int(product[1]) * sizes.get(product[2], unnamed)
    return sizes.get(dim, unnamed)


def _rows(
    calls: Sequence[Mapping[str, Any]], names: Sequence[str], whole: Mapping[str, Any]
) -> dict[str, Any]:
    """Return inner values of all calls joined along the axis on which they are as long as the reference's."""
    found: dict[str, Any] = {}
    for name in names:
        pieces = [call[name] for call in calls]
        expected = whole[name]
        if not all(isinstance(each, np.ndarray) for each in (*pieces, expected)):
            continue
        for axis in range(expected.ndim if pieces[0].ndim == expected.ndim else 0):
            others = [i for i in range(expected.ndim) if i != axis]
            length = sum(piece.shape[axis] for piece in pieces)
            same = all(pieces[0].shape[i] == expected.shape[i] for i in others)
            if same and length == expected.shape[axis] and len(pieces) > 1:
                found[name] = np.concatenate(pieces, axis)
                break
    return found
