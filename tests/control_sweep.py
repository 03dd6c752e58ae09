"""Set inputs, take branches and unroll control flow of random models, and check what is left.

python tests/control_sweep.py --count 5000 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import sys

import numpy as np
from support.control_judge import judge_control
from support.control_models import draw_model
from support.judge import all_nodes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    verdicts: collections.Counter[str] = collections.Counter()
    tried: collections.Counter[str] = collections.Counter()
    for number in range(arguments.first, arguments.first + arguments.count):
        rng = np.random.default_rng([arguments.seed, number])
        model = draw_model(rng)
        tried.update(node.op_type for node in all_nodes(model.proto))
        tried.update(f"models that {each} decides in" for each in model.used)
        try:
            verdict = judge_control(model, rng)
        except Exception as error:
            verdict = f"{type(error).__name__}: {error}"
        verdicts[verdict] += 1
        if verdict != "right":
            print(f"seed {arguments.seed}, model {number}: {verdict}", flush=True)
    kinds = ("If", "Loop", "Scan", "SequenceInsert", "LSTM", "GRU", "RNN")
    told = [name for name in tried if name in kinds or name.startswith("models")]
    print("tried: " + ", ".join(f"{tried[name]} {name}" for name in sorted(told)))
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()))
    return 0 if set(verdicts) == {"right"} else 1


if __name__ == "__main__":
    sys.exit(main())
