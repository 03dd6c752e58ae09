"""Recordings: the inputs of whole sequences, and the model calls that run them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.engines.catalog import find_engine
from rnnlower.engines.child import read_arrays
from rnnlower.engines.opened_models import EngineError, OpenedModel, open_on
from rnnlower.engines.session import IsolatedSession, LoadError, RunError, brief
from rnnlower.errors import OptionError, UnverifiableError
from rnnlower.files.metadata import StreamMetadata
from rnnlower.passes.command_options import Given
from rnnlower.verification.chunk_procedure import initial_states
from rnnlower.verification.models import required_inputs
from rnnlower.wording import counted

Array = NDArray[Any]
Feeds = dict[str, Array]
Session = IsolatedSession | OpenedModel

_NO_SEQUENCE = "the recordings hold no sequence; give an .npz file with at least one"


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of a model: the inputs and the outputs."""

    feeds: Feeds
    outputs: Feeds


class Recordings:
    """Recordings of the inputs of a model.

    Args:
        model: The model. A step model, by its metadata, is called chunk by chunk with its states carried.
        given: The recordings. An array has the axes of its input, or one more, which counts sequences.

    Raises:
        OptionError: A file cannot be read, or an array fits no input.

    Attributes:
        sequences: The inputs of each sequence.
        stream: The calling convention of a step model.
    """

    def __init__(self, model: onnx.ModelProto, given: Sequence[Given]) -> None:
        self.stream = StreamMetadata.read({entry.key: entry.value for entry in model.metadata_props})
        # A state is fed in each call, even if it has a default.
        carried = [value for value in model.graph.input if value.name in self.states.values()]
        self._inputs = {value.name: value for value in (*required_inputs(model.graph), *carried)}
        self.sequences = [feeds for each in given for feeds in self._sequences(each)]
        if given and not self.sequences:
            raise OptionError(_NO_SEQUENCE)

    @property
    def states(self) -> Mapping[str, str]:
        """The input that takes each state output in the next call."""
        return {} if self.stream is None else self.stream.states

    def calls(self, session: Session, sequence: Feeds) -> Iterator[Call]:
        """Run a sequence, call by call, with the states carried."""
        states: Feeds = {}
        for chunk in self._chunks(sequence):
            if self.stream is not None and not states:
                states = initial_states(self.stream, self._inputs, chunk)
            feeds = {**states, **chunk}
            outputs = run_on_recording(session, feeds)
            yield Call(feeds, outputs)
            states = {name: outputs[output] for output, name in self.states.items()}

    def _chunks(self, sequence: Feeds) -> Iterator[Feeds]:
        """Yield the inputs of each call, without the states."""
        if self.stream is None or set(self.states.values()) <= sequence.keys():
            # States in a recording make each of its sequences one call.
            yield sequence
            return
        size, steps = self._sizes(sequence)
        timed = {name: axis for name, axis in self.stream.inputs.items() if name in sequence}
        if steps < size:
            raise OptionError(f"a recording has {steps} time steps, and a call of the model takes {size}")
        for first in range(0, steps - size + 1, size):
            yield {
                name: np.take(array, range(first, first + size), axis=timed[name]) if name in timed else array
                for name, array in sequence.items()
            }

    def _sizes(self, sequence: Feeds) -> tuple[int, int]:
        """Return the number of time steps of a call and of a sequence."""
        assert self.stream is not None
        axes = self.stream.inputs.items()
        steps = min(sequence[name].shape[axis] for name, axis in axes if name in sequence)
        return self.stream.chunk or 1, steps

    def notes(self) -> list[str]:
        """Return a note if the last steps of a sequence do not fill a chunk."""
        if self.stream is None:
            return []
        carried = [each for each in self.sequences if not set(self.states.values()) <= each.keys()]
        left = [count for size, steps in map(self._sizes, carried) if (count := steps % size)]
        words = f"the last {max(left, default=0)} steps (or fewer) of {counted(len(left), 'recording')}"
        return [f"{words} fill no chunk of {self.stream.chunk}, and are left out"] if left else []

    def _sequences(self, given: Given) -> list[Feeds]:
        label = "the recording" if isinstance(given, Mapping) else str(given)
        found = given if isinstance(given, Mapping) else _read(pathlib.Path(given))
        arrays = {name: np.asarray(array) for name, array in found.items()}
        self._check_names(label, arrays)
        counts = {name: self._sequence_count(label, name, array) for name, array in arrays.items()}
        arrays = {name: self._convert(label, name, array) for name, array in arrays.items()}
        stacks = {count for count in counts.values() if count is not None}
        if len(stacks) > 1:
            raise OptionError(
                f"{label} holds {min(stacks)} sequences of one input and {max(stacks)} of another"
            )
        return [
            # An element of a vector would be a number, and no array.
            {name: array if counts[name] is None else array[index, ...] for name, array in arrays.items()}
            for index in range(min(stacks, default=1))
        ]

    def _check_names(self, label: str, arrays: Feeds) -> None:
        """Refuse a recording that lacks an input, or some of the states, or holds something else."""
        unknown = sorted(arrays.keys() - self._inputs.keys())
        if unknown:
            names = ", ".join(map(repr, self._inputs))
            raise OptionError(f"{label} holds {unknown[0]!r}, which is no input; the inputs are {names}")
        missing = sorted(self._inputs.keys() - arrays.keys() - set(self.states.values()))
        if missing:
            raise OptionError(f"{label} lacks the input {missing[0]!r}; it must hold an array for each input")
        states = sorted(self.states.values(), key=arrays.__contains__)
        if states and states[0] not in arrays and states[-1] in arrays:
            # The carried one would go with the same value of the other at each call.
            raise OptionError(
                f"{label} holds the state {states[-1]!r} and lacks {states[0]!r}",
                remedy="give all states, for single calls, or none: they are carried from call to call",
            )

    def _sequence_count(self, label: str, name: str, array: Array) -> int | None:
        """Return the number of sequences in an array; ``None`` if it is one, without an axis for them."""
        tensor = self._inputs[name].type.tensor_type
        rank = len(tensor.shape.dim) if tensor.HasField("shape") else array.ndim
        if array.ndim not in (rank, rank + 1):
            raise OptionError(
                f"{label}: {name!r} has {array.ndim} axes; it must have the {rank} of the input, or one "
                "more that counts sequences"
            )
        return None if array.ndim == rank else array.shape[0]

    def _convert(self, label: str, name: str, array: Array) -> Array:
        """Return an array in the type of its input; refuse numbers that this does not hold."""
        wanted = tensor_dtype_to_np_dtype(self._inputs[name].type.tensor_type.elem_type)
        if array.dtype != wanted and array.dtype.kind != np.dtype(wanted).kind:
            raise OptionError(f"{label}: {name!r} is {array.dtype}; the input takes {wanted}")
        with np.errstate(over="ignore"):
            converted = array.astype(wanted, copy=False)
        if array.dtype.kind == "f" and not np.isfinite(converted).all():
            place = [int(index) for index in np.argwhere(~np.isfinite(converted))[0]]
            raise OptionError(
                f"{label}: {name!r} holds {array[tuple(place)]} at {place}",
                remedy="leave out recordings with NaN or infinity, which have no range",
            )
        if array.dtype.kind in "iu" and (converted != array).any():
            raise OptionError(f"{label}: {name!r} holds numbers beyond {converted.dtype}")
        return converted


