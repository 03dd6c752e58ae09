"""The names of states: what is left of them without the words that tell the new one from the old one."""

from __future__ import annotations

import re

_DIRECTION = re.compile(r"(?<![a-z])(in|out|input|output|new|next|prev|cur|old|init|initial)(?![a-z])|n$")


def state_stem(name: str) -> str:
    """Return the part of a name that a state has before a call and after it."""
    # stateN and hn mark the new state by a last letter, conv_cache_out by a word.
    spaced = re.sub(r"[^a-z0-9]+|(?<=[a-z])(?=\d)", " ", re.sub(r"(?<=[a-z])N$", "", name).lower())
    return re.sub(r"\s+", "", _DIRECTION.sub("", spaced))
