"""Lower random recurrent models, lift them again, and count those that come back as the same node.

python tests/lift_sweep.py --count 5000 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import sys

import numpy as np
from support.judge import STRATEGIES
from support.lifting import judge_lift, random_liftable

WRONG = ("wrong", "invalid", "crash")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--strategy", choices=STRATEGIES)
    parser.add_argument("-v", "--verbose", action="store_true", help="name the models that stay, too")
    arguments = parser.parse_args()
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(arguments.first, arguments.first + arguments.count):
        rng = np.random.default_rng([arguments.seed, number])
        config = random_liftable(rng)
        strategy = arguments.strategy or str(rng.choice(STRATEGIES))
        outcome, details = judge_lift(config, strategy, rng)
        outcomes[f"{strategy}: {outcome}"] += 1
        if outcome in WRONG or (arguments.verbose and outcome.startswith("stays")):
            print(f"{outcome}: {number}: {strategy} {config}\n{details}", flush=True)
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:7d}  {outcome}")
    tried = sum(count for outcome, count in outcomes.items() if ": refused" not in outcome)
    back = sum(count for outcome, count in outcomes.items() if outcome.endswith(": back"))
    print(f"{back} of {tried} came back, {back / max(tried, 1):.1%}")
    return 1 if any(f": {kind}" in outcome for outcome in outcomes for kind in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
