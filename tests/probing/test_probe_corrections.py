"""Operators that are right or wrong beside others only: gates that are split, integers between nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.faulty_runtime import Feeds, Runtime
from support.probed_cases import probed_cases

from rnnlower.engines.catalog import find_engine
from rnnlower.engines.opened_models import EngineError
from rnnlower.engines.reference import evaluate
from rnnlower.probing import asking, lowering_probes, node_tests, operator_probes, type_probes
from rnnlower.targets import reading
from rnnlower.targets.reading import read_toml

DATA = Path(reading.__file__).parent / "data"


class SplitsGatesBadly(Runtime):
    """A runtime that is wrong where a Sigmoid is split."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        results = [evaluate(model, feeds) for feeds in trials]
        sigmoids = {node.output[0] for node in model.graph.node if node.op_type == "Sigmoid"}
        for node in model.graph.node:
            if node.op_type == "Split" and node.input[0] in sigmoids:
                return [{name: array + 1 for name, array in each.items()} for each in results]
        return results


@pytest.mark.parametrize(("missing", "found"), [("", {"gates": "separate"}), ("Split", {})])
def test_gates_get_separate_products_if_a_joint_one_is_wrong(
    missing: str, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "Attempts", SplitsGatesBadly)
    tables = read_toml(DATA / "opencv.toml")
    tables["ops"]["allowed"] = [name for name in tables["ops"]["allowed"] if name != missing]
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_gates(asker, tables) == found


class Overwrites(Runtime):
    """A runtime in which a Neg overwrites an output that it reads, which only a Cast computes anew."""

    only_bodies = False

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        changed = onnx.ModelProto.FromString(model.SerializeToString())
        bodies = [a.g for node in changed.graph.node for a in node.attribute if a.HasField("g")]
        for graph in bodies if self.only_bodies else [changed.graph, *bodies]:
            for node in graph.node:
                for output in graph.output:
                    if node.op_type == "Neg" and node.input[0] == output.name:
                        output.name = node.output[0]
        results = [evaluate(changed, feeds) for feeds in trials]
        names = [output.name for output in model.graph.output]
        return [dict(zip(names, each.values(), strict=False)) for each in results]


@pytest.mark.parametrize("only_bodies", [False, True])
def test_a_runtime_that_overwrites_outputs(only_bodies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Overwrites, "only_bodies", only_bodies)
    monkeypatch.setattr(asking, "Attempts", Overwrites)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_outputs(asker) == {"overwrites_outputs": True}


def test_a_runtime_that_keeps_outputs() -> None:
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_outputs(asker) == {}


class AddsAxes(Runtime):
    """A runtime in which what a Conv computes has four axes until another node reads it."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        made = {name: node.op_type for node in model.graph.node for name in node.output}
        return [
            {
                name: array[..., np.newaxis] if made[name] == "Conv" else array
                for name, array in evaluate(model, feeds).items()
            }
            for feeds in trials
        ]


def test_a_runtime_whose_convolutions_have_more_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", AddsAxes)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_outputs(asker) == {"copied_outputs": ["Conv"]}


class LosesAxes(Runtime):
    """A runtime that drops an axis of what follows from constants; a Constant itself is right."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        fed = {value.name for value in model.graph.input}
        for node in model.graph.node:
            if node.op_type == "Constant" or fed & {*node.input}:
                fed |= {*node.output}
        return [
            {name: array if name in fed else array[0] for name, array in evaluate(model, feeds).items()}
            for feeds in trials
        ]


def test_a_runtime_that_loses_axes_of_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_constants(asker) == {}
    monkeypatch.setattr(asking, "Attempts", LosesAxes)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_constants(asker) == {"loses_constant_axes": True}


