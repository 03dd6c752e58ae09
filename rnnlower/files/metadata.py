"""The metadata entries of resulting models: calling conventions, and the origin."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from rnnlower.errors import InvalidModelError

STATE_KEY = "rnnlower.state"
STREAM_KEY = "rnnlower.stream"
_DIRECTION = re.compile(r"(?<![a-z])(in|out|input|output|new|next|prev|cur|old|init|initial)(?![a-z])|n$")
_Kind = TypeVar("_Kind")


@dataclasses.dataclass(frozen=True)
class StreamMetadata:
    """The calling convention of a streamed model.

    Attributes:
        chunk: Time steps per call; ``None``: any number.
        inputs: The time axis of each input that has one.
        outputs: The time axis of each output that has one; the others hold the value at the end of the chunk.
        delay: Time steps by which the outputs are late: that many come first that belong to no step.
        states: For each output that holds a state, the input that takes it in the next call.
        start: For each state input, its value in the first call: a number, or nested lists of its shape
            (a size of 1 stands for any size).
        rates: For each output that does not have one frame per time step, its frames per step.
        stages: For each output of a whole sequence that has another number of frames than of time steps, the
            stages ``(factor, more, stride)`` of a `Track` by which the one follows from the other.
        unreached: For each output whose whole sequence has more frames at its end than the stream ever gives,
            their number.
        limit: The time steps of a stream, where there are positions for so many alone.
        steps: The time steps of the model of whole sequences, where their number is fixed.
    """

    chunk: int | None
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    delay: int
    states: Mapping[str, str]
    start: Mapping[str, bool | int | float | list[Any]] = dataclasses.field(default_factory=dict)
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    stages: Mapping[str, Sequence[tuple[int, int, int]]] = dataclasses.field(default_factory=dict)
    unreached: Mapping[str, int] = dataclasses.field(default_factory=dict)
    limit: int | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        counts = [count for count in (self.chunk, self.limit, self.steps) if count is not None]
        if min(counts, default=1) < 1 or self.delay < 0:
            raise ValueError("a number of time steps is negative, or zero where it cannot be")
        if not self.start.keys() <= {*self.states.values()}:
            raise ValueError("a start belongs to no state")

    def write(self, properties: MutableMapping[str, str]) -> None:
        """Write the entries into the metadata of a model."""
        stream = dataclasses.asdict(self)
        properties[STATE_KEY] = json.dumps(stream.pop("states"))
        for name in ("rates", "stages", "unreached", "limit", "steps"):
            if not stream[name]:
                del stream[name]
        properties[STREAM_KEY] = json.dumps(stream)

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> StreamMetadata | None:
        """Read the entries from the metadata of a model; ``None`` if it is not a streamed model."""
        if STATE_KEY not in properties:
            return None
        return _read(cls, properties, STREAM_KEY, states=properties[STATE_KEY])

    @classmethod
    def follow(cls, properties: MutableMapping[str, str], inputs: Mapping[str, Sequence[object]]) -> None:
        """Correct the entries of a model whose inputs, by the shapes that are left, got numbers or values."""
        before = cls.read(properties)
        if before is None:
            return
        timed = {name: axis for name, axis in before.inputs.items() if name in inputs}
        # A padded model takes chunks of any length in one size.
        sizes = [
            inputs[name][axis] for name, axis in timed.items() if inputs[name] and PAD_KEY not in properties
        ]
        known = next((size for size in sizes if isinstance(size, int)), None)
        after = dataclasses.replace(
            before,
            chunk=before.chunk or known,
            inputs=timed,
            states={output: name for output, name in before.states.items() if name in inputs},
            start={name: value for name, value in before.start.items() if name in inputs},
        )
        if after != before:
            after.write(properties)


def _read(kind: type[_Kind], properties: Mapping[str, str], key: str, **others: str) -> _Kind | None:
    """Read the entry of this key, and those of other fields; fields of later versions are ignored."""
    if key not in properties:
        return None
    try:
        entry = json.loads(properties[key]) | {name: json.loads(text) for name, text in others.items()}
        return msgspec.convert(entry, kind)
    except (ValueError, TypeError) as error:
        raise InvalidModelError(
            f"the metadata entry {key!r} cannot be read: {error}", remedy="take the entry out of the model"
        ) from error


def state_stem(name: str) -> str:
    """Return the part of a name that a state has before a call and after it."""
    # stateN and hn mark the new state by a last letter, conv_cache_out by a word.
    spaced = re.sub(r"[^a-z0-9]+|(?<=[a-z])(?=\d)", " ", re.sub(r"(?<=[a-z])N$", "", name).lower())
    return re.sub(r"\s+", "", _DIRECTION.sub("", spaced))


PAD_KEY = "rnnlower.pad"


@dataclasses.dataclass(frozen=True)
class PadMetadata:
    """The calling convention of a padded model.

    Attributes:
        max: The maximum of each length.
        least: The least of each length: a shorter sequence fills no window of some operator.
        inputs: The axis of time of each input that has one.
        outputs: For each output over time its axis, and its valid size as an expression in the lengths.
        lengths: For each length, the input of the model that holds it.
        symbols: For each input over time, its length.
        form: What these inputs hold: ``length``, or ``mask``.
        rows: The axis of rows of inputs and outputs, if each row has a length of its own.
        multiples: The number of which a length has to be a multiple, if there is one.
    """

    max: Mapping[str, int]
    least: Mapping[str, int]
    inputs: Mapping[str, int]
    outputs: Mapping[str, Mapping[str, Any]]
    lengths: Mapping[str, str]
    symbols: Mapping[str, str]
    form: str
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    multiples: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = self.max.keys()
        if not (lengths == self.least.keys() == self.lengths.keys() == {*self.symbols.values()}):
            raise ValueError("its parts name different lengths")
        if self.inputs.keys() != self.symbols.keys():
            raise ValueError("its parts name different inputs")
        if not all(1 <= self.least[name] <= maximum for name, maximum in self.max.items()):
            raise ValueError("the least length is not from 1 to the maximum")
        if not all(isinstance(each.get("axis"), int) and "size" in each for each in self.outputs.values()):
            raise ValueError("an output has no axis or no size")

    def write(self, properties: MutableMapping[str, str]) -> None:
        """Write the entry into the metadata of a model."""
        properties[PAD_KEY] = json.dumps(dataclasses.asdict(self))

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> PadMetadata | None:
        """Read the entry from the metadata of a model; ``None`` if it is not a padded model."""
        return _read(cls, properties, PAD_KEY)


PROVENANCE_KEY = "rnnlower.provenance"

_MAX_ELEMENTS = 16
"""Larger values are described by their type and shape."""


def record_provenance(
    properties: MutableMapping[str, str], command: str, options: Any, *, wanted: bool
) -> None:
    """Replace the entry of a model's source by one for a command, unless none is wanted or all metadata go.

    It has the fields of the command's options that are not as by default.
    """
    properties.pop(PROVENANCE_KEY, None)
    if not wanted or options.strip:
        return
    given = {
        field.name: to_json_types(value)
        for field in dataclasses.fields(options)
        if field.init and field.name != "progress"
        if (value := getattr(options, field.name)) != field.default and value not in (None, {}, [])
    }
    version = importlib.metadata.version("rnnlower")
    entry = {"version": version, "command": command, "options": given}
    properties[PROVENANCE_KEY] = json.dumps(entry, sort_keys=True)


def read_provenance(properties: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the entry of a model, or ``None`` if it has none that can be read."""
    try:
        entry = json.loads(properties.get(PROVENANCE_KEY, "null"))
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("options", {}), dict) else None


def to_json_types(value: Any) -> Any:
    """Return a value in JSON types, which have neither infinity nor NaN; a large array is described."""
    value = vars(value) if dataclasses.is_dataclass(value) else value
    if isinstance(value, Mapping):
        return {str(name): to_json_types(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        small = value.size <= _MAX_ELEMENTS
        return value.tolist() if small else f"{value.dtype} of shape {list(value.shape)}"
    if isinstance(value, tuple | list):
        return [to_json_types(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return os.fspath(value) if isinstance(value, os.PathLike) else value
