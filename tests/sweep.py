"""Lower random recurrent models by every strategy, judged by the oracle: the large run on demand.

python tests/sweep.py --count 20000 --seed 1 --processes 2 --record sweep.jsonl
python tests/sweep.py --record sweep.jsonl --table

A runtime may take its process down, which ends the run: `--trace --processes 1` then names the model.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Iterator

import numpy as np
from support import sweeping
from support.configs import random_config
from support.judge import STRATEGIES, judge


def judge_models(seed: int, numbers: range, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the outcome of each model, and its description."""
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        config = random_config(rng)
        strategy = str(rng.choice(STRATEGIES))
        semantics = str(rng.choice(["ort", "spec"]))
        factor = int(rng.choice([1, 1, 2, 3, 7]))
        label = f"{number}: {strategy} {semantics} {factor} {config}"
        if arguments.trace:
            print(label, file=sys.stderr, flush=True)
        try:
            outcome, details = judge(config, strategy, rng, semantics, factor)
        except Exception:
            outcome, details = "crash", traceback.format_exc(limit=-3)
        yield f"{strategy}: {outcome}", f"{label}\n{details}"


def main() -> int:
    parser = sweeping.parser(__doc__)
    parser.add_argument("--trace", action="store_true", help="name each config before it runs")
    return sweeping.main(judge_models, parser.parse_args(), ("right", "refused", *sweeping.WRONG))


if __name__ == "__main__":
    sys.exit(main())
