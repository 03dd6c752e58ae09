"""Tests of lowered models on a runtime: loops, adapted nodes, and primitives at real sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.errors import RnnLowerError
from rnnlower.files.model_io import load_model
from rnnlower.passes.exact_numbers import KeepNaNPass, SeparateSumsPass
from rnnlower.passes.folding import FoldConstantsPass
from rnnlower.passes.graph_boundaries import CopyOutputsPass
from rnnlower.passes.lowering_options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.probing.asking import Asker, Question, answered, written
from rnnlower.probing.nodes import STATES, Node, node_question
from rnnlower.probing.writing import toml_text
from rnnlower.recurrent.operators import DIRECTIONS
from rnnlower.targets.choosing import Native
from rnnlower.targets.format import ADAPTABLE
from rnnlower.targets.reading import parse_target
from rnnlower.targets.target import Target

Tables = Mapping[str, Any]

_FORMS = (Node("LSTM"), Node("GRU"), Node("GRU").with_("linear_before_reset"), Node("RNN"))
# More steps than are unrolled.
_MANY = (300, 2, 4, 8)
_WIDE = (3, 2, 8, 64)
_REAL = (3, 2, 8, 16), (16, 16, 16, 16), (50, 1, 8, 64), (50, 16, 8, 16), (3, 1, 64, 256)
_MOST_WORDS = 300
_READ_OUTPUT = """
    read_output (float[2, 4] X) => (float[8] Y, float[8] Z) <int64[1] flat = {8}> {
        t = Tanh (X)
        Y = Reshape (t, flat)
        Z = Neg (Y)
    }
"""
_OF_CONSTANTS = """
    of_constants (float[2, 3] X) => (float[2, 3] Y, float[1, 2, 2] Z)
    <float[2, 2] c = {1, 2, 3, 4}, int64[3] shape = {1, 2, 2}> {
        Y = Neg (X)
        r = Reshape (c, shape)
        Z = Neg (r)
    }
"""
_READ_STATE = """
    read_state (float[2, 4] X) => (float[2, 4] H, float[3, 2, 4] Y)
    <int64 trips = {3}, bool go = {1}, int64[2] shape = {2, 4}> {
        H, Y = Loop (trips, go, X) <body: graph = step (int64 i, bool c, float[2, 4] h)
            => (bool d, float[2, 4] next, float[2, 4] y) {
            d = Identity (c)
            s = Add (h, X)
            t = Tanh (s)
            next = Reshape (t, shape)
            y = Neg (next)
        }>
    }
"""
_LOOP_ALONE = """
    loop_alone (float[2, 4] X) => (float[2, 4] Y) <int64 trips = {3}, bool go = {1}> {
        Y = Loop (trips, go, X) <body: graph = step (int64 i, bool c, float[2, 4] h)
            => (bool d, float[2, 4] next) {
            d = Identity (c)
            s = Add (h, X)
            next = Tanh (s)
        }>
    }
"""
_CONVOLVED = """
    convolved (float[1, 2, 6] X) => (float[n, c, t] Y) <float[2, 2, 1] W = {{1, 2, 3, 4}}> {{
        Y = {op_type} (X, W)
    }}
"""

# A fifth of the difference that fusing a sum makes: rounding to float16 is within the tolerance around 0.
_BEHIND_SUM = """
    behind_sum (float[2, 64] X, float[2, 64] zeros) => (float[2, 64] Y) <float fifth = {{0.2}}> {{
        alone = {op_type} (X)
        sum = Add (X, zeros)
        behind = {op_type} (sum)
        difference = Sub (alone, behind)
        Y = Mul (difference, fifth)
    }}
"""
# NaN that is fed stands where a pass sees that a Softmax may make it.
_OF_NAN = """
    of_nan (float[2, 3] X) => (float[2, 3] Y) <float mask = {{-inf}}, bool[3] fed = {{1, 1, 1}}> {{
        masked = Add (X, mask)
        rows = Softmax <axis = -1> (masked)
        chosen = Where (fed, X, rows)
        Y = {op_type} (chosen)
    }}
"""
_OF_A_MASK = """
    of_a_mask (float[2, 3] X) => (float[2, 3] Y) <float[2, 1] mask = {0, -inf}> {
        masked = Add (X, mask)
        Y = Softmax <axis = -1> (masked)
    }
