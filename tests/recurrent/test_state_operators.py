"""LinearAttention and CausalConvWithState are recurrent nodes to inspect, check and every warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from support.cli_helpers import Run, rnnlower, save
from support.state_models import MICROSOFT, AttentionCase, Case, ConvolutionCase

CASES: list[Case] = [
    AttentionCase(steps=5),
    AttentionCase(steps=5, domain=MICROSOFT, opset=21),
    ConvolutionCase(activation="silu"),
    ConvolutionCase(domain=MICROSOFT, opset=21, channels_last=True),
]


def inspected(model: onnx.ModelProto, folder: Path) -> Any:
    return rnnlower("inspect", save(model, folder), "--json").json


@pytest.mark.parametrize("case", CASES, ids=str)
def test_inspect_lists_both_operators_of_both_domains(case: Case, tmp_path: Path) -> None:
    (node,) = inspected(case.model(), tmp_path)["recurrent"]
    assert (node["domain"], node["name"], node["seq_len"], node["batch"]) == (
        case.domain,
        "node",
        case.steps,
        1,
    )
    assert (node["dtype"], node["direction"], node["path"]) == ("float32", "forward", "")
    assert node["inputs"] == [*case.feeds(0)]
    assert node["outputs"] == ["output", "present_state"]
    if isinstance(case, AttentionCase):
        assert (node["input_size"], node["hidden_size"]) == (16, 2 * 8 * 4)
        assert node["attributes"] == {"q_num_heads": 2, "kv_num_heads": 2}
    else:
        assert (node["input_size"], node["hidden_size"]) == (4, 4 * 2)


def test_inspect_lists_what_is_refused(tmp_path: Path) -> None:
    model = AttentionCase(domain=MICROSOFT, opset=21).model()
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("state_window", 2))
    (node,) = inspected(model, tmp_path)["recurrent"]
    assert node["attributes"]["state_window"] == 2
    result = rnnlower("unroll", tmp_path / "model.onnx", "-o", tmp_path / "out.onnx", code=3)
    assert "state_window" in result.stderr


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("target", ["openvino", "tract", "onnxruntime"])
def test_check_says_which_runtimes_lack_the_operator(case: Case, target: str, tmp_path: Path) -> None:
    path = save(case.model(), tmp_path)
    result = Run("check", path, "--target", target, "--json")
    misfits = [each for each in result.json["misfits"] if each["name"] == "node"]
    if target == "onnxruntime":
        assert not misfits
        return
    assert result.code == 1
    assert [each["remedy"] for each in misfits] == [f"rnnlower lower --target {target}"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_single_step_that_loses_its_state_is_warned_of(case: Case, tmp_path: Path) -> None:
    for steps, past, warned in ((1, False, True), (1, True, False), (2, False, False)):
        kind = AttentionCase if isinstance(case, AttentionCase) else ConvolutionCase
        model = kind(domain=case.domain, opset=case.opset, steps=steps, past=past).model()
        warnings = inspected(model, tmp_path)["warnings"]
        assert bool(warnings) == warned
        result = rnnlower("unroll", tmp_path / "model.onnx", "-o", tmp_path / "out.onnx")
        assert ("loses its state" in result.stderr) == warned


@pytest.mark.parametrize("opset", [27, 28])
@pytest.mark.parametrize("command", ["unroll", "scan", "loop"])
def test_newer_opsets_are_taken_and_kept(command: str, opset: int, tmp_path: Path) -> None:
    path = save(AttentionCase(opset=opset).model(), tmp_path)
    result = rnnlower(command, path, "-o", tmp_path / "out.onnx", "--json")
    report = result.json
    assert report["opset"] == opset
    assert [(node["name"], node["steps"]) for node in report["nodes"]] == [("node", 20)]
    assert report["verification"]["equal"]


def test_an_unnamed_node_has_the_name_that_inspect_shows(tmp_path: Path) -> None:
    model = AttentionCase(steps=3).model()
    model.graph.node[0].name = ""
    (node,) = inspected(model, tmp_path)["recurrent"]
    paths = (tmp_path / "model.onnx", "-o", tmp_path / "out.onnx")
    result = rnnlower("scan", *paths, "--node", node["name"], "--json")
    assert [each["name"] for each in result.json["nodes"]] == [node["name"]]
    rnnlower("scan", *paths, "--node", "other", code=2)


def test_a_fault_in_the_lowered_chunks_is_found(tmp_path: Path) -> None:
    source = save(AttentionCase("gated").model(), tmp_path)
    rnnlower("unroll", source, "-o", tmp_path / "out.onnx")
    model = onnx.load(tmp_path / "out.onnx")
    exponential = next(node for node in model.graph.node if node.op_type == "Exp")
    exponential.op_type = "Sigmoid"
    onnx.save(model, tmp_path / "wrong.onnx")
    rnnlower("verify", source, tmp_path / "wrong.onnx", code=1)
