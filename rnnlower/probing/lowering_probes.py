"""Probes with lowered models: loops, adapted nodes, and primitives at real sizes."""

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
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.probing.asking import Asker, Question, model_question, parse_model
from rnnlower.probing.nodes import STATES, Node, node_question
from rnnlower.probing.writing import nonempty, toml_text
from rnnlower.recurrent.operators import DIRECTIONS, OUTPUT_NAMES
from rnnlower.targets.choosing import Native
from rnnlower.targets.reading import parse_target
from rnnlower.targets.target import Target
from rnnlower.targets.vocabulary import ADAPTABLE

Tables = Mapping[str, Any]

_FORMS = (Node("LSTM"), Node("GRU"), Node("GRU").add("linear_before_reset"), Node("RNN"))
# More steps than are unrolled.
_MANY_STEPS = (300, 2, 4, 8)
_WIDE_SIZES = (3, 2, 8, 64)
_REAL_SIZES = (3, 2, 8, 16), (16, 16, 16, 16), (50, 1, 8, 64), (50, 16, 8, 16), (3, 1, 64, 256)
_MAX_WORDS = 300
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
# NaN is fed where the pass assumes that a Softmax may produce it.
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


def probe_control_flow(asker: Asker, tables: Tables, dynamic: bool) -> dict[str, Any]:
    """Return the table ``control_flow``: which of If, Loop and Scan are correct as a lowering emits them.

    Args:
        tables: The known tables of the file: a lowering uses only their operators.
        dynamic: Whether sizes may be symbolic.
    """
    draft: dict[str, Any] = {**tables, "recurrent": [], "shapes": {"static": not dynamic}}
    found: dict[str, bool] = {}

    def is_right(form: str, apart: bool, node: Node, more: Sequence[str] = (), key: str = "") -> bool:
        keys = found | ({key: True} if key else {})
        flow = {"ops": [form, *more], "apart": apart} | keys
        words = ", ".join([form, *(["apart"] if apart else []), *keys])
        return _ask(asker, node, _target(draft | {"control_flow": flow}), "lower", words)[0] == "right"

    def are_right(
        form: str, apart: bool, nodes: Sequence[Node], more: Sequence[str] = (), key: str = ""
    ) -> bool:
        return all(is_right(form, apart, node, more, key) for node in nodes)

    branches = [node.with_(place="If") for node in _FORMS]
    takes_ifs = asker.is_right("two Ifs", _two_ifs) and are_right("If", False, branches)
    ops = ["If"] if takes_ifs else []
    many = {d: [n.with_(direction=d, sizes=_MANY_STEPS) for n in _FORMS] for d in DIRECTIONS}
    apart = False
    for form in ("Loop", "Scan"):
        if not are_right(form, False, many["forward"]):
            key = "keeps_gathered_axis"
            if form != "Loop" or not are_right(form, False, many["forward"], key=key):
                continue
            found[key] = True
        ops.append(form)
        apart = apart or not are_right(form, False, many["bidirectional"])
        if apart and not are_right(form, True, many["bidirectional"]):
            ops.remove(form)
    table: dict[str, Any] = {"ops": ops} | found
    if apart and {"Loop", "Scan"} & {*ops}:
        table["apart"] = True
    fed = [Node(op, sizes=_MANY_STEPS, place=p, fed=frozenset("R")) for op in ("LSTM", "GRU") for p in ops]
    if {"Loop", "Scan"} <= {*ops} and not all(
        is_right("Scan", apart, node, [node.place] if node.place != "Scan" else []) for node in fed
    ):
        table["captured"] = "Loop"
    if dynamic:
        table |= _probe_open_sizes(are_right, apart, ops)
    return table


def takes_open_batch(asker: Asker, tables: Tables) -> bool:
    """Return whether a node lowered for the tables is correct with a symbolic batch size.

    Without a loop, the length must be static, and therefore all sizes.
    """
    if not {"Loop", "Scan"} & {*tables["control_flow"]["ops"]}:
        return False
    target = _target({**tables, "recurrent": []})
    return all(
        _ask(asker, Node("LSTM", each, open=frozenset({"batch"})), target, "lower", "open")[0] == "right"
        for each in ("forward", "bidirectional")
    )


def probe_gates(asker: Asker, tables: Tables) -> dict[str, Any]:
    """Return the key ``gates``: one product per gate, if that is correct and one product for all is wrong."""
    nodes = [Node(op_type, sizes=_WIDE_SIZES) for op_type in ("LSTM", "GRU")]

    def is_wrong(how: str) -> bool:
        target = _target({**tables, "recurrent": [], "arithmetic": {"gates": how}})
        return any(_ask(asker, node, target, "lower", f"gates {how}")[0] == "wrong" for node in nodes)

    return nonempty(gates="separate" if is_wrong("auto") and not is_wrong("separate") else "")


