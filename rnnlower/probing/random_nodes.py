"""Random nodes that combine features which are correct alone, and the ones that fail in combination."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rnnlower.probing.nodes import STATES, Node
from rnnlower.recurrent.operators import OUTPUT_NAMES, RECURRENT_OPS

_WEIGHTS = ("W", "R", "B")
_FED_INPUTS = ("sequence_lens", "initial_h", "initial_c")
# The order in which parts that fail only together are blamed: the rarest in real models first.
_BLAME_ORDER = (
    *(f"{how} {name}" for how in ("fed", "computed") for name in _WEIGHTS),
    *("activations", "clip", "P", "input_forget", "layout", "sequence_lens", "computed states"),
    *("behind Expand", "behind Tile", "hidden_size", "empty B", "no B", "Y_c", "Y", "open time"),
    *("open batch", "in If", "in Loop", "in Scan", "Y_h", "initial_c", "initial_h"),
)


@dataclasses.dataclass
class Claims:
    """The claims of a rule about nodes, as far as they are known.

    Attributes:
        directions: The supported directions.
        taken: The supported inputs and attributes beyond the plain ones.
        functions: The supported activations beyond the default ones.
        needs: The required inputs, outputs and attributes.
        not_empty: The inputs and outputs that must not have an empty name.
        fed: The weights that may be graph inputs.
        computed: The weights that may be computed from constants.
        places: The control-flow operators in whose bodies the node may be.
        behind: The operators that may repeat a step to make X.
        open: The sizes of X that may be symbolic.
        open_nested: The same in bodies.
        open_with_states: The same if the states are computed.
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
        """Return whether a node may lack an output or attribute, or give it an empty name."""
        return name not in (*self.needs, *self.not_empty) and (name != "Y_c" or self.base.op_type == "LSTM")

    def retract(self, parts: Sequence[str]) -> str:
        """Retract the claim on one of the parts that fail together; return its key in `wrong`."""
        culprit = min(parts, key=_BLAME_ORDER.index)
        kind, _, name = culprit.partition(" ")
        if culprit == "activations":
            self.functions.clear()
        elif kind == "open":
            self._retract_open_size(name, parts)
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
            # An absent input or output: if it is required, it must not be empty either.
            name = name or culprit
            if kind != "empty":
                self.needs.append(name)
            if name != "hidden_size":
                self.not_empty.append(name)
        return name or culprit

    def _retract_open_size(self, name: str, parts: Sequence[str]) -> None:
        if any(part.startswith("in ") for part in parts):
            self.open_nested.remove(name)
        else:
            for sizes in (self.open, self.open_nested, self.open_with_states):
                if name in sizes:
                    sizes.remove(name)


def draw_parts(claims: Claims, rng: np.random.Generator) -> list[str]:
    """Draw a random combination of the parts that a node may have beyond the plain form."""

    def some(names: Sequence[str]) -> list[str]:
        return [name for name in names if rng.integers(2)]

    def one(*names: str) -> list[str]:
        name = names[rng.integers(len(names))]
        return [name] if name else []

    places = [f"in {place}" for place in claims.places]
    repeated = [f"behind {op_type}" for op_type in claims.behind]
    where = one(*[""] * max(1, len(places) + len(repeated)), *places, *repeated)
    # Values that a Loop or Scan captures from outside are tested elsewhere.
    reads = not {"in Loop", "in Scan"} & {*where}
    parts = some([name for name in claims.taken if reads or name not in _FED_INPUTS])
    lacking = some([name for name in (*OUTPUT_NAMES, "hidden_size") if claims.may_lack(name)])
    if {*RECURRENT_OPS[claims.base.op_type].outputs} <= {*lacking}:
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


def add_parts(node: Node, parts: Sequence[str], functions: Sequence[str]) -> Node:
    """Return the node with these parts."""
    sets = {how: {*getattr(node, how)} for how in ("left_out", "fed", "computed", "open")}
    more: dict[str, Any] = {}
    for part in parts:
        kind, _, name = part.partition(" ")
        if part in (*OUTPUT_NAMES, "hidden_size"):
            sets["left_out"].add(part)
        elif part == "activations":
            node = node.with_activations(*functions)
        elif part == "computed states":
            sets["computed"] |= {*STATES[node.op_type]}
        elif kind in sets:
            sets[kind].add(name)
        elif kind in ("no", "empty"):
            node = node.with_(inputs=node.inputs - {"B"})
            more["written"] = 4 if kind == "empty" else 0
        elif kind in ("in", "behind"):
            more["place" if kind == "in" else kind] = name
        else:
            node = node.add(part)
    sets["computed"] &= {*_WEIGHTS, *node.inputs}
    more |= {how: frozenset(names) for how, names in sets.items()}
    return node.with_(**more)


def minimize(parts: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return a minimal subset of the parts that still fails."""
    left = list(parts)
    for part in parts:
        fewer = [name for name in left if name != part]
        if fails(fewer):
            left = fewer
    return left
