"""The metadata entries that describe a streamed model."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

STATE_KEY = "rnnlower.state"
STREAM_KEY = "rnnlower.stream"
_DIRECTION = re.compile(r"(?<![a-z])(in|out|input|output|new|next|prev|cur|old|init|initial)(?![a-z])|n$")


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
    start: Mapping[str, Any]
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    unreached: Mapping[str, int] = dataclasses.field(default_factory=dict)
    limit: int | None = None
    steps: int | None = None

    def write(self, properties: MutableMapping[str, str]) -> None:
        """Write the entries into the metadata of a model."""
        stream = dataclasses.asdict(self)
        properties[STATE_KEY] = json.dumps(stream.pop("states"))
        for name in ("rates", "unreached", "limit", "steps"):
            if not stream[name]:
                del stream[name]
        properties[STREAM_KEY] = json.dumps(stream)

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> StreamMetadata | None:
        """Read the entries from the metadata of a model; ``None`` if it is not a streamed model."""
        if STATE_KEY not in properties or STREAM_KEY not in properties:
            return None
        stream, states = json.loads(properties[STREAM_KEY]), json.loads(properties[STATE_KEY])
        chunk, inputs, outputs, delay = (stream[key] for key in ("chunk", "inputs", "outputs", "delay"))
        start, rates, unreached = (stream.get(name, {}) for name in ("start", "rates", "unreached"))
        limit, steps = stream.get("limit"), stream.get("steps")
        return cls(chunk, inputs, outputs, delay, states, start, rates, unreached, limit, steps)


def state_stem(name: str) -> str:
    """Return the part of a name that a state has before a call and after it."""
    # stateN and hn mark the new state by a last letter, conv_cache_out by a word.
    spaced = re.sub(r"[^a-z0-9]+|(?<=[a-z])(?=\d)", " ", re.sub(r"(?<=[a-z])N$", "", name).lower())
    return re.sub(r"\s+", "", _DIRECTION.sub("", spaced))
