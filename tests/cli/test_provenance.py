"""The origin of a result, as its metadata tells it."""

from __future__ import annotations

import json
from pathlib import Path

import generate
import numpy as np
import onnx
import pytest
from support.cli_helpers import rnnlower

MODEL = Path(generate.__file__).parent / "gru_two_layers_dynamic.onnx"
KEY = "rnnlower.provenance"
RECORDINGS = {"tokens": np.ones((4, 6, 2, 6), np.float32), "lengths": np.full((4, 2), 6, np.int32)}


def entry(path: Path) -> str | None:
    return {each.key: each.value for each in onnx.load(path).metadata_props}.get(KEY)


def test_the_metadata_give_version_command_and_options(out: Path) -> None:
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


def test_the_metadata_of_a_quantized_model_give_its_origin(tmp_path: Path, out: Path) -> None:
    recordings = tmp_path / "recordings.npz"
    np.savez(recordings, **RECORDINGS)
    given = ("--calibration", recordings, "--activations", "int16", "--no-verify")
    rnnlower("quantize", MODEL, "-o", out, *given)
    told = json.loads(entry(out) or "null")
    assert told["command"] == "quantize"
    assert told["options"] == {"activations": "int16", "calibration": [str(recordings)]}
    rnnlower("quantize", MODEL, "-o", out, *given, "--no-provenance")
    assert entry(out) is None


@pytest.mark.parametrize("option", ["--no-provenance", "--strip"])
def test_the_origin_can_be_left_out(tmp_path: Path, option: str) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    rnnlower("scan", MODEL, "-o", first, "--no-verify")
    rnnlower("convert", first, "-o", second, "--opset", "19", option, "--no-verify")
    assert entry(first) is not None
    assert entry(second) is None, "an entry of an earlier command would be about another model"
