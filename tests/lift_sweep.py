"""Lower random recurrent models, lift them again, and count those that come back as the same node.

python tests/lift_sweep.py --count 20000 --seed 1 --record lift.jsonl
python tests/lift_sweep.py --record lift.jsonl --table
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np
from support import sweeping
from support.judge import STRATEGIES
from support.lifting import judge_lift, random_liftable


def judge_models(seed: int, numbers: range, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the outcome of each model, and its description."""
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        config = random_liftable(rng)
        strategy = arguments.strategy or str(rng.choice(STRATEGIES))
        outcome, details = judge_lift(config, strategy, rng)
        if arguments.verbose and outcome.startswith("stays"):
            print(f"{outcome}: {number}: {strategy} {config}\n{details}", flush=True)
        yield f"{strategy}: {outcome}", f"{number}: {strategy} {config}\n{details}"


def main() -> int:
    parser = sweeping.parser(__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES)
    parser.add_argument("-v", "--verbose", action="store_true", help="name the models that stay, too")
    arguments = parser.parse_args()
    kinds = ("back", "stays", "refused", *sweeping.WRONG)
    return sweeping.main(judge_models, arguments, kinds, arguments.strategy or "")


if __name__ == "__main__":
    sys.exit(main())