def probe_outputs(asker: Asker) -> dict[str, Any]:
    """Return the keys on outputs that are correct only as copies: read ones, of convolutions, of a Loop."""
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
    return nonempty(overwrites_outputs=any(read), copied_outputs=made)


def probe_constants(asker: Asker) -> dict[str, bool]:
    """Return the key ``loses_constant_axes``: constant expressions are correct only if they are folded."""
    folding = FoldConstantsPass(lambda node: True)
    feeds = {"X": np.ones((2, 3), np.float32)}
    return nonempty(loses_constant_axes=_is_corrected(asker, _OF_CONSTANTS, [], folding, feeds))


def probe_sums(asker: Asker, ops: Collection[str]) -> dict[str, list[str]]:
    """Return the key ``inexact_behind_sum``: activations less exact after a sum, unless a Max is between."""
    x = np.linspace(-6, 6, 128, dtype=np.float32).reshape(2, 64)
    feeds, found = {"X": x, "zeros": np.zeros_like(x)}, []
    for op_type in (name for name in _ACTIVATIONS if name in ops):
        text = _BEHIND_SUM.format(op_type=op_type)
        if _is_corrected(asker, text, [op_type], SeparateSumsPass([op_type]), feeds):
            found.append(op_type)
    return nonempty(inexact_behind_sum=found)


def probe_nans(asker: Asker, ops: Collection[str]) -> dict[str, list[str]]:
    """Return the key ``loses_nan``: operators that turn NaN into numbers unless ops around them keep it."""
    numbers, found = np.array([[1, 0.5, -1], [2, 1, 0]], np.float32), []
    for op_type in (name for name in ("Relu", "Softmax", *_ACTIVATIONS) if name in ops):
        is_mask = op_type == "Softmax"
        fed = {"X": numbers if is_mask else np.where(numbers == 1, np.float32(np.nan), numbers)}
        text = _OF_A_MASK if is_mask else _OF_NAN.format(op_type=op_type)
        if _is_corrected(asker, text, [op_type], KeepNaNPass([op_type]), fed):
            found.append(op_type)
    return nonempty(loses_nan=sorted(found))


def _is_corrected(
    asker: Asker,
    text: str,
    op_types: Collection[str],
    correct: Callable[[ir.Model], object],
    feeds: Mapping[str, Any],
    *,
    refused: bool = False,
) -> bool:
    """Return whether a model is wrong (or refused) at first, and correct after a pass."""
    model = load_model(parse_model(text))
    key = " ".join([str(model.graph.name), *op_types])
    before = asker.ask(key, model_question, ir.to_proto(model), feeds)
    if before == "right" or not (refused or before == "wrong"):
        return False
    correct(model)
    return asker.is_right(f"{key}, corrected", model_question, ir.to_proto(model), feeds)


