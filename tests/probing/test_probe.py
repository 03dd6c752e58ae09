"""The probe of a runtime: the resulting target, kept answers, and reported changes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.cli_helpers import rnnlower
from support.faulty_runtime import Feeds, Runtime
from support.probed_cases import probed_cases

from rnnlower.engines.catalog import find_engine
from rnnlower.engines.opened_models import EngineError
from rnnlower.engines.reference import evaluate
from rnnlower.errors import OptionError
from rnnlower.passes.options import LoweringOptions
from rnnlower.probing import (
    asking,
    lowering_probes,
    node_probes,
    node_tests,
    operator_forms,
    operator_probes,
    probe,
    prober,
)
from rnnlower.probing.nodes import SIZES, Node, node_question
from rnnlower.probing.operator_forms import FORMS, SIZED, sized_question, split_question
from rnnlower.probing.writing import list_changes, merge_earlier, toml_text
from rnnlower.targets import choosing, find_target, reading
from rnnlower.targets.reading import parse_target, read_toml

QUESTIONS: dict[str, asking.Question] = {}
"""The questions of a probe, which are the same in each test."""


ANSWERS: dict[int, list[str]] = {}
"""The answers of the runtime with faults to these questions."""

LOWERED: dict[Any, tuple[ir.Model, Any]] = {}
"""The nodes that a probe lowers for its target, and the reports."""


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> type[Runtime]:
    Runtime.asked = 0
    ask, answer, lower_model = asking.Asker.ask, asking.Asker._answer, lowering_probes.lower_model

    def ask_once(self: asking.Asker, key: str, make: Any, *values: Any, **options: Any) -> str:
        def remembered() -> asking.Question:
            if key not in QUESTIONS:
                QUESTIONS[key] = make(*values, **options)
            return QUESTIONS[key]

        return ask(self, key, remembered)

    def answer_once(self: asking.Asker, asked: asking.Question) -> list[str]:
        if type(self._attempts) is not Runtime:
            return answer(self, asked)
        if id(asked) in ANSWERS:
            Runtime.asked += 1
        else:
            ANSWERS[id(asked)] = answer(self, asked)
        return ANSWERS[id(asked)]

    def lower_once(model: ir.Model, options: LoweringOptions) -> Any:
        key = ir.to_proto(model).SerializeToString(deterministic=True), options.native, repr(options.target)
        if key not in LOWERED:
            report = lower_model(model, options)
            LOWERED[key] = model.clone(), report
        lowered, report = LOWERED[key]
        model.graph = lowered.clone().graph
        return report

    monkeypatch.setattr(asking.Asker, "ask", ask_once)
    monkeypatch.setattr(asking.Asker, "_answer", answer_once)
    monkeypatch.setattr(lowering_probes, "lower_model", lower_once)
    monkeypatch.setattr(asking, "Attempts", Runtime)
    monkeypatch.setattr(node_probes, "SIZES", SIZES[:1])
    monkeypatch.setattr(lowering_probes, "_REAL_SIZES", SIZES[:1])
    # A few operators are enough; those of all tests of onnx take their time.
    texts = [f"Y = {name} (X)" for name in ("Erf", "Relu", "Shape", "Sigmoid", "Tanh")]
    texts += ["Y = Add (X, X)", "Y = Mul (X, X)", "Y = Sub (X, X)", "Y = Concat <axis = 0> (X, X)"]
    texts += ["Y = Transpose <perm = [1, 0]> (X)"]
    tests = {text.split()[2]: [(text, text)] for text in texts}
    monkeypatch.setattr(node_tests, "node_cases", lambda: tests)
    monkeypatch.setattr(node_tests, "_unconverted_question", _of)
    monkeypatch.setattr(node_tests, "_original_opset", lambda case: None)
    return Runtime


@pytest.fixture
def brief(runtime: type[Runtime], monkeypatch: pytest.MonkeyPatch) -> type[Runtime]:
    """The runtime, of whose recurrent nodes LSTM is probed, where any will do."""

    def rules(*given: Any) -> list[dict[str, Any]]:
        asker, *more = given
        return [*node_probes._probe_rules(asker, Node("LSTM"), *more)]

    monkeypatch.setattr(prober, "probe_recurrent_rules", rules)
    return runtime


def _of(text: str, opset: int, constant: bool = False) -> asking.Question:
    node = onnx.parser.parse_node(text)
    return asking.question([node], {"X": np.ones((2, 3), np.float32)}, opset)


def test_a_target_records_the_faults_of_a_runtime(runtime: type[Runtime], tmp_path: Path) -> None:
    path = tmp_path / "faulty.toml"
    target = probe("rnnlower-reference", output=path)
    assert find_target(path) == target
    assert {"Cast", "Gemm", "Relu", "Split"} <= set(target.ops.allowed or ())
    assert "Erf" not in (target.ops.allowed or ())
    assert target.control_flow.ops == ("If",)
    assert target.shapes.static  # There is no loop for a dynamic length.
    limits = {limit.ops[0]: limit for limit in target.limits}
    assert limits["Split"].max_outputs == 9
    assert limits["Gemm"].attributes == {"alpha": (1.0,)}
    assert limits["Transpose"].written == ("perm",)
    lstm, gru, quantized = target.recurrent
    assert (lstm.ops, lstm.directions, lstm.wrong) == (("LSTM",), ("forward", "bidirectional"), ("reverse",))
    assert set(lstm.inputs or ()) == {"B", "initial_h", "initial_c", "P"}
    assert lstm.attributes == {"layout": (0,), "activation_alpha": (), "activation_beta": ()}
    assert (gru.ops, gru.needs) == (("GRU",), ("initial_h",))
    assert gru.attributes == {"layout": (0,), "direction": ("reverse", "bidirectional")}
    assert gru.tried == "batches of 2, 3 steps, 8 features, 16 units"
    assert (lstm.not_empty, lstm.nested, gru.nested) == (("B",), False, True)
    assert set(lstm.adapt) == {"layout", "reverse", "B", "sequence_lens"}
    assert {"initial_h", "direction"} <= set(gru.adapt)
    assert quantized.ops == ("DynamicQuantizeLSTM",)
    assert lstm.semantics == gru.semantics == ("ort", "agreed")
    assert not target.cautions
    assert [path] == list(tmp_path.iterdir())


def test_an_interrupted_probe_resumes(
    brief: type[Runtime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "faulty.toml"
    with monkeypatch.context() as patch:
        patch.setattr(prober, "probe_recurrent_rules", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            probe("rnnlower-reference", output=path)
    assert not path.exists()
    # A Split into 50 crashes, and is asked again.
    asked = brief.asked - 1
    assert len(json.loads((tmp_path / "faulty.toml.partial").read_text())["answers"]) == asked
    probe("rnnlower-reference", output=path)
    first = brief.asked
    path.unlink()
    brief.asked = 0
    (tmp_path / "faulty.toml.partial").write_text('{"of": {"eng')
    probe("rnnlower-reference", output=path)
    assert brief.asked == first


def test_answers_of_a_changed_program_are_asked_again(tmp_path: Path) -> None:
    script, partial = tmp_path / "run.py", tmp_path / "own.toml.partial"
    engine = find_engine(f"cmd:false {script} {{model}} {{inputs}} {{outputs}}")

    def ask() -> list[str]:
        made: list[str] = []

        def make() -> asking.Question:
            made.append("made")
            return asking.question("Y = Neg (X)", {"X": np.ones(2, np.float32)}, 13)

        with asking.Asker(engine, partial, lambda key: None) as asker:
            asker.ask("Neg", make)
        return made

    script.write_text("")
    assert [ask(), ask()] == [["made"], []]
    os.utime(script, (1, 1))
    assert ask() == ["made"]


def test_another_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[project]\nname = 'x'\n")
    with pytest.raises(OptionError, match="unknown key 'project'"):
        probe("rnnlower-reference", output=path)
    assert "[project]" in path.read_text()


def test_progress_reaches_its_total(brief: type[Runtime], tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []

    def tell(activity: str, done: int = 0, total: int = 0, /) -> None:
        told.append((activity, done, total))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prober, "probe_recurrent_rules", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            probe("rnnlower-reference", output=tmp_path / "faulty.toml")
    # Kept answers count like new ones.
    probe("rnnlower-reference", output=tmp_path / "faulty.toml", progress=tell)
    questions = [(done, total) for _, done, total in told if total]
    assert [done for done, _ in questions] == [*range(1, len(questions) + 1)]
    assert all(done <= total for done, total in questions)
    assert questions[0][1] > 1000
    groups = [
        re.fullmatch(r"(.*): ([\d,]+) questions? in \d+ s", words) for words, _, total in told if not total
    ]
    assert [group[1] for group in groups if group] == [*prober._EXPECTED]
    assert sum(int(group[2].replace(",", "")) for group in groups if group) == len(questions)
    # What is left of the estimate is the groups that are still to come.
    assert questions[-1][1] - questions[-1][0] < prober._EXPECTED["lowered nodes"]


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_case_is_converted_if_an_attribute_changed() -> None:
    """GridSample-16 calls the mode bilinear; the checker takes linear, too."""
    case = dict(probed_cases("GridSample")["GridSample"])["test_gridsample_bilinear"]
    for opset, mode in ((16, b"bilinear"), (20, b"linear"), (22, b"linear")):
        (node,) = node_tests.case_question(case, opset).model.graph.node
        assert {each.name: each.s for each in node.attribute}["mode"] == mode


def test_only_a_training_dropout_has_a_seed() -> None:
    tests = dict(probed_cases("Dropout")["Dropout"])
    for name, has_seed in (("test_dropout_default", False), ("test_training_dropout", True)):
        asked = node_tests.case_question(tests[name], 13).model
        nodes = [node for node in asked.graph.node if node.op_type == "Dropout"]
        assert [bool(node.attribute) for node in nodes] == [has_seed]


def test_the_reference_passes_all_forms() -> None:
    for form in FORMS:
        assert form.question().trials
    assert len(split_question(50).model.graph.output) == 50


@pytest.mark.parametrize("place", ["If", "Loop", "Scan"])
def test_a_node_in_a_body_is_a_question(place: str) -> None:
    for node in (
        Node("LSTM", place=place),
        Node("GRU", "bidirectional", place=place, open=frozenset({"time"})),
    ):
        asked = node_question(node)
        assert place in [each.op_type for each in asked.model.graph.node]
        assert not {"LSTM", "GRU"} & {each.op_type for each in asked.model.graph.node}
        assert len(asked.trials) == 1 + len(node.open)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("feature", ["layout", "sequence_lens", "initial_h", "Relu", "clip"])
def test_a_feature_makes_another_question(direction: str, feature: str) -> None:
    plain = Node("GRU", direction)
    asked = node_question(plain.add(feature))
    assert str(plain) != str(plain.add(feature))
    (node,) = [node for node in asked.model.graph.node if node.op_type == "GRU"]
    given = [*node.input, *(attribute.name for attribute in node.attribute)]
    assert ("activations" if feature == "Relu" else feature) in given


def test_sequence_lengths_include_an_empty_row() -> None:
    """Some runtimes keep the initial state of that row, which onnxruntime sets to 0."""
    asked = node_question(Node("RNN").add("sequence_lens").add("initial_h"))
    assert [feeds["sequence_lens_fed"][-1] for feeds, _ in asked.trials] == [SIZES[0][0] - 1, 0]
    states = [right["Y_h"][0, -1] for _, right in asked.trials]
    assert states[0].any()
    assert not states[1].any()


def test_symbolic_sizes_are_tried_at_two_values() -> None:
    asked = node_question(Node("LSTM", open=frozenset({"batch"})).add("initial_h").add("initial_c"))
    assert [feeds["X"].shape[1] for feeds, _ in asked.trials] == [2, 4]
    assert [right["Y"].shape[2] for _, right in asked.trials] == [2, 4]


def test_an_operator_may_read_a_size_of_x() -> None:
    for op_type in SIZED:
        assert [feeds["X"].shape[0] for feeds, _ in sized_question(op_type).trials] == [3, 5]


class Forgetful(Runtime):
    """A runtime whose second run begins with the state of the first."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        first, *more = super().run(model, *trials)
        return [first, *({name: array + 1 for name, array in each.items()} for each in more)]


