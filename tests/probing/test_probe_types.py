"""The types of single operators and of recurrent nodes, as a probe finds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from support.faulty_runtime import Feeds, Runtime

from rnnlower.engines.catalog import find_engine
from rnnlower.engines.opened_models import EngineError
from rnnlower.engines.reference import evaluate
from rnnlower.probing import asking, node_probes, nodes, operator_probes, type_probes

FLOATS = ["float16", "float32", "float64", "int64"]


class FewKernels(Runtime):
    """A runtime without a float64 Elu, which computes Tanh and LSTM of float16 wrong."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        (op_type,) = {node.op_type for node in model.graph.node}
        kind = model.graph.input[0].type.tensor_type.elem_type
        if (op_type, kind) == ("Elu", onnx.TensorProto.DOUBLE):
            raise EngineError("no kernel")
        off = kind == onnx.TensorProto.FLOAT16 and op_type in ("Tanh", "LSTM")
        results = [evaluate(model, feeds) for feeds in trials]
        return [{name: array + off for name, array in each.items()} for each in results]


def test_operators_that_lack_a_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", FewKernels)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        found = type_probes.probe_type_limits(asker, ["Add", "Elu", "Gemm", "Split", "Tanh"], FLOATS)
        assert type_probes.probe_type_limits(asker, ["Elu", "Tanh"], ["float32"]) == []
    assert found == [
        {"ops": ["Tanh"], "dtypes": ["float32", "float64", "int64"]},
        {"ops": ["Elu"], "dtypes": ["float16", "float32", "int64"]},
    ]


def test_the_reference_lacks_no_type() -> None:
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert type_probes.probe_type_limits(asker, [*type_probes._LINES], FLOATS) == []


@pytest.mark.parametrize(
    ("op_type", "dtypes"), [("LSTM", ["float32", "float64"]), ("GRU", ["float32", "float16", "float64"])]
)
def test_recurrent_rules_list_the_correct_types(
    op_type: str, dtypes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "Attempts", FewKernels)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        tries = node_probes._RuleProbe(asker, nodes.Node(op_type), ["forward"], (), wrong := set())
        tries._claims.taken.append("initial_h")
        found = ["float32", *(name for name in ("float16", "float64") if tries._runs_in(name))]
    assert found == dtypes
    assert wrong == ({"type"} if op_type == "LSTM" else set())


def test_a_retyped_question_uses_representable_numbers() -> None:
    asked = type_probes.retype_question(nodes.node_question(nodes.Node("GRU")), "float16")
    ((feeds, expected),) = asked.trials
    assert feeds["X"].dtype == expected["Y"].dtype == np.float16
    assert {tensor.data_type for tensor in asked.model.graph.initializer} == {onnx.TensorProto.FLOAT16}
    np.testing.assert_allclose(evaluate(asked.model, feeds)["Y"], expected["Y"], atol=2e-3)


@pytest.mark.parametrize("wrong", ["", "reverse"])
def test_the_quantized_lstm(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Quantized(Runtime):
        def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
            results = [evaluate(model, feeds) for feeds in trials]
            directions = {a.s.decode() for a in model.graph.node[0].attribute if a.name == "direction"}
            off = 1 if wrong in directions else 0
            return [{name: array + off for name, array in each.items()} for each in results]

    monkeypatch.setattr(asking, "Attempts", Quantized)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        (rule,) = operator_probes.probe_quantized_rules(asker)
    assert rule["directions"] == [each for each in ("forward", "reverse", "bidirectional") if each != wrong]


@pytest.mark.parametrize(("of", "says"), [("float16", {"accumulates": "float16"}), ("float32", {})])
def test_how_products_of_float16_are_summed(
    of: str, says: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Narrow(Runtime):
        """A runtime that sums in float16, term by term."""

        def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
            return [{"Y": np.cumsum(feeds["X"], axis=1, dtype=np.float16)[:, -1:]} for feeds in trials]

    monkeypatch.setattr(asking, "Attempts", Narrow)
    with asking.Asker(find_engine("rnnlower-reference"), None, print) as asker:
        assert type_probes.probe_arithmetic(asker, [of]) == says
        monkeypatch.setattr(Narrow, "run", Runtime.run)
    with asking.Asker(find_engine("rnnlower-reference"), None, print) as asker:
        assert type_probes.probe_arithmetic(asker, ["float16"]) == {"accumulates": "float32"}


def test_integer_products(monkeypatch: pytest.MonkeyPatch) -> None:
    class OneType(Runtime):
        """A runtime whose products write what they read, and are off for uint16."""

        def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
            kinds = {each.name: each.data_type for each in model.graph.initializer}
            if kinds.get("zx") != kinds.get("zp"):
                raise EngineError("no such product")
            results = [evaluate(model, feeds) for feeds in trials]
            off = 0.01 if kinds.get("zx") == onnx.TensorProto.UINT16 else 0
            return [{name: array + np.float32(off) for name, array in each.items()} for each in results]

    monkeypatch.setattr(asking, "Attempts", OneType)
    with asking.Asker(find_engine("rnnlower-reference"), None, print) as asker:
        assert type_probes.probe_arithmetic(asker, []) == {"quantized": ["int16", "int8-only"]}
    monkeypatch.undo()
    with asking.Asker(find_engine("rnnlower-reference"), None, print) as asker:
        assert type_probes.probe_arithmetic(asker, []) == {}


def test_quantizers_that_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loose(Runtime):
        """A runtime that takes quantizers of 16 bits for nothing."""

        def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
            kinds = {each.name: each.data_type for each in model.graph.initializer}
            if kinds.get("z") in (onnx.TensorProto.INT16, onnx.TensorProto.UINT16):
                return [{"Y": 2 * feeds["X"]} for feeds in trials]
            return [evaluate(model, feeds) for feeds in trials]

    monkeypatch.setattr(asking, "Attempts", Loose)
    with asking.Asker(find_engine("rnnlower-reference"), None, print) as asker:
        assert type_probes.probe_arithmetic(asker, []) == {"unclipped": ["int16", "uint16"]}