def _probe_open_sizes(are_right: Any, apart: bool, ops: Sequence[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    guard = ["If"] if "If" in ops else []
    steps, none = _open_length_nodes()
    lengths = Node("LSTM", "bidirectional", open=frozenset({"time"})).add("sequence_lens").add("layout")
    if {"Loop", "Scan"} <= {*ops} and not are_right("Scan", apart, [*steps, lengths], guard):
        table["dynamic"] = "Loop"
    # Without an If to guard it, an empty sequence is not fed; a caution says so.
    nodes = [*steps, *none] if guard else steps
    if "Scan" in ops and are_right("Scan", apart, nodes, key="empty_scan"):
        table["empty_scan"] = True
    rows = [Node("LSTM", d, open=frozenset({"batch"})) for d in ("forward", "bidirectional")]
    loops = [form for form in ("Loop", "Scan") if form in ops]
    if loops and not are_right(loops[0], apart, rows, guard):
        table["unroll_batch"] = True
    return table


def _open_length_nodes() -> tuple[list[Node], list[Node]]:
    """Return nodes of a symbolic length, and the same nodes without time steps."""
    steps = [Node("LSTM", d, open=frozenset({"time"})) for d in ("forward", "bidirectional")]
    return steps, [node.with_(sizes=(0, 2, 8, 16)) for node in steps]


def _target(tables: Tables) -> Target:
    return parse_target("probed", toml_text(tables))


def _ask(asker: Asker, node: Node, target: Target, native: Native, words: str) -> tuple[str, str]:
    """Lower a node for a target and ask about it; return answer and message, or ``none`` if refused."""
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
    return asker.ask(key, Question, ir.to_proto(model), asked.trials), asker.message(key)


def probe_adaptations(asker: Asker, tables: Tables) -> list[dict[str, Any]]:
    """Return the recurrent rules with the adaptations that are correct on the runtime."""
    rules = []
    for rule in tables["recurrent"]:
        words = [word for word in ADAPTABLE if _is_adaptable(asker, tables, rule, word)]
        rules.append(rule | nonempty(adapt=words))
    return rules


def _is_adaptable(asker: Asker, tables: Tables, rule: dict[str, Any], word: str) -> bool:
    """Return whether nodes that break the rule in one way are correct once adapted; false if none can."""
    target = _target({**tables, "recurrent": [rule | {"adapt": [*ADAPTABLE]}]})
    answers = set()
    for node in _nodes_lacking(rule, word):
        for sizes in _REAL_SIZES[:2] if asker.engine.slow else _REAL_SIZES[:4]:
            sized = node.with_(sizes=sizes)
            answers.add(_ask(asker, sized, target, "keep", "adapted")[0])
    return answers == {"right"}


def _nodes_lacking(rule: dict[str, Any], word: str) -> list[Node]:
    """Return nodes that follow a rule in all respects but one."""
    op_type = rule["ops"][0]
    base = Node(op_type, rule["directions"][0])
    if rule["attributes"].get("linear_before_reset") == [1]:
        base = base.add("linear_before_reset")
    states = frozenset(STATES[op_type]) & {*rule["needs"]} if "needs" in rule else frozenset()
    base = base.with_(inputs=base.inputs | states)
    needs = {*rule.get("needs", ()), *rule.get("not_empty", ())}
    directions = [base.with_(direction=each) for each in rule["directions"]]
    if word in ("reverse", "bidirectional"):
        return [] if word in rule["directions"] else [base.with_(direction=word)]
    if word == "direction":
        directions = [node for node in directions if node.direction == "forward"]
    it, most = frozenset({word}), rule.get("most_inputs", 0)
    change: Callable[[Node], Node]
    for words, is_lacking, change in (
        # An empty name for B covers both rules: that it must not be empty, and that it must be present.
        (("B",), word in needs, lambda node: node.with_(inputs=node.inputs - it, written=4)),
        (("initial_h", "initial_c"), word in needs, lambda node: node.with_(inputs=node.inputs - it)),
        ((*OUTPUT_NAMES, "hidden_size"), word in needs, lambda node: node.with_(left_out=it)),
        (("sequence_lens",), word not in rule["inputs"], lambda n: n.with_(inputs=n.inputs | it, full=it)),
        (("direction", "layout"), word in rule["attributes"], lambda node: node.add(word)),
        (("activations",), word in rule["attributes"], Node.with_activations),
        (("inputs",), most > 0, lambda node: node.with_(written=most + 1)),
    ):
        if word in words and is_lacking:
            return [change(node) for node in directions]
    return []


def probe_cautions(asker: Asker, tables: Tables) -> list[dict[str, Any]]:
    """Return the cautions about lowered nodes, without sources: the first failure of each operator."""
    target = _target(tables)
    texts: dict[str, str] = {}
    for each in _real_size_nodes(asker.engine.slow):
        answer, words = _ask(asker, each, target, "lower", "lowered")
        if answer != "right":
            texts.setdefault(each.op_type, f"{each}: {answer}; {words}"[:_MAX_WORDS])
    found: list[dict[str, Any]] = [
        {"ops": [op_type], "text": f"a lowered {op_type} fails: {text}"} for op_type, text in texts.items()
    ]
    if target.control_flow.empty_scan and "If" not in target.control_flow.ops:
        answers = {_ask(asker, node, target, "lower", "no steps")[0] for node in _open_length_nodes()[1]}
        if answers != {"right"}:
            text = "a lowered node fails on an empty sequence: feed at least one time step"
            found.append({"ops": ["LSTM", "GRU", "RNN"], "open": ["time"], "text": text})
    return found


def _real_size_nodes(is_slow: bool) -> Iterator[Node]:
    """Yield nodes of real sizes, and nodes whose weights are graph inputs, which Slices split."""
    for node in _FORMS:
        for direction in DIRECTIONS:
            for sizes in _REAL_SIZES[:2] if is_slow else _REAL_SIZES:
                yield node.with_(direction=direction, sizes=sizes)
        yield node.with_(direction="bidirectional", sizes=_WIDE_SIZES, fed=frozenset("WRB"))


def _two_ifs() -> Question:
    """Return a question with two Ifs in a row: some runtimes accept only one per graph."""
    model = parse_model("""
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
    return model_question(model, *({"C": np.array([sign], np.float32), "X": x} for sign in (1, -1)))
