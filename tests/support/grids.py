"""Grids of parameters that are too large to be tested whole."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any


def pairs_of(*parameters: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return so few rows of a grid that every two values of two parameters still meet in one of them."""
    return pairs_in(itertools.product(*parameters))


def pairs_in(grid: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return so few rows that every two values that meet in the grid still do."""
    rows = [*grid]
    met: set[Any] = set()
    chosen: dict[tuple[Any, ...], None] = {}
    for most in range(len(rows[0]) * (len(rows[0]) - 1) // 2, 0, -1):
        for row in rows:
            pairs = {*itertools.combinations(enumerate(row), 2)} - met
            if len(pairs) == most:
                met |= pairs
                chosen[row] = None
    return [row for row in rows if row in chosen]
