"""Which recurrent nodes a runtime runs as they are, at real sizes, and what it gets wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rnnlower.engines.reference import evaluate
from rnnlower.probing.asking import Asker, Question, question

__all__ = ["Node", "node_question", "recurrent_rules"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
_DIRECTIONS = ("forward", "reverse", "bidirectional")
_ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")
_SIZES = (
    # steps, batch, input_size, hidden_size
    (3, 2, 8, 16),
    (1, 1, 8, 16),
    (50, 1, 8, 64),
    (3, 16, 8, 64),
    (50, 16, 8, 16),
    (3, 1, 64, 256),
)
_TRIED = "batches of 1, 2 and 16, 1, 3 and 50 steps, 8 and 64 features, 16, 64 and 256 units"


@dataclasses.dataclass(frozen=True)
class Node:
    """A recurrent node as it is put to a runtime: the plain form, but for what is given.

    Attributes:
        inputs: The optional inputs that it has.
        left_out: What of the plain form it lacks: ``hidden_size``, ``Y``, ``Y_h`` or ``Y_c``.
        fed: Weights that are graph inputs.
        open: Sizes of X that are symbols.
    """

    op_type: str
    direction: str = "forward"
    sizes: tuple[int, int, int, int] = _SIZES[0]
    inputs: frozenset[str] = frozenset({"B"})
    attributes: tuple[tuple[str, Any], ...] = ()
    left_out: frozenset[str] = frozenset()
    fed: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()

    def with_(self, name: str) -> Node:
        """The node with one feature more, as :func:`_features` calls it."""
        if name in ("sequence_lens", "initial_h", "initial_c", "P", "B"):
            return dataclasses.replace(self, inputs=self.inputs | {name})
        values = {"clip": 0.3, "layout": 1, "input_forget": 1, "linear_before_reset": 1}
        if name in values:
            return dataclasses.replace(self, attributes=(*self.attributes, (name, values[name])))
        count = _FUNCTIONS[self.op_type] * (2 if self.direction == "bidirectional" else 1)
        return dataclasses.replace(self, attributes=(*self.attributes, ("activations", (name,) * count)))

    def __str__(self) -> str:
        steps, batch, features, units = self.sizes
        more = [f"{name}={value}" for name, value in self.attributes]
        more += [f"no {name}" for name in sorted(self.left_out)]
        more += [f"{name} fed" for name in sorted(self.fed)] + [f"open {name}" for name in sorted(self.open)]
        given = " ".join([*sorted(self.inputs), *more])
        return f"{self.op_type} {self.direction} T={steps} B={batch} I={features} H={units} {given}"


def node_question(node: Node) -> Question:
    """The question whether a runtime gets the node right."""
    rng = np.random.default_rng(0)
    steps, batch, features, units = node.sizes
    count = 2 if node.direction == "bidirectional" else 1
    attributes: dict[str, Any] = dict(node.attributes)
    rows = _GATES[node.op_type] * units
    state = (batch, count, units) if attributes.get("layout") else (count, batch, units)
    x = (batch, steps, features) if attributes.get("layout") else (steps, batch, features)
    shapes = {
        "X": x,
        "W": (count, rows, features),
        "R": (count, rows, units),
        "B": (count, 2 * rows),
        "initial_h": state,
        "initial_c": state,
        "P": (count, 3 * units),
    }
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name in ("W", "R", "B", "P"):
        arrays[name] *= np.float32(0.5 / np.sqrt(units))
    arrays["sequence_lens"] = np.maximum(steps - np.arange(batch) % 2, 1).astype(np.int32)
    order = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
    names = [name if name in ("X", "W", "R", *node.inputs) else "" for name in order]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "Y_h", "Y_c"] if node.op_type == "LSTM" else ["Y", "Y_h"]
    outputs = ["" if name in node.left_out else name for name in outputs]
    while not outputs[-1]:
        outputs.pop()
    if "hidden_size" not in node.left_out:
        attributes["hidden_size"] = units
    if node.direction != "forward":
        attributes["direction"] = node.direction
    made = helper.make_node(node.op_type, names, outputs, name="node", **attributes)
    inputs = {name: arrays[name] for name in names if name}
    constant = {"W", "R", "B", "P"} - node.fed
    asked = question([made], inputs, [name for name in outputs if name], 14, constant)
    return _opened(asked, node) if node.open else asked


def _opened(asked: Question, node: Node) -> Question:
    """The same with symbols for sizes of X, on which those of the outputs depend, and a second trial."""
    model = onnx.ModelProto.FromString(asked.model.SerializeToString())
    axes = {"time": 0, "batch": 1}
    for name in node.open:
        model.graph.input[0].type.tensor_type.shape.dim[axes[name]].dim_param = name
    # The plain form's other inputs are states, [directions, batch, units].
    stateful = [value for value in model.graph.input[1:] if "batch" in node.open]
    for value in stateful:
        value.type.tensor_type.shape.dim[1].dim_param = "batch"
    for value in model.graph.output:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            batch_axis = 2 if value.name == "Y" else 1
            if "batch" in node.open and axis == batch_axis:
                dim.dim_param = "batch"
            if "time" in node.open and value.name == "Y" and axis == 0:
                dim.dim_param = "time"
    trials = list(asked.trials)
    feeds = dict(trials[0][0])
    for name in node.open:
        feeds["X"] = np.concatenate([feeds["X"]] * 2, axis=axes[name])
    feeds |= {value.name: np.concatenate([feeds[value.name]] * 2, axis=1) for value in stateful}
    return Question(model, [*trials, (feeds, evaluate(model, feeds))])


def recurrent_rules(asker: Asker, dynamic: bool) -> list[dict[str, Any]]:
    """The recurrent rules of the target's file, without their sources."""
    rules: list[dict[str, Any]] = []
    for op_type, form in (("LSTM", None), ("GRU", 0), ("GRU", 1), ("RNN", None)):
        base = Node(op_type)
        base = base.with_("linear_before_reset") if form else base
        for rule in _rules(asker, base, dynamic):
            twin = rule | {"attributes": rule["attributes"] | {"linear_before_reset": [0]}}
            if form == 1 and twin in rules:
                # Both forms alike: the attribute limits nothing.
                rules[rules.index(twin)] = rule
                continue
            if form is not None:
                rule["attributes"] = rule["attributes"] | {"linear_before_reset": [form]}
            rules.append(rule)
    return rules


