"""Random nodes that combine what a probe found correct alone, and forms of one version."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from support.faulty_runtime import Feeds, Runtime
from support.probed_cases import probed_cases

from rnnlower.engines.catalog import find_engine
from rnnlower.engines.opened_models import EngineError
from rnnlower.engines.reference import evaluate
from rnnlower.probing import asking, node_probes, node_tests, operator_forms, operator_probes
from rnnlower.probing.nodes import SIZES, Node, node_question
from rnnlower.probing.random_nodes import Claims, minimize


class Together(Runtime):
    """A runtime that is wrong where R comes at run time and B is an empty name, and only there."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        fed = {value.name for value in model.graph.input}
        results = [evaluate(model, feeds) for feeds in trials]
        for node in model.graph.node:
            if node.op_type == "RNN" and "R" in fed and len(node.input) > 3 and not node.input[3]:
                return [{name: array + 1 for name, array in each.items()} for each in results]
        return results


def test_features_that_fail_in_combination_are_retracted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", Together)
    monkeypatch.setattr(node_probes, "SIZES", SIZES[:1])
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        (rule,) = node_probes._probe_rules(asker, Node("RNN"), True, ["If", "Loop", "Scan"])
    assert (rule["fixed"], rule["wrong"]) == (["R"], ["R"])
    assert not {"constant", "nested", "static", "static_nested", "not_empty", "needs"} & {*rule}
    assert set(rule["inputs"]) == {"B", "initial_h", "sequence_lens"}


class WantsTwoStates(Runtime):
    """A runtime that fails on one value as both states, unless it is a constant."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        fed = {value.name for value in model.graph.input}
        states = [[*node.input[5:7]] for node in model.graph.node if node.op_type == "LSTM"]
        if any(len(names) == 2 and names[0] == names[1] in fed for names in states):
            raise EngineError("one state")
        return [evaluate(model, feeds) for feeds in trials]


def test_one_value_as_both_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", WantsTwoStates)
    monkeypatch.setattr(node_probes, "SIZES", SIZES[:1])
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        (rule,) = node_probes._probe_rules(asker, Node("LSTM"), False, [])
    assert rule["two_states"]
    assert {"initial_h", "initial_c"} <= {*rule["inputs"]}


class MixesReadersUp(Runtime):
    """A runtime that is wrong where two nodes read one X, except for the last of them."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        results = [evaluate(model, feeds) for feeds in trials]
        if sum(node.op_type == "GRU" and node.input[0] == "X" for node in model.graph.node) > 1:
            return [each | {name: array + 1 for name, array in [*each.items()][:1]} for each in results]
        return results


def test_two_readers_of_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", MixesReadersUp)
    monkeypatch.setattr(node_probes, "SIZES", SIZES[:1])
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        (rule,) = node_probes._probe_rules(asker, Node("GRU"), False, [])
    assert rule["one_reader"]
    assert "one_reader" in rule["wrong"]


class KeepsItsState(Runtime):
    """A runtime whose LSTM goes on from the run before unless its states are fed; an RNN wants them fed."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        results = [evaluate(model, feeds) for feeds in trials]
        fed = {value.name for value in model.graph.input}
        if any(
            node.op_type == "LSTM" or (node.op_type == "RNN" and "initial_h" in node.input)
            for node in model.graph.node
            if "initial_h" not in fed
        ):
            results[-1] = {name: array + 1 for name, array in results[-1].items()}
        return results


@pytest.mark.parametrize(
    ("op_type", "inputs"), [("LSTM", []), ("RNN", [["B", "sequence_lens"]]), ("GRU", [["B", "initial_h"]])]
)
def test_states_may_be_constants(
    op_type: str, inputs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "Attempts", KeepsItsState)
    monkeypatch.setattr(node_probes, "SIZES", SIZES[:1])
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        rules = [*node_probes._probe_rules(asker, Node(op_type), False, [])]
    assert [rule["inputs"][:2] for rule in rules] == inputs


@pytest.mark.parametrize(
    ("parts", "key", "claim"),
    [
        (["empty B", "fed R", "clip"], "R", "fed"),
        (["Y", "in Loop"], "Y", "needs"),
        (["open time", "in Loop"], "time", "open_nested"),
        (["in Loop"], "nested", "places"),
        (["open batch", "computed states"], "batch", "open_with_states"),
        (["behind Tile"], "repeated", "behind"),
        (["activations"], "activations", "functions"),
        (["clip", "initial_h"], "clip", "taken"),
        (["empty B"], "B", "not_empty"),
    ],
)
def test_the_rarest_of_the_parts_that_fail_together_is_retracted(
    parts: list[str], key: str, claim: str
) -> None:
    def known() -> Claims:
        return Claims(
            Node("LSTM"), ["forward"], taken=["initial_h", "clip"], functions=["Relu"], fed=["R"],
            computed=["R"], places=["Loop"], behind=["Tile"], open=["batch", "time"],
            open_nested=["batch", "time"], open_with_states=["batch"],
        )  # fmt: skip

    claims, before = known(), known()
    assert claims.retract(parts) == key
    changed = [name for name in vars(before) if getattr(before, name) != getattr(claims, name)]
    assert claim in changed
    assert {*changed} <= {claim, "not_empty"}


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_no_question_overflows(op_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Node] = []
    monkeypatch.setattr(node_probes, "ask_node", lambda asker, node: asked.append(node) or "right")
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert [*node_probes._probe_rules(asker, Node(op_type), True, ["If", "Loop", "Scan"])]
    active = {str(node): node for node in asked if "activations" in dict(node.attributes)}
    for node in active.values():
        for _, expected in node_question(node).trials:
            assert all(np.isfinite(array).all() for array in expected.values()), node


def test_failing_parts_are_minimized() -> None:
    assert minimize(["a", "b", "c", "d"], lambda parts: {"b", "d"} <= {*parts}) == ["b", "d"]
    assert minimize(["a", "b"], lambda parts: True) == []


class OfOneVersion(Runtime):
    """A runtime that serves ReduceMean and Slice in one version each, neither the newest nor the first."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        opset = model.opset_import[0].version
        for node in model.graph.node:
            if (version := {"ReduceMean": 13, "Slice": 11}.get(node.op_type)) is None:
                continue
            if onnx.defs.get_schema(node.op_type, opset).since_version != version:
                raise EngineError(f"no {node.op_type} of opset {opset}")
        return [evaluate(model, feeds) for feeds in trials]


