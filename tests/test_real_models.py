"""The run over a folder of models: it must not pass if it finds none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from real_models import main

MODELS = Path(__file__).parents[1] / "models"


@pytest.mark.parametrize("folder", ["absent", "."])
def test_a_folder_without_models_is_an_error(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["real_models.py", str(tmp_path / folder)])
    assert main() == 2
    said = capsys.readouterr()
    assert str(tmp_path / folder) in said.err
    assert said.out == ""


def test_a_folder_with_a_model_is_lowered_without_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(MODELS / "lstm14_states.onnx", tmp_path)
    monkeypatch.setattr("sys.argv", ["real_models.py", str(tmp_path)])
    assert main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 failed"
