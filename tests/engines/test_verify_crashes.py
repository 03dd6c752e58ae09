"""Models on which onnxruntime aborts its process: a message and an exit code, and no leftovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from support.cli_helpers import rnnlower, save
from support.processes import open_or_die
from support.small_models import recurrent_model

from rnnlower.engines import session
from rnnlower.processes import Child
from rnnlower.verification import verify

STATIC = {"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}
ORT, NUMPY = "onnxruntime", "rnnlower-reference"


@pytest.fixture
def plant_abort(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Set on which models onnxruntime aborts its process: always, when optimizing, or those with a word."""
    child = Child()
    monkeypatch.setattr(session, "_CHILD", child)
    monkeypatch.setattr(session, "_open", open_or_die)
    yield lambda which: monkeypatch.setenv("DIES", which)
    child.close()


def test_optimizations_that_abort_on_both_models_are_switched_off(plant_abort: Callable[[str], None]) -> None:
    plant_abort("optimizing")
    result = verify(recurrent_model("GRU"), recurrent_model("GRU"), trials=2)
    assert result
    assert result.engines == {"reference": ORT, "candidate": ORT}
    (note,) = (each for each in result.skipped if "SIGABRT" in each)
    assert note.startswith("the candidate ran without onnxruntime's optimizations: with them,")


def test_a_candidate_that_aborts_where_the_source_runs_is_different(
    plant_abort: Callable[[str], None],
) -> None:
    candidate = recurrent_model("GRU")
    candidate.doc_string = "deadly"
    plant_abort("deadly")
    result = verify(recurrent_model("GRU"), candidate, trials=2)
    assert not result
    assert result.problems == (
        "the candidate does not load: onnxruntime ended its process by SIGABRT, when it loaded the model",
    )


def test_numpy_runs_a_model_on_which_onnxruntime_always_aborts(plant_abort: Callable[[str], None]) -> None:
    plant_abort("always")
    result = verify(recurrent_model("GRU"), recurrent_model("GRU"), trials=2)
    assert result
    assert result.engines == {"reference": NUMPY, "candidate": NUMPY}
    assert any("the reference does not run on onnxruntime" in each for each in result.skipped)


def test_numpy_runs_a_model_that_loads_for_too_long(
    plant_abort: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_abort("late")
    monkeypatch.setenv("RNNLOWER_ENGINE_SECONDS", "3")
    result = verify(recurrent_model("GRU"), recurrent_model("GRU"), trials=1)
    assert result
    assert result.engines == {"reference": NUMPY, "candidate": NUMPY}
    assert any("took longer than 3 s" in each for each in result.skipped)


@pytest.mark.parametrize(
    ("line", "which", "code"),
    [
        (["unroll", "-o", "out.onnx"], "Sigmoid", 1),
        (["lower", "-o", "out.onnx", "--target", "tinygrad"], "Sigmoid", 1),
        (["convert", "-o", "out.onnx", "--opset", 18], "optimizing", 0),
        (["bench", "--runs", 1, "--strategy", "scan"], "always", 0),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_every_command_survives_an_abort_of_onnxruntime(
    line: list[str | int],
    which: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant_abort: Callable[[str], None],
) -> None:
    """Of the models here only those that are lowered hold a Sigmoid."""
    monkeypatch.chdir(tmp_path)
    path = save(recurrent_model("GRU", inputs=STATIC), tmp_path)
    plant_abort(which)
    run = rnnlower(line[0], path, *line[1:], code=code)
    assert ("SIGABRT" in run.stdout) == (line[0] != "bench")
    (tmp_path / "out.onnx").unlink(missing_ok=code > 0 or line[0] == "bench")
    assert list(tmp_path.iterdir()) == [path]


def test_an_abort_is_reported_under_quiet(tmp_path: Path, plant_abort: Callable[[str], None]) -> None:
    path = save(recurrent_model("GRU", inputs=STATIC), tmp_path)
    plant_abort("Sigmoid")
    run = rnnlower("unroll", path, "-o", tmp_path / "out.onnx", "-q", code=1)
    assert run.stdout == ""
    assert "onnxruntime ended its process by SIGABRT" in run.stderr
    assert list(tmp_path.iterdir()) == [path]
