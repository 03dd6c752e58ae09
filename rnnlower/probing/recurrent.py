"""The recurrent nodes that a runtime runs as they are, at real sizes, and those that it computes wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rnnlower.probing.asking import Asker
from rnnlower.probing.nodes import SIZES, STATES, Node, node_question

__all__ = ["ask_node", "recurrent_rules"]

_DIRECTIONS = ("forward", "reverse", "bidirectional")
_ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
_INPUTS = ("sequence_lens", "initial_h", "initial_c", "P")
_UNITS = (8, 4, 2, 1)
_MEMBERS, _FEW_MEMBERS = 16, 4
_LONG = 3
"""Steps beyond which a runtime that compiles for long is not tried."""


def ask_node(asker: Asker, node: Node) -> str:
    """Return the answer for a node."""
    return asker.ask(str(node), node_question, node)


def recurrent_rules(asker: Asker, dynamic: bool, loops: Sequence[str]) -> list[dict[str, Any]]:
    """Return the recurrent rules of the target file, without their sources.

    Args:
        asker: Puts the questions.
        dynamic: Whether sizes may be symbols.
        loops: Which of If, Loop and Scan there are.
    """
    rules: list[dict[str, Any]] = []
    for op_type, form in (("LSTM", None), ("GRU", 0), ("GRU", 1), ("RNN", None)):
        base = Node(op_type)
        base = base.with_("linear_before_reset") if form else base
        for rule in _rules(asker, base, dynamic, loops):
            twin = rule | {"attributes": rule["attributes"] | {"linear_before_reset": [0]}}
            if form == 1 and twin in rules:
                # If both forms behave alike, the attribute limits nothing.
                rules[rules.index(twin)] = rule
                continue
            if form is not None:
                rule["attributes"] = rule["attributes"] | {"linear_before_reset": [form]}
            rules.append(rule)
    return rules


def _rules(asker: Asker, base: Node, dynamic: bool, loops: Sequence[str]) -> Iterator[dict[str, Any]]:
    states = STATES[base.op_type]
    with_states = base
    for name in states:
        with_states = with_states.with_(name)
    left = list(_DIRECTIONS)
    wrong: set[str] = set()
    for start, needs in ((base, ()), (with_states, states)):
        sound = []
        for direction in left:
            answers = _at_sizes(asker, dataclasses.replace(start, direction=direction))
            if set(answers) == {"right"}:
                sound.append(direction)
            elif "wrong" in answers:
                wrong.add(direction)
        left = [direction for direction in left if direction not in sound]
        if sound:
            tries = _Tries(asker, start, sound, needs, wrong)
            rule = tries.rule(dynamic, loops)
            if not rule:
                continue
            yield rule
            # States that are only correct together need a rule of their own.
            left += [] if {*states} <= {*rule["inputs"]} else sound


def _sizes(asker: Asker) -> list[tuple[int, int, int, int]]:
    return [sizes for sizes in SIZES if sizes[0] <= _LONG or not asker.engine.slow]


def _at_sizes(asker: Asker, node: Node) -> list[str]:
    """Return the answers at each size, up to the first one that is not correct."""
    answers: list[str] = []
    for sizes in _sizes(asker):
        answers.append(ask_node(asker, dataclasses.replace(node, sizes=sizes)))
        if answers[-1] != "right":
            break
    return answers


class _Tries:
    """The findings about the nodes of one rule.

    Args:
        asker: Puts the questions.
        base: The plain node.
        sound: The directions in which it is right.
        needs: The states that it has.
        wrong: Takes what the runtime gets silently wrong.
    """

    def __init__(
        self, asker: Asker, base: Node, sound: Sequence[str], needs: Sequence[str], wrong: set[str]
    ) -> None:
        self._asker = asker
        self._base = base
        self._directions = list(sound)
        self._states = list(needs)
        self._wrong = wrong
        self._taken: list[str] = []
        self._functions: list[str] = []
        self._needs: list[str] = []
        self._not_empty: list[str] = []

    def rule(self, dynamic: bool, loops: Sequence[str]) -> dict[str, Any]:
        """The rule; nothing where random nodes show that not even the plain one is right."""
        self._try_features()
        self._try_outputs()
        self._try_members()
        if not self._directions:
            return {}
        base = self._base
        attributes: dict[str, list[Any]] = {"layout": [0], "clip": []}
        if base.op_type == "LSTM":
            attributes["input_forget"] = [0]
        attributes = {name: values for name, values in attributes.items() if name not in self._taken}
        if not self._right(lambda node: node.activated(), "activations"):
            attributes["activations"] = []
        inputs = ["B", *self._states, *(name for name in self._taken if name in _INPUTS)]
        rule: dict[str, Any] = {
            "ops": [base.op_type],
            "dtypes": ["float32"],
            "directions": list(self._directions),
            "inputs": inputs,
            "attributes": attributes,
            "activations": ["default", *self._functions],
            "not_empty": self._not_empty,
            "needs": [*self._states, *self._needs],
        }
        rule |= self._weights() | self._least_and_most(inputs)
        rule["nested"] = all(
            self._right(lambda node, p=place: dataclasses.replace(node, place=p), "nested") for place in loops
        )
        if dynamic:
            rule |= self._open_sizes(inputs, loops if rule["nested"] else ())
        rule["not_behind"] = [
            op_type
            for op_type in ("Expand", "Tile")
            if not self._right(lambda node, o=op_type: self._bare(node, o), "repeated")
        ]
        # The semantics differ in clipping.
        rule["semantics"] = ["ort"] if "clip" in self._taken else []
        rule["wrong"] = sorted(self._wrong - {*self._directions})
        rule["tried"] = _tried(_sizes(self._asker))
        kept = ("attributes", "inputs")
        return {key: value for key, value in rule.items() if (value or key in kept) and value is not True} | (
            {} if rule["nested"] else {"nested": False}
        )

    def _bare(self, node: Node, behind: str) -> Node:
        """Return the node behind an operator, with only the inputs that it needs."""
        inputs = node.inputs if "B" in self._needs else node.inputs - {"B"}
        return dataclasses.replace(node, behind=behind, inputs=inputs)

    @property
    def _nodes(self) -> list[Node]:
        return [dataclasses.replace(self._base, direction=direction) for direction in self._directions]

    def _right(self, change: Any, key: str, nodes: Sequence[Node] | None = None) -> bool:
        """Return whether the changed nodes are all correct; note ``key`` if one is silently wrong."""
        changed = [change(node) for node in (self._nodes if nodes is None else nodes)]
        answers = {ask_node(self._asker, node) for node in changed}
        if "wrong" in answers and key:
            self._wrong.add(key)
        return answers == {"right"}

    def _try_features(self) -> None:
        together = self._nodes
        for name in _features(self._base):
            key = "activations" if name in _ACTIVATIONS else name
            if not self._right(lambda node, n=name: node.with_(n), key):
                continue
            if name in _ACTIVATIONS:
                self._functions.append(name)
                continue
            # A feature that is correct alone may fail together with others.
            joined = [node.with_(name) for node in together]
            if self._right(lambda node: node, name, joined):
                together = joined
                self._taken.append(name)
        mixed = [*self._functions, "Sigmoid", "Tanh"]
        if self._functions and not self._right(lambda node: node.activated(*mixed), "activations"):
            self._functions = []

    def _try_outputs(self) -> None:
        """Find the outputs (and B) that are required, and those that may be absent but not empty."""

        def without(*names: str) -> bool:
            return self._right(lambda node: dataclasses.replace(node, left_out=frozenset(names)), names[0])

        last = "Y_c" if self._base.op_type == "LSTM" else "Y_h"
        if not without("hidden_size"):
            self._needs.append("hidden_size")
        for name in ("Y", "Y_h", "Y_c") if last == "Y_c" else ("Y", "Y_h"):
            ends = {"Y_h": ("Y_h", "Y_c")[: 2 if last == "Y_c" else 1], "Y_c": ("Y_c",)}.get(name, ())
            empty = name == last or without(name)
            absent = not ends or without(*ends)
            if not empty and name != last:
                self._not_empty.append(name)
            if not absent:
                self._needs.append(name)
        bare = [dataclasses.replace(node, inputs=node.inputs - {"B"}) for node in self._nodes]
        if not self._right(lambda node: node, "B", bare):
            self._needs.append("B")
        elif not self._right(lambda node: dataclasses.replace(node, written=4), "B", bare):
            self._not_empty.append("B")

    def _try_members(self) -> None:
        """Try random nodes of the rule, and take back the parts that fail."""
        rng = np.random.default_rng(0)
        for _ in range(_FEW_MEMBERS if self._asker.engine.slow else _MEMBERS):
            while self._directions:
                member, parts = self._member(rng)
                answer = ask_node(self._asker, member)
                if answer == "right":
                    break
                self._take_back(member, parts, answer)

    def _member(self, rng: np.random.Generator) -> tuple[Node, list[str]]:
        """Return a random node of the rule, and its parts beyond the plain one."""
        direction = self._directions[rng.integers(len(self._directions))]
        sizes = _sizes(self._asker)
        size = sizes[rng.integers(len(sizes))]
        node = dataclasses.replace(self._base, direction=direction, sizes=size, read=True)
        leave = [name for name in ("Y", "Y_h", "Y_c", "hidden_size") if self._may_lack(name)]
        parts = [name for name in [*self._taken, *leave] if rng.integers(2)]
        if {"Y", "Y_h", "Y_c"} <= {*parts} or ({"Y", "Y_h"} <= {*parts} and node.op_type != "LSTM"):
            parts.remove("Y")
        if self._functions and rng.integers(2):
            parts.append("activations")
        return self._with(node, parts), parts

    def _may_lack(self, name: str) -> bool:
        return name not in (*self._needs, *self._not_empty) and (
            name != "Y_c" or self._base.op_type == "LSTM"
        )

    def _with(self, node: Node, parts: Sequence[str]) -> Node:
        for name in parts:
            if name in ("Y", "Y_h", "Y_c", "hidden_size"):
                node = dataclasses.replace(node, left_out=node.left_out | {name})
            elif name == "activations":
                node = node.activated(*self._functions)
            else:
                node = node.with_(name)
        return node

    def _take_back(self, member: Node, parts: list[str], answer: str) -> None:
        """Take back the part that makes a node wrong, or the direction."""
        plain = dataclasses.replace(self._base, direction=member.direction, sizes=member.sizes, read=True)
        culprit = next(
            (
                name
                for name in parts
                if ask_node(self._asker, self._with(plain, [part for part in parts if part != name]))
                == "right"
            ),
            parts[0] if parts else member.direction,
        )
        if culprit in self._taken:
            self._taken.remove(culprit)
        elif culprit == "activations":
            self._functions = []
        elif culprit in self._directions:
            self._directions.remove(culprit)
        else:
            self._needs.append(culprit)
            if culprit != "hidden_size":
                self._not_empty.append(culprit)
        if answer == "wrong":
            self._wrong.add(culprit)

    def _weights(self) -> dict[str, Any]:
        """Return which weights must be constants, or computed from constants."""
        rule: dict[str, Any] = {"constant": [], "fixed": []}
        nodes = self._nodes[:1]
        for name in ("W", "R", "B"):
            if self._right(lambda node, n=name: dataclasses.replace(node, fed=frozenset({n})), name, nodes):
                continue
            computed = self._right(
                lambda node, n=name: dataclasses.replace(node, computed=frozenset({n})),
                name,
                nodes,
            )
            rule["fixed" if computed else "constant"].append(name)
        return rule

    def _least_and_most(self, inputs: Sequence[str]) -> dict[str, Any]:
        """Return the smallest accepted sizes and the largest number of inputs."""
        rule: dict[str, Any] = {}
        narrow = [(3, 2, 1, 16)] if self._asker.engine.slow else [(3, 2, 1, 16), (50, 16, 1, 64)]
        if not all(
            self._right(lambda node, s=s: dataclasses.replace(node, sizes=s), "input_size") for s in narrow
        ):
            rule["min_input_size"] = 2
        states = frozenset(STATES[self._base.op_type]) & {*inputs}

        def small(units: int) -> bool:
            more = {"inputs": self._base.inputs | states, "full": states, "sizes": (3, 2, 8, units)}
            return self._right(lambda node: dataclasses.replace(node, **more), "")

        least = next((units * 2 for units in _UNITS if not small(units)), 1)
        if least > 1:
            rule["min_hidden_size"] = least
        last = 8 if self._base.op_type == "LSTM" else 6
        first = 4 if not self._states else 5 + len(self._states)
        written = (
            count - 1
            for count in range(first + 1, last + 1)
            if not self._right(lambda node, c=count: dataclasses.replace(node, written=c), "inputs")
        )
        most = next(written, last)
        if most < last:
            rule["most_inputs"] = most
        return rule

    def _open_sizes(self, inputs: Sequence[str], loops: Sequence[str]) -> dict[str, Any]:
        """Return the sizes that must be static: anywhere, in bodies, and with computed states."""

        def takes(nodes: Sequence[Node], name: str) -> bool:
            return self._right(lambda node: dataclasses.replace(node, open=frozenset({name})), name, nodes)

        rule: dict[str, Any] = {"static": [n for n in ("batch", "time") if not takes(self._nodes, n)]}
        taken = [name for name in ("batch", "time") if name not in rule["static"]]
        inner = [dataclasses.replace(node, place=place) for node in self._nodes for place in loops]
        rule["static_nested"] = [name for name in taken if inner and not takes(inner, name)]
        states = frozenset(STATES[self._base.op_type])
        if "batch" in taken and states <= {*inputs}:
            computed = [
                dataclasses.replace(node, inputs=node.inputs | states, computed=states)
                for node in self._nodes
            ]
            rule["static_with_states"] = [] if takes(computed, "batch") else ["batch"]
        return rule


def _features(node: Node) -> list[str]:
    """List the optional inputs, attributes and functions beyond the plain form of a node type."""
    own = {
        "LSTM": ["initial_h", "initial_c", "P", "input_forget"],
        "GRU": ["initial_h"],
        "RNN": ["initial_h"],
    }[node.op_type]
    features = [*own, "sequence_lens", "clip", "layout", *_ACTIVATIONS]
    return [name for name in features if name not in node.inputs]


def _tried(sizes: Sequence[tuple[int, int, int, int]]) -> str:
    """``batches of 1, 2 and 16, 1, 3 and 50 steps, ...``."""
    steps, batches, features, units = (sorted(set(column)) for column in zip(*sizes, strict=True))
    return (
        f"batches of {_listed(batches)}, {_listed(steps)} steps, {_listed(features)} features, "
        f"{_listed(units)} units"
    )


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
