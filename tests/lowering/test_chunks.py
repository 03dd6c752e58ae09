"""Chunks of steps: the outputs and the final state are those of single steps, whatever is left over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from support.workbench import Workbench

from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.lowering.strategies.chunked_steps import run_in_chunks
from rnnlower.lowering.strategies.repeating import InitialState, Recurrence
from rnnlower.lowering.timeseries import Axes, TimeSeries


def sum_up(
    e: Emitter, x: Sequence[ir.Value], state: Sequence[ir.Value | None], _: int | None
) -> tuple[list[ir.Value], list[ir.Value]]:
    """Emit a step whose state is the sum so far, and whose output is twice that."""
    assert state[0] is not None
    total = e.op("Add", state[0], x[0])
    return [total], [e.op("Add", total, total)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [2, 3, 6, 7])
@pytest.mark.parametrize(("strategy", "is_dynamic"), [("scan", False), ("loop", False), ("loop", True)])
def test_chunks_of_steps_give_the_running_sums_of_single_steps(
    strategy: str, is_dynamic: bool, length: int, reverse: bool
) -> None:
    bench = Workbench()
    X = np.random.default_rng(length).standard_normal((length, 2, 3)).astype(np.float32)
    x = bench.input("x", ["T", 2, 3] if is_dynamic else X.shape)
    time: RuntimeDim = bench.e.dim(x, 0) if is_dynamic else length
    axes = Axes(time, 2)
    start = bench.weight("start", np.ones((2, 3), np.float32))
    recurrence = Recurrence(
        axes,
        [TimeSeries(bench.e, axes, 3, stacked=x, reverse=reverse)],
        [InitialState(start, 3)],
        sum_up,
        [3],
        [reverse],
    )
    results = run_in_chunks(bench.e, recurrence, STRATEGIES[strategy].run, 3)
    found, final = bench.compute([results.outputs[0].stacked(), results.states[0]], x=X)
    order = slice(None, None, -1 if reverse else 1)
    sums = 1 + np.cumsum(X[order], axis=0)
    np.testing.assert_allclose(found, 2 * sums[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(final, sums[-1], rtol=1e-5, atol=1e-6)
