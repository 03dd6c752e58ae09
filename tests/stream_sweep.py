"""Stream random stacks of layers: each must equal the whole sequence, or couple time steps and be refused.

Refusals are counted by reason. That one is needed is shown by the model itself: other frames at the end
change what it gives for frames before them, which no stream knows when it has to give them. A model that
gives the last step alone is asked for every step.

python tests/stream_sweep.py --count 2000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import re
import sys

from support.stream_layers import LOOKS_AHEAD
from support.stream_models import Stack, differences, looks_ahead, random_stack, with_every_step

import rnnlower

CHUNKS = (1, 2, 5, 10)


def outcome(stack: Stack, seed: int, chunk: int) -> tuple[str, str]:
    """Return ``right``, ``refused``, or what is wrong."""
    needs_other = not stack.fits(chunk)
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


def outcome_at_a_delay(stack: Stack, seed: int, chunk: int) -> tuple[str, str]:
    """Return the same where convolutions may look ahead: what is not refused must be right."""
    if not stack.couples or not stack.fits(chunk) or not LOOKS_AHEAD.issuperset(stack.couples):
        return "not at a delay", ""
    try:
        streamed = rnnlower.stream(stack.model, chunk=chunk, allow_delay=True)
    except rnnlower.RnnLowerError as error:
        return "refused at a delay", str(error)
    problems = differences(stack, streamed, seed)
    words = f"{stack.layers}: {problems}"
    return ("WRONG AT A DELAY", words) if problems else ("right at a delay", "")


def need(stack: Stack, seed: int, chunk: int) -> str:
    """Return the reason why a stack must be refused, or ``NOT SHOWN``."""
    if not stack.fits(chunk):
        return "the chunk does not fit the stride, or a reflected start"
    last = ", of the steps whose last one it gives" if stack.gives_last else ""
    every = with_every_step(stack)
    if looks_ahead(every, seed):
        return f"shown: an earlier frame depends on later ones{last}"
    if outcome_at_a_delay(every, seed, chunk)[0] == "right at a delay":
        return "looks ahead in the chunk, where a state cannot begin: right at a delay" + last
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
        stack = random_stack(seed)
        for chunk in CHUNKS:
            for kind, words in (outcome(stack, seed, chunk), outcome_at_a_delay(stack, seed, chunk)):
                counts[kind] += 1
                if kind.startswith("refused"):
                    reasons[_reason(words)] += 1
                why = need(stack, seed, chunk) if kind == "refused" else ""
                if why:
                    needs[why] += 1
                if kind.isupper() or why.isupper():
                    print(f"seed {seed}, chunk {chunk}: {kind}: {words}", flush=True)
    for counter in (counts, needs, reasons):
        print("\n".join(f"{count:6d}  {text}" for text, count in counter.most_common()), end="\n\n")
    return int(any(text.isupper() for text in (*counts, *needs)))


if __name__ == "__main__":
    sys.exit(main())