class FailsOnce(Runtime):
    """A runtime whose first run fails."""

    fault: EngineError

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        Runtime.asked += 1
        if Runtime.asked == 1:
            raise self.fault
        return super().run(model, *trials)


class Slow(FailsOnce):
    """A runtime that another program holds up once."""

    fault = EngineError("it was still running after 60 s", "hangs")


class Broken(FailsOnce):
    """A runtime whose memory an earlier model has broken."""

    fault = EngineError("free(): invalid next size", "crashes")


@pytest.mark.parametrize(
    ("one", "answer"), [(Runtime, "right"), (Forgetful, "wrong"), (Slow, "right"), (Broken, "right")]
)
def test_a_second_run_counts_and_crashes_and_hangs_are_retried(
    one: type[Runtime], answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Runtime.asked = 0
    monkeypatch.setattr(asking, "Attempts", one)
    with asking.Asker(find_engine("rnnlower-reference"), None, print) as asker:
        assert asker.ask("a node", node_question, Node("LSTM")) == answer


class ByChance(Runtime):
    """A runtime that is right every other time."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        results = super().run(model, *trials)
        odd = Runtime.asked % 2
        return results if odd else [{name: array + 1 for name, array in each.items()} for each in results]


@pytest.mark.parametrize(("one", "ops"), [(Runtime, ["Relu"]), (ByChance, [])])
def test_an_operator_must_pass_twice(
    one: type[Runtime], ops: list[str], runtime: type[Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "Attempts", one)
    monkeypatch.setattr(operator_forms, "FORMS", ())
    monkeypatch.setattr(node_tests, "node_cases", lambda: {"Relu": [("Y = Relu (X)", "Y = Relu (X)")]})
    with asking.Asker(find_engine("rnnlower-reference"), None, print) as asker:
        assert operator_probes.probe_operators(asker, 13) == ops


class OneIf(Runtime):
    """A runtime with room for one If in a graph, and without Loop."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        if "Loop" in [node.op_type for node in model.graph.node]:
            raise EngineError("no Loop")
        if [node.op_type for node in model.graph.node].count("If") > 1:
            raise EngineError("Duplicate node name: If")
        return [evaluate(model, feeds) for feeds in trials]


class NoCell(Runtime):
    """A runtime that has an If, but not around a Gemm; a Scan that wants steps; and no Loop."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        for node in model.graph.node:
            bodies = [attribute.g.node for attribute in node.attribute if attribute.g.node]
            if node.op_type == "If" and any(inner.op_type == "Gemm" for body in bodies for inner in body):
                raise EngineError("TupleGetItem has no attribute value")
            if node.op_type == "Loop":
                raise EngineError("no Loop")
            if node.op_type == "Scan" and trials[0]["X"].shape[0] == 0:
                raise EngineError("no steps")
        return [evaluate(model, feeds) for feeds in trials]


@pytest.mark.parametrize(("one", "texts"), [(OneIf, 0), (NoCell, 1)])
def test_an_if_must_run_twice_and_with_a_cell_inside(
    one: type[Runtime], texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "Attempts", one)
    monkeypatch.setattr(lowering_probes, "_REAL_SIZES", SIZES[:1])
    monkeypatch.setattr(lowering_probes, "_MANY_STEPS", (8, 2, 4, 8))
    monkeypatch.setattr(choosing, "_MAX_UNROLLED", 6)
    claims = read_toml(Path(reading.__file__).parent / "data" / "tract.toml")
    tables = {name: claims[name] for name in ("title", "source", "opset", "dtypes", "ops")}
    with asking.Asker(find_engine("rnnlower-reference"), None, print) as asker:
        flow = lowering_probes.probe_control_flow(asker, tables, dynamic=True)
        assert flow["ops"] == ["Scan"]
        assert flow["empty_scan"]
        told = tables | {"control_flow": flow, "shapes": {"static": False}, "recurrent": []}
        found = lowering_probes.probe_cautions(asker, told)
    assert [caution["open"] for caution in found] == [["time"]] * texts


def test_opsets_are_trimmed_to_correct_versions() -> None:
    limits = [
        {"ops": ["Slice"], "versions": [10, 11, 13]},
        {"ops": ["Split"], "versions": [2, 11]},
        {"ops": ["Pad"], "versions": [13]},
    ]
    assert operator_probes.trim_opsets([7, 26], limits) == [10, 12]
    assert operator_probes.trim_opsets([11, 26], limits) == [11, 12]
    assert operator_probes.trim_opsets([7, 26], []) == [7, 26]
    limits = [{"ops": ["Split"], "versions": [2, 11, 13]}]
    assert operator_probes.trim_opsets([7, 18], limits) == [7, 17]
    limits = [{"ops": ["Split"], "versions": [1, 2, 13, 18]}]
    assert operator_probes.trim_opsets([7, 26], limits) == [13, 26]


class OneStep(Runtime):
    """A runtime that forgets the state before a single step, and ends where both directions are fed R."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        results = [evaluate(model, feeds) for feeds in trials]
        for node in model.graph.node:
            both = any(attribute.s == b"bidirectional" for attribute in node.attribute)
            if node.op_type == "RNN" and both and "R" in trials[0]:
                raise EngineError("SIGSEGV", "crashes")
            if node.op_type == "RNN" and "initial_h" in node.input and trials[0]["X"].shape[0] == 1:
                results = [{name: array + 1 for name, array in each.items()} for each in results]
        return results


def test_states_are_tried_at_each_size_and_weights_in_each_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", OneStep)
    monkeypatch.setattr(node_probes, "SIZES", SIZES[:2])
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        (rule,) = node_probes._probe_rules(asker, Node("RNN"), False, [])
    assert rule["inputs"] == ["B", "sequence_lens"]
    assert rule["wrong"] == ["initial_h"]
    assert rule["fixed"] == ["R"]


def test_changes_name_the_table_and_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = probed_cases("Mul")
    monkeypatch.setattr(node_tests, "node_cases", lambda: tried)
    table = {"source": "a test 1.0"}
    data: dict[str, Any] = {
        "title": "Made",
        "opset": {"range": [7, 18]} | table,
        "control_flow": {"ops": ["If"]} | table,
        "shapes": {"static": True} | table,
        "dtypes": {"allowed": ["float32"]} | table,
        "ops": {"allowed": ["Add", "Mul", "RandomNormal"]} | table,
        "recurrent": [{"ops": ["GRU"], "attributes": {"clip": []}} | table],
    }
    old = parse_target("made", toml_text(data))
    assert list_changes(old, old) == []
    data |= {
        "ops": {"allowed": ["Add", "Relu"]} | table,
        "opset": {"range": [7, 20]} | table,
        "recurrent": [],
    }
    new = parse_target("made", toml_text(data))
    assert list_changes(old, new) == [
        "ops: allowed: -Mul +Relu",
        "opset: range: [7, 18] -> [7, 20]",
        "native GRU: gone",
    ]


def test_earlier_claims_that_a_probe_cannot_check_are_kept() -> None:
    table = {"source": "a test 1.0, rnnlower probe"}
    found: dict[str, Any] = {
        "title": "Made",
        "ops": {"allowed": ["Add", "Relu"]} | table,
        "limits": [{"ops": ["Squeeze"], "constant": [1], "written": ["axes"]} | table],
        "recurrent": [{"ops": ["LSTM"], "directions": ["forward"], "needs": []} | table],
        "cautions": [{"ops": ["GRU"], "text": "new"} | table],
    }
    before: dict[str, Any] = {
        "title": "Made, by us",
        "ops": {"allowed": ["Erf", "RandomNormal", "com.microsoft.Gelu"], "functions": True},
        "limits": [{"ops": ["Squeeze"], "written": ["axes"], "remedy": "convert it"}],
        "cautions": [{"ops": ["GRU"], "text": "old"} | table, {"ops": ["GRU"], "text": "x", "guess": True}],
        "runtime": False,
        "costs": {"microseconds": {"nodes": 1}, "source": "us"},
        "arithmetic": {"accumulates": "float32", "source": "us"},
    }
    made = merge_earlier(found, before, tried=["Add", "Erf", "Relu"])
    assert made["title"] == "Made, by us"
    assert made["ops"]["allowed"] == ["Add", "RandomNormal", "Relu", "com.microsoft.Gelu"]
    assert made["ops"]["functions"]
    assert made["limits"][0]["remedy"] == "convert it"
    assert [caution["text"] for caution in made["cautions"]] == ["new", "x"]
    assert made["costs"] == before["costs"]
    assert "runtime = false" in toml_text(made)
    assert "arithmetic" not in made
    wished = merge_earlier(
        found | {"arithmetic": {"accumulates": "float16"} | table}, {"arithmetic": {"gates": "fused"}}
    )
    assert wished["arithmetic"] == {"gates": "fused", "accumulates": "float16"} | table
    assert merge_earlier(found, {}) == found
    absent = merge_earlier(found, {"ops": {"absent": ["Bernoulli"]}}, tried=["Add", "Erf", "Relu"])["ops"]
    assert "what they do not test" in absent["source"]
    assert "RandomNormal" in absent["allowed"]
    assert not {"Bernoulli", "Erf", "LSTM", "Loop"} & {*absent["allowed"]}


def test_the_command_needs_an_output_and_an_installed_runtime(tmp_path: Path) -> None:
    nowhere = rnnlower("probe", "openvino", code=2)
    assert "-o TARGET.toml writes one" in nowhere.stderr
    named = rnnlower("probe", "openvino", "-o", tmp_path / "target.json", code=2)
    assert "does not end in .toml" in named.stderr
    unknown = rnnlower("probe", "openwino", "-o", tmp_path / "target.toml", code=2)
    assert "there is no engine 'openwino'" in unknown.stderr


def test_check_prints_differences_from_a_target(brief: type[Runtime], tmp_path: Path) -> None:
    path = tmp_path / "faulty.toml"
    written = rnnlower("probe", "rnnlower-reference", "-o", path)
    lines = written.stderr.splitlines()
    assert re.fullmatch(r"opsets: \d+ questions in \d+ s", lines[0])
    assert [line.partition(":")[0] for line in lines] == [*prober._EXPECTED, "rnnlower"]
    assert rnnlower("probe", "rnnlower-reference", "--check", path, "-q").stdout == ""
    path.write_text(path.read_text().replace('"Cast",', '"Cast", "Erf",'))
    changed = rnnlower("probe", "rnnlower-reference", "--check", path, "--json", "-q", code=1)
    assert changed.json["changes"] == ["ops: allowed: -Erf"]
    assert changed.json["error"]["kind"] == "VerificationError"


def test_a_target_goes_to_standard_output(brief: type[Runtime], tmp_path: Path) -> None:
    path = tmp_path / "faulty.toml"
    rnnlower("probe", "rnnlower-reference", "-o", path)
    printed = rnnlower("probe", "rnnlower-reference", "-o", "-")
    assert printed.stdout == path.read_text()
    assert "wrote standard output" in printed.stderr
    both = rnnlower("probe", "rnnlower-reference", "-o", "-", "--json", code=2)
    assert "leave out one of the two" in both.stderr
