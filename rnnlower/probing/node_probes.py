"""Probes of a runtime's own recurrent operators: what it computes correctly at real sizes, and what wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from rnnlower.probing.asking import Asker
from rnnlower.probing.nodes import SIZES, STATES, Node, node_question
from rnnlower.probing.random_nodes import Claims, add_parts, draw_parts, minimize
from rnnlower.recurrent.operators import DIRECTIONS, RECURRENT_OPS

_ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
_INPUTS = ("sequence_lens", "initial_h", "initial_c", "P")
_UNITS = (8, 4, 2, 1)
_OTHER_TYPES = ("float16", "float64")
_RANDOM_NODES, _FEW_RANDOM_NODES = 40, 6
_OPEN = ("batch", "time")
_LONG = 16
"""The most time steps with which a slow runtime is tried."""
_ONE_STEP = (1, 3, 8, 16)


def ask_node(asker: Asker, node: Node) -> str:
    """Return the answer for a node."""
    return asker.ask(str(node), node_question, node)


def probe_recurrent_rules(
    asker: Asker, dynamic: bool, loops: Sequence[str], dtypes: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the recurrent rules of the target file, without their sources.

    Args:
        dynamic: Whether sizes may be symbolic.
        loops: Those of If, Loop and Scan that the runtime supports.
        dtypes: The types that it supports.
    """
    rules: list[dict[str, Any]] = []
    for op_type, form in (("LSTM", None), ("GRU", 0), ("GRU", 1), ("RNN", None)):
        base = Node(op_type)
        base = base.add("linear_before_reset") if form else base
        for rule in _probe_rules(asker, base, dynamic, loops, dtypes):
            twin = rule | {"attributes": rule["attributes"] | {"linear_before_reset": [0]}}
            if form == 1 and twin in rules:
                # If both forms behave alike, the attribute limits nothing.
                rules[rules.index(twin)] = rule
                continue
            if form is not None:
                rule["attributes"] = rule["attributes"] | {"linear_before_reset": [form]}
            rules.append(rule)
    return rules


