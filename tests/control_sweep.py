"""Sets inputs, takes branches and unrolls control flow of random models: what is left, and is it right?

python tests/control_sweep.py --count 5000 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import sys

import numpy as np
from support.control_judge import judge_control
from support.control_models import draw_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    verdicts: collections.Counter[str] = collections.Counter()
    for number in range(arguments.count):
        rng = np.random.default_rng([arguments.seed, number])
        verdict = judge_control(draw_model(rng), rng)
        verdicts[verdict] += 1
        if verdict != "right":
            print(f"seed {arguments.seed}, model {number}: {verdict}")
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    return 0 if set(verdicts) == {"right"} else 1


if __name__ == "__main__":
    sys.exit(main())
