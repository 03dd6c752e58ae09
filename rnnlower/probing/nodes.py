"""Questions about recurrent nodes: their inputs and attributes, and the place of the node in the model."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from rnnlower.engines.reference import evaluate
from rnnlower.probing.asking import Question, model_question, parse_nodes, question
from rnnlower.probing.type_probes import retype_question
from rnnlower.recurrent.operators import INPUT_NAMES, RECURRENT_OPS

Array = NDArray[Any]

STATES = {"LSTM": ("initial_h", "initial_c"), "GRU": ("initial_h",), "RNN": ("initial_h",)}
SIZES = (
    # steps, batch, input_size, hidden_size
    (3, 2, 8, 16),
    (1, 1, 8, 16),
    (50, 1, 8, 64),
    (3, 16, 8, 64),
    (50, 16, 8, 16),
    (3, 1, 64, 256),
    # All alike: a converter that guesses from a size which axis it is errs here.
    (16, 16, 16, 16),
)
_ITERATIONS = 2
_PLACES = {
    "If": """
        place (float[1] on) => () <float[1] zero = {{0}}> {{
            is_on = Greater (on, zero)
            {outputs} = If (is_on)
                <then_branch = then () => ({in_then}) {{}}, else_branch = else () => ({in_else}) {{}}>
        }}
    """,
    "Loop": """
        place () => () <int64 most = {{2}}, bool first = {{1}}> {{
            x_last, {outputs} = Loop (most, first, X) <
                body = body (int64 i, bool go, {x}) => (bool on, {next_x}, {in_body}) {{
                    next_X = Neg (body_X)
                    on = Identity (go)
                }}
            >
        }}
    """,
    "Scan": """
        place () => () <int64[1] first = {{0}}> {{
            x_0 = Neg (X)
            x_1 = Unsqueeze (x_0, first)
            x_2 = Unsqueeze (X, first)
            xs = Concat <axis = 0> (x_1, x_2)
            {outputs} = Scan <num_scan_inputs = 1, body = body ({x}) => ({in_body}) {{}}> (xs)
        }}
    """,
}
"""The graphs around a body that the recurrent node is inserted into."""


@dataclasses.dataclass(frozen=True)
class Node:
    """A recurrent node to test: the plain form, changed by these attributes.

    Attributes:
        inputs: The optional inputs that it has.
        left_out: The parts of the plain form that it lacks: ``hidden_size``, ``Y``, ``Y_h`` or ``Y_c``.
        fed: Weights that are graph inputs.
        open: Sizes of X that are symbolic.
        computed: Weights that nodes compute from constants, and states that they compute from X's shape.
        full: Constant inputs that have no effect: states of zeros, lengths of all steps.
        known: States that are constants.
        one_state: Whether initial_h and initial_c are the same value.
        twin: Whether a second node, which differs in W alone, reads the same X after it.
        written: The number of inputs, including empty ones at the end, if it is larger than needed.
        behind: The operator that repeats one step to make X.
        read: Whether nodes read its outputs, which are then not graph outputs; in a body they are both.
        place: The operator in whose body the node is: ``If``, ``Loop`` or ``Scan``.
        dtype: The type of its data; in bodies always float32.
    """

    op_type: str
    direction: str = "forward"
    sizes: tuple[int, int, int, int] = SIZES[0]
    inputs: frozenset[str] = frozenset({"B"})
    attributes: tuple[tuple[str, Any], ...] = ()
    left_out: frozenset[str] = frozenset()
    fed: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    computed: frozenset[str] = frozenset()
    full: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    one_state: bool = False
    twin: bool = False
    written: int = 0
    behind: str = ""
    read: bool = False
    place: str = ""
    dtype: str = "float32"

    def with_(self, **changes: Any) -> Node:
        """Return a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def add(self, name: str) -> Node:
        """Return a copy with one more feature: an input, an attribute, or an activation of all gates."""
        if name in INPUT_NAMES:
            return self.with_(inputs=self.inputs | {name})
        values: dict[str, Any] = {"clip": 0.3, "layout": 1, "input_forget": 1, "linear_before_reset": 1}
        values["direction"] = self.direction
        if name == "activation_alpha":
            # The first activation takes a slope and a shift; the others take no parameters.
            own = RECURRENT_OPS[self.op_type].activations
            node = self.with_activations("HardSigmoid", *own[1:])
            count = 2 if self.direction == "bidirectional" else 1
            numbers = ((name, (0.3,) * count), ("activation_beta", (0.4,) * count))
            return node.with_(attributes=(*node.attributes, *numbers))
        if name in values:
            return self.with_(attributes=(*self.attributes, (name, values[name])))
        return self.with_activations(name)

    def with_activations(self, *names: str) -> Node:
        """Return a copy with these activations, by default the operator's own, repeated for all gates."""
        own = RECURRENT_OPS[self.op_type].activations
        count = len(own) * (2 if self.direction == "bidirectional" else 1)
        functions = tuple(itertools.islice(itertools.cycle(names or own), count))
        return self.with_(attributes=(*self.attributes, ("activations", functions)))

    def __str__(self) -> str:
        steps, batch, features, units = self.sizes
        more = [f"{name}={value}" for name, value in self.attributes]
        more += [f"no {name}" for name in sorted(self.left_out)]
        for words in ("fed", "computed", "full", "known"):
            more += [f"{name} {words}" for name in sorted(getattr(self, words))]
        more += [f"open {name}" for name in sorted(self.open)]
        more += ["one state"] if self.one_state else []
        more += ["and a twin"] if self.twin else []
        more += [f"{self.written} inputs"] if self.written else []
        more += [f"behind {self.behind}"] if self.behind else []
        more += ["only read"] if self.read else []
        more += [f"in {self.place}"] if self.place else []
        more += [f"of {self.dtype}"] if self.dtype != "float32" else []
        given = " ".join([*sorted(self.inputs), *more])
        return f"{self.op_type} {self.direction} T={steps} B={batch} I={features} H={units} {given}"


