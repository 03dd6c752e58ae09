"""Fits the costs of `rnnlower/targets/data/onnxruntime.toml`: measures a grid of sizes, prints the prices.

python benchmarks/fit_cost.py --json fit_cost.json
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
from measuring import VARIANTS, feeds_of, latency, lowered, recurrent

from rnnlower.lowering.pricing import Counts
from rnnlower.lowering.sketching import Wishes, candidates
from rnnlower.lowering.weights import Weights, private_weights
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets import find_target
from rnnlower.targets.plan import dialect

GRID = {
    "variant": ("lstm", "bilstm", "gru", "bigru"),
    "seq_length": (4, 16, 64),
    "batch_size": (1, 8, 24),
    "hidden_size": (16, 64, 192, 384),
}
STRATEGIES = ("unroll", "scan")
NAMES = [field.name for field in dataclasses.fields(Counts) if field.name != "loaded"]


def measure(rounds: int) -> list[dict[str, object]]:
    """Microseconds of every point of the grid in every form: the least of all runs."""
    rows = []
    for variant, steps, batch, hidden_size in itertools.product(*GRID.values()):
        size = (steps, batch, hidden_size, hidden_size)
        source = recurrent(VARIANTS[variant], size)
        feeds = feeds_of(VARIANTS[variant], size)
        contents = {strategy: lowered(source, strategy).SerializeToString() for strategy in STRATEGIES}
        times: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
        for _ in range(rounds):
            for strategy, content in contents.items():
                times[strategy] += latency(content, feeds, budget=0.03)
        for strategy, own in times.items():
            rows.append(
                {"variant": variant, "size": size, "strategy": strategy, "microseconds": 1e6 * min(own)}
            )
    return rows


def fit(matrix: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of least absolute relative errors, and those errors: a disturbed point must not count."""
    relative = matrix / seconds[:, None]
    weights = np.ones(len(seconds))
    for _ in range(30):
        solution, *_ = np.linalg.lstsq(relative * weights[:, None], weights, rcond=None)
        error = np.abs(relative @ solution - 1)
        weights = 1 / np.sqrt(np.maximum(error, 0.01))
    return solution, error


def counts_of(row: dict[str, object]) -> list[float]:
    """How much there is of what has a price, after 1 for the run itself."""
    model = ir.from_proto(recurrent(VARIANTS[row["variant"]], row["size"]))
    (located,) = find_recurrent(model)
    node = parse_recurrent(located, "ort")
    weights = Weights(private_weights([located.node], ()), ir.DataType.FLOAT)
    counts = []
    for name in NAMES:
        costs = dataclasses.asdict(Counts(**{name: 1.0}))
        emitting = dataclasses.replace(dialect(find_target("onnxruntime")), costs=costs)
        (candidate,) = candidates(node, weights, [row["strategy"]], 17, emitting, Wishes())
        counts.append(candidate.price or 0.0)
    return [1.0, *counts]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = measure(arguments.rounds)
    seconds = np.array([row["microseconds"] for row in rows])
    matrix = np.array([counts_of(row) for row in rows])
    solution, error = fit(matrix, seconds)
    table = {name: float(f"{number:.3g}") for name, number in zip(("run", *NAMES), solution, strict=True)}
    print(f"{table}  median error {np.median(error):.0%}, worst {error.max():.0%}")
    pairs = zip((matrix @ solution).reshape(-1, 2), seconds.reshape(-1, 2), strict=True)
    chosen = max(times[np.argmin(predicted)] / times.min() for predicted, times in pairs)
    print(f"the choice costs at most {chosen:.2f} times the better of the two")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "table": table}, indent=1))


if __name__ == "__main__":
    main()
