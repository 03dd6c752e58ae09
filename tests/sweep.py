"""Lower random recurrent models by every strategy, judged by the oracle: the large run on demand.

python tests/sweep.py --count 20000 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import sys
import traceback

import numpy as np
from support.configs import random_config
from support.judge import STRATEGIES, judge


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", type=int, default=10, help="failures after which to stop")
    parser.add_argument("--trace", action="store_true", help="name each config before it runs")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    outcomes: collections.Counter[str] = collections.Counter()
    failures = 0
    for _ in range(arguments.count):
        config = random_config(rng)
        if arguments.trace:
            print(config, file=sys.stderr, flush=True)
        strategy = str(rng.choice(STRATEGIES))
        semantics = str(rng.choice(["ort", "spec"]))
        factor = int(rng.choice([1, 1, 2, 3, 7]))
        try:
            outcome, details = judge(config, strategy, rng, semantics, factor)
        except Exception:
            outcome, details = "crash", traceback.format_exc(limit=-3)
        outcomes[outcome] += 1
        if outcome in ("wrong", "crash", "invalid"):
            failures += 1
            print(f"{outcome}: {strategy} {semantics} {factor} {config}\n{details}", flush=True)
            if failures >= arguments.stop:
                break
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:7d}  {outcome}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
