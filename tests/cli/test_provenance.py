"""The origin of a result, as its metadata tells it."""

from __future__ import annotations

import json
from pathlib import Path

import generate
import onnx
import pytest
from support.cli_helpers import rnnlower

MODEL = Path(generate.__file__).parent / "gru_two_layers_dynamic.onnx"
KEY = "rnnlower.provenance"


def entry(path: Path) -> str | None:
    return {each.key: each.value for each in onnx.load(path).metadata_props}.get(KEY)


def test_the_result_tells_version_command_and_options(out: Path) -> None:
    rnnlower("unroll", MODEL, "-o", out, "--dim", "time=3", "--gates", "fused", "--no-verify")
    told = json.loads(entry(out) or "null")
    assert told["command"] == "unroll"
    assert told["options"] == {"dims": {"time": 3}, "gates": "fused"}
    shown = json.loads(rnnlower("inspect", out, "--json").stdout)
    assert shown["provenance"] == told
    assert f"rnnlower {told['version']} unroll" in rnnlower("inspect", out).stdout
    assert json.loads(rnnlower("inspect", MODEL, "--json").stdout)["provenance"] is None


def test_the_same_input_and_options_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        rnnlower("scan", MODEL, "-o", tmp_path / name, "--no-verify")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize("option", ["--no-provenance", "--strip"])
def test_it_can_be_left_out(tmp_path: Path, option: str) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    rnnlower("scan", MODEL, "-o", first, "--no-verify")
    rnnlower("convert", first, "-o", second, "--opset", "19", option, "--no-verify")
    assert entry(first) is not None
    assert entry(second) is None, "an entry of an earlier command would be about another model"
