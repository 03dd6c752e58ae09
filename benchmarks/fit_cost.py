"""Fits the cost model of `rnnlower/lowering/cost.py`: measures a grid of sizes, prints the coefficients.

python benchmarks/fit_cost.py --json fit_cost.json
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from measuring import VARIANTS, feeds_of, latency, lowered, recurrent

from rnnlower.lowering.cost import NodeFacts, features

GRID = {
    "variant": ("lstm", "bilstm", "gru", "bigru"),
    "seq_length": (4, 16, 64),
    "batch_size": (1, 8, 24),
    "hidden_size": (16, 64, 192, 384),
}
STRATEGIES = ("unroll", "scan")


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


def facts_of(row: dict[str, object]) -> NodeFacts:
    steps, batch, _, hidden_size = row["size"]
    variant = VARIANTS[row["variant"]]
    directions = 2 if variant.attributes.get("direction") == "bidirectional" else 1
    linear = bool(variant.attributes.get("linear_before_reset"))
    return NodeFacts(variant.op_type, hidden_size, steps, batch, directions, linear)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = measure(arguments.rounds)
    table = {}
    for strategy in STRATEGIES:
        own = [row for row in rows if row["strategy"] == strategy]
        seconds = np.array([row["microseconds"] for row in own])
        matrix = np.array([features(facts_of(row), strategy) for row in own])
        solution, error = fit(matrix, seconds)
        table[strategy] = [float(f"{number:.3g}") for number in solution]
        print(f"{strategy}: {table[strategy]}  median error {np.median(error):.0%}, worst {error.max():.0%}")
    pairs = zip(rows[::2], rows[1::2], strict=True)
    chosen = 0.0
    for unrolled, scanned in pairs:
        predicted = [
            float(np.dot(features(facts_of(row), str(row["strategy"])), table[str(row["strategy"])]))
            for row in (unrolled, scanned)
        ]
        times = [float(row["microseconds"]) for row in (unrolled, scanned)]
        chosen = max(chosen, times[int(np.argmin(predicted))] / min(times))
    print(f"the choice costs at most {chosen:.2f} times the better of the two")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "table": table}, indent=1))


if __name__ == "__main__":
    main()