def _probe_rules(
    asker: Asker, base: Node, dynamic: bool, loops: Sequence[str], dtypes: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    states = STATES[base.op_type]
    with_states = base
    for name in states:
        with_states = with_states.add(name)
    left = list(DIRECTIONS)
    wrong: set[str] = set()
    for start, needs in ((base, ()), (with_states, states)):
        sound = []
        for direction in left:
            answers = _answers_at_sizes(asker, start.with_(direction=direction))
            if set(answers) == {"right"}:
                sound.append(direction)
            elif "wrong" in answers:
                wrong.add(direction)
        left = [direction for direction in left if direction not in sound]
        if sound:
            tries = _RuleProbe(asker, start, sound, needs, wrong)
            rule = tries.rule(dynamic, loops, dtypes)
            if not rule:
                continue
            yield rule
            # States that are only correct together need a rule of their own.
            left += [] if {*states} <= {*rule["inputs"]} else sound


def _sizes(asker: Asker) -> list[tuple[int, int, int, int]]:
    return [sizes for sizes in SIZES if sizes[0] <= _LONG or not asker.engine.slow]


def _answers_at_sizes(asker: Asker, node: Node) -> list[str]:
    """Return the answers at each size and with constant states, up to the first that is not correct."""
    answers: list[str] = []
    sized = [node.with_(sizes=sizes) for sizes in _sizes(asker)]
    for each in [*sized, *_with_constant_states(node, frozenset(STATES[node.op_type]) & node.inputs)]:
        answers.append(ask_node(asker, each))
        if answers[-1] != "right":
            break
    return answers


def _with_constant_states(node: Node, states: frozenset[str]) -> list[Node]:
    """Return copies of the node whose states are constants: random numbers, and zeros."""
    return [node.with_(known=states), node.with_(full=states)] if states else []


class _RuleProbe:
    """The probe of one rule.

    Args:
        sound: The directions in which it is correct.
        needs: The states that it needs.
        wrong: Collects the properties that the runtime silently gets wrong.
    """

    def __init__(
        self, asker: Asker, base: Node, sound: Sequence[str], needs: Sequence[str], wrong: set[str]
    ) -> None:
        self._asker = asker
        self._claims = Claims(base, list(sound))
        self._states = list(needs)
        self._wrong = wrong

    def rule(self, dynamic: bool, loops: Sequence[str], dtypes: Sequence[str]) -> dict[str, Any]:
        """Return the rule; empty if random nodes show that not even the plain node is correct."""
        self._try_features()
        self._try_outputs()
        self._try_weights()
        self._try_places(dynamic, loops)
        self._try_random_nodes()
        if not self._claims.directions:
            return {}
        base = self._claims.base
        attributes: dict[str, list[Any]] = {"layout": [0], "clip": []}
        if base.op_type == "LSTM":
            attributes["input_forget"] = [0]
        attributes = {name: values for name, values in attributes.items() if name not in self._claims.taken}
        if not self._are_right("activations", (node.with_activations() for node in self._nodes)):
            attributes["activations"] = []
        if "HardSigmoid" in self._claims.functions and not self._are_right(
            "activations", (node.add("activation_alpha") for node in self._nodes)
        ):
            attributes |= {"activation_alpha": [], "activation_beta": []}
        forward = [node.add("direction") for node in self._nodes if node.direction == "forward"]
        if forward and not self._are_right("direction", forward):
            attributes["direction"] = [name for name in self._claims.directions if name != "forward"]
        inputs = ["B", *self._states, *(name for name in self._claims.taken if name in _INPUTS)]
        rule: dict[str, Any] = {
            "ops": [base.op_type],
            "dtypes": ["float32", *(t for t in _OTHER_TYPES if t in dtypes and self._runs_in(t))],
            "directions": list(self._claims.directions),
            "inputs": inputs,
            "attributes": attributes,
            "activations": ["default", *self._claims.functions],
            "not_empty": self._claims.not_empty,
            "needs": [*self._states, *self._claims.needs],
        }
        rule |= self._size_claims(dynamic, loops, inputs) | self._number_claims(inputs)
        # The semantics differ in clipping.
        rule["semantics"] = ["ort", "agreed"] if "clip" in self._claims.taken else []
        rule["wrong"] = sorted(self._wrong - {*self._claims.directions})
        rule["tried"] = _tried(_sizes(self._asker))
        kept = ("attributes", "inputs", "nested")
        return {key: value for key, value in rule.items() if value or key in kept}

    def _runs_in(self, dtype: str) -> bool:
        """Return whether the plain nodes, and those with all supported features, are correct in a type."""
        full = self._nodes
        for name in self._claims.taken:
            full = [node.add(name) for node in full]
        sized = [node.with_(sizes=sizes) for sizes in SIZES[:2] for node in self._nodes]
        return self._are_right("type", (node.with_(dtype=dtype) for node in (*full, *sized)))

    def _bare(self, node: Node, behind: str) -> Node:
        """Return the node after an operator that repeats X, with only the inputs that it needs."""
        inputs = node.inputs if "B" in self._claims.needs else node.inputs - {"B"}
        return node.with_(behind=behind, inputs=inputs)

    @property
    def _nodes(self) -> list[Node]:
        return [self._claims.base.with_(direction=direction) for direction in self._claims.directions]

    def _are_right(self, key: str, nodes: Iterable[Node]) -> bool:
        """Return whether the nodes are all correct; note ``key`` if one is silently wrong."""
        answers = {ask_node(self._asker, node) for node in nodes}
        if "wrong" in answers and key:
            self._wrong.add(key)
        return answers == {"right"}

    def _try_features(self) -> None:
        together = self._nodes
        for name in _features(self._claims.base):
            key = "activations" if name in _ACTIVATIONS else name
            if not self._are_right(key, (node.add(name) for node in self._nodes)):
                continue
            if name in _ACTIVATIONS:
                self._claims.functions.append(name)
                continue
            # A feature that is correct alone may fail in combination.
            joined = [node.add(name) for node in together]
            # With states, a model of one step, as in a stream, is another case; states may also be constants.
            state = frozenset({name}) & {*STATES[self._claims.base.op_type]}
            sizes = _sizes(self._asker) if state else SIZES[:1]
            tried = [node.with_(sizes=each) for each in sizes for node in joined]
            tried += [each for node in joined for each in _with_constant_states(node, state)]
            if all(self._are_right(name, [each]) for each in tried):
                together = joined
                self._claims.taken.append(name)
        mixed = [*self._claims.functions, "Sigmoid", "Tanh"]
        joined = [node.with_activations(*mixed) for node in self._nodes]
        if self._claims.functions and not self._are_right("activations", joined):
            self._claims.functions = []

    def _try_outputs(self) -> None:
        """Find the outputs (and B) that are required, and those that may be absent but not empty."""
        # With one step, the outputs differ only in shape.
        nodes = [*self._nodes, *(node.with_(sizes=_ONE_STEP) for node in self._nodes)]

        def without(*names: str) -> bool:
            return self._are_right(names[0], (node.with_(left_out=frozenset(names)) for node in nodes))

        outputs = RECURRENT_OPS[self._claims.base.op_type].outputs
        if not without("hidden_size"):
            self._claims.needs.append("hidden_size")
        for index, name in enumerate(outputs):
            empty = name == outputs[-1] or without(name)
            absent = not index or without(*outputs[index:])
            if not empty:
                self._claims.not_empty.append(name)
            if not absent:
                self._claims.needs.append(name)
        bare = [node.with_(inputs=node.inputs - {"B"}) for node in self._nodes]
        if not self._are_right("B", bare):
            self._claims.needs.append("B")
        elif not self._are_right("B", (node.with_(written=4) for node in bare)):
            self._claims.not_empty.append("B")

    def _try_random_nodes(self) -> None:
        """Try random nodes of the rule, and retract the parts that fail."""
        rng = np.random.default_rng(0)
        for _ in range(_FEW_RANDOM_NODES if self._asker.engine.slow else _RANDOM_NODES):
            while self._claims.directions and not self._random_node_is_right(rng):
                pass

    def _random_node_is_right(self, rng: np.random.Generator) -> bool:
        """Return whether a random node is correct; if not, retract the parts that fail, or its direction."""
        claims, sizes = self._claims, _sizes(self._asker)
        direction = claims.directions[rng.integers(len(claims.directions))]
        size = sizes[rng.integers(len(sizes))]
        plain = claims.base.with_(direction=direction, sizes=size, read=bool(rng.integers(4)))

        def answer(parts: Sequence[str]) -> str:
            return ask_node(self._asker, add_parts(plain, parts, claims.functions))

        parts = draw_parts(claims, rng)
        if "activations" in parts:
            # Over many steps, gates without bounds overflow.
            plain = plain.with_(sizes=SIZES[0])
        if answer(parts) == "right":
            return True
        culprits = minimize(parts, lambda fewer: answer(fewer) != "right")
        is_wrong = answer(culprits) == "wrong"
        key = claims.retract(culprits) if culprits else direction
        if not culprits:
            claims.directions.remove(direction)
        if is_wrong:
            self._wrong.add(key)
        return False

    def _try_weights(self) -> None:
        """Find the weights that may be graph inputs, or computed from constants."""
        claims = self._claims
        nodes = [node.with_(read=read) for node in self._nodes for read in (False, True)]
        for name in ("W", "R", "B"):
            for how in ("fed", "computed"):
                if self._are_right(name, (node.with_(**{how: frozenset({name})}) for node in nodes)):
                    getattr(claims, how).append(name)

    def _try_places(self, dynamic: bool, loops: Sequence[str]) -> None:
        """Find the supported bodies, preceding operators and symbolic sizes."""
        claims = self._claims
        if all(self._are_right("nested", (node.with_(place=p) for node in self._nodes)) for p in loops):
            claims.places += loops
        claims.behind += [
            op_type
            for op_type in ("Expand", "Tile")
            if self._are_right("repeated", (self._bare(node, op_type) for node in self._nodes))
        ]
        if not dynamic:
            return

        def takes(nodes: Sequence[Node], name: str) -> bool:
            return self._are_right(name, (node.with_(open=frozenset({name})) for node in nodes))

        claims.open += [name for name in _OPEN if takes(self._nodes, name)]
        inner = [node.with_(place=place) for node in self._nodes for place in claims.places]
        claims.open_nested += [name for name in claims.open if takes(inner, name)]
        states = frozenset(STATES[claims.base.op_type])
        if "batch" in claims.open and states <= {*claims.taken, *self._states}:
            computed = [node.with_(inputs=node.inputs | states, computed=states) for node in self._nodes]
            claims.open_with_states += ["batch"] if takes(computed, "batch") else []

    def _size_claims(self, dynamic: bool, loops: Sequence[str], inputs: Sequence[str]) -> dict[str, Any]:
        """Return the claims on weights, bodies and sizes."""
        claims = self._claims
        weights = [name for name in ("W", "R", "B") if name not in claims.fed]
        rule: dict[str, Any] = {
            "constant": [name for name in weights if name not in claims.computed],
            "fixed": [name for name in weights if name in claims.computed],
            "not_behind": [name for name in ("Expand", "Tile") if name not in claims.behind],
        }
        twins = [node.with_(twin=True) for node in self._nodes]
        rule["one_reader"] = not self._are_right("one_reader", twins)
        if claims.places != [*loops]:
            rule["nested"] = False
        if {"initial_h", "initial_c"} <= {*inputs}:
            both = claims.base.inputs | {"initial_h", "initial_c"}
            shared = [node.with_(inputs=both, one_state=True) for node in self._nodes]
            rule["two_states"] = not self._are_right("two_states", shared)
        if dynamic:
            rule["static"] = [name for name in _OPEN if name not in claims.open]
            if claims.places:
                rule["static_nested"] = [name for name in claims.open if name not in claims.open_nested]
            if {*STATES[claims.base.op_type]} <= {*inputs}:
                names = [name for name in claims.open if name == "batch"]
                rule["static_with_states"] = [name for name in names if name not in claims.open_with_states]
        return rule

    def _number_claims(self, inputs: Sequence[str]) -> dict[str, Any]:
        """Return the smallest accepted sizes and the largest number of inputs."""
        narrow = [(3, 2, 1, 16)] if self._asker.engine.slow else [(3, 2, 1, 16), (50, 16, 1, 64)]
        one_feature = (node.with_(sizes=sizes) for sizes in narrow for node in self._nodes)
        states = frozenset(STATES[self._claims.base.op_type]) & {*inputs}
        with_states = [node.with_(inputs=node.inputs | states, full=states) for node in self._nodes]

        def takes(units: int) -> bool:
            return self._are_right("", (node.with_(sizes=(3, 2, 8, units)) for node in with_states))

        last = 8 if self._claims.base.op_type == "LSTM" else 6
        first = 4 if not self._states else 5 + len(self._states)
        written = (
            count - 1
            for count in range(first + 1, last + 1)
            if not self._are_right("inputs", (node.with_(written=count) for node in self._nodes))
        )
        return {
            "min_input_size": None if self._are_right("input_size", one_feature) else 2,
            "min_hidden_size": next((units * 2 for units in _UNITS if not takes(units)), None),
            "most_inputs": next(written, None),
        }


def _features(node: Node) -> list[str]:
    """Return the optional inputs, attributes and activations that the plain node lacks."""
    own = [*STATES[node.op_type], *(["P", "input_forget"] if node.op_type == "LSTM" else [])]
    features = [*own, "sequence_lens", "clip", "layout", *_ACTIVATIONS]
    return [name for name in features if name not in node.inputs]


def _tried(sizes: Sequence[tuple[int, int, int, int]]) -> str:
    """Describe the sizes: ``batches of 1, 2 and 16, 1, 3 and 50 steps, ...``."""
    steps, batches, features, units = (sorted(set(column)) for column in zip(*sizes, strict=True))
    return (
        f"batches of {_listed(batches)}, {_listed(steps)} steps, {_listed(features)} features, "
        f"{_listed(units)} units"
    )


def _listed(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
