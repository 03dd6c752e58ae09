"""Stream random stacks of layers: each must equal the whole sequence, or couple time steps and be refused.

Refusals are counted by reason. That one is needed is shown by the model itself: other frames at the end
change what it gives for frames before them, which no stream knows when it has to give them.

python tests/stream_sweep.py --count 2000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import re
import sys

from support.stream_models import LOOKS_AHEAD, differences, looks_ahead, random_stack

import rnnlower

CHUNKS = (1, 2, 5)


def outcome(seed: int, chunk: int) -> tuple[str, str]:
    """Return ``right``, ``refused``, or what is wrong."""
    stack = random_stack(seed)
    needs_other = chunk % stack.stride != 0
    try:
        streamed = rnnlower.stream(stack.model, chunk=chunk)
    except rnnlower.RnnLowerError as error:
        if stack.couples or needs_other:
            return "refused", str(error)
        return "REFUSED WITHOUT NEED", f"{stack.layers}: {error}"
    if needs_other or not LOOKS_AHEAD.issuperset(stack.couples):
        return "NOT REFUSED", f"{stack.layers}: {stack.couples}"
    # A stride behind a look ahead may need no more frames than the chunk has.
    problems = differences(stack, streamed, seed)
    return ("WRONG", f"{stack.layers}: {problems}") if problems else ("right", "")


def outcome_at_a_delay(seed: int, chunk: int) -> tuple[str, str]:
    """Return the same where convolutions may look ahead: what is not refused must be right."""
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


def need(seed: int, chunk: int) -> str:
    """Return the reason why a stack must be refused, or ``NOT SHOWN``."""
    stack = random_stack(seed)
    if chunk % stack.stride:
        return "the chunk is no multiple of the stride"
    if stack.layers[-1] == "last step":
        return f"gives the last step alone, behind {', '.join(stack.couples)}"
    if looks_ahead(stack, seed):
        return "shown: an earlier frame depends on later ones"
    if outcome_at_a_delay(seed, chunk)[0] == "right at a delay":
        return "looks ahead in the chunk, where a state cannot begin: right at a delay"
    return "NOT SHOWN"


def _reason(words: str) -> str:
    """The reason in a refusal, without names and numbers."""
    return re.sub(r"\d+", "N", re.sub(r"'[^']*'", "NAME", words))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    needs: collections.Counter[str] = collections.Counter()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        for chunk in CHUNKS:
            for kind, words in (outcome(seed, chunk), outcome_at_a_delay(seed, chunk)):
                counts[kind] += 1
                if kind.startswith("refused"):
                    reasons[_reason(words)] += 1
                if kind == "refused":
                    needs[need(seed, chunk)] += 1
                if kind.isupper() or (kind == "refused" and need(seed, chunk).isupper()):
                    print(f"seed {seed}, chunk {chunk}: {kind}: {words}", flush=True)
    for counter in (counts, needs, reasons):
        print("\n".join(f"{count:6d}  {text}" for text, count in counter.most_common()), end="\n\n")
    return int(any(text.isupper() for text in (*counts, *needs)))


if __name__ == "__main__":
    sys.exit(main())
