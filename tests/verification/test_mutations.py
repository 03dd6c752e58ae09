"""A small budget of `mutations.py`, and a check that every fault of the catalog can be planted."""

from __future__ import annotations

import mutations
from support.faults import SOURCE_FAULTS
from support.lowered_faults import LOWERED_FAULTS


def test_faults_are_caught_and_equal_pairs_are_equal() -> None:
    figures = mutations.measure(10, seed=0)
    assert figures.false_alarms == []
    assert figures.equal_pairs >= 8
    assert figures.told.total() >= 8
    assert figures.missed == []


def test_catalog() -> None:
    assert len(SOURCE_FAULTS) + len(LOWERED_FAULTS) >= 25
