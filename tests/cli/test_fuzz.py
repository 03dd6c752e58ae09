"""A small budget of `fuzz.py`, the same cases every time."""

from __future__ import annotations

import argparse
from pathlib import Path

import fuzz
import numpy as np
import onnx
import pytest
from fuzz import make_case, run_case
from google.protobuf.message import DecodeError
from support.broken_files import break_file

pytestmark = pytest.mark.usefixtures("forks")


def test_every_broken_file_ends_in_a_documented_exit_code() -> None:
    outcomes = fuzz.fuzz(argparse.Namespace(first=0, count=60, seed=0, keep=None))
    assert sum(outcomes.values()) == 60
    assert outcomes.keys() <= {"0", "1", "2", "3", "4"}
    assert outcomes["0"]
    assert outcomes["3"]


@pytest.mark.parametrize(
    ("seed", "number"), [(1, 1418), (1, 2673), (1, 2720), (1, 3847), (1, 6109), (1, 8891)]
)
def test_files_that_once_crashed_the_command_end_in_a_documented_exit_code(
    seed: int, number: int, tmp_path: Path
) -> None:
    outcome, details = run_case(make_case(seed, number, tmp_path), tmp_path)
    assert outcome in {"0", "1", "3", "4"}, details


def test_same_seed_same_files() -> None:
    data = (fuzz.MODELS / "lstm14_defaults.onnx").read_bytes()
    for seed in range(50):
        first, second = (break_file(data, np.random.default_rng(seed)) for _ in range(2))
        assert first == second


def test_many_files_still_parse() -> None:
    """Else the faults would try the parser alone."""
    data = (fuzz.MODELS / "lstm14_in_scan.onnx").read_bytes()
    parsed = 0
    for seed in range(100):
        try:
            onnx.ModelProto.FromString(break_file(data, np.random.default_rng(seed)))
        except DecodeError:
            continue
        parsed += 1
    assert parsed > 60