class NeedsNodesBehindLoops(Runtime):
    """A runtime that refuses a Loop with one output if that is the model's, and bools outside of raw data."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        shown = {value.name for value in model.graph.output}
        for node in model.graph.node:
            if node.op_type == "Loop" and len(node.output) == 1 and {*node.output} & shown:
                raise EngineError("no buffer to share")
        for tensor in model.graph.initializer:
            if tensor.data_type == onnx.TensorProto.BOOL and not tensor.raw_data:
                raise EngineError("segmentation fault", "crashes")
        return [evaluate(model, feeds) for feeds in trials]


def test_a_runtime_that_needs_a_node_after_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", NeedsNodesBehindLoops)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_outputs(asker) == {"copied_outputs": ["Loop"]}


class LosesNaN(Runtime):
    """A runtime whose Tanh is 1 for NaN, and whose Softmax is 0 for a row of -inf."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        changed = onnx.ModelProto.FromString(model.SerializeToString())
        lost = {"Tanh": np.float32(1), "Softmax": np.float32(0)}
        for op_type, number in lost.items():
            changed.graph.initializer.append(numpy_helper.from_array(number, f"{op_type}/number"))
        nodes = []
        for node in changed.graph.node:
            nodes.append(node)
            if node.op_type in lost:
                name = node.output[0]
                node.output[0] = f"{name}/right"
                nodes.append(helper.make_node("IsNaN", [node.output[0]], [f"{name}/lost"]))
                three = [f"{name}/lost", f"{node.op_type}/number", node.output[0]]
                nodes.append(helper.make_node("Where", three, [name]))
        del changed.graph.node[:]
        changed.graph.node.extend(nodes)
        return [evaluate(changed, feeds) for feeds in trials]


def test_a_runtime_that_turns_nan_into_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", LosesNaN)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_nans(asker, ["Relu", "Sigmoid", "Softmax", "Tanh"]) == {
            "loses_nan": ["Softmax", "Tanh"]
        }


def test_a_runtime_that_keeps_nan() -> None:
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_nans(asker, ["Relu", "Sigmoid", "Softmax", "Tanh"]) == {}


class FusesSums(Runtime):
    """A runtime whose kernel for an Add with a Tanh behind it is less exact than its Tanh."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        changed = onnx.ModelProto.FromString(model.SerializeToString())
        sums = {node.output[0] for node in changed.graph.node if node.op_type == "Add"}
        changed.graph.initializer.append(numpy_helper.from_array(np.float32(0.995), "less"))
        nodes = []
        for node in changed.graph.node:
            nodes.append(node)
            if node.op_type == "Tanh" and node.input[0] in sums:
                name = node.output[0]
                node.output[0] = f"{name}/exact"
                nodes.append(helper.make_node("Mul", [node.output[0], "less"], [name]))
        del changed.graph.node[:]
        changed.graph.node.extend(nodes)
        return [evaluate(changed, feeds) for feeds in trials]


def test_a_runtime_that_is_less_exact_after_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", FusesSums)
    half = dataclasses.replace(find_engine("rnnlower-reference"), precision="float16")
    with asking.Asker(half, None, lambda words: None) as asker:
        assert lowering_probes.probe_sums(asker, ["Sigmoid", "Tanh"]) == {"inexact_behind_sum": ["Tanh"]}


def test_a_runtime_that_is_as_exact_after_a_sum() -> None:
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        assert lowering_probes.probe_sums(asker, ["Sigmoid", "Tanh"]) == {}


class Between(Runtime):
    """A runtime that takes integers between operators only, and ends over a Split without sizes."""

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        ops = [node.op_type for node in model.graph.node]
        if ops[0] in ("Cast", "DequantizeLinear") and "Add" not in ops[1:2]:
            raise EngineError("no integers from outside")
        if "Add" in ops and model.graph.input[0].type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            raise EngineError("no Add of integers")
        if any(node.op_type == "Split" and len(node.input) == 1 for node in model.graph.node):
            raise EngineError("SIGSEGV", "crashes")
        return [evaluate(model, feeds) for feeds in trials]


def test_an_operator_that_is_correct_only_between_others_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "Attempts", Between)
    found = probed_cases("Cast", "DequantizeLinear", "Split")
    monkeypatch.setattr(node_tests, "node_cases", lambda: found)
    with asking.Asker(find_engine("rnnlower-reference"), None, lambda words: None) as asker:
        ops = operator_probes.probe_operators(asker, 26)
        limits = operator_probes.probe_limits(asker, ops, [7, 26], False)
        dtypes = type_probes.probe_dtypes(asker)
    assert {"Cast", "DequantizeLinear"} <= {*ops}
    assert "Split" not in ops
    assert not {"Cast", "DequantizeLinear"} & {name for limit in limits for name in limit["ops"]}
    assert {"int8", "uint8", "int16", "uint16"} <= {*dtypes}
    assert "uint32" not in dtypes
