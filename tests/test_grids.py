"""Rows of grids, of which the tests take a few."""

from __future__ import annotations

import itertools

from support.grids import pairs_in, pairs_of


def test_every_two_values_that_meet_in_a_grid_meet_in_a_row() -> None:
    for grid in (
        [*itertools.product("abc", range(4), "xy", "z")],
        [row for row in itertools.product("abc", range(4), [None, True]) if row[:2] != ("b", 2)],
    ):
        rows = pairs_in(grid)
        met, wanted = (
            {pair for row in some for pair in itertools.combinations(enumerate(row), 2)}
            for some in (rows, grid)
        )
        assert met == wanted
        assert {*rows} < {*grid}
    assert pairs_of("abc", range(4), "xy", "z") == pairs_in(itertools.product("abc", range(4), "xy", "z"))