def as_list(given: Given | Sequence[Given]) -> list[Given]:
    """Return recordings as a list, even if there is only one.

    Raises:
        OptionError: There is none, or it is neither a path nor a dictionary.
    """
    one = [given] if isinstance(given, str | os.PathLike | Mapping) else None
    found = one or (list(given) if isinstance(given, Iterable) else [given])
    if not found:
        raise OptionError(_NO_SEQUENCE)
    for each in found:
        if not isinstance(each, str | os.PathLike | Mapping):
            kind = type(each).__name__
            raise OptionError(f"a recording is of type {kind}; it must be a dictionary or a path")
    return found


def run_on_recording(
    session: Session,
    feeds: Mapping[str, Array],
    what: str = "the model does not run on the recording",
    remedy: str = "give recordings whose sizes fit the model",
) -> Feeds:
    """Run a call of a recording.

    Raises:
        UnverifiableError: The model does not run on it.
    """
    try:
        return session.run(feeds)
    except (EngineError, RunError) as error:
        raise UnverifiableError(f"{what}: {brief(error)}", remedy=remedy) from error


def open_source(model: onnx.ModelProto, *, optimize: bool = True) -> Session:
    """Open the float model on onnxruntime, or in NumPy if onnxruntime lacks a kernel.

    Raises:
        UnverifiableError: Neither takes it.
    """
    try:
        return open_model(model, optimize=optimize)
    except UnverifiableError:
        with contextlib.suppress(EngineError):
            return open_on(find_engine("rnnlower-reference"), model)
        raise


def open_model(model: onnx.ModelProto, *, optimize: bool) -> IsolatedSession:
    """Open a model on onnxruntime.

    Raises:
        UnverifiableError: onnxruntime does not take it.
    """
    try:
        return IsolatedSession(model.SerializeToString(), optimize)
    except LoadError as error:
        raise UnverifiableError(
            f"onnxruntime does not run the model: {brief(error)}", remedy="check it with `rnnlower inspect`"
        ) from error


def _read(path: pathlib.Path) -> Feeds:
    try:
        return read_arrays(str(path))
    except ValueError as error:
        raise OptionError(f"cannot read a recording from {path}: {error}") from error
