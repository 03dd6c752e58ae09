"""`stream --chunk 10ms --rate 16000`: a chunk given by its duration."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from support.cli_helpers import rnnlower, save
from support.small_models import recurrent_model

from rnnlower import stream


def streamed(tmp_path: Path, *options: str) -> object:
    """Return the chunk in the metadata of the result."""
    out = tmp_path / "out.onnx"
    rnnlower("stream", save(recurrent_model(), tmp_path), "-o", out, *options)
    (entry,) = (each.value for each in onnx.load(out).metadata_props if each.key == "rnnlower.stream")
    return json.loads(entry)["chunk"]


@pytest.mark.parametrize(
    ("chunk", "rate", "steps"), [("10ms", "400", 4), ("0.5s", "6", 3), ("12.5ms", "80", 1), ("3", None, 3)]
)
def test_a_duration_is_a_number_of_steps(tmp_path: Path, chunk: str, rate: str | None, steps: int) -> None:
    assert streamed(tmp_path, "--chunk", chunk, *(["--rate", rate] if rate else [])) == steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--chunk", "10ms"], "a chunk of 10ms needs a rate to be converted to time steps; give the number"),
        (["--chunk", "10ms", "--rate", "16010"], "10ms is 160.1 steps at 16010 per second"),
        (["--chunk", "0ms", "--rate", "16000"], "it must be a whole number, at least 1"),
        (["--chunk", "infs", "--rate", "16000"], "infs is inf steps at 16000 per second"),
        (["--chunk", "10ms", "--rate", "inf"], "10ms is inf steps at inf per second"),
        (["--chunk", "4", "--rate", "16000"], "--rate is for a chunk in ms or s; leave it out"),
        (
            ["--chunk", "all"],
            "--chunk is 'all'; it must be a number of time steps, a duration",
        ),
    ],
)
def test_an_invalid_chunk_is_refused(tmp_path: Path, options: list[str], message: str) -> None:
    model = save(recurrent_model(), tmp_path)
    run = rnnlower("stream", model, "-o", tmp_path / "out.onnx", *options, code=2)
    assert message in run.stderr


def test_any_number_of_steps_has_the_same_name_in_python(tmp_path: Path) -> None:
    assert streamed(tmp_path, "--chunk", "any") is None
    model = recurrent_model()
    assert stream(model, chunk="any") == stream(model, chunk=None)
