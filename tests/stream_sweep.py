"""Random stacks of layers, streamed: each equals the whole sequence, or couples time steps and is refused.

python tests/stream_sweep.py --count 2000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import sys

from support.stream_models import LOOKS_AHEAD, differences, random_stack

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


def outcome_at_a_delay(seed: int, chunk: int) -> tuple[str, str]:
    """The same where convolutions may look ahead: what is not refused must be right."""
    stack = random_stack(seed)
    if not stack.couples or chunk % stack.stride or not LOOKS_AHEAD.issuperset(stack.couples):
        return "not at a delay", ""
    try:
        streamed = rnnlower.stream(stack.model, chunk=chunk, allow_delay=True)
    except rnnlower.RnnLowerError as error:
        return "refused at a delay", str(error)
    problems = differences(stack, streamed, seed)
    words = f"{stack.layers}: {problems}"
    return ("WRONG AT A DELAY", words) if problems else ("right at a delay", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        for chunk in CHUNKS:
            for kind, words in (outcome(seed, chunk), outcome_at_a_delay(seed, chunk)):
                counts[kind] += 1
                if kind.isupper():
                    print(f"seed {seed}, chunk {chunk}: {kind}: {words}")
    print(dict(counts))
    return int(any(kind.isupper() for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
