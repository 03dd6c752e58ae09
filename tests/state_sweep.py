"""Lower random LinearAttention and CausalConvWithState nodes in every way, judged by the oracle.

python tests/state_sweep.py --count 1000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "passes"))

from test_pass_lower_state_operators import WAYS, check_way


def main() -> None:
    """Check the nodes; exit code 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    wrong = 0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        way = WAYS[seed % len(WAYS)]
        try:
            check_way(seed, way)
        except Exception as error:
            wrong += 1
            print(f"seed {seed}, {way}: {type(error).__name__}: {error}")
    print(f"{arguments.count} nodes, {wrong} wrong")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
