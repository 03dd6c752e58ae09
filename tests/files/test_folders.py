"""Temporary folders: gone with their run, or with the next one."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
from support.processes import process

from rnnlower.files.publishing import staging_folder
from rnnlower.folders import temporary_folder

_KILLED = """
import os, signal, sys, tempfile
from rnnlower.folders import temporary_folder
tempfile.tempdir = sys.argv[1]
with temporary_folder() as folder:
    (folder / "model.onnx").write_bytes(b"weights")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_run_is_removed_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert process(_KILLED, tmp_path).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    # What others made stays, as does the folder of a live run, and one that a run is about to lock.
    others = [tmp_path / "rnnlower-results", tmp_path / "tmpabcdefgh", tmp_path / "tmpabcdefgh.rnnlower"]
    for other in others:
        other.mkdir()
    for other in others[:2]:
        (other / "file").touch()
    with temporary_folder() as first:
        (first / "file").touch()
        with temporary_folder() as second:
            assert {*tmp_path.iterdir()} == {*others, first.parent, second.parent}
        assert {*tmp_path.iterdir()} == {*others, first.parent}
        assert not left.exists()
    assert {*tmp_path.iterdir()} == {*others}


def test_a_model_can_be_staged_in_a_temporary_folder() -> None:
    """Staging locks the folder of the destination."""
    with temporary_folder() as folder, staging_folder(folder / "model.onnx") as staging:
        assert staging.parent == folder
