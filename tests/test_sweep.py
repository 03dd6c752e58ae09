"""The large run of random models: it resumes, and its outcomes follow from seed and number alone."""

from __future__ import annotations

import dataclasses
import pathlib
import sys

import kept_sweep
import numpy as np
import pytest
import sweep
from support import sweeping
from support.configs import Config

import rnnlower
from rnnlower.engines.catalog import find_engine
from rnnlower.engines.opened_models import Attempts


def test_interrupted_sweep_resumes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, whole = tmp_path / "record.jsonl", tmp_path / "whole.jsonl"

    def run(count: int, file: pathlib.Path, commit: str = "abc") -> str:
        options = ["--count", str(count), "--seed", "3", "--record", str(file), "--commit", commit]
        options += ["--piece", "4"]
        monkeypatch.setattr(sys, "argv", ["sweep.py", *options])
        assert sweep.main() == 0
        return capsys.readouterr().out

    run(4, record)
    with record.open("a") as file:
        file.write('{"seed": 3, "first": 4, "cou')  # The run was killed in the middle of a line.
    asked = []
    judge = sweep.judge_models
    monkeypatch.setattr(
        sweep,
        "judge_models",
        lambda seed, some, given: asked.append(some) or judge(seed, some, given),
    )
    resumed = run(10, record)
    assert asked == [range(4, 8), range(8, 10)]
    assert resumed == run(10, whole)
    assert sweeping.read_record(record) == sweeping.read_record(whole)
    asked.clear()
    assert run(10, record) == resumed
    assert asked == []
    run(4, record, commit="def")
    assert asked == [range(4)]
    table = sweeping.table(sweeping.read_record(record), ("right",))
    assert {line.split(" | ")[0] for line in table.splitlines()} >= {"| abc", "| def"}


def test_failure_is_told_again_when_its_piece_is_in_the_record(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "judge", lambda *_: ("wrong", "Y: max abs 1"))
    options = ["--count", "2", "--stop", "99", "--record", str(tmp_path / "record.jsonl"), "--commit", "abc"]
    monkeypatch.setattr(sys, "argv", ["sweep.py", *options])
    assert sweep.main() == 1
    assert sweep.main() == 1
    (piece,) = sweeping.read_record(tmp_path / "record.jsonl")
    assert len(piece["failures"]) == 2
    assert piece["failures"][0].partition(": ")[2].startswith("wrong: 0: ")


def test_nodes_that_fail_are_found_among_others() -> None:
    """Three parts of one model are right; one is another node, and one is nothing that the runtime knows."""
    nodes = []
    for number, op_type in enumerate(["LSTM", "GRU", "RNN", "LSTM", "GRU"]):
        config = Config(op_type=op_type, place="if" if number == 2 else "main")
        inputs = config.make_inputs(np.random.default_rng(number))
        expected = config.expected(inputs)
        model = rnnlower.lower(config.build(), target="onnxruntime")
        nodes.append(kept_sweep.Node(number, config, model, inputs, expected))
    other = rnnlower.lower(dataclasses.replace(nodes[3].config, seed=9).build(), target="onnxruntime")
    nodes[3] = dataclasses.replace(nodes[3], model=other)
    nodes[4].model.graph.node[0].domain = "unknown"
    engine = find_engine("onnxruntime")
    with Attempts(engine) as attempts:
        found = {node.number: verdict for node, verdict, _ in kept_sweep.run_nodes(attempts, engine, nodes)}
    assert found == {0: "right", 1: "right", 2: "right", 3: "wrong", 4: "crash"}


@pytest.mark.parametrize("options", [[], ["--open"], ["--native", "lower"]])
def test_random_nodes_are_right_on_a_runtime(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kept_sweep.py", "onnxruntime", "--count", "8", *options])
    assert kept_sweep.main() == 0