def _rules(asker: Asker, base: Node, dynamic: bool) -> Iterator[dict[str, Any]]:
    states = ["initial_h", "initial_c"] if base.op_type == "LSTM" else ["initial_h"]
    with_states = base
    for name in states:
        with_states = with_states.with_(name)
    left = list(_DIRECTIONS)
    wrong: set[str] = set()
    for start, needs in ((base, []), (with_states, states)):
        sound = []
        for direction in left:
            answers = _at_sizes(asker, dataclasses.replace(start, direction=direction))
            if set(answers) == {"right"}:
                sound.append(direction)
            elif "wrong" in answers:
                wrong.add(direction)
        left = [direction for direction in left if direction not in sound]
        if sound:
            rule = _rule(asker, start, needs, sound, wrong, dynamic)
            yield rule
            # States that are right only all together want a rule of their own.
            left += [] if {*states} <= {*rule["inputs"]} else sound


def _at_sizes(asker: Asker, node: Node) -> list[str]:
    """The answers at each size, up to the first that is not right."""
    answers: list[str] = []
    for sizes in _SIZES:
        sized = dataclasses.replace(node, sizes=sizes)
        answers.append(asker.ask(str(sized), node_question, sized))
        if answers[-1] != "right":
            break
    return answers


def _rule(
    asker: Asker, base: Node, needs: Sequence[str], sound: Sequence[str], wrong: set[str], dynamic: bool
) -> dict[str, Any]:
    nodes = [dataclasses.replace(base, direction=direction) for direction in sound]

    def all_right(variants: Sequence[Node], key: str) -> bool:
        answers = [asker.ask(str(node), node_question, node) for node in variants]
        if "wrong" in answers:
            wrong.add(key)
        return set(answers) == {"right"}

    taken, functions = [], []
    together = nodes
    for name in _features(base):
        key = "activations" if name in _ACTIVATIONS else name
        if not all_right([node.with_(name) for node in nodes], key):
            continue
        if name in _ACTIVATIONS:
            functions.append(name)
            continue
        # What is right alone need not be right beside the others.
        joined = [node.with_(name) for node in together]
        if all_right(joined, name):
            together = joined
            taken.append(name)
    needed = [
        name
        for name in ("hidden_size", "Y", "Y_h", "Y_c")
        if (name != "Y_c" or base.op_type == "LSTM")
        and not all_right([dataclasses.replace(n, left_out=frozenset({name})) for n in nodes], name)
    ]
    if not all_right([dataclasses.replace(n, inputs=n.inputs - {"B"}) for n in nodes], "B"):
        needed.append("B")
    rule: dict[str, Any] = {
        "ops": [base.op_type],
        "dtypes": ["float32"],
        "directions": list(sound),
        "inputs": ["B", *needs, *(n for n in taken if n in ("sequence_lens", "initial_h", "initial_c", "P"))],
        "attributes": _attributes(base, taken),
        "activations": ["default", *functions],
    }
    # Names that are empty in the middle are what a node without Y is written with.
    rule |= {"not_empty": [name for name in needed if name in ("Y", "Y_h", "Y_c")]}
    rule |= {"needs": [*needs, *needed]}
    rule["constant"] = [
        name
        for name in ("W", "R", "B")
        if not all_right([dataclasses.replace(n, fed=frozenset({name})) for n in nodes[:1]], name)
    ]
    if dynamic:
        rule["static"] = [
            name
            for name in ("batch", "time")
            if not all_right([dataclasses.replace(n, open=frozenset({name})) for n in nodes], name)
        ]
    if not all_right([dataclasses.replace(n, sizes=(3, 2, 1, 16)) for n in nodes], "input_size"):
        rule["min_input_size"] = 2
    # Readings differ in what is clipped; bodies were not tried.
    rule["semantics"] = ["ort"] if "clip" in taken else []
    rule["nested"] = False
    rule["wrong"] = sorted(wrong - set(sound))
    rule["tried"] = _TRIED
    return {key: value for key, value in rule.items() if value or key in ("attributes", "inputs", "nested")}


def _features(node: Node) -> list[str]:
    """Optional inputs, attributes and functions that a node of the type may have beyond the plain form."""
    own = {
        "LSTM": ["initial_h", "initial_c", "P", "input_forget"],
        "GRU": ["initial_h"],
        "RNN": ["initial_h"],
    }[node.op_type]
    features = [*own, "sequence_lens", "clip", "layout", *_ACTIVATIONS]
    return [name for name in features if name not in node.inputs]


def _attributes(node: Node, taken: Sequence[str]) -> Mapping[str, list[Any]]:
    """What attributes may be: at their defaults where another value is not right."""
    defaults: dict[str, list[Any]] = {"layout": [0], "clip": []}
    if node.op_type == "LSTM":
        defaults["input_forget"] = [0]
    return {name: values for name, values in defaults.items() if name not in taken}