"""
_ACTIVATIONS = ("Elu", "HardSigmoid", "LeakyRelu", "Sigmoid", "Softplus", "Softsign", "Tanh")


def control_flow(asker: Asker, tables: Tables, dynamic: bool) -> dict[str, Any]:
    """Return the table ``control_flow``: which of If, Loop and Scan are right as a lowering emits them.

    Args:
        asker: Puts the questions.
        tables: The tables of the file that are known: a lowering keeps to their operators.
        dynamic: Whether sizes may be symbols.
    """
    draft: dict[str, Any] = {**tables, "recurrent": [], "shapes": {"static": not dynamic}}
    found: dict[str, bool] = {}

    def right(form: str, apart: bool, node: Node, more: Sequence[str] = (), key: str = "") -> bool:
        keys = found | ({key: True} if key else {})
        flow = {"ops": [form, *more], "apart": apart} | keys
        words = ", ".join([form, *(["apart"] if apart else []), *keys])
        return _ask(asker, node, _target(draft | {"control_flow": flow}), "lower", words)[0] == "right"

    branches = [node.but(place="If") for node in _FORMS]
    ops = (
        ["If"] if asker.right("two Ifs", _ifs) and all(right("If", False, node) for node in branches) else []
    )
    many = {d: [n.but(direction=d, sizes=_MANY) for n in _FORMS] for d in DIRECTIONS}
    apart = False
    for form in ("Loop", "Scan"):
        if not all(right(form, False, node) for node in many["forward"]):
            key = "keeps_gathered_axis"
            if form != "Loop" or not all(right(form, False, node, key=key) for node in many["forward"]):
                continue
            found[key] = True
        ops.append(form)
        apart = apart or not all(right(form, False, node) for node in many["bidirectional"])
        if apart and not all(right(form, True, node) for node in many["bidirectional"]):
            ops.remove(form)
    table: dict[str, Any] = {"ops": ops} | found
    if apart and {"Loop", "Scan"} & {*ops}:
        table["apart"] = True
    fed = [Node(op, sizes=_MANY, place=p, fed=frozenset("R")) for op in ("LSTM", "GRU") for p in ops]
    if {"Loop", "Scan"} <= {*ops} and not all(
        right("Scan", apart, node, [node.place] if node.place != "Scan" else []) for node in fed
    ):
        table["captured"] = "Loop"
    if dynamic:
        table |= _where_sizes_are_open(right, apart, ops)
    return table


def takes_open_batch(asker: Asker, tables: Tables) -> bool:
    """Return whether a node lowered for the tables is correct with a symbolic batch size.

    Without a loop, the length must be static, and so all sizes.
    """
    if not {"Loop", "Scan"} & {*tables["control_flow"]["ops"]}:
        return False
    target = _target({**tables, "recurrent": []})
    return all(
        _ask(asker, Node("LSTM", each, open=frozenset({"batch"})), target, "lower", "open")[0] == "right"
        for each in ("forward", "bidirectional")
    )


def gates(asker: Asker, tables: Tables) -> dict[str, Any]:
    """Return the key ``gates``: one product each, if one for all is wrong and those are right."""
    nodes = [Node(op_type, sizes=_WIDE) for op_type in ("LSTM", "GRU")]

    def is_wrong(how: str) -> bool:
        target = _target({**tables, "recurrent": [], "arithmetic": {"gates": how}})
        return any(_ask(asker, node, target, "lower", f"gates {how}")[0] == "wrong" for node in nodes)

    return {"gates": "separate"} if is_wrong("auto") and not is_wrong("separate") else {}


def outputs(asker: Asker) -> dict[str, Any]:
    """Return the keys of outputs that are right only as copies: read ones, of convolutions, of a Loop."""
    feeds = {"X": np.arange(8, dtype=np.float32).reshape(2, 4) / 8}
    row = {"X": np.arange(12, dtype=np.float32).reshape(1, 2, 6) / 8}

    def is_corrected(text: str, op_types: Collection[str], fed: Mapping[str, Any]) -> bool:
        copies = CopyOutputsPass(op_types, read=not op_types)
        return _is_corrected(asker, text, op_types, copies, fed, refused=True)

    read = [is_corrected(text, (), feeds) for text in (_READ_OUTPUT, _READ_STATE)]
    made = [
        op_type
        for op_type in ("Conv", "ConvTranspose")
        if is_corrected(_CONVOLVED.format(op_type=op_type), [op_type], row)
    ]
    made += ["Loop"] if is_corrected(_LOOP_ALONE, ["Loop"], feeds) else []
    return ({"overwrites_outputs": True} if any(read) else {}) | ({"copied_outputs": made} if made else {})


def constants(asker: Asker) -> dict[str, bool]:
    """Return the key ``loses_constant_axes``: what follows from constants is right only if it is folded."""
    folding = FoldConstantsPass(lambda node: True)
    is_corrected = _is_corrected(asker, _OF_CONSTANTS, [], folding, {"X": np.ones((2, 3), np.float32)})
    return {"loses_constant_axes": True} if is_corrected else {}


def sums(asker: Asker, ops: Collection[str]) -> dict[str, list[str]]:
    """Return the key ``inexact_behind_sum``: activations less exact after a sum, but not after a Max."""
    x = np.linspace(-6, 6, 128, dtype=np.float32).reshape(2, 64)
    feeds, found = {"X": x, "zeros": np.zeros_like(x)}, []
    for op_type in (name for name in _ACTIVATIONS if name in ops):
        text = _BEHIND_SUM.format(op_type=op_type)
        if _is_corrected(asker, text, [op_type], SeparateSumsPass([op_type]), feeds):
            found.append(op_type)
    return {"inexact_behind_sum": found} if found else {}


def nans(asker: Asker, ops: Collection[str]) -> dict[str, list[str]]:
    """Return the key ``loses_nan``: operators that turn NaN into numbers, unless ops around them keep it."""
    numbers, found = np.array([[1, 0.5, -1], [2, 1, 0]], np.float32), []
    for op_type in (name for name in ("Relu", "Softmax", *_ACTIVATIONS) if name in ops):
        is_mask = op_type == "Softmax"
        fed = {"X": numbers if is_mask else np.where(numbers == 1, np.float32(np.nan), numbers)}
        text = _OF_A_MASK if is_mask else _OF_NAN.format(op_type=op_type)
        if _is_corrected(asker, text, [op_type], KeepNaNPass([op_type]), fed):
            found.append(op_type)
    return {"loses_nan": sorted(found)} if found else {}


def _is_corrected(
    asker: Asker,
    text: str,
    op_types: Collection[str],
    correct: Callable[[ir.Model], object],
    feeds: Mapping[str, Any],
    *,
    refused: bool = False,
) -> bool:
    """Return whether a model is wrong (or refused) as it is written, and right after a pass."""
    model = load_model(written(text))
    key = " ".join([str(model.graph.name), *op_types])
    before = asker.ask(key, answered, ir.to_proto(model), feeds)
    if before == "right" or not (refused or before == "wrong"):
        return False
    correct(model)
    return asker.right(f"{key}, corrected", answered, ir.to_proto(model), feeds)


def _where_sizes_are_open(right: Any, apart: bool, ops: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    guard = ["If"] if "If" in ops else []
    steps, none = _open_time()
    lengths = Node("LSTM", "bidirectional", open=frozenset({"time"})).with_("sequence_lens").with_("layout")
    if {"Loop", "Scan"} <= {*ops} and not all(
        right("Scan", apart, node, guard) for node in (*steps, lengths)
    ):
        table["dynamic"] = "Loop"
    # Without an If to put around it, no steps are not fed; `cautions` says so.
    nodes = [*steps, *none] if guard else steps
    if "Scan" in ops and all(right("Scan", apart, node, key="empty_scan") for node in nodes):
        table["empty_scan"] = True
    rows = [Node("LSTM", d, open=frozenset({"batch"})) for d in ("forward", "bidirectional")]
    loops = [form for form in ("Loop", "Scan") if form in ops]
    if loops and not all(right(loops[0], apart, node, guard) for node in rows):
        table["unroll_batch"] = True
    return table


def _open_time() -> tuple[list[Node], list[Node]]:
    """Return nodes of a symbolic length, and the same without steps."""
    steps = [Node("LSTM", d, open=frozenset({"time"})) for d in ("forward", "bidirectional")]
    return steps, [node.but(sizes=(0, 2, 8, 16)) for node in steps]


def _target(tables: Tables) -> Target:
    return parse_target("probed", toml_text(tables))


def _ask(asker: Asker, node: Node, target: Target, native: Native, words: str) -> tuple[str, str]:
    """Return the answer for a node lowered for a target, and its message; ``none`` if that is impossible."""
    asked = node_question(node)
    model = ir.from_proto(asked.model)
    try:
        report = lower_model(model, LoweringOptions("target", target=target, native=native, fold=False))
    except RnnLowerError as error:
        return "none", str(error)
    strategies = {each.strategy for each in report.nodes}
    if native == "keep" and strategies != {"adapt"}:
        return "none", "it is not adapted"
    key = f"{words}: {node}, {' '.join(sorted(strategies))}"
    return asker.ask(key, Question, ir.to_proto(model), asked.trials), asker.words(key)


def adaptations(asker: Asker, tables: Tables) -> list[dict[str, Any]]:
    """Return the recurrent rules with the adaptations around the operator that make them right."""
    rules = []
    for rule in tables["recurrent"]:
        words = [word for word in ADAPTABLE if _is_adaptable(asker, tables, rule, word)]
        rules.append(rule | ({"adapt": words} if words else {}))
    return rules


def _is_adaptable(asker: Asker, tables: Tables, rule: dict[str, Any], word: str) -> bool:
    """Return whether nodes that lack one thing are correct once adapted; false if nothing is lacking."""
    target = _target({**tables, "recurrent": [rule | {"adapt": [*ADAPTABLE]}]})
    answers = set()
    for node in _lacking(rule, word):
        for sizes in _REAL[:2] if asker.engine.slow else _REAL[:4]:
            sized = node.but(sizes=sizes)
            answers.add(_ask(asker, sized, target, "keep", "adapted")[0])
    return answers == {"right"}


def _lacking(rule: dict[str, Any], word: str) -> list[Node]:
    """Return nodes that follow a rule but for one thing."""
    op_type = rule["ops"][0]
    base = Node(op_type, rule["directions"][0])
    if rule["attributes"].get("linear_before_reset") == [1]:
        base = base.with_("linear_before_reset")
    states = frozenset(STATES[op_type]) & {*rule["needs"]} if "needs" in rule else frozenset()
    base = base.but(inputs=base.inputs | states)
    needs = {*rule.get("needs", ()), *rule.get("not_empty", ())}
    directions = [base.but(direction=each) for each in rule["directions"]]
    if word in ("reverse", "bidirectional"):
        return [] if word in rule["directions"] else [base.but(direction=word)]
    if word == "direction":
        directions = [node for node in directions if node.direction == "forward"]
    it, most = frozenset({word}), rule.get("most_inputs", 0)
    change: Callable[[Node], Node]
    for words, is_lacking, change in (
        # B with an empty name, which stands for both where it must not be empty and where it must be there.
        (("B",), word in needs, lambda node: node.but(inputs=node.inputs - it, written=4)),
        (("initial_h", "initial_c"), word in needs, lambda node: node.but(inputs=node.inputs - it)),
        (("Y", "Y_h", "Y_c", "hidden_size"), word in needs, lambda node: node.but(left_out=it)),
        (("sequence_lens",), word not in rule["inputs"], lambda n: n.but(inputs=n.inputs | it, full=it)),
        (("direction", "layout"), word in rule["attributes"], lambda node: node.with_(word)),
        (("activations",), word in rule["attributes"], Node.activated),
        (("inputs",), most > 0, lambda node: node.but(written=most + 1)),
    ):
        if word in words and is_lacking:
            return [change(node) for node in directions]
    return []


def cautions(asker: Asker, tables: Tables) -> list[dict[str, Any]]:
    """Return the cautions about lowered nodes, without sources: the first that the runtime does not run."""
    target = _target(tables)
    texts: dict[str, str] = {}
    for each in _real_nodes(asker.engine.slow):
        answer, words = _ask(asker, each, target, "lower", "lowered")
        if answer != "right":
            texts.setdefault(each.op_type, f"{each}: {answer}; {words}"[:_MOST_WORDS])
    found: list[dict[str, Any]] = [
        {"ops": [op_type], "text": f"a lowered {op_type} is not right there: {text}"}
        for op_type, text in texts.items()
    ]
    if target.control_flow.empty_scan and "If" not in target.control_flow.ops:
        answers = {_ask(asker, node, target, "lower", "no steps")[0] for node in _open_time()[1]}
        if answers != {"right"}:
            text = "without time steps, what is lowered is not right there: feed at least one"
            found.append({"ops": ["LSTM", "GRU", "RNN"], "open": ["time"], "text": text})
    return found


def _real_nodes(is_slow: bool) -> Iterator[Node]:
    """Yield nodes of real sizes, and nodes with weights of run time, which Slices take apart."""
    for node in _FORMS:
        for direction in DIRECTIONS:
            for sizes in _REAL[:2] if is_slow else _REAL:
                yield node.but(direction=direction, sizes=sizes)
        yield node.but(direction="bidirectional", sizes=_WIDE, fed=frozenset("WRB"))


def _ifs() -> Question:
    """Return a question with two Ifs, one after the other: some runtimes take one in a graph."""
    model = written("""
            question (float[1] C, float[2, 4] X) => (float[2, 4] Y)
        <float[1] zero = {0}>
        {
            c = Greater (C, zero)
            Z = If (c) <then_branch = plus () => (float[2, 4] p) { p = Add (X, X) },
                        else_branch = minus () => (float[2, 4] m) { m = Neg (X) }>
            Y = If (c) <then_branch = more () => (float[2, 4] q) { q = Mul (Z, Z) },
                        else_branch = less () => (float[2, 4] l) { l = Sigmoid (Z) }>
        }
    """)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    return answered(model, *({"C": np.array([sign], np.float32), "X": x} for sign in (1, -1)))