def test_a_form_between_the_first_and_the_newest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", OfOneVersion)
    found = probed_cases("ReduceMean", "Slice")
    monkeypatch.setattr(node_tests, "node_cases", lambda: found)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        ops = operator_probes.probe_operators(asker, 26)
        limits = operator_probes.probe_limits(asker, ["ReduceMean", "Slice"], [10, 18], False)
    assert {"ReduceMean", "Slice"} <= {*ops}
    versions = {limit["ops"][0]: limit["versions"] for limit in limits}
    assert 13 in versions["ReduceMean"]
    assert not {1, 11, 18} & {*versions["ReduceMean"]}
    assert 11 in versions["Slice"]
    assert not {10, 13} & {*versions["Slice"]}


def test_outputs_that_nodes_read_are_graph_outputs_only_in_bodies() -> None:
    asked = node_question(Node("LSTM", read=True))
    assert [value.name for value in asked.model.graph.output] == ["Y_read", "Y_h_read", "Y_c_read"]
    asked = node_question(Node("LSTM", read=True, place="If"))
    assert {"Y", "Y_read"} <= {value.name for value in asked.model.graph.output}


class IgnoresAlpha(Runtime):
    """A runtime whose Elu knows no alpha."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        plain = onnx.ModelProto.FromString(model.SerializeToString())
        for node in plain.graph.node:
            if node.op_type == "Elu":
                del node.attribute[:]
        return [evaluate(plain, feeds) for feeds in trials]


def test_an_activation_without_its_values_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", IgnoresAlpha)
    monkeypatch.setattr(operator_forms, "FORMS", ())
    tests = {name: [(name, name)] for name in ("Elu", "LeakyRelu")}
    monkeypatch.setattr(node_tests, "node_cases", lambda: tests)
    monkeypatch.setattr(node_tests, "_unconverted_question", _plain)
    monkeypatch.setattr(node_tests, "_original_opset", lambda case: None)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert operator_probes.probe_operators(asker, 13) == ["LeakyRelu"]


def _plain(op_type: str, opset: int, constant: bool = False) -> asking.Question:
    node = onnx.helper.make_node(op_type, ["X"], ["Y"])
    return asking.question([node], {"X": np.array([[-1, 2]], np.float32)}, opset)


class Guesses(Runtime):
    """A runtime that takes the state of as many rows as units as if it were transposed."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        turned = []
        for feeds in trials:
            state = feeds.get("initial_h")
            square = state is not None and state.shape[1] == state.shape[2]
            turned.append({**feeds, "initial_h": state.swapaxes(1, 2)} if square else feeds)
        return [evaluate(model, feeds) for feeds in turned]


def test_confused_sizes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", Guesses)
    monkeypatch.setattr(node_probes, "SIZES", (SIZES[0], SIZES[-1]))
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        (rule,) = node_probes._probe_rules(asker, Node("GRU"), False, [])
    assert set(rule["inputs"]) == {"B", "sequence_lens"}
    assert rule["wrong"] == ["initial_h"]
