"""The pairs of options that `option_pairs.py` draws, and what it calls a fault."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import option_pairs
import typer.main

from rnnlower.cli import app


def test_every_pair_of_choices_is_drawn_once_at_least() -> None:
    options = [[(name, ()), *((name, (str(value),)) for value in range(3))] for name in "abcd"]
    rows = list(option_pairs.pairwise(options, random.Random(0)))
    drawn = {frozenset(pair) for row in rows for pair in itertools.combinations(row, 2)}
    wanted = {
        frozenset(pair)
        for one, other in itertools.combinations(options, 2)
        for pair in itertools.product(one, other)
    }
    assert drawn == wanted
    assert len(rows) < len(wanted)


def test_every_option_of_every_command_has_values_to_try() -> None:
    commands = typer.main.get_command(app).commands
    for command in {*commands} - {*option_pairs.SLOW}:
        tried = option_pairs.choices(command)
        assert all(tried.values()), command
        required = {each.name for each in commands[command].params if each.required} & {*tried}
        assert all((name, ()) not in tried[name] for name in required), command


def test_a_file_left_behind_is_reported_as_a_fault(tmp_path: Path) -> None:
    (model,) = option_pairs.write_models(tmp_path, 1, seed=0)
    folder = tmp_path / "run"
    folder.mkdir()
    words = ["scan", str(model), "-o", str(folder / "out.onnx")]
    assert option_pairs.faults(words, model, folder) == (0, [])
    (folder / "left").touch()
    assert option_pairs.faults(words, model, folder) == (0, ["left behind: ['left']"])
