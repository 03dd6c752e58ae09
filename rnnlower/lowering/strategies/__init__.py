"""How a step is repeated over time: straight-line, in a Scan, or in a Loop.

A strategy is one file and one row in `STRATEGIES`. Each takes a `Recurrence` and gives `Results`; directions,
masks and cells are none of its business. The same step serves all of them, and unrolling K steps inside a
loop body (`chunks.py`) reuses the straight-line strategy.
"""

from __future__ import annotations

from collections.abc import Mapping

from rnnlower.lowering.strategies.base import LARGE_BATCH, Recurrence, Results, State, Step, Strategy
from rnnlower.lowering.strategies.chunks import run_in_chunks
from rnnlower.lowering.strategies.loop import run_loop
from rnnlower.lowering.strategies.scan import run_scan
from rnnlower.lowering.strategies.unroll import run_unrolled

__all__ = [
    "LARGE_BATCH",
    "STRATEGIES",
    "Recurrence",
    "Results",
    "State",
    "Step",
    "Strategy",
    "run_in_chunks",
]

STRATEGIES: Mapping[str, Strategy] = {
    "unroll": Strategy(run_unrolled, most_fused=1000),
    "scan": Strategy(
        run_scan,
        most_apart=2,
        single_row=True,
        output_apart=True,
        largest_together=256,
        large_batch=Strategy(
            run_scan, most_apart=3, output_apart=True, largest_together=128, multiplies_input=True
        ),
    ),
    "loop": Strategy(
        run_loop,
        single_row=True,
        output_apart=True,
        largest_together=256,
        large_batch=Strategy(
            run_loop, most_apart=3, output_apart=True, largest_together=128, multiplies_input=True
        ),
    ),
}
