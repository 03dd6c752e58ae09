"""Strategies to repeat a step over time: a straight line, a Scan, or a Loop.

A strategy is a function and one row in `STRATEGIES`. Each turns a `Recurrence` into `Results` and knows
nothing of directions, masks and cells. All of them repeat the same step, and unrolling K steps inside a
loop body (`chunked_steps.py`) reuses the straight-line strategy.
"""

from __future__ import annotations

from collections.abc import Mapping

from rnnlower.lowering.forms import BODY_FORMS, STRAIGHT_FORMS
from rnnlower.lowering.strategies.repeating import Strategy
from rnnlower.lowering.strategies.scan_and_loop import run_loop, run_scan
from rnnlower.lowering.strategies.unroll import run_unrolled

STRATEGIES: Mapping[str, Strategy] = {
    "unroll": Strategy(run_unrolled, STRAIGHT_FORMS),
    "scan": Strategy(run_scan, BODY_FORMS, output_apart=True),
    "loop": Strategy(run_loop, BODY_FORMS, output_apart=True),
}
