"""Measure the run time of lowered graphs, relative to the native kernel and to a hand-written Scan.

python benchmarks/runtime.py --json benchmarks/results/runtime.json
python benchmarks/runtime.py --variants lstm gru --sizes 50,1,64,64 --forms scan unroll scan:4

Prints the ratio of the tenth percentiles of the runs, and that of their medians in brackets.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from measuring import SIZES, VARIANTS, feeds_of, lowered, ratios, recurrent
from plain_scan import plain_scan

CLOCKS = {"cpu": time.thread_time, "wall": time.perf_counter}
FORMS = ("unroll", "scan", "scan:4", "loop")
BASELINE = "plain scan"


def measure(variant: str, size: tuple[int, ...], forms: list[str], rounds: int, clock: str) -> dict[str, Any]:
    """Return one row of the table."""
    source = recurrent(VARIANTS[variant], size)
    models = {form: lowered(source, form) for form in ["native", *forms]}
    models[BASELINE] = plain_scan(source)
    measured = ratios(models, feeds_of(VARIANTS[variant], size), rounds, CLOCKS[clock])
    return {"variant": variant, "size": list(size), **measured}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=["lstm", "bilstm", "gru_linear", "gru"]
    )
    parser.add_argument("--sizes", nargs="+", default=[",".join(map(str, size)) for size in SIZES])
    parser.add_argument("--forms", nargs="+", default=list(FORMS))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu", help="the thread's own time, or the wall's")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    heads = "".join(f"{form:>13}" for form in [*arguments.forms, BASELINE, "best", "best/plain"])
    print(f"{'':10} {'T,B,I,H':>16} {'native ms':>9}{heads}")
    for variant in arguments.variants:
        for text in arguments.sizes:
            size = tuple(int(number) for number in text.split(","))
            row = measure(variant, size, arguments.forms, arguments.rounds, arguments.clock)
            rows.append(row)
            pairs = [(row["ratios"][form], row["medians"][form]) for form in [*arguments.forms, BASELINE]]
            best = [min(row[kind][form] for form in arguments.forms) for kind in ("ratios", "medians")]
            pairs.append((best[0], best[1]))
            pairs.append((best[0] / row["ratios"][BASELINE], best[1] / row["medians"][BASELINE]))
            cells = "".join(f"{quiet:6.2f} ({median:4.2f})" for quiet, median in pairs)
            print(f"{variant:10} {text:>16} {row['native_ms']:9.3f}{cells}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
