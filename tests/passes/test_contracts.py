"""Every pass and every step of the pipeline keeps its contract, and the interface of the model."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.configs import random_config
from support.contracts import contracts_hold
from support.step_contracts import CONTRACTS

import rnnlower.passes
from rnnlower.errors import RnnLowerError
from rnnlower.passes import ConvertOpsetPass, FreezeDimsPass, LegacyConstantsPass
from rnnlower.passes.base import initializers_suit_ir_version
from rnnlower.passes.pipeline import LOWER, LoweringOptions, lower_model
from rnnlower.passes.steps import emitting, shared
from rnnlower.passes.steps.work import Work
from rnnlower.targets import find_target

MODELS = sorted((pathlib.Path(__file__).parents[2] / "models").glob("*.onnx"))
OPTIONS: list[dict[str, Any]] = [
    {"strategy": "scan"},
    {"strategy": "unroll", "dims": {"T": 3, "N": 2}},
    {"strategy": "loop", "unroll_factor": 2, "opset": 17, "freeze": True, "strip": True},
    {"strategy": "target", "target": "openvino", "unroll_factor": 2},
    {"strategy": "scan", "dequantize": True, "assume_linear_before_reset": True},
    {"strategy": "target", "target": "tinygrad", "dims": {"T": 3, "N": 2}},
    {"strategy": "target", "target": "opencv", "control_flow": "unroll"},
    {"strategy": "target", "target": "onnx2torch", "dims": {"T": 3, "N": 2}},
    {"strategy": "target", "target": "mnn", "dims": {"T": 3, "N": 2}},
    {"strategy": "target", "target": "ort-qnn", "dims": {"T": 3, "N": 2}},
]


def lower(model: ir.Model, options: dict[str, Any]) -> bool:
    """Lower under watch, and tell whether it was not refused."""
    given = options | ({"target": find_target(options["target"])} if "target" in options else {})
    names = {dim for value in model.graph.inputs for dim in map(str, value.shape or ())}
    given["dims"] = {name: size for name, size in options.get("dims", {}).items() if name in names}
    try:
        lower_model(model, LoweringOptions(**given))
    except RnnLowerError:
        return False
    return True


def test_contracts_hold_on_every_model() -> None:
    with contracts_hold() as ran:
        done = [lower(ir.load(path), OPTIONS[i % len(OPTIONS)]) for i, path in enumerate(MODELS)]
    assert sum(done) > len(MODELS) / 2
    elsewhere = {"set_inputs", "conform_to_profile", "simplify_loops", "pad"}
    assert {*ran} >= {step.run.__name__ for step in LOWER} - elsewhere


@pytest.mark.parametrize("seed", range(14))
def test_contracts_hold_on_random_models(seed: int) -> None:
    config = random_config(np.random.default_rng(seed))
    with contracts_hold() as ran:
        lower(ir.from_proto(config.build()), OPTIONS[seed % len(OPTIONS)])
    assert "select_nodes" in ran


def test_contracts_hold_where_inputs_are_set() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[T, 1, 3] X, bool back, float[1, 8, 3] W, float[1, 8, 2] R) => (float[T, 1, 1, 2] Y)
        {
            F = LSTM <hidden_size = 2> (X, W, R)
            Y = If (back) <
                then_branch = one () => (A) { A = Neg (F) },
                else_branch = other () => (B) { B = Identity (F) }
            >
        }
    """
    with contracts_hold() as ran:
        assert lower(ir.from_onnx_text(text), {"strategy": "scan", "sets": {"back": False}})
    assert {"SetInputsPass", "set_inputs", "TakeBranchesPass"} <= {*ran}


def test_contracts_hold_for_the_sonnx_profile() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[3, 1, 1] X) => (float[3, 1, 1, 1] Y)
            <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {1, 2, 3, 4}>
        {
            Y = LSTM <hidden_size = 1> (X, W, R)
        }
    """
    with contracts_hold() as ran:
        assert lower(ir.from_onnx_text(text), {"strategy": "target", "target": "sonnx"})
    assert {"ConformSonnxPass", "conform_to_profile"} <= {*ran}


def test_every_public_pass_states_a_contract() -> None:
    silent = {name for name in rnnlower.passes.__all__ if not getattr(rnnlower.passes, name).ENSURES}
    # They note or fold what they can, and promise nothing more than to keep the interface.
    assert silent <= {
        "CorrectShapesPass",
        "CountIterationsPass",
        "FoldConstantsPass",
        "FoldWeightsPass",
        "InferTypesPass",
        "NameBatchPass",
        "RemoveNoopsPass",
        "ResolveSequencesPass",
        "StackSequencesPass",
        "StaticShapesPass",
        "UnfoldRowsPass",
        "WidenSizesPass",
    }, "state what the pass ensures, in ENSURES, or add it here if it promises nothing more"
    assert {*CONTRACTS} <= {step.run for step in LOWER}


def renamed_output(work: Work) -> None:
    work.model.graph.outputs[0].name = "other"


def forgotten_plan(work: Work) -> None:
    CHOOSE(work)
    work.plans.clear()


def dangling(work: Work) -> None:
    next(iter(work.model.graph)).op_type = "NoOperator"


CHOOSE = next(step.run for step in LOWER if step.run.__name__ == "plan_nodes")


@pytest.mark.parametrize(
    ("place", "planted", "message"),
    [
        (shared.freeze_dims, renamed_output, "renamed_output makes"),
        (shared.legacy_constants, dangling, "not sound"),
        (CHOOSE, forgotten_plan, "nodes_are_planned"),
        (emitting.restore_requested_opset, lambda work: None, "opset_is_requested"),
    ],
)
def test_a_breach_in_a_step_is_noticed(
    place: Any, planted: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [step if step.run is not place else type(step)(planted, step.reason, step.when) for step in LOWER]
    if place in CONTRACTS:
        monkeypatch.setitem(CONTRACTS, planted, CONTRACTS[place])
    monkeypatch.setattr("rnnlower.passes.pipeline.LOWER", steps)
    model = ir.load(next(path for path in MODELS if path.stem == "lstm07_reverse"))
    with contracts_hold(), pytest.raises(AssertionError, match=message):
        lower(model, {"strategy": "scan", "opset": 8})


def test_a_breach_in_a_pass_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (initializers_suit_ir_version,) == LegacyConstantsPass.ENSURES
    monkeypatch.setattr(LegacyConstantsPass, "call", lambda self, model: ir.passes.PassResult(model, False))
    model = ir.load(next(path for path in MODELS if path.stem == "lstm06_bidirectional_output_sequence"))
    with contracts_hold(), pytest.raises(AssertionError, match="initializers_suit_ir_version"):
        lower(model, {"strategy": "unroll"})
    own = ir.from_proto(onnx.parser.parse_model(TEXT))
    monkeypatch.setattr(FreezeDimsPass, "call", lambda self, model: ir.passes.PassResult(model, False))
    with contracts_hold(), pytest.raises(AssertionError, match="_sizes_are_frozen"):
        FreezeDimsPass({"T": 2})(own)
    with contracts_hold() as ran:
        ConvertOpsetPass(18)(own)
    assert ran == ["ConvertOpsetPass"]


TEXT = '<ir_version: 8, opset_import: ["" : 17]> main (float[T] x) => (float[T] y) { y = Neg (x) }'
