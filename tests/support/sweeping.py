"""Large runs of random models, in pieces: a record by which a run resumes, and the record's table.

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
from collections.abc import Callable, Iterable, Iterator
from typing import Any

WRONG = ("wrong", "crash", "invalid")

Piece = dict[str, Any]
Judge = Callable[[int, range, argparse.Namespace], Iterable[tuple[str, str]]]
"""Yields the outcome of each model of these numbers, such as ``scan: right`` or ``scan: refused: reason``,
and its description."""


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return the options of all sweeps."""
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--count", type=int, default=1000)
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--processes", type=int, default=1)
    found.add_argument("--piece", type=int, default=100, help="models: what is lost if a run is interrupted")
    found.add_argument("--record", type=pathlib.Path, help="file of finished pieces, by which a run resumes")
    found.add_argument("--commit", default=_commit(), help="what the record calls the code; default: HEAD")
    found.add_argument("--table", action="store_true", help="print the record for docs/verification.md")
    found.add_argument("--stop", type=int, default=10, help="failures after which to stop")
    return found


def main(judge: Judge, arguments: argparse.Namespace, kinds: tuple[str, ...], run: str = "") -> int:
    """Run the pieces that are left and print a count by outcome; or print the table.

    ``run`` tells apart runs of one seed in one record.
    """
    if arguments.table:
        print(table(read_record(arguments.record), kinds))
        return 0
    identity = {"commit": arguments.commit, "seed": arguments.seed, "run": run}
    done = [
        piece for piece in read_record(arguments.record) if {"run": "", **piece}.items() >= identity.items()
    ]
    failures = [failure for piece in done for failure in piece["failures"]]
    for piece in _run(judge, arguments, pieces_left(arguments.count, arguments.piece, done)):
        done.append(identity | piece)
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


def run_piece(judge: Judge, arguments: argparse.Namespace, numbers: range) -> Piece:
    """Return the outcomes of the models of these numbers, and a description of each failure."""
    outcomes: collections.Counter[str] = collections.Counter()
    failures = []
    for outcome, description in judge(arguments.seed, numbers, arguments):
        outcomes[outcome] += 1
        if outcome.split(": ")[1] in WRONG:
            failures.append(f"{outcome}: {description}")
    return {"first": numbers.start, "count": len(numbers), "outcomes": dict(outcomes), "failures": failures}


def pieces_left(count: int, size: int, done: Iterable[Piece]) -> list[range]:
    """Return the numbers of the models that no finished piece has, by piece."""
    covered = {number for piece in done for number in range(piece["first"], piece["first"] + piece["count"])}
    pieces = (range(first, min(first + size, count)) for first in range(0, count, size))
    return [piece for piece in pieces if not covered.issuperset(piece)]


def read_record(record: pathlib.Path | None) -> list[Piece]:
    """Return the pieces in a record; half a line at the end is none."""
    text = record.read_text("utf-8") if record is not None and record.exists() else ""
    return [{"run": ""} | json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


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


def table(pieces: list[Piece], kinds: tuple[str, ...]) -> str:
    """Return the page's tables: outcomes by commit, seed and kind of run, and the reasons."""
    lines = [f"| commit | seed | run | models | {' | '.join(kinds)} |", "|---" * (4 + len(kinds)) + "|"]
    reasons: collections.Counter[str] = collections.Counter()
    for commit, seed in sorted({(piece["commit"], piece["seed"]) for piece in pieces}):
        of_run = totals(piece for piece in pieces if (piece["commit"], piece["seed"]) == (commit, seed))
        counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for outcome, count in of_run.items():
            name, verdict, *reason = outcome.split(": ", 3)
            counts[name][verdict] += count
            if reason:
                reasons[reason[-1]] += count
        for name, found in sorted(counts.items()):
            figures = " | ".join(f"{found[kind]:,}" for kind in kinds)
            lines.append(f"| {commit} | {seed} | {name} | {found.total():,} | {figures} |")
    lines += ["", "| models | reason |", "|---|---|"]
    lines += [f"| {count:,} | {reason} |" for reason, count in reasons.most_common()]
    return "\n".join(lines)


def _run(judge: Judge, arguments: argparse.Namespace, pieces: list[range]) -> Iterator[Piece]:
    """Yield the pieces as they finish."""
    work = functools.partial(run_piece, judge, arguments)
    if arguments.processes == 1:
        yield from map(work, pieces)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(arguments.processes, context) as pool:
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
