"""Lower random recurrent models by every strategy, judged by the oracle: the large run on demand.

python tests/sweep.py --count 20000 --seed 1 --processes 2 --record sweep.jsonl
python tests/sweep.py --record sweep.jsonl --table

Each model follows from the seed and its number alone. With a record, every finished piece is a line of it:
the same command resumes after an interruption, and leaves out the pieces that this commit has done.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import json
import multiprocessing
import pathlib
import subprocess
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from support.configs import random_config
from support.judge import STRATEGIES, judge

PIECE = 100
"""The models of a piece: what is lost if a run is interrupted."""
WRONG = ("wrong", "crash", "invalid")

Piece = dict[str, Any]


def run_piece(seed: int, numbers: range, trace: bool = False) -> Piece:
    """Return the outcomes of the models of these numbers, and a description of each failure."""
    outcomes: collections.Counter[str] = collections.Counter()
    failures = []
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        config = random_config(rng)
        strategy = str(rng.choice(STRATEGIES))
        semantics = str(rng.choice(["ort", "spec"]))
        factor = int(rng.choice([1, 1, 2, 3, 7]))
        label = f"{number}: {strategy} {semantics} {factor} {config}"
        if trace:
            print(label, file=sys.stderr, flush=True)
        try:
            outcome, details = judge(config, strategy, rng, semantics, factor)
        except Exception:
            outcome, details = "crash", traceback.format_exc(limit=-3)
        outcomes[f"{strategy}: {outcome}"] += 1
        if outcome in WRONG:
            failures.append(f"{outcome}: {label}\n{details}")
    return {
        "seed": seed,
        "first": numbers.start,
        "count": len(numbers),
        "outcomes": dict(outcomes),
        "failures": failures,
    }


def pieces_left(count: int, seed: int, done: Iterable[Piece]) -> list[range]:
    """Return the numbers of the models that no finished piece of this seed has, by piece."""
    covered = {
        number
        for piece in done
        if piece["seed"] == seed
        for number in range(piece["first"], piece["first"] + piece["count"])
    }
    pieces = (range(first, min(first + PIECE, count)) for first in range(0, count, PIECE))
    return [piece for piece in pieces if not covered.issuperset(piece)]


def read_record(record: pathlib.Path | None, commit: str | None = None) -> list[Piece]:
    """Return the pieces in a record, those of one commit if it is given; half a line at the end is none."""
    text = record.read_text("utf-8") if record is not None and record.exists() else ""
    pieces = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [piece for piece in pieces if commit in (None, piece["commit"])]


def write_record(record: pathlib.Path, piece: Piece) -> None:
    """Append a piece, after whole lines only."""
    with record.open("a+b") as file:
        file.seek(0)
        text = file.read()
        file.truncate(text.rfind(b"\n") + 1)
        file.write(json.dumps(piece).encode() + b"\n")


def totals(pieces: Iterable[Piece]) -> collections.Counter[str]:
    """Return how often each outcome occurred."""
    found: collections.Counter[str] = collections.Counter()
    for piece in pieces:
        found.update(piece["outcomes"])
    return found


def table(pieces: list[Piece]) -> str:
    """Return the page's tables: outcomes by commit, seed and strategy, and the reasons of refusals."""
    kinds = ("right", "refused", *WRONG)
    lines = [f"| commit | seed | strategy | models | {' | '.join(kinds)} |", "|---" * 9 + "|"]
    reasons: collections.Counter[str] = collections.Counter()
    for commit, seed in sorted({(piece["commit"], piece["seed"]) for piece in pieces}):
        of_run = totals(piece for piece in pieces if (piece["commit"], piece["seed"]) == (commit, seed))
        for strategy in STRATEGIES:
            found: collections.Counter[str] = collections.Counter()
            for outcome, count in of_run.items():
                name, verdict, *reason = outcome.split(": ", 3)
                if name == strategy:
                    found[verdict] += count
                    if reason:
                        reasons[reason[-1]] += count
            figures = " | ".join(f"{found[kind]:,}" for kind in kinds)
            lines.append(f"| {commit} | {seed} | {strategy} | {found.total():,} | {figures} |")
    lines += ["", "| refusals | reason |", "|---|---|"]
    lines += [f"| {count:,} | {reason} |" for reason, count in reasons.most_common()]
    return "\n".join(lines)


def _run(seed: int, pieces: list[range], processes: int, trace: bool) -> Iterator[Piece]:
    """Yield the pieces as they finish.

    A runtime may take its process down, which ends the run: `--trace --processes 1` then names the model.
    """
    work = functools.partial(run_piece, seed, trace=trace)
    if processes == 1:
        yield from map(work, pieces)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        try:
            for future in concurrent.futures.as_completed([pool.submit(work, piece) for piece in pieces]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _commit() -> str:
    here = pathlib.Path(__file__).parent
    command = ["git", "-C", str(here), "rev-parse", "--short=10", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--record", type=pathlib.Path, help="file of finished pieces, by which a run resumes")
    parser.add_argument("--commit", default=_commit(), help="what the record calls the code; default: HEAD")
    parser.add_argument("--table", action="store_true", help="print the record for docs/verification.md")
    parser.add_argument("--stop", type=int, default=10, help="failures after which to stop")
    parser.add_argument("--trace", action="store_true", help="name each config before it runs")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(read_record(arguments.record)))
        return 0
    done = [
        each for each in read_record(arguments.record, arguments.commit) if each["seed"] == arguments.seed
    ]
    left = pieces_left(arguments.count, arguments.seed, done)
    failures = [failure for piece in done for failure in piece["failures"]]
    for piece in _run(arguments.seed, left, arguments.processes, arguments.trace):
        done.append(piece | {"commit": arguments.commit})
        if arguments.record is not None:
            write_record(arguments.record, done[-1])
        for failure in piece["failures"]:
            print(failure, flush=True)
        failures += piece["failures"]
        if len(failures) >= arguments.stop:
            break
    for outcome, count in sorted(totals(done).items()):
        print(f"{count:7d}  {outcome}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