def node_question(node: Node) -> Question:
    """Return the question whether a runtime computes the node correctly."""
    arrays = _make_arrays(node)
    names = [name if name in ("X", "W", "R", *node.inputs) else "" for name in INPUT_NAMES]
    written = max(node.written, max(index for index, name in enumerate(names) if name) + 1)
    kept = RECURRENT_OPS[node.op_type].outputs
    outputs = ["" if name in node.left_out else name for name in kept]
    while not outputs[-1]:
        outputs.pop()
    attributes = dict(node.attributes)
    if "hidden_size" not in node.left_out:
        attributes["hidden_size"] = node.sizes[3]
    if node.direction != "forward":
        attributes["direction"] = node.direction
    if node.one_state or {"initial_h", "initial_c"} <= node.full:
        # One tensor for both, as a lowering writes absent states.
        names[INPUT_NAMES.index("initial_c")] = "initial_h"
    made = helper.make_node(node.op_type, names[:written], outputs, name="node", **attributes)
    inputs = {name: arrays[name] for name in names if name}
    twins = [onnx.NodeProto.FromString(made.SerializeToString())] if node.twin else []
    for twin in twins:
        inputs["W_twin"] = -inputs["W"]
        twin.name, twin.input[1] = "twin", "W_twin"
        twin.output[:] = [name and f"{name}_twin" for name in outputs]
    before = _make_producers(node, inputs)
    constant = (({"W", "R", "B", "P"} | {*inputs} - set(INPUT_NAMES) - {"row"}) - node.fed) | (
        (node.full | node.known) & {*inputs}
    )
    given = [name for name in outputs if name]
    after = [helper.make_node("Neg", [name], [f"{name}_read"]) for name in given if node.read]
    shown = [*(given if node.place or not after else []), *(each.output[0] for each in after)]
    shown += [name for twin in twins for name in twin.output if name]
    asked = question([*before, made, *twins, *after], inputs, 14, constant, shown)
    if "sequence_lens" in {*inputs} - constant and node.sizes[1] > 1:
        asked = _with_empty_row(asked)
    if node.open:
        asked = _with_open_sizes(asked, node)
    if node.dtype != "float32":
        return retype_question(asked, node.dtype)
    return _nest_in_body(asked, node.place, made, given) if node.place else asked


