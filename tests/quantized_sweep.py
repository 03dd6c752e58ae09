"""Lower random DynamicQuantizeLSTM nodes, exactly and dequantized, judged by onnxruntime and the oracle.

python tests/quantized_sweep.py --count 2000 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys

import numpy as np
from support.judge import STRATEGIES
from support.quantized_models import draw, lowered_quantized, run_single
from support.quantized_oracle import dequantized, exact

CLOSE = 5e-6
"""Relative to the largest value; exact results that differ by more were rounded to another step of 8 bits."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    outcomes: collections.Counter[str] = collections.Counter()
    worst = 0.0
    strategies = itertools.cycle(STRATEGIES)
    for _, strategy in zip(range(arguments.count), strategies, strict=False):
        config = draw(rng)
        kernel = run_single(config.build(), config.feeds())
        found = run_single(lowered_quantized(config, strategy, dequantize=False), config.feeds())
        bits = all(np.array_equal(found[name], kernel[name]) for name in kernel)
        error = difference(found, kernel)
        verdict = "the same bits" if bits else "close" if error <= CLOSE else "another rounding"
        outcomes[f"exact, {strategy}: {verdict}"] += 1
        oracle = exact(config.all_attributes, config.values(), config.outputs)
        judged = "close" if difference(found, oracle) <= CLOSE else "another rounding"
        outcomes[f"exact, oracle: {judged}"] += 1
        floats = run_single(lowered_quantized(config, strategy, dequantize=True), config.feeds())
        right = difference(floats, dequantized(config.all_attributes, config.values())) <= 10 * CLOSE
        outcomes[f"dequantized, {strategy}: {'right' if right else 'WRONG'}"] += 1
        if verdict == "another rounding" or not right:
            worst = max(worst, error)
            print(f"{verdict}, dequantized {right}: {error:.3g} {strategy} {config}", flush=True)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:7d}  {outcome}")
    print(f"largest difference of another rounding: {worst:.3g}")
    return int(any("WRONG" in outcome for outcome in outcomes))


def difference(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Return the largest error, relative to the largest value where that is above 1."""
    return max(
        float(np.abs(found[name] - expected[name]).max() / max(1, np.abs(expected[name]).max()))
        for name in found
    )


if __name__ == "__main__":
    sys.exit(main())
