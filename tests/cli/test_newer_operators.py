"""Operators that the model's opset does not have yet: every command that reads the model says so."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from support.cli_helpers import rnnlower, save

NOTE = "opset 16 has no LayerNormalization: it is taken as that of opset 17"


@pytest.fixture
def ahead(tmp_path: Path) -> Path:
    """onnxruntime writes such models, and runs them."""
    text = """
        <ir_version: 8, opset_import: ["" : 16]>
        g (float[5, 1, 2] X) => (float[5, 1, 1, 1] Y)
        <float[2] s = {1, 2}, float[1, 1, 2] W = {1, 2}, float[1, 1, 1] R = {0.5}> {
            Z = LayerNormalization (X, s)
            Y = RNN <hidden_size = 1> (Z, W, R)
        }
    """
    return save(onnx.parser.parse_model(text), tmp_path)


def test_inspect_notes_operators_newer_than_the_opset(ahead: Path) -> None:
    assert f"rnnlower: note: {NOTE}\n" in rnnlower("inspect", ahead).stderr
    assert rnnlower("inspect", ahead, "--json").json["notes"] == [NOTE]


def test_bench_notes_operators_newer_than_the_opset(ahead: Path) -> None:
    run = rnnlower("bench", ahead, "--runs", "1", "--strategy", "scan", "--json")
    assert NOTE in run.json["notes"]
    assert f"rnnlower: note: {NOTE}\n" in run.stderr