def _make_arrays(node: Node) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    steps, batch, features, units = node.sizes
    count = 2 if node.direction == "bidirectional" else 1
    turned = dict(node.attributes).get("layout")
    rows = len(RECURRENT_OPS[node.op_type].gates) * units
    state = (batch, count, units) if turned else (count, batch, units)
    shapes = {
        "X": (batch, steps, features) if turned else (steps, batch, features),
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
    for name in node.full:
        arrays[name] = np.full_like(arrays[name], steps if name == "sequence_lens" else 0)
    return arrays


def _make_producers(node: Node, inputs: dict[str, Array]) -> list[onnx.NodeProto]:
    """Return nodes that compute inputs of the node; `inputs` then has the values that they read instead."""
    nodes = []
    for name in sorted((node.computed - {*STATES[node.op_type]}) & {*inputs}):
        halves = np.array_split(inputs.pop(name), 2, axis=1)
        parts = [f"{name}_{index}" for index in range(len(halves))]
        inputs |= dict(zip(parts, halves, strict=True))
        nodes.append(helper.make_node("Concat", parts, [name], axis=1))
    states = sorted(node.computed & {*STATES[node.op_type]} & {*inputs})
    if states:
        count = 2 if node.direction == "bidirectional" else 1
        inputs |= {name: np.array([value]) for name, value in (("d", count), ("i", 1), ("h", node.sizes[3]))}
        nodes += parse_nodes("sizes = Shape (X)\nrows = Gather <axis = 0> (sizes, i)")
        nodes += parse_nodes("state = Concat <axis = 0> (d, rows, h)")
    for name in states:
        inputs.pop(name)
        nodes.append(helper.make_node("ConstantOfShape", ["state"], [name]))
    if node.behind:
        shape = inputs["X"].shape
        inputs["row"] = inputs.pop("X")[0]
        inputs["first"] = np.array([0])
        inputs["times"] = np.array(shape if node.behind == "Expand" else (shape[0], 1, 1))
        nodes += parse_nodes(f"rows = Unsqueeze (row, first)\nX = {node.behind} (rows, times)")
    return nodes


def _with_empty_row(asked: Question) -> Question:
    """Add a trial in which the last row has no steps, so that its final states differ."""
    ((feeds, _),) = asked.trials
    lengths = feeds["sequence_lens_fed"].copy()
    lengths[-1] = 0
    return model_question(asked.model, feeds, {**feeds, "sequence_lens_fed": lengths})


def _with_open_sizes(asked: Question, node: Node) -> Question:
    """Make sizes of X symbolic, and all sizes that depend on them; add a trial with larger sizes."""
    model = onnx.ModelProto.FromString(asked.model.SerializeToString())
    turned = bool(dict(node.attributes).get("layout"))
    trials = list(asked.trials)
    feeds = dict(trials[0][0])
    for value in (*model.graph.input, *model.graph.output):
        axes = _open_axes(
            value.name.removesuffix("_fed").removesuffix("_shown").removesuffix("_read"), turned
        )
        for name in node.open & {*axes}:
            value.type.tensor_type.shape.dim[axes[name]].dim_param = name
            if value.name in feeds:
                feeds[value.name] = np.concatenate([feeds[value.name]] * 2, axis=axes[name])
    return Question(model, [*trials, (feeds, evaluate(model, feeds))])


def _open_axes(name: str, turned: bool) -> dict[str, int]:
    """Return the axes of a value that have the sizes of X."""
    if name == "X":
        return {"time": 1, "batch": 0} if turned else {"time": 0, "batch": 1}
    if name == "Y":
        return {"time": 1, "batch": 0} if turned else {"time": 0, "batch": 2}
    if name in ("initial_h", "initial_c", "Y_h", "Y_c"):
        return {"batch": 0 if turned else 1}
    return {"batch": 0} if name == "sequence_lens" else {}


def _nest_in_body(asked: Question, place: str, node: onnx.NodeProto, outputs: list[str]) -> Question:
    """Move the node into a body: a branch of an If that is taken, or a loop of two iterations."""
    model = onnx.ModelProto.FromString(asked.model.SerializeToString())
    graph = model.graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }

    # OpenCV refuses a body without shapes.
    def declared(prefix: str, names: Sequence[str]) -> str:
        return ", ".join(f"float[{', '.join(map(str, shapes[name]))}] {prefix}{name}" for name in names)

    made = {f"in_{body}": declared(f"{body}_", outputs) for body in ("then", "else", "body")}
    made |= {"x": declared("body_", ["X"]), "next_x": declared("next_", ["X"])}
    around = onnx.parser.parse_graph(_PLACES[place].format(outputs=", ".join(outputs), **made))
    for body in (attribute.g for each in around.node for attribute in each.attribute if attribute.g.output):
        inner = onnx.NodeProto.FromString(node.SerializeToString())
        inner.name = f"{body.name}_node"
        inner.input[0] = body.input[-1].name if body.input else "X"
        inner.output[:] = [name and f"{body.name}_{name}" for name in node.output]
        body.node.insert(0, inner)
    index = next(index for index, each in enumerate(graph.node) if each.name == node.name)
    nodes = [*graph.node[:index], *around.node, *graph.node[index + 1 :]]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(around.initializer)
    graph.input.extend(around.input)
    if place != "If":
        del graph.output[:]
        shown = [helper.make_tensor_value_info(name, 1, [_ITERATIONS, *shapes[name]]) for name in outputs]
        graph.output.extend(shown)
    on = {value.name: np.ones(1, np.float32) for value in around.input}
    onnx.checker.check_model(model, full_check=True)
    return model_question(model, *({**fed, **on} for fed, _ in asked.trials))
