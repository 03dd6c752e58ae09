"""Random nodes of a rule, in which what is correct alone stands together, and the parts that fail there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rnnlower.probing.nodes import STATES, Node

_WEIGHTS = ("W", "R", "B")
_FED = ("sequence_lens", "initial_h", "initial_c")
# Which part is blamed where several fail only together: the rarest in models first.
_BLAMED = (
    *(f"{how} {name}" for how in ("fed", "computed") for name in _WEIGHTS),
    *("activations", "clip", "P", "input_forget", "layout", "sequence_lens", "computed states"),
    *("behind Expand", "behind Tile", "hidden_size", "empty B", "no B", "Y_c", "Y", "open time"),
    *("open batch", "in If", "in Loop", "in Scan", "Y_h", "initial_c", "initial_h"),
)


@dataclasses.dataclass
class Claims:
    """The claims of a rule about nodes, as far as they are known.

    Attributes:
        base: The plain node.
        directions: Its directions.
        taken: The inputs and attributes beyond the plain ones.
        functions: The activations beyond the default ones.
        needs: What must be there.
        not_empty: What must not be an empty name.
        fed: The weights that may be graph inputs.
        computed: The weights that may be computed from constants.
        places: The operators in whose bodies it may stand.
        behind: The operators that may repeat a step to make X.
        open: The sizes of X that may be symbols.
        open_nested: ... in bodies.
        open_with_states: ... with states that are computed.
    """

    base: Node
    directions: list[str]
    taken: list[str] = dataclasses.field(default_factory=list)
    functions: list[str] = dataclasses.field(default_factory=list)
    needs: list[str] = dataclasses.field(default_factory=list)
    not_empty: list[str] = dataclasses.field(default_factory=list)
    fed: list[str] = dataclasses.field(default_factory=list)
    computed: list[str] = dataclasses.field(default_factory=list)
    places: list[str] = dataclasses.field(default_factory=list)
    behind: list[str] = dataclasses.field(default_factory=list)
    open: list[str] = dataclasses.field(default_factory=list)
    open_nested: list[str] = dataclasses.field(default_factory=list)
    open_with_states: list[str] = dataclasses.field(default_factory=list)

    def may_lack(self, name: str) -> bool:
        """Return whether a node may be without an output or attribute, by an empty name too."""
        return name not in (*self.needs, *self.not_empty) and (name != "Y_c" or self.base.op_type == "LSTM")

    def take_back(self, parts: Sequence[str]) -> str:
        """Take back one of the parts that fail together; return its key in `wrong`."""
        culprit = min(parts, key=_BLAMED.index)
        kind, _, name = culprit.partition(" ")
        if culprit == "activations":
            self.functions.clear()
        elif kind == "open":
            self._close(name, parts)
        elif culprit == "computed states":
            self.open_with_states.clear()
            name = "batch"
        elif kind in ("fed", "computed"):
            getattr(self, kind).remove(name)
        elif kind == "in":
            self.places.clear()
            name = "nested"
        elif kind == "behind":
            self.behind.remove(name)
            name = "repeated"
        elif culprit in self.taken:
            self.taken.remove(culprit)
        else:
            # An absent input or output; one that must be there must not be empty either.
            name = name or culprit
            if kind != "empty":
                self.needs.append(name)
            if name != "hidden_size":
                self.not_empty.append(name)
        return name or culprit

    def _close(self, name: str, parts: Sequence[str]) -> None:
        if any(part.startswith("in ") for part in parts):
            self.open_nested.remove(name)
        else:
            for sizes in (self.open, self.open_nested, self.open_with_states):
                if name in sizes:
                    sizes.remove(name)


def draw(claims: Claims, rng: np.random.Generator) -> list[str]:
    """Return random parts that a node may have together beyond the plain form."""

    def some(names: Sequence[str]) -> list[str]:
        return [name for name in names if rng.integers(2)]

    def one(*names: str) -> list[str]:
        name = names[rng.integers(len(names))]
        return [name] if name else []

    places = [f"in {place}" for place in claims.places]
    repeated = [f"behind {op_type}" for op_type in claims.behind]
    where = one(*[""] * max(1, len(places) + len(repeated)), *places, *repeated)
    # A Loop or Scan that itself reads what is computed outside of it is another question.
    reads = not {"in Loop", "in Scan"} & {*where}
    parts = some([name for name in claims.taken if reads or name not in _FED])
    lacking = some([name for name in ("Y", "Y_h", "Y_c", "hidden_size") if claims.may_lack(name)])
    if {"Y", "Y_h", "Y_c"} <= {*lacking} or ({"Y", "Y_h"} <= {*lacking} and claims.base.op_type != "LSTM"):
        lacking.remove("Y")
    parts += lacking + some(["activations"] if claims.functions else [])
    given = {*claims.base.inputs, *parts}
    last = "empty B" if {"sequence_lens", "initial_h", "initial_c", "P"} & given else "no B"
    if "B" not in claims.needs and ("B" not in claims.not_empty or last == "no B"):
        parts += some([last])
    for name in _WEIGHTS[: 2 if last in parts else 3] if reads else ():
        ways = [how for how in ("fed", "computed") if name in getattr(claims, how)]
        parts += one("", *(f"{how} {name}" for how in ways))
    sizes = claims.open_nested if {*where} & {*places} else claims.open
    if not {*where} & {*repeated}:
        parts += some([f"open {name}" for name in sizes])
    # States are computed for the batch size at run time; the question makes them with time first.
    states = {*STATES[claims.base.op_type]}
    if (
        claims.open_with_states
        and reads
        and states <= given
        and "layout" not in parts
        and "open batch" in parts
    ):
        parts += some(["computed states"])
    return parts + where


def with_parts(node: Node, parts: Sequence[str], functions: Sequence[str]) -> Node:
    """Return the node with these parts."""
    sets = {how: {*getattr(node, how)} for how in ("left_out", "fed", "computed", "open")}
    more: dict[str, Any] = {}
    for part in parts:
        kind, _, name = part.partition(" ")
        if part in ("Y", "Y_h", "Y_c", "hidden_size"):
            sets["left_out"].add(part)
        elif part == "activations":
            node = node.activated(*functions)
        elif part == "computed states":
            sets["computed"] |= {*STATES[node.op_type]}
        elif kind in sets:
            sets[kind].add(name)
        elif kind in ("no", "empty"):
            node = node.but(inputs=node.inputs - {"B"})
            more["written"] = 4 if kind == "empty" else 0
        elif kind == "in":
            more["place"] = name
        elif kind == "behind":
            more["behind"] = name
        else:
            node = node.with_(part)
    sets["computed"] &= {*_WEIGHTS, *node.inputs}
    more |= {how: frozenset(names) for how, names in sets.items()}
    return node.but(**more)


def smallest(parts: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return parts of those that fail without which none of the others does."""
    left = list(parts)
    for part in parts:
        fewer = [name for name in left if name != part]
        if fails(fewer):
            left = fewer
    return left
