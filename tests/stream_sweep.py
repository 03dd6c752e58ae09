"""Random stacks of layers, streamed: each equals the whole sequence, or couples time steps and is refused.

python tests/stream_sweep.py --count 2000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import sys

from support.stream_models import differences, random_stack

import rnnlower

CHUNKS = (1, 2, 5)


def outcome(seed: int, chunk: int) -> tuple[str, str]:
    """``right``, ``refused``, or what is wrong."""
    stack = random_stack(seed)
    needs_other = chunk % stack.stride != 0
    try:
        streamed = rnnlower.stream(stack.model, chunk=chunk)
    except rnnlower.RnnLowerError as error:
        if stack.couples or needs_other:
            return "refused", str(error)
        return "REFUSED WITHOUT NEED", f"{stack.layers}: {error}"
    if stack.couples or needs_other:
        return "NOT REFUSED", f"{stack.layers}: {stack.couples}"
    problems = differences(stack, streamed, seed)
    return ("WRONG", f"{stack.layers}: {problems}") if problems else ("right", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        for chunk in CHUNKS:
            kind, words = outcome(seed, chunk)
            counts[kind] += 1
            if kind.isupper():
                print(f"seed {seed}, chunk {chunk}: {kind}: {words}")
    print(dict(counts))
    return int(any(kind.isupper() for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
