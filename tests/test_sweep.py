"""The large run of random models: it resumes, and its outcomes follow from seed and number alone."""

from __future__ import annotations

import pathlib
import sys

import pytest
import sweep


def test_interrupted_sweep_resumes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, whole = tmp_path / "record.jsonl", tmp_path / "whole.jsonl"
    monkeypatch.setattr(sweep, "PIECE", 4)

    def run(count: int, file: pathlib.Path, commit: str = "abc") -> str:
        options = ["--count", str(count), "--seed", "3", "--record", str(file), "--commit", commit]
        monkeypatch.setattr(sys, "argv", ["sweep.py", *options])
        assert sweep.main() == 0
        return capsys.readouterr().out

    run(4, record)
    with record.open("a") as file:
        file.write('{"seed": 3, "first": 4, "cou')  # The run was killed in the middle of a line.
    asked = []
    piece = sweep.run_piece
    monkeypatch.setattr(
        sweep, "run_piece", lambda seed, numbers, trace: asked.append(numbers) or piece(seed, numbers)
    )
    resumed = run(10, record)
    assert asked == [range(4, 8), range(8, 10)]
    assert resumed == run(10, whole)
    assert sweep.read_record(record) == sweep.read_record(whole)
    asked.clear()
    assert run(10, record) == resumed
    assert asked == []
    run(4, record, commit="def")
    assert asked == [range(4)]
    assert {line.split(" | ")[0] for line in sweep.table(sweep.read_record(record)).splitlines()} >= {
        "| abc",
        "| def",
    }


def test_failure_is_told_again_when_its_piece_is_in_the_record(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "judge", lambda *_: ("wrong", "Y: max abs 1"))
    options = ["--count", "2", "--stop", "99", "--record", str(tmp_path / "record.jsonl"), "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", ["sweep.py", *options])
    assert sweep.main() == 1
    assert sweep.main() == 1
    (piece,) = sweep.read_record(tmp_path / "record.jsonl")
    assert len(piece["failures"]) == 2
    assert piece["failures"][0].startswith("wrong: 0: ")
